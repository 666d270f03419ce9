package native

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/ipam/block"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/test/blocktest"
	"fairlead.dev/fairlead/test/drivertest"
)

// A MAC that another pod of the domain has is refused before an address is taken. The
// holder's name is for its own namespace and for operators.
func TestMACOfAnother(t *testing.T) {
	const mac = "02:00:00:00:00:07"
	d, f, _ := startFleet(t, v1alpha1.StickyOff)
	d.pool("b", v1alpha1.IPPoolSpec{Domain: "other", Ranges: []string{"10.0.0.0/28"}})
	with := func(r *driver.Request) *driver.Request { r.MAC = mac; return r }
	first := with(drivertest.Request(1))
	a, err := d.Ensure(t.Context(), first)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Ensure(t.Context(), first); err != nil {
		t.Errorf("asked again: %v", err)
	}
	foreign := with(drivertest.Request(2))
	foreign.Namespace = "foreign"
	for _, r := range []*driver.Request{with(drivertest.Request(3)), foreign} {
		_, err := d.Ensure(t.Context(), r)
		if !errors.Is(err, fault.ErrConflict) || !strings.Contains(driver.Detail(err), first.PodName) {
			t.Fatalf("a second pod: %v, for operators: %q", err, driver.Detail(err))
		}
		if names := strings.Contains(err.Error(), first.PodName); names != (r.Namespace == first.Namespace) {
			t.Errorf("a pod of namespace %s is answered %v", r.Namespace, err)
		}
		if len(d.store.Held(HolderOf(r.Owner))) > 0 {
			t.Errorf("pod %s has %v", r.PodName, d.store.Held(HolderOf(r.Owner)))
		}
	}
	elsewhere := with(drivertest.Request(4))
	asks(elsewhere).Pools = []string{"b"}
	if _, err := d.Ensure(t.Context(), elsewhere); err != nil {
		t.Errorf("in another domain: %v", err)
	}
	if !awaited(v1alpha1.Interface{MAC: mac}) {
		t.Error("the next pod is not woken")
	}
	a.Interface.MAC = mac
	d.release(first, a)
	d.get(foreign)

	source, target := f.launcher(7, "vm1", ""), f.launcher(8, "vm1", "m1")
	source.MAC, target.MAC = "02:00:00:00:00:08", "02:00:00:00:00:08"
	d.get(source)
	d.get(target) // a machine that migrates has one MAC
}

// The MACs of pods from before this process began are known from their records, as long as
// the pods have their addresses.
func TestMACsOfRecords(t *testing.T) {
	const mac = "02:00:00:00:00:07"
	d, _, _ := startFleet(t, v1alpha1.StickyOff)
	first, second := drivertest.Request(1), drivertest.Request(2)
	a, err := d.Ensure(t.Context(), first)
	if err != nil {
		t.Fatal(err)
	}
	a.Interface.MAC = mac
	id := pod.Identity{Key: pod.Key{Namespace: first.Namespace, Name: first.PodName, UID: first.PodUID}, Node: first.NodeName}
	d.macs.recorded(pod.Record(id, []v1alpha1.Interface{a.Interface}))
	second.MAC = mac
	if _, err := d.Ensure(t.Context(), second); !errors.Is(err, fault.ErrConflict) {
		t.Errorf("while the record's pod has the MAC: %v", err)
	}
	a.Interface.MAC = "" // another leader's release: this leader sees only the block
	d.release(first, a)
	d.get(second)
	if n := len(d.macs.holders); n != 1 {
		t.Errorf("%d MACs are known, want 1", n)
	}
}

// meanwhile is a store that calls a function during the first Take.
type meanwhile struct {
	store
	do func()
}

func (s *meanwhile) Take(ctx context.Context, p *ipam.Pool, r block.Request) ([]block.Lease, error) {
	if do := s.do; do != nil {
		s.do = nil
		do()
	}
	return s.store.Take(ctx, p, r)
}

// Two pods that ask for one MAC at the same time do not both get it.
func TestMACOfTwoAtOnce(t *testing.T) {
	d := start(t, blocktest.NewAPI(), "a")
	d.pool("a", v1alpha1.IPPoolSpec{Ranges: []string{"10.0.0.0/28"}})
	first, second := drivertest.Request(1), drivertest.Request(2)
	first.MAC, second.MAC = "02:00:00:00:00:07", "02:00:00:00:00:07"
	var its error
	d.Driver.store = &meanwhile{d.Driver.store, func() { _, its = d.Ensure(t.Context(), second) }}
	_, err := d.Ensure(t.Context(), first)
	if its != nil || !errors.Is(err, fault.ErrConflict) {
		t.Errorf("the second: %v, and the first: %v; one of them must be refused", its, err)
	}
	d.refused(first, "Conflict")
}

// A pod that gets no address leaves nothing behind: its MAC is not remembered, however many
// such pods come and go.
func TestMACOfAPodWithoutAnAddress(t *testing.T) {
	d := start(t, blocktest.NewAPI(), "a")
	d.pool("a", v1alpha1.IPPoolSpec{Ranges: []string{"10.0.0.1"}})
	d.get(drivertest.Request(1))
	for n := 2; n < 6; n++ {
		r := drivertest.Request(n)
		r.MAC = fmt.Sprintf("02:00:00:00:00:%02x", n)
		d.refused(r, "Exhausted")
	}
	if n := len(d.macs.holders); n != 0 {
		t.Errorf("%d MACs of pods without an address are remembered", n)
	}
}
