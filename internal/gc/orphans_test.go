package gc

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/test/cluster"
	"fairlead.dev/fairlead/test/drivertest"
)

// People can see what a driver with SecondLook is about to lose: the first pass that finds an
// orphan only reports it, and the second collects it. The interface of a pod that exists is
// not reported.
func TestSecondLook(t *testing.T) {
	c := cluster.Exclusive(t)
	d := drivertest.NewMemory("memory", 4)
	var told [][]string
	collector := New(Config{
		Client: c.Client, Live: c.Client, Namespace: "default", Synced: func() bool { return true },
		Drivers: driver.Table{"memory": {Driver: d, Collect: driver.Collect{SecondLook: true}}},
		Waiting: func(name string, refs []driver.Ref) {
			names := []string{}
			for _, ref := range refs {
				names = append(names, name+" "+ref.PodName)
			}
			told = append(told, names)
		},
	})
	gone, lives := c.Pod("gone", "node-x"), c.Pod("lives", "node-x")
	take(t, d, gone)
	take(t, d, lives)
	if err := c.Client.Delete(t.Context(), gone, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	var collected []int
	for range 2 {
		collected = append(collected, pass(t, collector))
	}
	r := record(t, c, c.Namespace, gone)
	if r == nil || r.DeletionTimestamp == nil {
		t.Fatalf("the record is not there, being deleted: %+v", r)
	}
	// The controller releases it.
	if err := d.Release(t.Context(), driver.Ref{Owner: driver.Owner{PodUID: gone.UID, Interface: "eth0", Namespace: gone.Namespace, PodName: gone.Name}, Interface: r.Spec.Interfaces[0]}); err != nil {
		t.Fatal(err)
	}
	strip(t, c, r)
	collected = append(collected, pass(t, collector))
	if diff := cmp.Diff([]int{0, 1, 0}, collected); diff != "" {
		t.Errorf("collected by pass (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([][]string{{"memory gone"}, {}, {}}, told); diff != "" {
		t.Errorf("told by pass (-want +got):\n%s", diff)
	}
	if r := record(t, c, c.Namespace, lives); r != nil {
		t.Errorf("the pod that lives got a record of a pod that is gone: %+v", r)
	}
}
