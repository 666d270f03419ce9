package cli

import (
	"errors"
	"flag"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cli/kube"
	"fairlead.dev/fairlead/internal/cli/ui"
	"fairlead.dev/fairlead/test/browser"
	"fairlead.dev/fairlead/test/clitest"
)

// pictures is a folder for screenshots of the page, to look at.
var pictures = flag.String("pictures", "", "write screenshots of fairlead ui into this folder")

const live = `document.getElementById("connection").className === "live"`

// serve serves the page of a stream until the test ends.
func serve(t *testing.T, s *ui.Stream) string {
	t.Helper()
	server := httptest.NewServer(ui.Handler(s, ui.Info{Server: "https://192.168.77.1:6443", Version: "v0.3.1"}))
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections)
	return server.URL
}

// openPage opens the page and waits until it has drawn all.
func openPage(t *testing.T, b *browser.Browser, url string, width, height int) {
	t.Helper()
	b.Open(url, width, height)
	b.Await(live)
	settle(b)
}

// settle waits for two frames: the page draws at most once in each.
func settle(b *browser.Browser) {
	browser.Eval[bool](b, `new Promise((d) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(() => d(true)))))`)
}

func picture(t *testing.T, b *browser.Browser, name string) {
	t.Helper()
	settle(b)
	png := b.Screenshot()
	if *pictures == "" {
		return
	}
	if err := os.WriteFile(filepath.Join(*pictures, name+".png"), png, 0o600); err != nil {
		t.Fatal(err)
	}
}

// wider is a script that returns the elements that are wider than the window or the panel.
const wider = `[document.documentElement, ...document.querySelectorAll("section, article, #story")]
	.filter((e) => e.scrollWidth > e.clientWidth + 1).map((e) => e.id || e.textContent.slice(0, 40)).join(", ")`

// TestPictures draws the page as people see it.
func TestPictures(t *testing.T) {
	b := browser.New(t)
	for _, tt := range []struct {
		name          string
		nodes, pods   int
		width, height int
		dark          bool
		search        string
		keys          []string
		await         string
		refused       bool
	}{
		{name: "light", nodes: 3, pods: 120, width: 1400, height: 900},
		{name: "dark", nodes: 3, pods: 120, width: 1400, height: 900, dark: true},
		{name: "narrow", nodes: 3, pods: 120, width: 420, height: 900},
		{name: "keys", nodes: 3, pods: 120, width: 1400, height: 900, keys: []string{"Tab", "Tab", "ArrowRight", "ArrowRight", "ArrowDown"}},
		{name: "search", nodes: 3, pods: 120, width: 1400, height: 900, search: "cart", await: `!document.getElementById("found").hidden`},
		{name: "story", nodes: 3, pods: 120, width: 1400, height: 900, search: "transcoder-19", keys: []string{"Enter"}, await: `document.querySelector("#story .verdict")`},
		{name: "story-dark", nodes: 3, pods: 120, width: 1400, height: 900, dark: true, search: "ledger-72", keys: []string{"Enter"}, await: `document.querySelector("#story .verdict")`},
		{name: "story-narrow", nodes: 3, pods: 120, width: 420, height: 900, search: "cart-0", keys: []string{"Enter"}, await: `document.querySelector("#story .verdict")`},
		{name: "refused", nodes: 3, pods: 120, width: 1400, height: 900, refused: true},
		{name: "crowd", nodes: 40, pods: 5000, width: 1400, height: 900},
		{name: "crowd-dark", nodes: 40, pods: 5000, width: 1400, height: 900, dark: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b.Dark(tt.dark)
			s := newCrowd(time.Now(), tt.nodes, tt.pods).stream()
			if tt.refused {
				for _, r := range []kube.Resource{kube.NodeNetworks, kube.IPBlocks, kube.ControllerEvents, kube.NodeEvents} {
					s.Refused(r, fmt.Errorf("%w: cannot list resource %s", kube.ErrForbidden, r))
				}
			}
			openPage(t, b, serve(t, s), tt.width, tt.height)
			if tt.search != "" {
				b.Press("/")
				b.Type(tt.search)
			}
			for _, key := range tt.keys {
				b.Press(key)
			}
			if tt.await != "" {
				b.Await(tt.await)
			}
			browser.Eval[bool](b, `Promise.all(document.getAnimations().map((a) => a.finished)).then(() => true)`)
			picture(t, b, tt.name)
			if got := browser.Eval[string](b, wider); got != "" {
				t.Errorf("wider than the window or their panel: %s", got)
			}
		})
	}
}

// focused returns the label of the focused element of the page.
func focused(b *browser.Browser) string {
	return browser.Eval[string](b, `document.activeElement.getAttribute("aria-label") ?? document.activeElement.id`)
}

// TestKeyboard walks through the page without a pointer.
func TestKeyboard(t *testing.T) {
	b := browser.New(t)
	openPage(t, b, serve(t, newCrowd(time.Now(), 3, 120).stream()), 1400, 900)
	heard := func(step, want string) {
		t.Helper()
		if got := browser.Eval[string](b, `document.getElementById("voice").textContent`); !strings.HasPrefix(got, want) {
			t.Errorf("%s: the page speaks %q, want %q", step, got, want)
		}
	}
	at := func(step, want string) {
		t.Helper()
		if got := focused(b); !strings.HasPrefix(got, want) {
			t.Errorf("%s: the focus is on %q, want %q", step, got, want)
		}
	}
	b.Press("Tab")
	at("first Tab", "Find a pod")
	b.Press("Tab")
	at("second Tab", "node-1: 40 pods")
	heard("second Tab", "media/transcoder-9 · plugged\n10.244.0.3")
	b.Press("ArrowRight")
	heard("right", "media/transcoder-24 · plugged")
	b.Press("End")
	b.Press("ArrowRight")
	at("right at the end", "node-2: 40 pods")
	b.Press("ArrowUp")
	at("up at the top", "node-1: 40 pods")
	b.Press("Enter")
	b.Await(`document.querySelector("#story .verdict")`)
	at("Enter", "story")
	b.Press("Escape")
	at("Escape", "node-1: 40 pods")
	b.Press("/")
	b.Type("ledger-72")
	b.Await(`!document.getElementById("found").hidden`)
	heard("search", "1 found")
	b.Press("Enter")
	b.Await(`document.querySelector("#story .verdict")?.textContent.startsWith("Waits for the controller to find it a network")`)
	b.Press("Escape")
	at("Escape from the search", "Find a pod")
	b.Press("Escape")
	if got := browser.Eval[string](b, `document.getElementById("search").value`); got != "" {
		t.Errorf("the search has %q after Escape", got)
	}
	if len(b.Errors) > 0 {
		t.Errorf("errors of the page: %q", b.Errors)
	}
}

// TestPageFollows changes the cluster under an open page.
func TestPageFollows(t *testing.T) {
	b := browser.New(t)
	c := newCrowd(time.Now(), 3, 120)
	s := c.stream()
	openPage(t, b, serve(t, s), 1400, 900)
	legend := func(state string) string {
		return `[...document.querySelectorAll("#states li")].find((e) => e.textContent.startsWith("` + state + `")).lastChild.textContent`
	}
	if got := browser.Eval[string](b, legend("plugged")+" + "+legend("waiting")); got != "1056" {
		t.Errorf("105 pods are plugged and 6 wait, the page has %q", got)
	}
	b.Press("/")
	b.Type("cart-0 10.244.0.0")
	b.Press("Enter")
	b.Await(`document.querySelector("#story .verdict.done")`)
	record := c.all[kube.PodAttachments][0].DeepCopyObject().(*v1alpha1.PodAttachment)
	record.Status = v1alpha1.PodAttachmentStatus{}
	s.Put(kube.PodAttachments, record)
	b.Await(legend("plugged") + ` === "104"`)
	b.Await(`document.querySelector("#story .verdict.waits")`)
	s.Remove(kube.Pods, c.all[kube.Pods][0])
	s.Remove(kube.PodAttachments, record)
	b.Await(`document.getElementById("nodes-title").textContent === "3 nodes, 119 pods"`)
	b.Await(`document.getElementById("story").textContent.includes("The pod is gone")`)
	s.Refused(kube.Pods, fmt.Errorf("%w: pods is forbidden", kube.ErrForbidden))
	s.Refused(kube.IPBlocks, fmt.Errorf("%w: ipblocks is forbidden", kube.ErrForbidden))
	s.Refused(kube.PortPools, fmt.Errorf("%w: no matches", kube.ErrMissing))
	b.Await(`document.querySelector("#nodes .note")?.textContent === "Not permitted: you may not list pods."`)
	b.Await(`document.querySelector("#pools .note")?.textContent === "Not permitted: you may not list ipblocks.fairlead.dev."`)
	b.Await(`document.getElementById("portpools").hidden`)
	b.Await(`[...document.querySelectorAll("#pools .cells")].every((e) => e.hidden)`)
	s.Remove(kube.NodeNetworks, c.all[kube.NodeNetworks][0])
	b.Await(`document.querySelector(".card.bad .problem").textContent === "Fairlead does not serve this node any more"`)
	s.Refused(kube.NodeNetworks, fmt.Errorf("%w: nodenetworks is forbidden", kube.ErrForbidden))
	b.Await(`document.querySelectorAll(".card.unknown").length === 3 && !document.querySelector(".card.bad")`)
	// The browser logs that the pod that is gone has no story.
	if slices.ContainsFunc(b.Errors, func(e string) bool { return !strings.Contains(e, "404") }) {
		t.Errorf("errors of the page: %q", b.Errors)
	}
}

// TestPageFunctions calls functions of the page's scripts.
func TestPageFunctions(t *testing.T) {
	b := browser.New(t)
	openPage(t, b, serve(t, newCrowd(time.Now(), 1, 1).stream()), 1400, 900)
	for _, tt := range []struct{ file, call, want string }{
		{"dom", `count(0)`, "0"},
		{"dom", `count(16384)`, "16,384"},
		{"dom", `count(9223372036854775807)`, "9.2 × 10¹⁸"},
		{"dom", `span(0) + span(99) + span(100) + span(6000) + span(172800)`, "0 s99 s2 min2 h2 d"},
		{"dom", `clock("no time")`, ""},
		{"paint", `nth("10.244.255.192/26", 63)`, "10.244.255.255"},
		{"paint", `nth("10.244.0.0/26", 0)`, "10.244.0.0"},
		{"paint", `nth("fd00::/122", 0)`, "fd00::"},
		{"paint", `nth("fd00::/122", 63)`, "fd00::3f"},
		{"paint", `nth("::/122", 1)`, "::1"},
		{"paint", `nth("fd00:10:244:0:e29:457:c197:1d80/122", 63)`, "fd00:10:244:0:e29:457:c197:1dbf"},
		{"paint", `nth("1:2:3:4:5:6::/122", 5)`, "1:2:3:4:5:6:0:5"},
		{"paint", `nth("1:2:3:4:5::/122", 5)`, "1:2:3:4:5::5"},
	} {
		if got := browser.Eval[string](b, `import("/`+tt.file+`.js").then(({ count, span, clock, nth }) => `+tt.call+`)`); got != tt.want {
			t.Errorf("%s is %q, want %q", tt.call, got, tt.want)
		}
	}
}

// TestHugePoolInThePage draws a pool with more addresses than a browser counts exactly.
func TestHugePoolInThePage(t *testing.T) {
	b := browser.New(t)
	c := newCrowd(time.Now(), 3, 120)
	pool := clitest.PoolOf("huge", clitest.PerNode, clitest.Ranges("10.244.0.0/18", "fd00:10:244::/64"))
	c.add(kube.IPPools, &pool)
	openPage(t, b, serve(t, c.stream()), 1400, 900)
	const number = `[...document.querySelectorAll(".pool")].find((e) => e.querySelector(".name").textContent === "huge").querySelector(".number").textContent`
	if got, want := browser.Eval[string](b, number), "129 of 9.2 × 10¹⁸ used"; got != want {
		t.Errorf("the page shows %q, want %q", got, want)
	}
}

// TestPageReconnects cuts the connection, and changes the cluster meanwhile.
func TestPageReconnects(t *testing.T) {
	b := browser.New(t)
	c := newCrowd(time.Now(), 3, 120)
	s := c.stream()
	server := httptest.NewServer(ui.Handler(s, ui.Info{}))
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections)
	openPage(t, b, server.URL, 1400, 900)
	server.CloseClientConnections()
	b.Await(`document.getElementById("connection").className === "lost"`)
	s.Remove(kube.Pods, c.all[kube.Pods][0])
	s.Remove(kube.PodAttachments, c.all[kube.PodAttachments][0])
	if got := browser.Eval[string](b, `document.getElementById("nodes-title").textContent`); got != "3 nodes, 120 pods" {
		t.Errorf("without a connection the page shows %q", got)
	}
	b.Await(live)
	b.Await(`document.getElementById("nodes-title").textContent === "3 nodes, 119 pods"`)
}

// TestHostileText puts HTML, scripts and controls into every text that tenants write.
func TestHostileText(t *testing.T) {
	const evil = `<img src=x onerror="window.hit=1"><script>window.hit=1</script>"'&\u202e\u0000` + "\n\nevent: rows\ndata: []\n\n"
	b := browser.New(t)
	c := newCrowd(time.Now(), 3, 120)
	p := c.podAt(1000, 0)
	// The API server refuses most of these names, which the page does not rely on.
	p.Name, p.Spec.NodeName = evil, evil
	record := clitest.RecordOf(*p, "10.244.0.63/32")
	record.Spec.Interfaces[0].Network = evil
	clitest.SetReady(metav1.ConditionFalse, evil, evil)(&record)
	node := clitest.NodeOf(evil, clitest.NotRouted)
	node.Status.Conditions[0].Reason, node.Status.Conditions[0].Message = evil, evil
	pool := clitest.PoolOf(evil)
	pool.Status.Conditions[0].Status, pool.Status.Conditions[0].Message, pool.Status.Conditions[0].Reason = metav1.ConditionFalse, evil, evil
	ports := &v1alpha1.PortPool{ObjectMeta: metav1.ObjectMeta{Name: evil}, Spec: v1alpha1.PortPoolSpec{Node: evil, Network: evil}}
	c.network(evil, evil, `{"type":"`+strings.ReplaceAll(strings.ReplaceAll(evil, "\n", ""), `"`, "'")+`","cniVersion":`)
	c.add(kube.Pods, p)
	c.add(kube.PodAttachments, &record)
	c.add(kube.NodeNetworks, &node)
	c.add(kube.IPPools, &pool)
	c.add(kube.PortPools, ports)
	c.event(p, "node", evil, evil, 0)
	s := c.stream()
	s.Refused(kube.IPReservations, errors.New(evil))
	openPage(t, b, serve(t, s), 1400, 900)
	b.Press("/")
	b.Type("img")
	b.Await(`!document.getElementById("found").hidden`)
	b.Press("Enter")
	b.Await(`document.querySelector("#story .verdict")`)
	picture(t, b, "hostile")
	for _, panel := range []string{"nodes", "pools", "portpools", "networks", "events", "story"} {
		if !browser.Eval[bool](b, `document.getElementById("`+panel+`").textContent.includes("<img src=x onerror")`) {
			t.Errorf("panel %s does not show the text", panel)
		}
	}
	if got := browser.Eval[string](b, `String(window.hit) + document.querySelectorAll("main img, #story img, #found img, body script").length`); got != "undefined0" {
		t.Errorf("the text became elements or was executed: %s", got)
	}
	if len(b.Errors) > 0 {
		t.Errorf("errors of the page: %q", b.Errors)
	}
}

// longest is the processor time of a task at which people notice a stutter.
const longest = 50 * time.Millisecond

// TestSmooth measures the page with 5,000 pods and 50 changes in each second.
func TestSmooth(t *testing.T) {
	b := browser.New(t)
	c := newCrowd(time.Now(), 40, 5000)
	s := c.stream()
	openPage(t, b, serve(t, s), 1400, 900)
	records := c.all[kube.PodAttachments]
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	tasks := b.Tasks(func() {
		for i := range 250 {
			<-tick.C
			record := records[i*37%len(records)].DeepCopyObject().(*v1alpha1.PodAttachment)
			if i%2 == 0 {
				record.Status = v1alpha1.PodAttachmentStatus{}
			} else {
				record.DeletionTimestamp = new(metav1.Now())
			}
			s.Put(kube.PodAttachments, record)
		}
		settle(b)
	})
	if len(tasks) < 100 {
		t.Fatalf("%d tasks were measured, which cannot be all", len(tasks))
	}
	slices.Sort(tasks)
	t.Logf("%d tasks, the longest %v", len(tasks), tasks[max(0, len(tasks)-5):])
	if worst := tasks[len(tasks)-1]; worst > longest {
		t.Errorf("a task took %v of the processor, the page stutters above %v", worst, longest)
	}
}
