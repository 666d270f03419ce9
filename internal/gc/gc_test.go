package gc

import (
	"context"
	"errors"
	"iter"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/test/cluster"
	"fairlead.dev/fairlead/test/drivertest"
)

func collector(c *cluster.Cluster, d driver.Driver) *Collector {
	return New(Config{
		Client:    c.Client,
		Live:      c.Client,
		Drivers:   driver.Table{"memory": {Driver: d, Collect: driver.Collect{Surplus: driver.ByAddress}}},
		Interval:  time.Minute,
		Namespace: "default",
		Synced:    func() bool { return true },
	})
}

// take obtains an interface for a pod, as an interrupted reconcile leaves it that has not
// written the record yet.
func take(t *testing.T, d driver.Driver, p *corev1.Pod) driver.Ref {
	t.Helper()
	owner := driver.Owner{PodUID: p.UID, Interface: "eth0", Namespace: p.Namespace, PodName: p.Name, NodeName: p.Spec.NodeName}
	a, err := d.Ensure(t.Context(), &driver.Request{Owner: owner, Network: v1alpha1.DefaultNetwork, Default: true})
	if err != nil {
		t.Fatal(err)
	}
	return driver.Ref{Owner: owner, Interface: a.Interface}
}

func pass(t *testing.T, c *Collector) int {
	t.Helper()
	n, err := c.Pass(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func record(t *testing.T, c *cluster.Cluster, namespace string, p *corev1.Pod) *v1alpha1.PodAttachment {
	t.Helper()
	got := &v1alpha1.PodAttachment{}
	err := c.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: pod.AttachmentName(p.Name, p.UID)}, got)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// strip removes the finalizer of a record, as the controller does after a release.
func strip(t *testing.T, c *cluster.Cluster, r *v1alpha1.PodAttachment) {
	t.Helper()
	before := r.DeepCopy()
	r.Finalizers = nil
	if err := c.Client.Patch(t.Context(), r, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
}

// whereabouts#546: addresses of pods that were deleted while everything was down leaked.
// The orphan gets a record that is being deleted, so that the node acknowledges it.
func TestOrphanOfAPodThatIsGone(t *testing.T) {
	c := cluster.Exclusive(t)
	d := drivertest.NewMemory("memory", 8)
	p := c.Pod("web", "node-x")
	c.Node("node-x")
	node := &corev1.Node{}
	if err := c.Client.Get(t.Context(), client.ObjectKey{Name: "node-x"}, node); err != nil {
		t.Fatal(err)
	}
	ref := take(t, d, p)
	if err := c.Client.Delete(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if n := pass(t, collector(c, d)); n != 1 {
		t.Errorf("%d collected, want 1", n)
	}
	got := record(t, c, c.Namespace, p)
	if got == nil || got.DeletionTimestamp == nil {
		t.Fatalf("the record is not there, being deleted: %+v", got)
	}
	if diff := cmp.Diff([]v1alpha1.Interface{ref.Interface}, got.Spec.Interfaces); diff != "" || got.Spec.PodUID != p.UID || got.Spec.NodeName != "node-x" || got.Spec.NodeUID != node.UID {
		t.Errorf("the record differs from the held interface: %+v\n%s", got.Spec, diff)
	}
	if len(d.Held()) != 1 {
		t.Error("it was released without the node's acknowledgement")
	}
	if n := pass(t, collector(c, d)); n != 0 {
		t.Errorf("a second pass collected %d, want 0", n)
	}
	strip(t, c, got)
}

// whereabouts 1.10 defect 4: addresses of live pods without the annotation were freed.
func TestLivePodIsLeftAlone(t *testing.T) {
	c := cluster.Exclusive(t)
	d := drivertest.NewMemory("memory", 8)
	p := c.Pod("web", "node-x")
	take(t, d, p)
	if n := pass(t, collector(c, d)); n != 0 || record(t, c, c.Namespace, p) != nil {
		t.Errorf("%d collected, want nothing", n)
	}
}

// remembering is a driver whose List yields refs, an outdated state.
type remembering struct {
	*drivertest.Memory
	refs []driver.Ref
}

func (d remembering) List(context.Context) iter.Seq2[driver.Ref, error] {
	return func(yield func(driver.Ref, error) bool) {
		for _, ref := range d.refs {
			if !yield(ref, nil) {
				return
			}
		}
	}
}

// A new leader saw that a record was gone before it saw that the addresses were free. It
// wrote the record again and was killed. Another pod then got the addresses, and two
// records named them.
func TestReleasedMeanwhileIsNotWrittenDown(t *testing.T) {
	c := cluster.Exclusive(t)
	m := drivertest.NewMemory("memory", 1)
	gone := c.Pod("web", "node-x")
	d := remembering{m, []driver.Ref{take(t, m, gone)}}
	if err := c.Client.Delete(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
	if err := m.Release(t.Context(), d.refs[0]); err != nil {
		t.Fatal(err)
	}
	take(t, m, c.Pod("next", "node-x"))
	if n := pass(t, collector(c, d)); n != 0 || record(t, c, c.Namespace, gone) != nil {
		t.Errorf("%d collected, want nothing, and no record", n)
	}
	m.FailWith(func(method string, _ driver.Owner) error {
		if method == "confirm" {
			return errors.New("no answer")
		}
		return nil
	})
	if n, err := collector(c, d).Pass(t.Context()); n != 0 || err == nil || record(t, c, c.Namespace, gone) != nil {
		t.Errorf("%d collected, error %v, want nothing but an error", n, err)
	}
}

// A pod of the same name is another pod: whereabouts#176 and #182.
func TestNamesakeIsNoExcuse(t *testing.T) {
	c := cluster.Exclusive(t)
	d := drivertest.NewMemory("memory", 8)
	old := c.Pod("db-0", "node-x")
	take(t, d, old)
	if err := c.Client.Delete(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	c.Pod("db-0", "node-y")
	if n := pass(t, collector(c, d)); n != 1 {
		t.Errorf("%d collected, want 1", n)
	}
	strip(t, c, record(t, c, c.Namespace, old))
}

func TestOrphanOfANamespaceThatIsGone(t *testing.T) {
	c := cluster.Exclusive(t)
	d := drivertest.NewMemory("memory", 8)
	p := &corev1.Pod{}
	p.Namespace, p.Name, p.UID, p.Spec.NodeName = "no-such-namespace", "web", "11111111-0000-4000-8000-000000000000", "node-x"
	take(t, d, p)
	if n := pass(t, collector(c, d)); n != 1 {
		t.Errorf("%d collected, want 1", n)
	}
	var list v1alpha1.PodAttachmentList
	if err := c.Client.List(t.Context(), &list, client.InNamespace("default")); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(list.Items, func(r v1alpha1.PodAttachment) bool { return pod.HolderOf(&r) == pod.KeyOf(p) })
	if i < 0 || list.Items[i].DeletionTimestamp == nil {
		t.Fatalf("no record in the collector's namespace that is being deleted: %+v", list.Items)
	}
	got := &list.Items[i]
	if of := got.Pod(); of.Namespace != p.Namespace || of.Name != p.Name {
		t.Errorf("the record is of pod %s, want %s/%s", of, p.Namespace, p.Name)
	}
	if n := pass(t, collector(c, d)); n != 0 {
		t.Errorf("a second pass collected %d, want 0: the record explains what is held", n)
	}
	strip(t, c, got)
}

// own review 1: a record of one pod with the UID of another in podUID does not explain the
// interfaces of the other. A record from a version that identified static pods by the UID
// in their annotation explains the interfaces that they got then.
func TestExplainedByIdentity(t *testing.T) {
	c := cluster.Exclusive(t)
	d := drivertest.NewMemory("memory", 8)
	gone, evil := c.Pod("web", "node-x"), c.Pod("evil", "node-x")
	ref := take(t, d, gone)
	if err := c.Client.Delete(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
	borrowed := pod.Record(pod.Identity{Key: pod.KeyOf(evil), CNI: gone.UID, Node: "node-x"}, []v1alpha1.Interface{ref.Interface})
	old := c.Pod("static", "node-x")
	before := pod.Key{Namespace: old.Namespace, Name: old.Name, UID: "0123456789abcdef"}
	r := drivertest.Request(9)
	r.Namespace, r.PodName, r.PodUID = before.Namespace, before.Name, before.UID
	if _, err := d.Ensure(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	written := pod.Record(pod.Identity{Key: before, Node: "node-x"}, []v1alpha1.Interface{ref.Interface})
	written.OwnerReferences = []metav1.OwnerReference{pod.OwnerOf(old)}
	for _, o := range []*v1alpha1.PodAttachment{borrowed, written} {
		if err := c.Client.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	if n := pass(t, collector(c, d)); n != 1 {
		t.Errorf("%d collected, want 1", n)
	}
	if got := record(t, c, c.Namespace, gone); got == nil || got.DeletionTimestamp == nil {
		t.Errorf("the pod that is gone has no record that is being deleted: %+v", got)
	} else {
		strip(t, c, got)
	}
	strip(t, c, borrowed)
	strip(t, c, written)
}

func TestReleasedRecordIsSwept(t *testing.T) {
	c := cluster.Exclusive(t)
	d := drivertest.NewMemory("memory", 8)
	p := c.Pod("web", "node-x")
	ref := take(t, d, p)
	released := pod.Record(pod.IdentityOf(p), []v1alpha1.Interface{ref.Interface})
	released.Finalizers = nil
	if err := c.Client.Create(t.Context(), released); err != nil {
		t.Fatal(err)
	}
	kept := pod.Record(pod.Identity{Key: pod.Key{Namespace: c.Namespace, Name: "kept", UID: "22222222"}, Node: "node-x"}, []v1alpha1.Interface{ref.Interface})
	if err := c.Client.Create(t.Context(), kept); err != nil {
		t.Fatal(err)
	}
	if n := pass(t, collector(c, d)); n != 1 {
		t.Errorf("%d collected, want 1", n)
	}
	if record(t, c, c.Namespace, p) != nil {
		t.Error("the released record is still there")
	}
	strip(t, c, kept)
}

// If a backend cannot be listed, nothing is collected.
func TestFailingListCollectsNothing(t *testing.T) {
	c := cluster.Exclusive(t)
	d := drivertest.NewMemory("memory", 8)
	p := &corev1.Pod{}
	p.Namespace, p.Name, p.UID, p.Spec.NodeName = c.Namespace, "web", "33333333-0000-4000-8000-000000000000", "node-x"
	take(t, d, p)
	d.FailWith(func(method string, _ driver.Owner) error {
		if method == "list" {
			return errors.New("half a list")
		}
		return nil
	})
	n, err := collector(c, d).Pass(t.Context())
	if n != 0 || err == nil || !strings.Contains(err.Error(), "half a list") {
		t.Errorf("%d collected, error %v", n, err)
	}
}

func TestRunWaitsForTheDrivers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		c := New(Config{Synced: func() bool { return false }, Interval: time.Minute})
		done := make(chan error)
		go func() { done <- c.Run(ctx) }()
		<-time.After(time.Hour) // synctest's clock; a pass would have no client and panic
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// The first pass waits for pods that wait for a leader, but not for ever.
func TestRunLetsPodsPass(t *testing.T) {
	for name, tc := range map[string]struct {
		busy time.Duration // for how long pods wait
		want time.Duration // until the first pass
	}{
		"no pod waits":   {0, 0},
		"a burst":        {3 * time.Second, 3 * time.Second},
		"without an end": {time.Hour, busyFor},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				var first time.Duration
				passed := make(chan struct{})
				c := New(Config{
					Client:   lists{listed: func() { first = time.Since(start); close(passed) }},
					Synced:   func() bool { return true },
					Busy:     func() bool { return time.Since(start) < tc.busy },
					Interval: 2 * time.Hour,
				})
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error)
				go func() { done <- c.Run(ctx) }()
				<-passed
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
				if first < tc.want || first > tc.want+time.Second {
					t.Errorf("first pass after %v, want %v", first, tc.want)
				}
			})
		})
	}
}

// lists is a client of a cluster without records. It calls listed at each List.
type lists struct {
	client.Client
	listed func()
}

func (l lists) List(context.Context, client.ObjectList, ...client.ListOption) error {
	l.listed()
	return nil
}

// twofold is a driver that lists refs and records released ones.
type twofold struct {
	driver.Driver
	refs, released []driver.Ref
}

func (d *twofold) List(context.Context) iter.Seq2[driver.Ref, error] {
	return func(yield func(driver.Ref, error) bool) {
		for _, ref := range d.refs {
			if !yield(ref, nil) {
				return
			}
		}
	}
}

func (d *twofold) Release(_ context.Context, ref driver.Ref) error {
	d.released = append(d.released, ref)
	return nil
}

// A running pod gave up a network before its record named it. A driver that takes interfaces back as
// a whole gets that one back, and none that the record names or that the controller is adding.
func TestInterfaceThatARunningPodGaveUp(t *testing.T) {
	c := cluster.Exclusive(t)
	p := c.Pod("web", "node-x")
	iface := func(name string) v1alpha1.Interface {
		return v1alpha1.Interface{
			Name: name, Network: v1alpha1.DefaultNetwork, Default: name == "eth0", Driver: "memory", Addresses: []string{"192.0.2.7/24"},
			Binding: v1alpha1.Binding{Routed: &v1alpha1.RoutedBinding{}},
		}
	}
	written := pod.Record(pod.IdentityOf(p), []v1alpha1.Interface{iface("eth0")})
	written.Spec.Plug = []string{"net2"}
	if err := c.Client.Create(t.Context(), written); err != nil {
		t.Fatal(err)
	}
	d := &twofold{}
	for _, name := range []string{"eth0", "net1", "net2"} {
		d.refs = append(d.refs, driver.Ref{Owner: driver.Owner{PodUID: p.UID, Interface: name, Namespace: p.Namespace, PodName: p.Name, NodeName: "node-x"}, Interface: iface(name)})
	}
	collector := collector(c, d)
	collector.cfg.Drivers = driver.Table{"memory": {Driver: d}}
	pass(t, collector)
	if len(d.released) > 0 {
		t.Errorf("released at once: %v", d.released)
	}
	collector.cfg.Now = func() time.Time { return time.Now().Add(2 * surplusFor) }
	pass(t, collector)
	if diff := cmp.Diff(d.refs[1:2], d.released); diff != "" {
		t.Errorf("released (-want +got):\n%s", diff)
	}
	if err := c.Client.Delete(t.Context(), written); err != nil {
		t.Fatal(err)
	}
	strip(t, c, record(t, c, c.Namespace, p))
}

// A pod runs with the interfaces of its record. Addresses beside them are released once the
// record and they have been seen for surplusFor, but not while the record is being deleted,
// nor an interface that the controller is adding. Interfaces without a domain are not
// released in part.
func TestHalfOfAPodThatRuns(t *testing.T) {
	c := cluster.Exclusive(t)
	p := c.Pod("web", "node-x")
	iface := func(name, domain string, addresses ...string) v1alpha1.Interface {
		return v1alpha1.Interface{
			Name: name, Network: v1alpha1.DefaultNetwork, Driver: "memory", Domain: domain, Addresses: addresses,
			Binding: v1alpha1.Binding{Routed: &v1alpha1.RoutedBinding{}},
		}
	}
	eth0 := iface("eth0", "default", "10.1.0.7/24", "fd00:1::7/64")
	eth0.Default = true
	written := pod.Record(pod.IdentityOf(p), []v1alpha1.Interface{eth0})
	written.Spec.Plug = []string{"net3"}
	if err := c.Client.Create(t.Context(), written); err != nil {
		t.Fatal(err)
	}
	ref := func(i v1alpha1.Interface) driver.Ref {
		return driver.Ref{Owner: driver.Owner{PodUID: p.UID, Interface: i.Name, Namespace: p.Namespace, PodName: p.Name, NodeName: "node-x"}, Interface: i}
	}
	d := &twofold{refs: []driver.Ref{
		ref(iface("eth0", "default", "10.0.0.7/32", "10.1.0.7/32", "fd00:1::7/128")),
		ref(iface("net1", "lab", "10.0.0.9/32")),
		ref(iface("net2", "", "192.0.2.9/24")),
		ref(iface("net3", "lab", "10.0.0.10/32")),
	}}
	collector := collector(c, d)
	if n := pass(t, collector); n != 0 || len(d.released) > 0 {
		t.Fatalf("%d collected at once: %v", n, d.released)
	}
	collector.cfg.Now = func() time.Time { return time.Now().Add(2 * time.Minute) }
	if n := pass(t, collector); n != 2 {
		t.Errorf("%d collected, want 2", n)
	}
	want := []driver.Ref{ref(iface("eth0", "default", "10.0.0.7/32")), ref(iface("net1", "lab", "10.0.0.9/32"))}
	if diff := cmp.Diff(want, d.released); diff != "" {
		t.Errorf("released (-want +got):\n%s", diff)
	}
	d.released = nil
	if err := c.Client.Delete(t.Context(), written); err != nil {
		t.Fatal(err)
	}
	if n := pass(t, collector); n != 0 || len(d.released) > 0 {
		t.Errorf("%d collected beside a record that is being deleted: %v", n, d.released)
	}
	strip(t, c, record(t, c, c.Namespace, p))
}
