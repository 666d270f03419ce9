package gc

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/test/cluster"
	"fairlead.dev/fairlead/test/drivertest"
)

// The interfaces that several drivers hold for a pod that is gone are written into one
// record. A driver whose backend does not answer, or that does not know its interfaces yet,
// does not delay the others: its interface is found after the deletion of that record.
func TestOrphanOfTwoDrivers(t *testing.T) {
	c := cluster.Exclusive(t)
	a, b := drivertest.NewMemory("a", 4), drivertest.NewMemory("b", 4)
	known := true
	collector := New(Config{
		Client: c.Client, Live: c.Client, Namespace: "default", Synced: func() bool { return true },
		Drivers: driver.Table{"a": {Driver: a}, "b": {Driver: b, Run: driver.Run{Synced: func() bool { return known }}}},
	})
	orphan := func(name string) *corev1.Pod {
		t.Helper()
		p := c.Pod(name, "node-x")
		take(t, a, p)
		owner := driver.Owner{PodUID: p.UID, Interface: "net1", Namespace: p.Namespace, PodName: p.Name, NodeName: p.Spec.NodeName}
		if _, err := b.Ensure(t.Context(), &driver.Request{Owner: owner, Network: "blue/lab"}); err != nil {
			t.Fatal(err)
		}
		if err := c.Client.Delete(t.Context(), p, client.GracePeriodSeconds(0)); err != nil {
			t.Fatal(err)
		}
		return p
	}
	// written is the drivers that the record of a pod names; the controller's part follows.
	written := func(p *corev1.Pod) string {
		t.Helper()
		r := record(t, c, c.Namespace, p)
		if r == nil {
			return "no record"
		}
		names := ""
		for _, i := range r.Spec.Interfaces {
			names += i.Driver
			d := map[string]*drivertest.Memory{"a": a, "b": b}[i.Driver]
			owner := driver.Owner{PodUID: p.UID, Interface: i.Name, Namespace: p.Namespace, PodName: p.Name}
			if err := d.Release(t.Context(), driver.Ref{Owner: owner, Interface: i}); err != nil {
				t.Fatal(err)
			}
		}
		strip(t, c, r)
		return names
	}
	p := orphan("both")
	if n := pass(t, collector); n != 1 {
		t.Errorf("%d collected, want one record", n)
	}
	if got := written(p); got != "ab" {
		t.Errorf("the record names drivers %q", got)
	}
	p = orphan("silent")
	b.FailWith(func(method string, _ driver.Owner) error {
		if method == "confirm" {
			return fmt.Errorf("%w: away", fault.ErrUnavailable)
		}
		return nil
	})
	if n, err := collector.Pass(t.Context()); n != 1 || driver.Result(err) != "Unavailable" {
		t.Errorf("%d collected, %v", n, err)
	}
	if got := written(p); got != "a" {
		t.Errorf("the record names drivers %q", got)
	}
	b.FailWith(nil)
	known = false
	if n := pass(t, collector); n != 0 {
		t.Errorf("%d collected of a driver that knows nothing yet", n)
	}
	known = true
	if n := pass(t, collector); n != 1 {
		t.Errorf("%d collected, want what was left", n)
	}
	if got := written(p); got != "b" {
		t.Errorf("the record names drivers %q", got)
	}
	var list v1alpha1.PodAttachmentList
	if err := c.Client.List(t.Context(), &list, client.InNamespace(c.Namespace)); err != nil || len(list.Items) != 0 {
		t.Errorf("%d records are left, %v", len(list.Items), err)
	}
}

// A pod that got one family from a pool of one domain, and both from a pool of another, holds
// two parts of one interface. A record with both would be refused for ever.
func TestRecordHasOneInterfaceOfAName(t *testing.T) {
	o := &orphan{}
	for _, i := range []v1alpha1.Interface{
		{Name: "eth0", Domain: "a", Addresses: []string{"10.0.0.1/32"}},
		{Name: "eth0", Domain: "b", Addresses: []string{"10.1.0.1/32", "fd00::1/128"}},
		{Name: "net1", Domain: "b", Addresses: []string{"10.1.0.2/32"}},
	} {
		o.add("native", driver.Ref{Owner: driver.Owner{Interface: i.Name}, Interface: i})
	}
	var got []string
	for _, p := range o.parts {
		got = append(got, p.ref.Interface.Name+" of "+p.ref.Interface.Domain)
	}
	if diff := cmp.Diff([]string{"eth0 of a", "net1 of b"}, got); diff != "" {
		t.Errorf("interfaces of the record (-want +got):\n%s", diff)
	}
}
