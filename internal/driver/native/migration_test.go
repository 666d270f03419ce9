package native

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/ipam/block"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/test/blocktest"
	"fairlead.dev/fairlead/test/drivertest"
)

// fleet are the launchers of machines, in a cluster with KubeVirt.
type fleet struct {
	launchers map[pod.Identity]pod.Launcher
	// gone are the UIDs of instances that do not exist.
	gone map[types.UID]bool
	err  error
}

func (f *fleet) Sources(_ context.Context, namespace string, target pod.Launcher) (out []pod.Identity, err error) {
	for id, l := range f.launchers {
		if id.Namespace == namespace && target.MigratesFrom(l) {
			out = append(out, id)
		}
	}
	return out, f.err
}

func (f *fleet) Exists(_ context.Context, _ string, l pod.Launcher) (bool, error) {
	return !f.gone[l.Instance.UID], f.err
}

// launcher returns the request of pod n, a launcher of an instance, on a node of its own.
func (f *fleet) launcher(n int, instance, migration string) *driver.Request {
	r := drivertest.Request(n)
	r.NodeName = fmt.Sprintf("node-%d", n)
	l := pod.Launcher{
		Instance:  metav1.OwnerReference{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachineInstance", Name: instance, UID: types.UID("uid-" + instance)},
		Migration: types.UID(migration),
	}
	asks(r).Launcher = l
	asks(r).Sticky = map[v1alpha1.Sticky]string{v1alpha1.StickyVirtualMachine: instance}
	f.launchers[pod.Identity{Key: pod.Key{Namespace: r.Namespace, Name: r.PodName, UID: r.PodUID}, Node: r.NodeName}] = l
	return r
}

// holds records the claims that are created, as "name owner".
type holds struct {
	written
	made *[]string
}

func (h holds) Obtain(ctx context.Context, key types.NamespacedName, making Making) (Obtained, error) {
	if making.UntilStopped {
		*h.made = append(*h.made, key.Name+" "+making.Owner.Kind+"/"+making.Owner.Name)
	}
	return h.written.Obtain(ctx, key, making)
}

func startFleet(t *testing.T, sticky v1alpha1.Sticky) (*inMemory, *fleet, *[]string) {
	t.Helper()
	d := start(t, blocktest.NewAPI(), "a")
	f, made := &fleet{launchers: map[pod.Identity]pod.Launcher{}, gone: map[types.UID]bool{}}, &[]string{}
	d.cfg.Claims, d.cfg.Machines = holds{written{store: d.store}, made}, f
	d.pool("a", v1alpha1.IPPoolSpec{Ranges: []string{"10.0.0.0/28"}, Sticky: sticky, Quota: v1alpha1.Quota{PerNamespace: 2}})
	return d, f, made
}

// TestMigratingLauncher: the target of a live migration gets the address of the source,
// also if the quota of the namespace is used up. Other launchers wait.
func TestMigratingLauncher(t *testing.T) {
	d, f, made := startFleet(t, v1alpha1.StickyVirtualMachine)
	source := f.launcher(1, "vm1", "")
	want := d.get(source)
	d.get(f.launcher(2, "vm2", "")) // the quota is used up
	target := f.launcher(3, "vm1", "m1")
	if got := d.get(target); got != want {
		t.Fatalf("the target got %s, the source has %s", got, want)
	}
	for name, r := range map[string]*driver.Request{
		"a third launcher": f.launcher(4, "vm1", "m2"),
		"the next instance": func() *driver.Request {
			r := f.launcher(5, "vm1", "m3")
			asks(r).Launcher.Instance.UID = "new"
			return r
		}(),
		"an instance's clone": func() *driver.Request { r := f.launcher(6, "vm3", "m4"); asks(r).Claim = "vm1"; return r }(),
		"a forged pod":        func() *driver.Request { r := drivertest.Request(7); asks(r).Claim = "vm1"; return r }(),
	} {
		if _, err := d.Ensure(t.Context(), r); !errors.Is(err, fault.ErrConflict) && !errors.Is(err, fault.ErrExhausted) {
			t.Errorf("%s: %v", name, err)
		}
	}
	a, err := d.Ensure(t.Context(), source)
	if err != nil {
		t.Fatal(err)
	}
	d.release(source, a)
	if got := d.get(target); got != want {
		t.Errorf("after the source the target has %s, want %s", got, want)
	}
	delete(f.launchers, pod.Identity{Key: pod.Key{Namespace: source.Namespace, Name: source.PodName, UID: source.PodUID}, Node: source.NodeName})
	if got := d.get(f.launcher(8, "vm1", "m5")); got != want {
		t.Errorf("the next migration: %s, want %s", got, want)
	}
	if len(*made) > 0 {
		t.Errorf("claims were made for sources that have one: %v", *made)
	}
}

// TestAbortedMigration: the source is untouched.
func TestAbortedMigration(t *testing.T) {
	d, f, _ := startFleet(t, v1alpha1.StickyVirtualMachine)
	source, target := f.launcher(1, "vm1", ""), f.launcher(2, "vm1", "m1")
	want := d.get(source)
	a, err := d.Ensure(t.Context(), target)
	if err != nil {
		t.Fatal(err)
	}
	d.release(target, a)
	if got := d.get(source); got != want || len(d.store.Held(HolderOf(target.Owner))) != 0 {
		t.Errorf("the source has %s, want %s; the target has %v", got, want, d.store.Held(HolderOf(target.Owner)))
	}
}

// TestMigrationWithoutClaim: the target gets an address of its own. The source's address
// is given to no other pod until the machine has stopped.
func TestMigrationWithoutClaim(t *testing.T) {
	d, f, made := startFleet(t, v1alpha1.StickyOff)
	d.pool("a", v1alpha1.IPPoolSpec{Ranges: []string{"10.0.0.1-10.0.0.2"}})
	source, target := f.launcher(1, "vm1", ""), f.launcher(2, "vm1", "m1")
	first, err := d.Ensure(t.Context(), source)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if got, was := d.get(target), "a "+first.Interface.Addresses[0]; got == was {
			t.Errorf("the target got %s, which the source has", got)
		}
	}
	d.release(source, first)
	if diff := cmp.Diff([]string{pod.AttachmentName(source.PodName, source.PodUID) + ".eth0 VirtualMachineInstance/vm1"}, *made); diff != "" {
		t.Errorf("claims (-want +got):\n%s", diff)
	}
	has := d.store.Claimed(source.Namespace + "/" + pod.AttachmentName(source.PodName, source.PodUID) + ".eth0")
	if len(has) != 1 || has[0].Holder.Pod != "" {
		t.Errorf("the address of the source: %+v", has)
	}
	if _, err := d.Ensure(t.Context(), drivertest.Request(3)); !errors.Is(err, fault.ErrExhausted) {
		t.Errorf("another pod: %v", err)
	}
}

// A launcher of an instance that does not exist is forged, or its machine has stopped: no
// claim is made for it. If the API server does not answer, the target waits.
func TestMigrationOfNoMachine(t *testing.T) {
	d, f, made := startFleet(t, v1alpha1.StickyOff)
	f.gone["uid-vm1"] = true
	source, target := f.launcher(1, "vm1", ""), f.launcher(2, "vm1", "m1")
	d.get(source)
	f.err = fmt.Errorf("%w: no answer", fault.ErrUnavailable)
	if _, err := d.Ensure(t.Context(), target); !errors.Is(err, fault.ErrUnavailable) {
		t.Errorf("without an answer: %v", err)
	}
	f.err = nil
	d.get(target)
	if len(*made) > 0 {
		t.Errorf("claims were made: %v", *made)
	}
}

// Addresses of several pools on one interface are kept until the machine stops, under a
// name each.
func TestMigrationWithoutClaimInEachPool(t *testing.T) {
	d, f, made := startFleet(t, v1alpha1.StickyOff)
	d.pool("c", v1alpha1.IPPoolSpec{Ranges: []string{"10.0.2.1-10.0.2.9"}})
	d.pool("b", v1alpha1.IPPoolSpec{Ranges: []string{"10.0.1.1-10.0.1.9", "fd00::1-fd00::9"}})
	each := func(r *driver.Request) *driver.Request {
		r.Interface, r.Network, r.Default = "net1", "blue/net-a", false
		asks(r).Pools, asks(r).EachPool = []string{"b", "c"}, true
		return r
	}
	d.get(each(f.launcher(1, "vm1", "")))
	d.get(each(f.launcher(2, "vm1", "m1")))
	var names []string
	for _, l := range append(d.store.Held(HolderOf(each(f.launcher(1, "vm1", "")).Owner)), block.Lease{}) {
		names = append(names, strings.TrimPrefix(l.Claim, f.launcher(1, "vm1", "").Namespace+"/"))
	}
	pod1 := pod.AttachmentName(drivertest.Request(1).PodName, drivertest.Request(1).PodUID)
	if diff := cmp.Diff([]string{pod1 + ".net1", pod1 + ".net1.2", pod1 + ".net1", ""}, names); diff != "" || len(*made) != 3 {
		t.Errorf("made %v; the claims (-want +got):\n%s", *made, diff)
	}
}

// once fails the second time that a claim is made until a machine stops.
type once struct {
	holds
	failed *bool
}

func (o once) Obtain(ctx context.Context, key types.NamespacedName, making Making) (Obtained, error) {
	if making.UntilStopped && len(*o.made) == 1 && !*o.failed {
		*o.failed = true
		return Obtained{}, fmt.Errorf("%w: no answer", fault.ErrUnavailable)
	}
	return o.holds.Obtain(ctx, key, making)
}

// The API server does not answer after the first address of a source was kept. The next try
// keeps the second one under a name of its own, since a claim holds one address of a family.
func TestMigrationGoesOnWithTheNextAddress(t *testing.T) {
	d, f, made := startFleet(t, v1alpha1.StickyOff)
	d.cfg.Claims = once{holds{written{store: d.store}, made}, new(false)}
	d.pool("b", v1alpha1.IPPoolSpec{Ranges: []string{"10.0.1.1-10.0.1.9"}})
	d.pool("c", v1alpha1.IPPoolSpec{Ranges: []string{"10.0.2.1-10.0.2.9"}})
	each := func(r *driver.Request) *driver.Request {
		r.Interface, r.Network, r.Default = "net1", "blue/net-a", false
		asks(r).Pools, asks(r).EachPool = []string{"b", "c"}, true
		return r
	}
	source, target := each(f.launcher(1, "vm1", "")), each(f.launcher(2, "vm1", "m1"))
	d.get(source)
	if _, err := d.Ensure(t.Context(), target); !errors.Is(err, fault.ErrUnavailable) {
		t.Errorf("without an answer: %v", err)
	}
	d.get(target)
	held := d.store.Held(HolderOf(source.Owner))
	if len(held) != 2 || held[0].Claim == "" || held[1].Claim != held[0].Claim+".2" {
		t.Errorf("the source has %+v", held)
	}
}

// TestMACOfClaims: all pods of a claim have its MAC, the two launchers of a machine too. Kinds
// without a MAC of their own get none.
func TestMACOfClaims(t *testing.T) {
	d, f, made := startFleet(t, v1alpha1.StickyVirtualMachine)
	const mac = "02:00:00:00:00:01"
	d.cfg.Claims = holds{written{store: d.store, macs: map[string]string{drivertest.Request(1).Namespace + "/vm1": mac}}, made}
	macvlan := v1alpha1.Binding{Macvlan: &v1alpha1.MacvlanBinding{Parent: "eth1", Mode: "bridge"}}
	ipvlan := v1alpha1.Binding{IPVLAN: &v1alpha1.IPVLANBinding{Parent: "eth1", Mode: "l2"}}
	cases := []struct {
		name string
		r    *driver.Request
		with func(*driver.Request)
		want string
	}{
		{"the source", f.launcher(1, "vm1", ""), nil, mac},
		{"the target", f.launcher(2, "vm1", "m1"), func(r *driver.Request) { r.Binding = &macvlan }, mac},
		{"a kind that shares the MAC of its parent", f.launcher(1, "vm1", ""), func(r *driver.Request) { r.Binding = &ipvlan }, ""},
		{"another plugin's interface", f.launcher(1, "vm1", ""), func(r *driver.Request) { r.AddressOnly = true }, ""},
		{"a pod without a claim", drivertest.Request(5), nil, ""},
	}
	for _, tc := range cases {
		if tc.with != nil {
			tc.with(tc.r)
		}
		a, err := d.Ensure(t.Context(), tc.r)
		if err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		if a.Interface.MAC != tc.want {
			t.Errorf("%s has MAC %q, want %q", tc.name, a.Interface.MAC, tc.want)
		}
	}
}
