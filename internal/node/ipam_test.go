package node

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/node/answer"
	"fairlead.dev/fairlead/internal/node/background"
	"fairlead.dev/fairlead/internal/node/ledger"
	"fairlead.dev/fairlead/test/nodetest"
)

// macvlan is the configuration of a plugin that asks for addresses.
const macvlan = `{"cniVersion":"1.1.0","name":"blue","type":"macvlan","ipam":{"type":"fairlead-ipam"}}`

// further adds interfaces of another plugin to a pod's PodAttachment.
func (w *testNode) further(key types.NamespacedName, ifNames ...string) {
	w.api.change(key, func(pa *v1alpha1.PodAttachment) {
		for n, ifName := range ifNames {
			pa.Spec.Interfaces = append(pa.Spec.Interfaces, v1alpha1.Interface{
				Name: ifName, Network: "ns/blue", Driver: "native",
				Addresses: []string{"10.9.0." + string(rune('5'+n)) + "/24", "fd09::" + string(rune('5'+n)) + "/64"}, Gateways: []string{"10.9.0.1"},
				Routes:  []v1alpha1.Route{{Destination: "10.8.0.0/16"}},
				Binding: v1alpha1.Binding{AddressOnly: &v1alpha1.AddressOnlyBinding{}},
			})
		}
	})
	settle()
}

// ipam sends the request of a plugin that asks for addresses.
func (w *testNode) ipam(verb, containerID, ifName, pod, uid, config string) ([]byte, error) {
	w.kernel.mu.Lock()
	_, there := w.kernel.namespaces[w.netns(containerID)]
	w.kernel.mu.Unlock()
	if !there && verb == cniproto.VerbAdd {
		w.kernel.namespace(w.netns(containerID))
	}
	r := request(verb, containerID, w.netns(containerID), pod, uid)
	r.IPAM, r.IfName, r.Config = "fairlead-ipam", ifName, json.RawMessage(config)
	if strings.Contains(config, "whereabouts") {
		r.IPAM = "whereabouts"
	}
	return w.handle(r)
}

// ipsOf returns the addresses of an answer with their gateways, and its routes.
func ipsOf(t *testing.T, raw []byte) (ips, routes []string) {
	t.Helper()
	res, err := create.CreateFromBytes(raw)
	if err != nil {
		t.Fatal(err)
	}
	result, err := types100.NewResultFromResult(res)
	if err != nil {
		t.Fatal(err)
	}
	if len(result.Interfaces) > 0 {
		t.Errorf("an IPAM plugin answers with interfaces: %v", result.Interfaces)
	}
	for _, c := range result.IPs {
		if c.Interface != nil {
			t.Errorf("%v has the index of an interface", c)
		}
		text := c.Address.String()
		if c.Gateway != nil {
			text += " by " + c.Gateway.String()
		}
		ips = append(ips, text)
	}
	for _, r := range result.Routes {
		text := r.Dst.String()
		if r.GW != nil {
			text += " by " + r.GW.String()
		}
		routes = append(routes, text)
	}
	return ips, routes
}

// addressFiles returns the interfaces of other plugins in the records on disk, as
// container@interface, and the containers with incomplete records.
func (w *testNode) addressFiles() []string {
	w.t.Helper()
	entries, err := os.ReadDir(filepath.Join(w.dir, ledger.RecordsDir))
	if err != nil {
		w.t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ledger.RecordSuffix) {
			continue
		}
		raw, err := os.ReadFile(filepath.Join(w.dir, ledger.RecordsDir, e.Name()))
		if err != nil {
			w.t.Fatal(err)
		}
		var rec ledger.Record
		if err := json.Unmarshal(raw, &rec); err != nil {
			w.t.Fatal(err)
		}
		for _, a := range rec.Adds {
			if a.AddressOnly() {
				out = append(out, rec.ContainerID+"@"+a.IfName)
			}
		}
		if rec.Damaged {
			out = append(out, rec.ContainerID+" is damaged")
		}
	}
	return out
}

// state returns the state of the sandbox in the status of a PodAttachment.
func (w *testNode) state(key types.NamespacedName) v1alpha1.SandboxState {
	if s := w.api.get(key).Status.Sandbox; s != nil {
		return s.State
	}
	return ""
}

// Under Multus, eth0 belongs to Fairlead and net1 to another plugin. Detached is written
// when both are gone, in either order.
func TestAddressesBesideASandbox(t *testing.T) {
	for _, order := range []string{"the sandbox first", "the addresses first"} {
		t.Run(order, func(t *testing.T) {
			onTestNode(t, func(w *testNode) {
				key := w.pod("web", "uid-1")
				w.further(key, "net1")
				w.mustAdd("c1", "web", "uid-1")
				w.wantLinks("c1/eth0")
				for range 2 { // the same request again has the same answer
					raw, err := w.ipam("ADD", "c1", "net1", "web", "uid-1", macvlan)
					if err != nil {
						t.Fatal(err)
					}
					ips, routes := ipsOf(t, raw)
					if diff := cmp.Diff([]string{"10.9.0.5/24 by 10.9.0.1", "fd09::5/64"}, ips); diff != "" {
						t.Errorf("-want +got:\n%s", diff)
					}
					if diff := cmp.Diff([]string{"10.8.0.0/16"}, routes); diff != "" {
						t.Errorf("-want +got:\n%s", diff)
					}
				}
				if diff := cmp.Diff([]string{"c1@net1"}, w.addressFiles()); diff != "" {
					t.Errorf("-want +got:\n%s", diff)
				}
				w.deleteAttachment(key)
				settle()
				steps := []func() error{
					func() error { return w.del("c1") },
					func() error { _, err := w.ipam("DEL", "c1", "net1", "", "", macvlan); return err },
				}
				if order == "the addresses first" {
					steps[0], steps[1] = steps[1], steps[0]
				}
				for n, step := range steps {
					if got := w.state(key); got != v1alpha1.SandboxAttached {
						t.Errorf("before step %d it is %s", n, got)
					}
					if err := step(); err != nil {
						t.Fatal(err)
					}
					settle()
				}
				if got := w.state(key); got != v1alpha1.SandboxDetached {
					t.Errorf("with everything gone it is %s", got)
				}
				// A repeated or unknown DEL succeeds (whereabouts#70, multus#578).
				if _, err := w.ipam("DEL", "c1", "net1", "", "", macvlan); err != nil {
					t.Error(err)
				}
				// After Detached an ADD gets no addresses.
				_, err := w.ipam("ADD", "c2", "net1", "web", "uid-1", macvlan)
				nodetest.WantCode(t, err, cniproto.CodeTryAgainLater)
			})
		})
	}
}

// If the default network belongs to another plugin, the addresses alone are the evidence,
// also over a restart of the daemon.
func TestAddressesAlone(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		key := w.pod("web", "uid-1")
		w.further(key, "net1", "net2")
		for _, name := range []string{"net1", "net2"} {
			if _, err := w.ipam("ADD", "c1", name, "web", "uid-1", macvlan); err != nil {
				t.Fatal(err)
			}
		}
		settle()
		if got := w.state(key); got != v1alpha1.SandboxAttached {
			t.Errorf("after ADD it is %q", got)
		}
		w.restart()
		w.deleteAttachment(key)
		settle()
		if _, err := w.ipam("DEL", "c1", "net1", "", "", macvlan); err != nil {
			t.Fatal(err)
		}
		settle()
		if got := w.state(key); got != v1alpha1.SandboxAttached {
			t.Errorf("with net2 left it is %q", got)
		}
		// multus#323, #1239, whereabouts#291: the DEL for net2 never comes. The namespace
		// goes, and with it every user of the address.
		w.kernel.drop(w.netns("c1"))
		<-time.After(2 * background.SweepInterval)
		settle()
		if got := w.state(key); got != v1alpha1.SandboxDetached {
			t.Errorf("without its namespace it is %q", got)
		}
		if files := w.addressFiles(); len(files) > 0 {
			t.Errorf("records left: %v", files)
		}
	})
}

// whereabouts#162, #207, #176: a pod of the same name with another UID is another pod,
// and an ADD waits if the record of its pod is not there yet.
func TestAddressesWaitForTheirPod(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		w.further(w.pod("web", "uid-old"), "net1")
		_, err := w.ipam("ADD", "c1", "net1", "web", "uid-new", macvlan)
		nodetest.WantCode(t, err, cniproto.CodeUnknownContainer, "uid-old")

		answer := make(chan error, 1)
		go func() {
			_, err := w.ipam("ADD", "c2", "net1", "late", "uid-2", macvlan)
			answer <- err
		}()
		settle()
		pa := nodetest.Attachment("late", "uid-2")
		pa.Spec.Interfaces[0].Binding = v1alpha1.Binding{AddressOnly: &v1alpha1.AddressOnlyBinding{}}
		w.api.put(pa)
		if err := <-answer; err != nil {
			t.Errorf("the default interface of another plugin: %v", err)
		}
		// No UID from the runtime: by name.
		w.further(w.pod("nameless", "uid-3"), "net1")
		if _, err := w.ipam("ADD", "c3", "net1", "nameless", "", macvlan); err != nil {
			t.Error(err)
		}
	})
}

func TestAddressesOfWhichInterface(t *testing.T) {
	only := v1alpha1.Binding{AddressOnly: &v1alpha1.AddressOnlyBinding{}}
	pa := nodetest.Attachment("web", "uid-1", "eth0", "net1", "net2", "net3")
	for i, network := range []string{"default", "ns/blue", "ns/red", "ns/ours"} {
		pa.Spec.Interfaces[i].Network = network
		if network != "ns/ours" {
			pa.Spec.Interfaces[i].Binding = only
		}
	}
	for _, tc := range []struct{ ifName, config, want string }{
		{"net1", "red", "net1"}, {"net9", "red", "net2"}, {"net9", "ns/blue", "net1"}, {"ens3", "other", "eth0"}, {"net3", "ours", "eth0"},
	} {
		got, err := answer.AddressesFor(pa, tc.ifName, answer.IpamConfig{Name: tc.config}, nil)
		if err != nil || got.Name != tc.want {
			t.Errorf("%s of %s: %+v, %v", tc.ifName, tc.config, got, err)
		}
	}
	// The default interface does not stand in for a network that names pools, nor for an
	// interface that this sandbox already has.
	for _, tc := range []struct {
		ifName string
		config answer.IpamConfig
		held   map[string]string
		words  []string
	}{
		{"net9", answer.IpamConfig{Name: "other", Narrow: true}, nil, []string{`"net9"`, "net1 on ns/blue", "make the pod again"}},
		{"net9", answer.IpamConfig{Name: "other"}, map[string]string{"eth0": "eth0"}, []string{"eth0 on default (which this sandbox has, as eth0)"}},
		{"net1", answer.IpamConfig{Name: "blue"}, map[string]string{"net1": "net7", "eth0": "eth0"}, []string{"net1 on ns/blue (which this sandbox has, as net7)"}},
	} {
		_, err := answer.AddressesFor(pa, tc.ifName, tc.config, tc.held)
		nodetest.WantCode(t, answer.CNI(err), cniproto.CodeInvalidConfig, tc.words...)
	}
	pa.Spec.Interfaces[0].Binding = v1alpha1.Binding{Bridge: &v1alpha1.BridgeBinding{Name: "b"}}
	_, err := answer.AddressesFor(pa, "net9", answer.IpamConfig{Name: "other"}, nil)
	nodetest.WantCode(t, answer.CNI(err), cniproto.CodeInvalidConfig, "net9", "net1 on ns/blue")
	pa.Spec.Interfaces = pa.Spec.Interfaces[:1]
	_, err = answer.AddressesFor(pa, "net9", answer.IpamConfig{Name: "other"}, nil)
	nodetest.WantCode(t, answer.CNI(err), cniproto.CodeInvalidConfig, "multiVIFSources: [npwg]", answer.AnnotationNetworks)
}

// kube-ovn#2520: an ADD of an interface that is not in the record is refused at once,
// with the cause. It does not get another interface of the record in its place, in any
// order of requests.
func TestAddressesAreNoGuess(t *testing.T) {
	const pooled = `{"cniVersion":"1.1.0","name":"late","type":"macvlan","ipam":{"type":"fairlead-ipam","pools":["late"]}}`
	const ranged = `{"cniVersion":"1.1.0","name":"late","type":"macvlan","ipam":{"type":"whereabouts","range":"10.7.0.0/24"}}`
	const cluster = `{"cniVersion":"1.1.0","name":"cluster","type":"bridge","ipam":{"type":"fairlead-ipam"}}`
	onTestNode(t, func(w *testNode) {
		t := w.t
		key := w.pod("web", "uid-1")
		w.api.change(key, func(pa *v1alpha1.PodAttachment) {
			pa.Spec.Interfaces[0].Binding = v1alpha1.Binding{AddressOnly: &v1alpha1.AddressOnlyBinding{}}
		})
		settle()
		refused := func(ifName, config, words string) {
			t.Helper()
			start := time.Now()
			_, err := w.ipam("ADD", "c1", ifName, "web", "uid-1", config)
			nodetest.WantCode(t, err, cniproto.CodeInvalidConfig, words)
			if waited := time.Since(start); waited > 0 {
				t.Errorf("it took %s", waited)
			}
		}
		refused("net1", pooled, "multiVIFSources: [npwg]")
		refused("net1", ranged, "multiVIFSources: [npwg]")
		raw, err := w.ipam("ADD", "c1", "eth0", "web", "uid-1", cluster)
		if err != nil {
			t.Fatal(err)
		}
		if ips, _ := ipsOf(t, raw); len(ips) != 1 || ips[0] != "10.244.1.5/32 by 169.254.1.1" {
			t.Errorf("eth0 got %v", ips)
		}
		refused("net1", pooled, "multiVIFSources: [npwg]")
		// Without pools the default network's would do, but its addresses are in use.
		refused("net1", macvlan, "eth0 on default (which this sandbox has, as eth0)")
		w.further(key, "net1")
		if _, err := w.ipam("ADD", "c1", "net1", "web", "uid-1", macvlan); err != nil {
			t.Fatal(err)
		}
		refused("net2", macvlan, "make the pod again")
		refused("net2", pooled, "make the pod again")
		if files := w.addressFiles(); len(files) != 2 {
			t.Errorf("records %v", files)
		}
	})
}

func TestAddressesInEveryVersion(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		key := w.pod("web", "uid-1")
		w.further(key, "net1")
		for _, version := range cniproto.Versions {
			raw, err := w.ipam("ADD", "c1", "net1", "web", "uid-1", strings.Replace(macvlan, "1.1.0", version, 1))
			if err != nil {
				t.Fatal(err)
			}
			if ips, _ := ipsOf(t, raw); len(ips) != 2 || !strings.Contains(string(raw), `"cniVersion":"`+version+`"`) {
				t.Errorf("version %s: %s", version, raw)
			}
		}
	})
}

// The network's own routes and DNS, and static addresses of whereabouts, are in the
// answer.
func TestAddressesWithWhatTheNetworkSays(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		w.further(w.pod("web", "uid-1"), "net1")
		config := `{"cniVersion":"1.0.0","name":"x","ipam":{"type":"whereabouts","range":"10.9.0.0/24","routes":[{"dst":"10.8.0.0/16"},{"dst":"0.0.0.0/0","gw":"10.9.0.1"}],
			"dns":{"nameservers":["10.9.0.53"]},"addresses":[{"address":"10.9.1.7/24","gateway":"10.9.1.1"}]},"runtimeConfig":{"ips":["10.9.0.5/24"]}}`
		raw, err := w.ipam("ADD", "c1", "net1", "web", "uid-1", config)
		if err != nil {
			t.Fatal(err)
		}
		ips, routes := ipsOf(t, raw)
		if diff := cmp.Diff([]string{"10.9.0.5/24 by 10.9.0.1", "fd09::5/64", "10.9.1.7/24 by 10.9.1.1"}, ips); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		if diff := cmp.Diff([]string{"10.8.0.0/16", "0.0.0.0/0 by 10.9.0.1"}, routes); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		if !strings.Contains(string(raw), "10.9.0.53") {
			t.Errorf("no DNS: %s", raw)
		}
	})
}

// whereabouts#15: addresses that are requested outside of the annotation are not given
// without a record.
func TestAddressesRefuseBadInputAndChangeNothing(t *testing.T) {
	cases := []struct {
		name, ifName, config string
		code                 int
		words                []string
	}{
		{"an address that was not taken", "net1", `{"cniVersion":"1.1.0","name":"blue","ipam":{"type":"fairlead-ipam"},"runtimeConfig":{"ips":["10.9.0.77"]}}`, cniproto.CodeInvalidConfig, []string{"10.9.0.77", "annotation"}},
		{"no address", "net1", `{"cniVersion":"1.1.0","name":"blue","runtimeConfig":{"ips":["x"]}}`, cniproto.CodeInvalidConfig, []string{`"x"`}},
		{"a bad static address", "net1", `{"cniVersion":"1.1.0","name":"blue","ipam":{"type":"whereabouts","addresses":[{"address":"10.0.0"}]}}`, cniproto.CodeInvalidConfig, []string{"ipam.addresses[0].address", `"10.0.0"`}},
		{"a bad route", "net1", `{"cniVersion":"1.1.0","name":"blue","ipam":{"routes":[{"dst":"x"}]}}`, cniproto.CodeDecode, []string{"x"}},
		{"another interface", "net7", `{"cniVersion":"1.1.0","name":"green"}`, cniproto.CodeInvalidConfig, []string{"net7", "green", "net1 on ns/blue"}},
	}
	onTestNode(t, func(w *testNode) {
		key := w.pod("web", "uid-1")
		w.further(key, "net1")
		for _, tc := range cases {
			_, err := w.ipam("ADD", "c1", tc.ifName, "web", "uid-1", tc.config)
			nodetest.WantCode(t, err, tc.code, tc.words...)
		}
		if files := w.addressFiles(); len(files) > 0 {
			t.Errorf("records left: %v", files)
		}
		w.deleteAttachment(key)
		settle()
		if got := w.state(key); got != v1alpha1.SandboxDetached {
			t.Errorf("nothing was given, and it is %q", got)
		}
	})
}

func TestAddressesCheckStatusAndGC(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		key := w.pod("web", "uid-1")
		w.further(key, "net1")
		raw, err := w.ipam("ADD", "c1", "net1", "web", "uid-1", macvlan)
		if err != nil {
			t.Fatal(err)
		}
		with := func(more string) string { return strings.TrimSuffix(macvlan, "}") + "," + more + "}" }
		_, err = w.ipam("CHECK", "c1", "net1", "web", "uid-1", with(`"prevResult":`+string(raw)))
		nodetest.WantCode(t, err, 0)
		_, err = w.ipam("CHECK", "c1", "net1", "web", "uid-1", with(`"prevResult":{"cniVersion":"1.1.0","ips":[null,{"address":"10.9.0.5/24"}]}`))
		nodetest.WantCode(t, err, answer.CodeDiffers, "fd09::5")
		_, err = w.ipam("CHECK", "c1", "net1", "web", "uid-1", macvlan)
		nodetest.WantCode(t, err, cniproto.CodeInvalidConfig, "prevResult")
		_, err = w.ipam("CHECK", "c1", "net1", "web", "uid-1", with(`"prevResult":{"ips":[{"address":"x"}]}`))
		nodetest.WantCode(t, err, cniproto.CodeDecode, "prevResult")
		_, err = w.ipam("CHECK", "c9", "net1", "web", "uid-1", with(`"prevResult":`+string(raw)))
		nodetest.WantCode(t, err, cniproto.CodeUnknownContainer)
		_, err = w.ipam("STATUS", "", "", "", "", macvlan)
		nodetest.WantCode(t, err, 0)

		<-time.After(time.Second)
		for _, tc := range []struct {
			config string
			kept   int
		}{
			{macvlan, 1}, // without a list
			{with(`"cni.dev/valid-attachments":[{"containerID":"c1","ifname":"net1"}]`), 1},
			// Live interfaces stay: another network may have the same name.
			{strings.Replace(with(`"cni.dev/valid-attachments":[]`), "blue", "red", 1), 1},
			{with(`"cni.dev/valid-attachments":null`), 1},
			{with(`"cni.dev/valid-attachments":[]`), 1},
		} {
			_, err := w.ipam("GC", "", "", "", "", tc.config)
			nodetest.WantCode(t, err, 0)
			if files := w.addressFiles(); len(files) != tc.kept {
				t.Errorf("%s: records %v", tc.config, files)
			}
		}
		w.unpin("c1")
		for _, tc := range []struct {
			config string
			kept   int
		}{
			{with(`"cni.dev/valid-attachments":[{"containerID":"c1","ifname":"net1"}]`), 1},
			{with(`"cni.dev/valid-attachments":null`), 0},
		} {
			_, err := w.ipam("GC", "", "", "", "", tc.config)
			nodetest.WantCode(t, err, 0)
			if files := w.addressFiles(); len(files) != tc.kept {
				t.Errorf("without a namespace, %s: records %v", tc.config, files)
			}
		}
	})
}

// A value of CNI_ARGS that whereabouts uses and Fairlead ignores is reported once.
func TestGatewayInCNIArgs(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		w.further(w.pod("web", "uid-1"), "net1")
		w.kernel.namespace(w.netns("c1"))
		r := request(cniproto.VerbAdd, "c1", w.netns("c1"), "web", "uid-1")
		r.IPAM, r.IfName, r.Config = "whereabouts", "net1", json.RawMessage(macvlan)
		r.Args += ";IP=10.9.0.5/24;GATEWAY=10.9.0.254"
		for range 2 {
			raw, err := w.handle(r)
			if err != nil {
				t.Fatal(err)
			}
			if ips, _ := ipsOf(t, raw); len(ips) == 0 || ips[0] != "10.9.0.5/24 by 10.9.0.1" {
				t.Errorf("addresses %v", ips)
			}
			settle()
		}
		w.api.mu.Lock()
		defer w.api.mu.Unlock()
		if len(w.api.reports) != 1 || w.api.reports[0].Reason != reasonNetworkDiffers || !strings.Contains(w.api.reports[0].Note, "GATEWAY=10.9.0.254") {
			t.Errorf("events %+v", w.api.reports)
		}
	})
}

// A boot of the node ends every interface of the earlier boot (plugins#252, calico#4190).
func TestAddressesOfAnEarlierBoot(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		key := w.pod("web", "uid-1")
		w.further(key, "net1")
		if _, err := w.ipam("ADD", "c1", "net1", "web", "uid-1", macvlan); err != nil {
			t.Fatal(err)
		}
		w.bootID = "boot-2"
		w.restart()
		if files := w.addressFiles(); len(files) > 0 {
			t.Errorf("records left: %v", files)
		}
		w.deleteAttachment(key)
		settle()
		if got := w.state(key); got != v1alpha1.SandboxDetached {
			t.Errorf("it is %q", got)
		}
	})
}

func FuzzIPAMConfig(f *testing.F) {
	f.Add([]byte(macvlan), "IP=10.0.0.5/24")
	f.Add([]byte(`{"ipam":{"routes":[null,{"dst":"0.0.0.0/0"}]}}`), "")
	f.Add([]byte(`{"ipam":{"type":"whereabouts","addresses":[{"address":"10.0.0.5/24"}],"routes":[{"dst":"::/0"}]},"runtimeConfig":{"ips":["::1"]}}`), "")
	f.Fuzz(func(t *testing.T, config []byte, args string) {
		c, err := answer.ParseIPAM(cniproto.Request{IPAM: "whereabouts", Config: config, Args: args})
		if err != nil {
			if e := cniproto.AsError(answer.CNI(err)); e.Code != cniproto.CodeDecode && e.Code != cniproto.CodeInvalidConfig {
				t.Fatalf("code %d: %v", e.Code, err)
			}
			return
		}
		_, _ = answer.IpamResult(&v1alpha1.Interface{
			Name: "net1", Addresses: []string{"10.0.0.5/24"}, Routes: []v1alpha1.Route{{Destination: "10.0.0.0/8"}},
		}, c, "1.1.0")
	})
}
