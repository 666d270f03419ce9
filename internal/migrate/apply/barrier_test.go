package apply

import (
	"context"
	"fmt"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/test/cluster"
)

// lease returns a Lease as a process of whereabouts writes it.
func lease(c *cluster.Cluster, name, of string) *coordinationv1.Lease {
	now := metav1.NowMicro()
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: name},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &of, LeaseDurationSeconds: new(int32(1)), AcquireTime: &now, RenewTime: &now},
	}
}

// TestBarrier takes and holds three Leases: one is free, one was released, and the
// process that held the third was killed.
func TestBarrier(t *testing.T) {
	c := cluster.New(t)
	for name, of := range map[string]string{"given-back": "", "killed": "default/web"} {
		if err := c.Client.Create(t.Context(), lease(c, name, of)); err != nil {
			t.Fatal(err)
		}
	}
	b := Barrier{API: c.Client, Namespace: c.Namespace, Names: []string{"free", "given-back", "killed"}}
	if err := b.Take(t.Context()); err != nil {
		t.Fatal(err)
	}
	read := func(name string) *coordinationv1.Lease {
		t.Helper()
		o := &coordinationv1.Lease{}
		if err := c.Client.Get(t.Context(), client.ObjectKey{Namespace: c.Namespace, Name: name}, o); err != nil {
			t.Fatal(err)
		}
		return o
	}
	for _, name := range b.Names {
		// An ADD of whereabouts waits for 2 minutes at most.
		if s := read(name).Spec; *s.HolderIdentity != holder || *s.LeaseDurationSeconds <= 120 {
			t.Errorf("Lease %s: %s for %d s", name, *s.HolderIdentity, *s.LeaseDurationSeconds)
		}
	}

	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	first := read("free").Spec.RenewTime
	go func() { done <- b.Hold(ctx) }()
	c.Eventually(t, "a renewal", func(context.Context) error {
		if now := read("free").Spec.RenewTime; !now.After(first.Time) {
			return fmt.Errorf("renewed at %v", now)
		}
		return nil
	})
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}

	// Another process has taken one by force: it keeps it.
	forced := read("killed")
	forced.Spec.HolderIdentity = new("default/other")
	if err := c.Client.Update(t.Context(), forced); err != nil {
		t.Fatal(err)
	}
	if err := b.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	var left coordinationv1.LeaseList
	if err := c.Client.List(t.Context(), &left, client.InNamespace(c.Namespace)); err != nil {
		t.Fatal(err)
	}
	if len(left.Items) != 1 || left.Items[0].Name != "killed" {
		t.Errorf("%d Leases are left", len(left.Items))
	}
}

// TestBarrierHeld: a Lease that its holder renews is not taken.
func TestBarrierHeld(t *testing.T) {
	c := cluster.New(t)
	o := lease(c, "whereabouts", "default/web")
	o.Spec.LeaseDurationSeconds = new(int32(3600))
	if err := c.Client.Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if err := (Barrier{API: c.Client, Namespace: c.Namespace, Names: []string{"whereabouts"}}).Take(ctx); err == nil {
		t.Error("took a Lease that is held")
	}
}
