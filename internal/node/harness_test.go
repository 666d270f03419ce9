package node

import (
	"context"
	"encoding/json"
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
	"fairlead.dev/fairlead/internal/nft"
	"fairlead.dev/fairlead/internal/node/answer"
	"fairlead.dev/fairlead/internal/node/apiserver"
	"fairlead.dev/fairlead/internal/node/filter"
	"fairlead.dev/fairlead/internal/node/hostnet"
	"fairlead.dev/fairlead/internal/node/install"
	"fairlead.dev/fairlead/internal/node/ledger"
	"fairlead.dev/fairlead/internal/node/nodetest"
	"fairlead.dev/fairlead/internal/node/report"
)

const (
	link1 = "0a:58:0a:f4:00:05"
)

// TestMain has the spools of tests where tests may write.
func TestMain(m *testing.M) {
	cniproto.RunDir = os.TempDir()
	os.Exit(m.Run())
}

// world is a node with a fake kernel and a fake API server. Its daemon can be
// killed and started again; everything else stays.
type world struct {
	t      *testing.T
	kernel *fakeKernel
	// real takes the place of kernel, if it is set.
	real   Kernel
	host   *fakeHost
	filter *fakeFilter
	rules  *fakeRules
	api    *fakeAPI
	dir    string
	bootID string
	// encapsulation of the next daemon.
	encapsulation hostnet.Encapsulation
	// reserved host ports of the next daemon.
	reserved []answer.ReservedPort
	// install of the next daemon.
	install *install.Options

	daemon  *Daemon
	network *podNetwork
	stop    func()
	// metrics of the daemon that runs.
	metrics *prometheus.Registry
}

// inWorld runs a test in a bubble with its own clock. The daemon runs, and the
// default network is there.
func inWorld(t *testing.T, test func(*world)) {
	t.Helper()
	inWorldWith(t, nil, test)
}

// inWorldWith is inWorld with another kernel than the fake one.
func inWorldWith(t *testing.T, real Kernel, test func(*world)) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := &world{
			t: t, kernel: newFakeKernel(), real: real, filter: &fakeFilter{}, rules: &fakeRules{}, api: newFakeAPI(), dir: dir, bootID: "boot-1", encapsulation: hostnet.EncapsulationNone,
			host: &fakeHost{broken: make(chan error), uplink: host.Uplink{
				Name: "eth0", MTU: 1500, Addresses: []netip.Prefix{netip.MustParsePrefix("192.168.77.11/24")},
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

// start starts a daemon as Run does, without its socket.
func (w *world) start() {
	w.t.Helper()
	w.metrics = prometheus.NewRegistry()
	c := Config{
		NodeName: "n1", Bridge: "fairlead0", Encapsulation: w.encapsulation, BootID: w.bootID, StateDir: w.dir, Socket: filepath.Join(w.dir, "cni.sock"), Install: w.install,
		AddTimeout: 10 * time.Second, Kernel: w.kernel, HostKernel: w.host, FilterKernel: w.filter, RuleKernel: w.rules, Firewall: nft.New(w.filter.apply),
		Masquerade: filter.Masquerade{Enabled: true}, API: w.api, Source: w.api,
		Metrics: w.metrics, ReservedPorts: w.reserved,
	}
	if w.real != nil {
		c.Kernel = w.real
	}
	p, err := NewPlugin(c)
	if err != nil {
		w.t.Fatal(err)
	}
	d, err := New(c, p)
	if err != nil {
		w.t.Fatal(err)
	}
	w.daemon, w.network = d, p.(*podNetwork)
	ctx, cancel := context.WithCancel(context.Background())
	if err := d.begin(ctx); err != nil {
		w.t.Fatal(err)
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
}

// restart ends the daemon and starts another.
func (w *world) restart() {
	w.t.Helper()
	w.stop()
	w.kernel.setHook(nil)
	w.api.setHook(nil)
	w.filter.setHook(nil)
	w.start()
	settle()
}

// pod makes a pod and its PodAttachment with these interfaces, the first is the
// default one.
func (w *world) pod(name, uid string, ifNames ...string) types.NamespacedName {
	pa := nodetest.Attachment(name, uid, ifNames...)
	w.api.putPod(name, uid)
	return apiserver.KeyOf(w.api.put(pa))
}

// leave deletes a PodAttachment as the controller does: the finalizer holds it.
func (w *world) leave(key types.NamespacedName) {
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
func (w *world) add(containerID, pod, uid string) ([]byte, error) {
	netns := w.netns(containerID)
	w.kernel.mu.Lock()
	_, there := w.kernel.namespaces[netns]
	w.kernel.mu.Unlock()
	if !there {
		w.kernel.namespace(netns)
	}
	return w.handle(request(cniproto.VerbAdd, containerID, netns, pod, uid))
}

// netns is where a sandbox's namespace would be: in a directory that exists.
func (w *world) netns(containerID string) string { return filepath.Join(w.dir, "ns-"+containerID) }

func (w *world) del(containerID string) error {
	_, err := w.handle(request(cniproto.VerbDel, containerID, "", "", ""))
	return err
}

func (w *world) handle(r cniproto.Request) ([]byte, error) {
	return w.daemon.Handle(context.Background(), r)
}

// mustAdd is add that succeeds, and waits until everything behind it is done.
func (w *world) mustAdd(containerID, pod, uid string) {
	w.t.Helper()
	if _, err := w.add(containerID, pod, uid); err != nil {
		w.t.Fatalf("ADD %s: %v", containerID, err)
	}
	settle()
}

// wantLinks checks what is plugged, as container/interface.
func (w *world) wantLinks(want ...string) {
	w.t.Helper()
	got := w.kernel.names()
	slices.Sort(want)
	if !slices.Equal(got, want) {
		w.t.Errorf("links %v, want %v", got, want)
	}
}

// wantRecords checks whose records are on disk, and that nothing else is.
func (w *world) wantRecords(want ...string) {
	w.t.Helper()
	for i := range want {
		want[i] += ledger.RecordSuffix
	}
	w.wantRecordFiles(want...)
}

// wantRecordFiles checks what is in the directory of records.
func (w *world) wantRecordFiles(want ...string) {
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

// wantWrites checks every status that was ever written of a PodAttachment.
func (w *world) wantWrites(key types.NamespacedName, want ...string) {
	w.t.Helper()
	if got := w.api.written(key); !slices.Equal(got, want) {
		w.t.Errorf("writes of %s: %v, want %v", key, got, want)
	}
}

// settle waits until nothing is left to do at once, nor for the status that an
// ADD leaves for a moment later.
func settle() {
	synctest.Wait()
	<-time.After(report.AckDelay)
	synctest.Wait()
}
