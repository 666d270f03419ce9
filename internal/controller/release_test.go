package controller

import (
	"context"
	"errors"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
)

// A record whose finalizer was dropped, and the reply lost, is not given back a second
// time: another leader may have written it anew meanwhile, with the same addresses
// (found by the simulation, seed 110).
func TestReplyToTheLastWriteIsLost(t *testing.T) {
	metrics, err := NewMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	lossy, given := &lossyPatches{lost: 2}, &countedReleases{}
	r := New(Config{
		Client: lossy, Drivers: map[string]driver.Driver{"native": given},
		Turns: NewTurns(1), Metrics: metrics, Events: events.NewFakeRecorder(10),
	})
	record := plugged(func(a *v1alpha1.PodAttachment) {
		a.UID, a.Finalizers = "record", []string{v1alpha1.ReleaseFinalizer}
		a.Spec.Interfaces = []v1alpha1.Interface{{Name: "eth0", Driver: "native", Network: v1alpha1.DefaultNetwork}}
		a.Status.Sandbox.State = v1alpha1.SandboxDetached
	})
	for range lossy.lost {
		if _, err := r.release(t.Context(), record, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("error %v, want that of the write", err)
		}
	}
	if _, err := r.release(t.Context(), record, nil); err != nil {
		t.Error(err)
	}
	if given.releases != 1 || lossy.patches != lossy.lost+1 {
		t.Errorf("given back %d times with %d writes, want once with %d", given.releases, lossy.patches, lossy.lost+1)
	}
	other := record.DeepCopy()
	other.ObjectMeta = metav1.ObjectMeta{UID: "anew", Finalizers: record.Finalizers, DeletionTimestamp: record.DeletionTimestamp}
	if _, err := r.release(t.Context(), other, nil); err != nil || given.releases != 2 {
		t.Errorf("the record that was written anew: given back %d times in all, %v; want 2", given.releases, err)
	}
}

// lossyPatches is a client whose first replies are lost.
type lossyPatches struct {
	client.Client
	lost, patches int
}

func (c *lossyPatches) Patch(context.Context, client.Object, client.Patch, ...client.PatchOption) error {
	c.patches++
	if c.patches <= c.lost {
		return context.DeadlineExceeded
	}
	return nil
}

// countedReleases is a driver that is told to give back.
type countedReleases struct {
	driver.Driver
	releases int
}

func (d *countedReleases) Release(context.Context, driver.Ref) error {
	d.releases++
	return nil
}
