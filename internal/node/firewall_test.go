package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/netdev/host"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/nft"
	"fairlead.dev/fairlead/test/nodetest"
)

// fakeFilter is the packet filter of a kernel.
type fakeFilter struct {
	mu        sync.Mutex
	elements  map[nft.Element]bool
	fail      error
	forgotten []host.FlowTo
	unmasked  []string
	localhost string // the link that packets of 127.0.0.0/8 may pass
	runs      int    // of apply
	hook      hook
	others    func(host.RuleChange)
}

// step calls the hook outside the lock.
func (f *fakeFilter) step(ctx context.Context, step string) error {
	f.mu.Lock()
	h := f.hook
	f.mu.Unlock()
	if h == nil {
		return nil
	}
	return h(ctx, step, "")
}

func (f *fakeFilter) setHook(h hook) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hook = h
}

func (f *fakeFilter) apply(ctx context.Context, c nft.Change) error {
	if err := f.step(ctx, "filter"); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.runs++
	if f.fail != nil {
		return f.fail
	}
	if c.Whole != nil {
		f.elements = map[nft.Element]bool{}
	}
	for _, e := range c.Delete {
		delete(f.elements, e)
	}
	for _, e := range c.Add {
		f.elements[e] = true
	}
	return nil
}

func (f *fakeFilter) setFail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = err
}

func (f *fakeFilter) WatchTables(ctx context.Context, _ string, _ func(uint32), others func(host.RuleChange)) error {
	f.mu.Lock()
	f.others = others
	f.mu.Unlock()
	<-ctx.Done()
	return nil
}

func (f *fakeFilter) ForgetFlows(ctx context.Context, ports []host.FlowTo) error {
	if err := f.step(ctx, "forget"); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forgotten = append(f.forgotten, ports...)
	return nil
}

func (f *fakeFilter) ForgetMasqueraded(ctx context.Context, from, to []netip.Prefix) error {
	if err := f.step(ctx, "forget masqueraded"); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unmasked = append(f.unmasked, fmt.Sprintf("%v to %v", from, to))
	return nil
}

func (f *fakeFilter) AllowLocalhost(end string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.localhost = end
	return nil
}

// in lists the elements of the sets whose names begin with prefix.
func (f *fakeFilter) in(prefix string) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := []string{}
	for e := range f.elements {
		if strings.HasPrefix(e.Set, prefix) {
			out = append(out, strings.TrimSuffix(e.Key+" : "+e.Value, " : "))
		}
	}
	slices.Sort(out)
	return out
}

// addAsking sends an ADD with a runtimeConfig.
func (w *testNode) addAsking(containerID, pod, uid, runtimeConfig string) ([]byte, error) {
	netns := w.netns(containerID)
	w.kernel.namespace(netns)
	r := request(cniproto.VerbAdd, containerID, netns, pod, uid)
	r.Config = nodetest.Asking(runtimeConfig)
	return w.handle(r)
}

func (f *fakeFilter) want(t *testing.T, set string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(append([]string{}, want...), f.in(set)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", set, diff)
	}
}

// filtered lets the time pass in which the packet filter is written if no request waits
// for it.
func filtered() {
	settle()
	<-time.After(time.Second)
	settle()
}

// A pod without host ports causes no run of nft, in no verb: one rule checks the sources of all of them.
func TestPodsWithoutHostPortsRunNoNft(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		key := w.pod("web", "u1", "eth0", "net1")
		w.api.change(key, func(pa *v1alpha1.PodAttachment) {
			pa.Spec.Interfaces[0].Addresses = append(pa.Spec.Interfaces[0].Addresses, "fd00:10:244:1::5/128")
		})
		filtered()
		w.filter.want(t, "local", "10.244.1.0/26")
		before := w.filter.count()
		w.mustAdd("c1", "web", "u1")
		filtered()
		w.api.change(key, func(pa *v1alpha1.PodAttachment) { // hot unplug
			pa.Spec.Unplug = []string{"net1"}
		})
		<-time.After(2 * time.Minute) // with sweeps
		w.mustDel("c1")
		filtered()
		if after := w.filter.count(); after != before {
			t.Errorf("nft ran %d times", after-before)
		}
	})
}

// count returns how often nft ran.
func (f *fakeFilter) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.runs
}

// TestHostPortsOfASandbox: host ports exist when ADD answers, outlive the daemon, and are
// gone before another sandbox gets the addresses, even if the pod's address is unknown.
func TestHostPortsOfASandbox(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		key := w.pod("web", "u1")
		// As containerd sends them: the keys are those of a Go struct.
		_, err := w.addAsking("c1", "web", "u1", `{"portMappings":[
			{"HostPort":8080,"ContainerPort":80,"Protocol":"tcp","HostIP":""},
			{"HostPort":8053,"ContainerPort":53,"Protocol":"UDP","HostIP":"0.0.0.0"},
			{"HostPort":3868,"ContainerPort":3868,"Protocol":"sctp","HostIP":""},
			{"HostPort":0,"ContainerPort":99,"Protocol":"tcp","HostIP":""},
			{"HostPort":-1,"ContainerPort":98,"Protocol":"tcp","HostIP":""}]}`)
		if err != nil {
			t.Fatal(err)
		}
		want := []string{"sctp . 3868 : 10.244.1.5 . 3868", "tcp . 8080 : 10.244.1.5 . 80", "udp . 8053 : 10.244.1.5 . 53"}
		w.filter.want(t, "ports", want...)
		flows := []host.FlowTo{
			{Protocol: unix.IPPROTO_UDP, AddrPort: netip.MustParseAddrPort("0.0.0.0:8053")},
			{Protocol: unix.IPPROTO_SCTP, AddrPort: netip.AddrPortFrom(netip.Addr{}, 3868)},
		}
		if w.filter.localhost != plug.RoutedName("c1", "eth0") || !slices.Equal(w.filter.forgotten, flows) {
			t.Errorf("localhost %q, forgotten %v", w.filter.localhost, w.filter.forgotten)
		}
		w.restart()
		w.filter.want(t, "ports", want...)
		w.deleteAttachment(key)
		w.mustDel("c1")
		settle()
		w.filter.want(t, "ports")
		if !slices.Equal(w.filter.forgotten, append(flows, flows...)) {
			t.Errorf("forgotten %v", w.filter.forgotten)
		}
		w.wantWrites(key, "Attached/c1", "Detached/c1")
		w.wantRecords()
	})
}

// TestHostPortConflict: the second pod is refused before anything is made, with the name
// of the holder of the port. It gets the port as soon as the DEL of the first is
// answered.
func TestHostPortConflict(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		w.pod("one", "u1")
		w.pod("two", "u2")
		if _, err := w.addAsking("c1", "one", "u1", `{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]}`); err != nil {
			t.Fatal(err)
		}
		const second = `{"portMappings":[{"hostPort":8080,"containerPort":81,"protocol":"tcp","hostIP":"192.168.77.11"}]}`
		_, err := w.addAsking("c2", "two", "u2", second)
		nodetest.WantCode(t, err, cniproto.CodeTryAgainLater, "8080/tcp", "ns/one", "c1")
		w.wantLinks("c1/eth0")
		w.mustDel("c1")
		if _, err := w.addAsking("c3", "two", "u2", second); err != nil {
			t.Fatal(err)
		}
		settle()
		w.filter.want(t, "ports", "192.168.77.11 . tcp . 8080 : 10.244.1.5 . 81")
	})
}

// A host port at an address that is none of the node's would lead nowhere.
func TestHostPortElsewhere(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		w.pod("web", "u1")
		ask := func(at string) error {
			_, err := w.addAsking("c1", "web", "u1", `{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp","hostIP":"`+at+`"}]}`)
			return err
		}
		for _, at := range []string{"192.0.2.1", "127.0.0.53"} {
			nodetest.WantCode(t, ask(at), cniproto.CodeInvalidConfig, "hostIP "+at, "192.168.77.11")
			w.wantLinks()
		}
		if err := ask("127.0.0.1"); err != nil {
			t.Error(err)
		}
	})
}

func TestHostPortsThatCannotBeOpened(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		key := w.pod("web", "u1")
		w.filter.setFail(errors.New("nft: operation not permitted"))
		_, err := w.addAsking("c1", "web", "u1", `{"portMappings":[{"hostPort":8080,"containerPort":80}]}`)
		nodetest.WantCode(t, err, cniproto.CodeTryAgainLater, "pod ns/web", "packet filter", "operation not permitted")
		w.filter.setFail(nil)
		<-time.After(2 * time.Minute) // the retries became rarer
		settle()
		w.wantLinks()
		w.filter.want(t, "ports")
		w.wantRecords()
		w.wantWrites(key)
	})
}

// TestNoFilterIsSaid: a node whose packet filter cannot be written refuses pods: not
// every runtime asks for STATUS.
func TestNoFilterIsSaid(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		key := w.pod("web", "u1")
		w.filter.setFail(errors.New("nftables cannot be used on this node"))
		w.installs()
		w.restart()
		<-time.After(time.Minute)
		_, err := w.add("c1", "web", "u1")
		nodetest.WantCode(t, err, cniproto.CodeTryAgainLater, "ns/web", "packet filter", "nftables cannot be used on this node")
		settle()
		w.wantLinks()
		w.wantRecords()
		w.wantAnnounced(false)
		err = w.network.canServe()
		if !errors.Is(err, fault.ErrNotServing) || !strings.Contains(err.Error(), "nftables cannot be used on this node") {
			t.Errorf("look: %v", err)
		}
		w.filter.setFail(nil)
		w.pass(time.Minute) // the retries became rarer
		w.mustAdd("c2", "web", "u1")
		w.wantWrites(key, "Attached/c2")
		w.wantAnnounced(true)
	})
}
