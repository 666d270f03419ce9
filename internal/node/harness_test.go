package node

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/netdev/host"
	"fairlead.dev/fairlead/internal/netdev/kinds"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/nft"
	"fairlead.dev/fairlead/internal/node/answer"
	"fairlead.dev/fairlead/internal/node/apiserver"
	"fairlead.dev/fairlead/internal/node/filter"
	"fairlead.dev/fairlead/internal/node/hostnet"
	"fairlead.dev/fairlead/internal/node/install"
	"fairlead.dev/fairlead/internal/node/ledger"
	"fairlead.dev/fairlead/internal/node/report"
	"fairlead.dev/fairlead/test/nodetest"
)

const (
	link1 = "0a:58:0a:f4:00:05"
)

// TestMain puts the spools of tests into a directory that tests may write.
func TestMain(m *testing.M) {
	cniproto.RunDir = os.TempDir()
	os.Exit(m.Run())
}

// testNode is a node with a fake kernel and a fake API server. Its daemon can be killed and
// started again; the rest stays.
type testNode struct {
	t      *testing.T
	kernel *fakeKernel
	// real are kinds in place of those of kernel, with real namespaces, nil for none, and
	// plugins executes plugins.
	real    *kinds.Table
	plugins Plugins
	host    *fakeHost
	filter  *fakeFilter
	api     *fakeAPI
	dir     string
	bootID  string
	// encapsulation of the next daemon.
	encapsulation hostnet.Encapsulation
	// devices that the kubelet has allocated.
	devices allocated
	// reserved host ports of the next daemon.
	reserved []answer.ReservedPort
	// install of the next daemon, and the changes in its directory of configurations.
	install *install.Options
	confDir changes

	daemon  *Daemon
	network *Network
	stop    func()
	// metrics of the running daemon.
	metrics *prometheus.Registry
}

// onTestNode runs a test in a bubble with its own clock, with a running daemon and the
// default network.
func onTestNode(t *testing.T, test func(*testNode)) {
	t.Helper()
	onTestNodeWith(t, nil, test)
}

// onTestNodeWith is onTestNode with kinds and namespaces other than the fake ones.
func onTestNodeWith(t *testing.T, real *kinds.Table, test func(*testNode)) {
	t.Helper()
	onExecutingNode(t, real, nil, test)
}

// onExecutingNode is onTestNodeWith with plugins.
func onExecutingNode(t *testing.T, real *kinds.Table, plugins Plugins, test func(*testNode)) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := &testNode{
			t: t, kernel: newFakeKernel(), real: real, plugins: plugins, filter: &fakeFilter{}, api: newFakeAPI(), dir: dir, bootID: "boot-1", confDir: make(changes, 1), encapsulation: hostnet.EncapsulationNone,
			host: &fakeHost{broken: make(chan error), uplink: host.Uplink{
				Name: "eth0", MTU: 1500, Addresses: []netip.Prefix{netip.MustParsePrefix("192.168.77.11/24")},
				Sources: []netip.Addr{netip.MustParseAddr("192.168.77.11")},
			}},
		}
		w.host.kernel = w.kernel
		w.api.putNetwork(&v1alpha1.NodeNetwork{
			ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "nn-1"}, Spec: v1alpha1.NodeNetworkSpec{Blocks: []string{"10.244.1.0/26"}},
		})
		w.start()
		defer func() { w.stop() }()
		settle()
		test(w)
	})
}

// realNamespaces are those of the machine, which are hidden from Holding.
type realNamespaces struct {
	plug.Namespaces
	hidden *fakeKernel
}

func (r realNamespaces) Holding(ctx context.Context, addrs []netip.Addr) (string, error) {
	return r.hidden.Holding(ctx, addrs)
}

// start starts a daemon as Run does, without its socket.
func (w *testNode) start() {
	w.t.Helper()
	if err := w.tryStart(); err != nil {
		w.t.Fatal(err)
	}
}

// tryStart starts a daemon, and returns its error if it does not start.
func (w *testNode) tryStart() error {
	w.t.Helper()
	w.metrics = prometheus.NewRegistry()
	c := Config{
		NodeName: "n1", Encapsulation: w.encapsulation, BootID: w.bootID, StateDir: w.dir, Socket: filepath.Join(w.dir, "cni.sock"), Install: w.install,
		AddTimeout: 10 * time.Second, Kinds: w.kernel.kinds(), Namespaces: w.kernel, Plugins: w.plugins, HostKernel: w.host, FilterKernel: w.filter, Prober: w.host, Firewall: nft.New(w.filter.apply),
		Masquerade: filter.Masquerade{Enabled: true}, API: w.api, Source: w.api,
		Metrics: w.metrics, ReservedPorts: w.reserved, Devices: &w.devices,
	}
	w.kernel.holds(func(context.Context, []netip.Addr) (string, error) { return "", errors.New("namespaces are hidden") })
	if w.real != nil {
		c.Kinds, c.Namespaces = w.real, realNamespaces{hidden: w.kernel}
	}
	p, err := NewPlugin(c)
	if err != nil {
		w.t.Fatal(err)
	}
	d, err := New(c, p)
	if err != nil {
		w.t.Fatal(err)
	}
	w.daemon, w.network = d, p
	w.network.confDir = w.confDir // inotify would stop the clock of the bubble
	ctx, cancel := context.WithCancel(context.Background())
	if err := d.begin(ctx); err != nil {
		cancel()
		_ = p.Run(ctx) // ends its queues
		return err
	}
	var wg sync.WaitGroup
	for _, run := range d.background() {
		wg.Go(func() {
			if err := run(ctx); err != nil {
				w.t.Error(err)
			}
		})
	}
	w.stop = func() {
		cancel()
		wg.Wait()
	}
	return nil
}

// restart ends the daemon and starts another.
func (w *testNode) restart() {
	w.t.Helper()
	w.stop()
	w.kernel.setHook(nil)
	w.api.setHook(nil)
	w.filter.setHook(nil)
	w.start()
	settle()
}

// pod makes a pod and its PodAttachment with these interfaces. The first is the default
// interface.
func (w *testNode) pod(name, uid string, ifNames ...string) types.NamespacedName {
	pa := nodetest.Attachment(name, uid, ifNames...)
	w.api.putPod(name, uid)
	return apiserver.KeyOf(w.api.put(pa))
}

// deleteAttachment deletes a PodAttachment as the controller does: its finalizer keeps it.
func (w *testNode) deleteAttachment(key types.NamespacedName) {
	w.api.change(key, func(pa *v1alpha1.PodAttachment) {
		now := metav1.Now()
		pa.DeletionTimestamp = &now
	})
}

const config110 = `{"cniVersion":"1.1.0","name":"fairlead","type":"fairlead"}`

func request(verb, containerID, netns, pod, uid string) cniproto.Request {
	args := "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=" + pod + ";K8S_POD_INFRA_CONTAINER_ID=" + containerID
	if uid != "" {
		args += ";K8S_POD_UID=" + uid
	}
	return cniproto.Request{
		Verb: verb, ContainerID: containerID, Netns: netns, IfName: "eth0", Args: args, Config: json.RawMessage(config110),
	}
}

// add makes the namespace and sends ADD.
func (w *testNode) add(containerID, pod, uid string) ([]byte, error) {
	netns := w.netns(containerID)
	w.kernel.mu.Lock()
	_, there := w.kernel.namespaces[netns]
	w.kernel.mu.Unlock()
	if !there {
		w.kernel.namespace(netns)
	}
	return w.handle(request(cniproto.VerbAdd, containerID, netns, pod, uid))
}

// netns returns the path of a sandbox's namespace, in a directory that exists.
func (w *testNode) netns(containerID string) string { return filepath.Join(w.dir, "ns-"+containerID) }

func (w *testNode) del(containerID string) error {
	_, err := w.handle(request(cniproto.VerbDel, containerID, "", "", ""))
	return err
}

func (w *testNode) handle(r cniproto.Request) ([]byte, error) {
	return w.daemon.Handle(context.Background(), r)
}

// mustAdd sends an ADD that must succeed, and waits until all background work is done.
func (w *testNode) mustAdd(containerID, pod, uid string) {
	w.t.Helper()
	if _, err := w.add(containerID, pod, uid); err != nil {
		w.t.Fatalf("ADD %s: %v", containerID, err)
	}
	settle()
}

// mustDel sends a DEL that must succeed.
func (w *testNode) mustDel(containerID string) {
	w.t.Helper()
	if err := w.del(containerID); err != nil {
		w.t.Fatalf("DEL %s: %v", containerID, err)
	}
}

// wantLinks checks the plugged interfaces, as container/interface.
func (w *testNode) wantLinks(want ...string) {
	w.t.Helper()
	got := w.kernel.names()
	slices.Sort(want)
	if !slices.Equal(got, want) {
		w.t.Errorf("links %v, want %v", got, want)
	}
}

// wantRecords checks that exactly these sandboxes have records on disk.
func (w *testNode) wantRecords(want ...string) {
	w.t.Helper()
	for i := range want {
		want[i] += ledger.RecordSuffix
	}
	w.wantRecordFiles(want...)
}

// wantRecordFiles checks the files in the directory of records.
func (w *testNode) wantRecordFiles(want ...string) {
	w.t.Helper()
	entries, err := os.ReadDir(filepath.Join(w.dir, ledger.RecordsDir))
	if err != nil {
		w.t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		w.t.Errorf("records %v, want %v", got, want)
	}
}

// wantWrites checks all writes of the status of a PodAttachment.
func (w *testNode) wantWrites(key types.NamespacedName, want ...string) {
	w.t.Helper()
	if got := w.api.written(key); !slices.Equal(got, want) {
		w.t.Errorf("writes of %s: %v, want %v", key, got, want)
	}
}

// settle waits until no work is left, also for the status write that an ADD delays for a
// moment.
func settle() {
	synctest.Wait()
	<-time.After(report.AckDelay)
	synctest.Wait()
}
