package node

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/netdev/kinds"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/node/answer"
	"fairlead.dev/fairlead/internal/node/delegate"
	"fairlead.dev/fairlead/internal/node/report"
	"fairlead.dev/fairlead/test/delegatetest"
	"fairlead.dev/fairlead/test/nettest"
	"fairlead.dev/fairlead/test/nodetest"
)

// killing is an executor of plugins whose daemon is killed before or after an ADD.
type killing struct {
	kinds.Executor
	before, after atomic.Bool
}

func (k *killing) Add(ctx context.Context, i plug.Interface, m plug.Made) (json.RawMessage, error) {
	if k.before.Load() {
		runtime.Goexit()
	}
	raw, err := k.Executor.Add(ctx, i, m)
	if k.after.Load() {
		runtime.Goexit()
	}
	return raw, err
}

// node2 is a node that executes plugins. Its pod p has the sandbox c1.
type node2 struct {
	*node1
	*delegatetest.Bin
	killing *killing
	pa      *v1alpha1.PodAttachment
	// socket is the path that plugins are given as the daemon's.
	socket string
}

const blueAddress = "10.9.0.7/24"

// blue is the result of the plugins of network blue.
const blue = `{"cniVersion":"1.0.0","interfaces":[{"name":"veth7"},{"name":"IFNAME","mac":"02:00:00:00:00:07","sandbox":"NETNS"}],"ips":[{"address":"` + blueAddress + `"}]}`

// pluginsOf returns the list of network blue, of version 1.1.0.
func pluginsOf(types ...string) *v1alpha1.PluginList {
	l := &v1alpha1.PluginList{Name: "blue", CNIVersion: "1.1.0"}
	for _, name := range types {
		l.Plugins = append(l.Plugins, `{"type":"`+name+`","capabilities":{"portMappings":true}}`)
	}
	return l
}

// executingNode runs a test on a node with the plugins first, second and third. The first
// makes the interface. interfaces sets the pod's interfaces eth0, net1 and so on.
func executingNode(t *testing.T, names []string, interfaces func(i []v1alpha1.Interface), test func(*testing.T, *node2)) {
	t.Helper()
	nettest.NeedRoot(t)
	n := &node2{
		node1: &node1{podNode: newPodNode(t)},
		Bin:   delegatetest.New(t, "first", "second", "third"),
	}
	n.hostLinks = nettest.LinkNames(t, n.host.Namespace())
	for _, name := range []string{"first", "second", "third"} {
		d := delegatetest.Does{Answer: blue}
		if name == "first" {
			d.Address = blueAddress
		}
		n.Set(t, name, "ADD", d)
		n.Set(t, name, "DEL", delegatetest.Does{Address: d.Address})
	}
	n.socket = filepath.Join(t.TempDir(), "cni.sock")
	d, err := delegate.New(delegate.Config{BinDir: n.Dir, Socket: n.socket, Host: n.host.Namespace(), Metrics: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	n.killing = &killing{Executor: d}
	onExecutingNode(t, kinds.All(n.host).Executing(n.killing), d, func(w *testNode) {
		n.pa = nodetest.Attachment("p", "u1", names...)
		interfaces(n.pa.Spec.Interfaces)
		n.serve(w, n.pa)
		test(w.t, n)
	})
}

// delegates makes an interface one of network blue.
func delegates(i *v1alpha1.Interface, types ...string) {
	*i = v1alpha1.Interface{Name: i.Name, Network: "ns/blue", Driver: "none", Default: i.Default, Binding: v1alpha1.Binding{Delegate: pluginsOf(types...)}}
}

// furtherDelegated makes net1 an interface of two plugins.
func furtherDelegated(i []v1alpha1.Interface) { delegates(&i[1], "first", "second") }

func (n *node2) wantCalls(when string, want ...string) []delegatetest.Call {
	n.t.Helper()
	calls := n.Calls(n.t)
	if diff := cmp.Diff(want, delegatetest.Verbs(calls)); diff != "" {
		n.t.Errorf("%s: calls (-want +got):\n%s", when, diff)
	}
	return calls
}

// links returns the links of the pod in the status.
func (n *node2) links(key types.NamespacedName) []v1alpha1.SandboxLink {
	pa := n.network.registry.Get(key)
	if pa == nil || pa.Status.Sandbox == nil {
		return nil
	}
	return pa.Status.Sandbox.Links
}

// prevResult returns the prevResult of a call.
func prevResult(t *testing.T, c delegatetest.Call) string {
	t.Helper()
	var config struct {
		PrevResult json.RawMessage `json:"prevResult"`
	}
	if err := json.Unmarshal(c.Config, &config); err != nil {
		t.Fatal(err)
	}
	return string(config.PrevResult)
}

func resultOf(t *testing.T, raw []byte) (names, ips []string) {
	t.Helper()
	res, err := types100.NewResult(raw)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range res.(*types100.Result).Interfaces {
		names = append(names, i.Name)
	}
	for _, ip := range res.(*types100.Result).IPs {
		ips = append(ips, ip.Address.String()+" on "+names[*ip.Interface])
	}
	return names, ips
}

// A further interface that plugins make is plugged after the default interface, recorded
// with its result, checked, adopted and removed. DEL needs only the record (multus#164,
// multus#677).
func TestDelegatedInterfaceLives(t *testing.T) {
	executingNode(t, []string{"eth0", "net1"}, furtherDelegated, func(t *testing.T, n *node2) {
		raw := n.plugged()
		calls := n.wantCalls("ADD", "first ADD", "second ADD")
		if args := calls[0].Env["CNI_ARGS"]; args != "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=p;K8S_POD_INFRA_CONTAINER_ID=c1;K8S_POD_UID=u1" {
			t.Errorf("CNI_ARGS %s", args)
		}
		names, ips := resultOf(t, raw)
		if diff := cmp.Diff([]string{plug.RoutedName("c1", "eth0"), "eth0", "veth7", "net1"}, names); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]string{"10.244.1.5/32 on eth0"}, ips); diff != "" { // CRI-O reads every address
			t.Error(diff)
		}
		wantLinks := []v1alpha1.SandboxLink{{Name: "eth0", MAC: link1, MTU: 1500}, {Name: "net1", MAC: "02:00:00:00:00:07", MTU: 1500, Addresses: []string{blueAddress}}}
		if diff := cmp.Diff(wantLinks, n.links(n.key)); diff != "" {
			t.Errorf("links in the status: %s", diff)
		}
		nodetest.WantCode(t, n.check(raw), 0)
		for _, c := range n.wantCalls("CHECK", "first CHECK", "second CHECK") {
			if got := prevResult(t, c); !strings.Contains(got, blueAddress) {
				t.Errorf("%s: prevResult %s", c.Verb(), got)
			}
		}
		n.Set(t, "second", "CHECK", delegatetest.Does{Exit: 1, Answer: `{"code":120,"msg":"the rule is gone"}`})
		err := n.check(raw)
		nodetest.WantCode(t, err, answer.CodeDiffers)
		if e := cniproto.AsError(err); !strings.Contains(e.Details, "interface net1: CHECK of plugin second: the rule is gone") {
			t.Errorf("CHECK: %s", e.Details)
		}
		sweeps()
		n.restart()
		n.Calls(t)
		if again := n.plugged(); string(again) != string(raw) {
			t.Errorf("ADD again: %s, want %s", again, raw)
		}
		n.wantCalls("ADD again")
		n.wantWrites(n.key, "Attached/c1")

		n.deleteAttachment(n.key)
		n.restart() // and nobody knows the network any more
		n.wantCalls("a restart")
		nodetest.WantCode(t, n.del("c1"), 0)
		for _, c := range n.wantCalls("DEL", "second DEL", "first DEL") {
			if got := prevResult(t, c); !strings.Contains(got, blueAddress) || c.Env["CNI_NETNS"] != n.pod.Path() {
				t.Errorf("%s: prevResult %s, namespace %q", c.Verb(), got, c.Env["CNI_NETNS"])
			}
		}
		settle()
		n.wantNothing("DEL")
		n.wantWrites(n.key, "Attached/c1", "Detached/c1")
	})
}

// The default network may be that of other plugins: their result is the answer, the
// runtime's capabilities are theirs, and Fairlead's packet filter has nothing of the pod.
func TestDelegatedDefaultNetwork(t *testing.T) {
	executingNode(t, []string{"eth0", "net1"}, func(i []v1alpha1.Interface) {
		delegates(&i[0], "first", "second")
	}, func(t *testing.T, n *node2) {
		r := n.request(cniproto.VerbAdd)
		r.Config = nodetest.Asking(`{"portMappings":[{"HostPort":22,"ContainerPort":80}],"io.kubernetes.cri.pod-annotations":{"a":"b"}}`)
		raw, err := n.handle(r)
		if err != nil {
			t.Fatal(err) // 22 is reserved, but not Fairlead's to give
		}
		settle()
		names, ips := resultOf(t, raw)
		if diff := cmp.Diff([]string{"veth7", "eth0", plug.RoutedName("c1", "net1"), "net1"}, names); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]string{blueAddress + " on eth0"}, ips); diff != "" {
			t.Error(diff)
		}
		for _, c := range n.wantCalls("ADD", "first ADD", "second ADD") {
			if !strings.Contains(string(c.Config), `"runtimeConfig":{"portMappings":[{"HostPort":22,"ContainerPort":80}]}`) {
				t.Errorf("%s: %s", c.Verb(), c.Config)
			}
		}
		add := n.network.ledger.Get("c1").Attached()
		if len(add.HostPorts) > 0 || add.Interfaces[0].Made.HostLink != "" {
			t.Errorf("the packet filter has %+v of %+v", add.HostPorts, add.Interfaces[0].Made)
		}
		inside, err := plug.Namespaces{}.Inspect(t.Context(), n.pod)
		lost := add.LostAddress(inside["eth0"])
		if err != nil || !slices.Equal(add.Interfaces[0].Addresses, []string{blueAddress}) || lost != "" {
			t.Errorf("addresses %q", add.Interfaces[0].Addresses)
		}
		nodetest.WantCode(t, n.check(raw), 0)
		nodetest.WantCode(t, n.del("c1"), 0)
		settle()
		n.wantNothing("DEL")
	})
}

// STATUS of the default network's plugins is asked in the background, and remembered when
// the last pod is gone.
func TestDelegatedStatus(t *testing.T) {
	executingNode(t, []string{"eth0"}, func(i []v1alpha1.Interface) { delegates(&i[0], "first") }, func(t *testing.T, n *node2) {
		n.setDefaultNetwork("ns/blue")
		status := n.status
		n.plugged()
		time.Sleep(2 * pluginStatusEvery) //nolint:forbidigo // the bubble's clock
		settle()
		nodetest.WantCode(t, status(), 0)
		n.Set(t, "first", "STATUS", delegatetest.Does{Exit: 1, Answer: `{"code":50,"msg":"the agent is away"}`})
		time.Sleep(2 * pluginStatusEvery) //nolint:forbidigo // the bubble's clock
		settle()
		nodetest.WantCode(t, status(), cniproto.CodeUnavailable, "network blue", "the agent is away")
		nodetest.WantCode(t, n.del("c1"), 0)
		time.Sleep(2 * pluginStatusEvery) //nolint:forbidigo // the bubble's clock
		settle()
		nodetest.WantCode(t, status(), cniproto.CodeUnavailable)
		n.Set(t, "first", "STATUS", delegatetest.Does{})
		time.Sleep(2 * pluginStatusEvery) //nolint:forbidigo // the bubble's clock
		settle()
		nodetest.WantCode(t, status(), 0)
	})
}

// setDefaultNetwork writes the default network of the cluster into the node's NodeNetwork.
func (n *node2) setDefaultNetwork(nad string) {
	n.api.mu.Lock()
	nn := n.api.networks["n1"].DeepCopy()
	n.api.mu.Unlock()
	nn.Spec.DefaultNetwork = nad
	n.api.putNetwork(nn)
	settle()
}

func (n *node2) status() error {
	_, err := n.handle(cniproto.Request{Verb: cniproto.VerbStatus, Config: json.RawMessage(config110)})
	return err
}

// A pod chooses its default network. The node does not depend on that network's plugins: otherwise a
// tenant could make it unready.
func TestChosenNetworkIsNoStatus(t *testing.T) {
	for _, cluster := range []string{"", "ns/red"} {
		t.Run("the cluster's is "+cluster, func(t *testing.T) {
			executingNode(t, []string{"eth0"}, func(i []v1alpha1.Interface) { delegates(&i[0], "first") }, func(t *testing.T, n *node2) {
				n.setDefaultNetwork(cluster)
				n.Set(t, "first", "STATUS", delegatetest.Does{Exit: 1, Answer: `{"code":50,"msg":"the agent is away"}`})
				n.plugged()
				time.Sleep(2 * pluginStatusEvery) //nolint:forbidigo // the bubble's clock
				settle()
				nodetest.WantCode(t, n.status(), 0)
			})
		})
	}
}

// chained gives eth0 on the bridge a chain.
func chained(i []v1alpha1.Interface) { i[0].Chain = pluginsOf("second", "third") }

// The plugins of a chain follow an interface that Fairlead makes, and go before it.
func TestChainOfInterface(t *testing.T) {
	executingNode(t, []string{"eth0"}, chained, func(t *testing.T, n *node2) {
		n.Set(t, "second", "ADD", delegatetest.Does{Answer: `{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"NETNS"}],"ips":[{"address":"10.244.1.5/32"}],"routes":[{"dst":"10.7.0.0/16"}]}`})
		n.Set(t, "third", "ADD", delegatetest.Does{Answer: `{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"NETNS"}],"ips":[{"address":"10.244.1.5/32"}],"routes":[{"dst":"10.7.0.0/16"}]}`})
		r := n.request(cniproto.VerbAdd)
		r.Config = nodetest.Asking(`{"portMappings":[{"HostPort":8080,"ContainerPort":80}]}`)
		raw, err := n.handle(r)
		if err != nil {
			t.Fatal(err)
		}
		settle()
		calls := n.wantCalls("ADD", "second ADD", "third ADD")
		if prev := prevResult(t, calls[0]); !strings.Contains(prev, plug.RoutedName("c1", "eth0")) || !strings.Contains(prev, "10.244.1.5/32") {
			t.Errorf("prevResult %s", prev)
		}
		if strings.Contains(string(calls[0].Config), "runtimeConfig") { // Fairlead forwards the port
			t.Errorf("configuration %s", calls[0].Config)
		}
		if ports := n.network.ledger.Get("c1").Attached().HostPorts; len(ports) != 1 {
			t.Errorf("host ports %v", ports)
		}
		if !strings.Contains(string(raw), `"dst":"10.7.0.0/16"`) {
			t.Errorf("the answer lacks the result of the chain: %s", raw)
		}
		nodetest.WantCode(t, n.check(raw), 0)
		n.wantCalls("CHECK", "second CHECK", "third CHECK")
		n.restart()
		n.Set(t, "third", "DEL", delegatetest.Does{Exit: 1, Stderr: "out of luck"})
		nodetest.WantCode(t, n.del("c1"), 0)
		calls = n.Calls(t)
		if got := delegatetest.Verbs(calls); len(got) < 2 || !slices.Equal(got[:2], []string{"third DEL", "second DEL"}) {
			t.Errorf("DEL: %q", got)
		}
		if links := nettest.LinkNames(t, n.pod); !slices.Equal(links, []string{"lo"}) {
			t.Errorf("the pod has %v", links)
		}
		n.wantRecords("c1")
		n.deleteAttachment(n.key)
		settle()
		n.wantWrites(n.key, "Attached/c1")
		n.Set(t, "third", "DEL", delegatetest.Does{})
		time.Sleep(report.RetryLast) //nolint:forbidigo // the bubble's clock
		settle()
		n.wantNothing("the chain has ended")
		n.wantWrites(n.key, "Attached/c1", "Detached/c1")
	})
}

// fifo makes a FIFO beside the plugins.
func (n *node2) fifo(name string) string {
	n.t.Helper()
	path := filepath.Join(n.Dir, name+".fifo")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		n.t.Fatal(err)
	}
	return path
}

// The runtime's GC reaches the plugins of every network in the records, with the
// attachments that live.
func TestDelegatedGC(t *testing.T) {
	executingNode(t, []string{"eth0", "net1"}, func(i []v1alpha1.Interface) {
		delegates(&i[1], "first")
		i[0].Chain = pluginsOf("third")
		i[0].Chain.CNIVersion = "1.0.0"
	}, func(t *testing.T, n *node2) {
		n.plugged()
		n.Calls(t)
		fifo := n.fifo("started")
		answer := n.fifo("answer")
		n.Set(t, "first", "GC", delegatetest.Does{Started: fifo, Answer: answer})
		result := make(chan error, 1)
		go func() {
			_, err := n.handle(gcRequest(`,"cni.dev/valid-attachments":[]`))
			result <- err
		}()
		if _, err := os.ReadFile(fifo); err != nil {
			t.Fatal(err)
		}
		r := gcRequest(`,"cni.dev/valid-attachments":[],"ipam":{"type":"fairlead-ipam"}`)
		r.IPAM = "fairlead-ipam"
		if _, err := n.handle(r); err != nil { // the plugin passes it on: it must not wait for itself
			t.Errorf("GC of fairlead-ipam: %v", err)
		}
		if err := os.WriteFile(answer, nil, 0); err != nil {
			t.Fatal(err)
		}
		if err := <-result; err != nil {
			t.Errorf("GC: %v", err)
		}
		calls := n.wantCalls("GC", "first GC")
		if !strings.Contains(string(calls[0].Config), `"cni.dev/valid-attachments":[{"containerID":"c1","ifname":"net1"},{"containerID":"c1","ifname":"eth0"}]`) &&
			!strings.Contains(string(calls[0].Config), `"cni.dev/valid-attachments":[{"containerID":"c1","ifname":"eth0"},{"containerID":"c1","ifname":"net1"}]`) {
			t.Errorf("configuration %s", calls[0].Config)
		}
		n.Set(t, "first", "GC", delegatetest.Does{Exit: 1, Stderr: "out of luck"})
		_, err := n.handle(gcRequest(`,"cni.dev/valid-attachments":[]`))
		if e := cniproto.AsError(err); !strings.Contains(e.Details, "network blue: GC of plugin first") {
			t.Errorf("GC: %v", err)
		}
	})
}

// Plugins that the daemon executes may ask it for the addresses of the interface, in ADD,
// CHECK and DEL. Their requests do not wait for the operation that executes them.
func TestDelegatedAsksForAddresses(t *testing.T) {
	executingNode(t, []string{"eth0", "net1"}, func(i []v1alpha1.Interface) {
		delegates(&i[1], "first")
		i[1].Addresses, i[1].Gateways = []string{blueAddress}, []string{"10.9.0.1"}
		i[1].Binding.Delegate.Plugins = []string{`{"type":"first","ipam":{"type":"fairlead-ipam"}}`}
	}, func(t *testing.T, n *node2) {
		ask := func(verb, config string) ([]byte, error) {
			r := n.request(verb)
			r.IPAM, r.IfName, r.Config = "fairlead-ipam", "net1", json.RawMessage(config)
			return n.handle(r)
		}
		const asks = `{"cniVersion":"1.0.0","name":"blue","type":"first","ipam":{"type":"fairlead-ipam"}`
		during := func(verb string, do func() error, asked func()) error {
			started, answer := n.fifo("started-"+verb), n.fifo("answer-"+verb)
			does := delegatetest.Does{Address: blueAddress, Started: started, Answer: answer}
			n.Set(t, "first", verb, does)
			result := make(chan error, 1)
			go func() { result <- do() }()
			if _, err := os.ReadFile(started); err != nil {
				t.Fatal(err)
			}
			asked()
			if err := os.WriteFile(answer, []byte(blue), 0); err != nil {
				t.Fatal(err)
			}
			return <-result
		}
		var raw []byte
		err := during("ADD", func() (err error) {
			raw, err = n.handle(n.request(cniproto.VerbAdd))
			return err
		}, func() {
			given, err := ask(cniproto.VerbAdd, asks+`}`)
			if err != nil {
				t.Errorf("ADD of fairlead-ipam: %v", err)
			} else if ips, _ := ipsOf(t, given); !slices.Equal(ips, []string{blueAddress + " by 10.9.0.1"}) {
				t.Errorf("addresses %q", ips)
			}
			_, err = ask(cniproto.VerbAdd, asks+`,"runtimeConfig":{"ips":["10.9.0.8"]}}`)
			nodetest.WantCode(t, err, cniproto.CodeInvalidConfig, "10.9.0.8")
		})
		if err != nil {
			t.Fatal(err)
		}
		settle()
		_, err = ask(cniproto.VerbAdd, asks+`}`)
		nodetest.WantCode(t, err, cniproto.CodeUnknownContainer, "only the plugins that make it")
		if _, err := ask(cniproto.VerbCheck, asks+`,"prevResult":{"cniVersion":"1.0.0","ips":[{"address":"`+blueAddress+`"}]}}`); err != nil {
			t.Errorf("CHECK of fairlead-ipam: %v", err)
		}
		_, err = ask(cniproto.VerbCheck, asks+`,"prevResult":{"cniVersion":"1.0.0"}}`)
		nodetest.WantCode(t, err, answer.CodeDiffers, "10.9.0.7")
		nodetest.WantCode(t, n.check(raw), 0)
		if err := during("DEL", func() error { return n.del("c1") }, func() {
			if _, err := ask(cniproto.VerbDel, asks+`}`); err != nil {
				t.Errorf("DEL of fairlead-ipam: %v", err)
			}
		}); err != nil {
			t.Fatal(err)
		}
		settle()
		n.wantNothing("DEL")
	})
}

// A list that no plugin could be executed for is refused before anything is made.
func TestDelegatedRefused(t *testing.T) {
	for says, change := range map[string]func(i []v1alpha1.Interface){
		`type: "../first"`:          func(i []v1alpha1.Interface) { delegates(&i[1], "../first") },
		`cniVersion: "0.2.0"`:       func(i []v1alpha1.Interface) { furtherDelegated(i); i[1].Binding.Delegate.CNIVersion = "0.2.0" },
		"/absent: install it":       func(i []v1alpha1.Interface) { delegates(&i[1], "first", "absent") },
		"/gone: install it":         func(i []v1alpha1.Interface) { i[1].Chain = pluginsOf("gone") },
		"binding.delegate has the ": func(i []v1alpha1.Interface) { furtherDelegated(i); i[1].Chain = pluginsOf("second") },
	} {
		t.Run(says, func(t *testing.T) {
			executingNode(t, []string{"eth0", "net1"}, change, func(t *testing.T, n *node2) {
				_, err := n.handle(n.request(cniproto.VerbAdd))
				nodetest.WantCode(t, err, cniproto.CodeInvalidConfig, "net1", says)
				n.wantCalls("ADD")
				n.wantNothing("ADD")
			})
		})
	}
}
