package controller

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/test/cluster"
)

// moment is the time just before or just after a write of the controller. A controller that
// is killed before the write has not changed anything; after the write, the reply is lost.
type moment struct {
	method, resource, subresource string
	// block is the CIDR of an IPBlock; empty for other resources.
	block string
	after bool
}

func (m moment) String() string {
	side := "before"
	if m.after {
		side = "after"
	}
	text := strings.TrimSuffix(fmt.Sprintf("%s %s %s/%s", side, m.method, m.resource, m.subresource), "/")
	return strings.TrimSpace(text + " " + m.block)
}

// killer is a proxy between a controller and the API server. It gives the controller the
// rights that an installation gives it, and kills the controller at chosen moments.
type killer struct {
	*httptest.Server
	proxy *httputil.ReverseProxy

	mu     sync.Mutex
	victim *program
	due    func(moment) bool // reports whether to kill the victim now
	listed <-chan struct{}   // lists of PodAttachments wait until it is closed; nil if they do not wait
}

func newKiller(t *testing.T, c *cluster.Cluster) *killer {
	t.Helper()
	target, err := url.Parse(c.REST.Host)
	if err != nil {
		t.Fatal(err)
	}
	account, err := clientcmd.BuildConfigFromFlags("", c.Account(cluster.ControllerAccount, ""))
	if err != nil {
		t.Fatal(err)
	}
	transport, err := rest.TransportFor(account)
	if err != nil {
		t.Fatal(err)
	}
	k := &killer{proxy: &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     transport,
		FlushInterval: -1,
		// If the connection of one side breaks, break the other, too.
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
		ErrorLog:     log.New(io.Discard, "", 0),
	}}
	k.Server = httptest.NewServer(k)
	t.Cleanup(k.CloseClientConnections)
	t.Cleanup(k.Close)
	return k
}

// aim makes the killer kill the victim whenever due returns true. due is called once for each
// moment, never concurrently.
func (k *killer) aim(victim *program, due func(moment) bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.victim, k.due = victim, due
}

// arm makes the killer kill the victim once, when the moment comes. It returns a channel that
// is closed at that time.
func (k *killer) arm(at moment, victim *program) <-chan struct{} {
	fired, done := make(chan struct{}), false
	k.aim(victim, func(m moment) bool {
		if done || m != at {
			return false
		}
		done = true
		close(fired)
		return true
	})
	return fired
}

// shoot kills the victim if due returns true for the moment, and reports whether it did.
func (k *killer) shoot(m moment) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.due == nil || !k.due(m) {
		return false
	}
	k.victim.kill()
	return true
}

func (k *killer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		k.hold(r)
		k.proxy.ServeHTTP(w, r)
		return
	}
	m, err := momentOf(r)
	if err != nil {
		return // the victim has ended
	}
	if k.shoot(m) {
		return
	}
	done := httptest.NewRecorder()
	k.proxy.ServeHTTP(done, r)
	if m.after = true; k.shoot(m) {
		return
	}
	maps.Copy(w.Header(), done.Header())
	w.WriteHeader(done.Code)
	_, _ = w.Write(done.Body.Bytes())
}

// holdLists delays every list of PodAttachments until the channel is closed, also a list that
// is the beginning of a watch.
func (k *killer) holdLists(until <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.listed = until
}

func (k *killer) hold(r *http.Request) {
	k.mu.Lock()
	listed := k.listed
	k.mu.Unlock()
	lists := !r.URL.Query().Has("watch") || r.URL.Query().Get("sendInitialEvents") == "true"
	if listed == nil || !strings.HasSuffix(r.URL.Path, "/podattachments") || !lists {
		return
	}
	select {
	case <-listed:
	case <-r.Context().Done():
	}
}

// momentOf returns the moment before a request.
func momentOf(r *http.Request) (moment, error) {
	m := moment{method: r.Method}
	var name string
	m.resource, name, m.subresource = resourceOf(r.URL.Path)
	if m.resource != "ipblocks" {
		return m, nil
	}
	if name == "" { // a create has the name in its body
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return m, err
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		var o metav1.PartialObjectMetadata
		if err := json.Unmarshal(body, &o); err != nil {
			return m, err
		}
		name = o.Name
	}
	m.block = blockNamed(name)
	return m, nil
}

// blockNamed returns the CIDR of the IPBlock with a name (ipam.BlockName), or the name if it
// is malformed.
func blockNamed(name string) string {
	raw, err := hex.DecodeString(name[strings.LastIndex(name, "-")+1:])
	if err != nil {
		return name
	}
	a, ok := netip.AddrFromSlice(raw)
	if !ok {
		return name
	}
	return ipam.BlockOf(a).String()
}

// resourceOf returns the resource, the object's name and the subresource in an API path. All
// are empty if the resource is not Fairlead's.
func resourceOf(path string) (resource, name, subresource string) {
	parts := append(strings.Split(strings.Trim(path, "/"), "/"), "", "")
	for i, part := range parts {
		switch part {
		case "podattachments", "ipblocks", "ippools", "ipclaims", "nodenetworks":
			return part, parts[i+1], parts[i+2]
		}
	}
	return "", "", ""
}

// kubeconfig returns the path of a kubeconfig for this server.
func (k *killer) kubeconfig(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	write(t, path, fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q}}]
contexts: [{name: c, context: {cluster: c, user: c}}]
users: [{name: c, user: {}}]
current-context: c
`, k.URL))
	return path
}

// program is a controller that is started again whenever its process ends.
type program struct {
	// apiCrashes permits "forbidden" in the log: an API server that has just started may not
	// know its roles yet.
	apiCrashes bool

	mu      sync.Mutex
	process *os.Process
	starts  int
	onExit  func() // called after the end of a process; nil for no call
}

// setOnExit sets the function that is called whenever a process has ended, before the next is
// started.
func (p *program) setOnExit(onExit func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.onExit = onExit
}

// exited calls the function that setOnExit has set.
func (p *program) exited() {
	p.mu.Lock()
	onExit := p.onExit
	p.mu.Unlock()
	if onExit != nil {
		onExit()
	}
}

func (p *program) started(process *os.Process) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.process = process
	p.starts++
}

// count returns the number of processes that were started.
func (p *program) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.starts
}

// kill kills the current process.
func (p *program) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.process.Signal(syscall.SIGKILL)
}

// leaseName is the name of the Lease of the leader election.
const leaseName = "fairlead-controller"

// briefLease is a lease that expires soon after the leader was killed.
const briefLease = "leaderElection: {leaseDuration: 2s, renewDeadline: 1500ms, retryPeriod: 100ms}"

// supervise runs the controller until the test ends, and starts it again whenever its process
// ends. more are further lines of its configuration. It has briefLease if none of them
// configures the leader election.
func supervise(t *testing.T, kubeconfig string, more ...string) *program {
	t.Helper()
	binary, err := buildController()
	if err != nil {
		t.Fatal(err)
	}
	return superviseBinary(t, binary, kubeconfig, more...)
}

// superviseBinary is supervise for another binary of the controller.
func superviseBinary(t *testing.T, binary, kubeconfig string, more ...string) *program {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "controller.yaml")
	if !slices.ContainsFunc(more, func(line string) bool { return strings.HasPrefix(line, "leaderElection:") }) {
		more = append(more, briefLease)
	}
	write(t, file, fmt.Sprintf("kubeconfig: %q\nmetricsAddress: \"0\"\n%s\n", kubeconfig, strings.Join(more, "\n")))
	output, err := os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &program{}
	begin := func() *exec.Cmd {
		cmd := exec.CommandContext(ctx, binary, "--config", file, "-v", "1")
		cmd.Stderr = output
		if err := cmd.Start(); err != nil {
			if ctx.Err() == nil { // the test goes on
				t.Error(err)
			}
			return nil
		}
		p.started(cmd.Process)
		return cmd
	}
	first := begin()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for cmd := first; cmd != nil; cmd = begin() {
			_ = cmd.Wait()
			if ctx.Err() != nil {
				return
			}
			p.exited()
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		_ = output.Close()
		text, _ := os.ReadFile(output.Name())
		if strings.Contains(string(text), "forbidden") && !p.apiCrashes {
			t.Error("the controller tried what deploy/rights does not allow; see its log")
		}
		if strings.Contains(string(text), "WARNING: DATA RACE") {
			t.Error("the race detector found a race in the controller; its log shows it")
		}
		if t.Failed() {
			t.Logf("the controller's log:\n%s", text)
		}
	})
	return p
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
