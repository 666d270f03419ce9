package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/test/cluster"
)

// faultyClient returns a client whose requests go through faults. It has made its discovery already.
func faultyClient(t *testing.T, c *cluster.Cluster, faults *cluster.Faults) client.Client {
	t.Helper()
	api, err := client.New(c.WithFaults(faults), client.Options{Scheme: c.Client.Scheme(), Mapper: c.Client.RESTMapper()})
	if err != nil {
		t.Fatal(err)
	}
	return api
}

func configMap(c *cluster.Cluster, name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: name}}
}

func TestFaultsOfACreate(t *testing.T) {
	c := cluster.New(t)
	tests := []struct {
		name    string
		fault   cluster.Fault
		is      func(error) bool // what the error must be; nil for none
		created bool
	}{
		{name: "none", created: true},
		{name: "refuse", fault: cluster.Fault{Kind: cluster.Refuse}, is: injected},
		{name: "lose-reply", fault: cluster.Fault{Kind: cluster.LoseReply}, is: injected, created: true},
		{name: "conflict", fault: cluster.Fault{Kind: cluster.Conflict}, is: apierrors.IsConflict},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			faults := cluster.NewFaults(func(verb, resource, _, _ string) cluster.Fault {
				if verb == "create" && resource == "configmaps" {
					return test.fault
				}
				return cluster.Fault{}
			})
			api := faultyClient(t, c, faults)
			err := api.Create(t.Context(), configMap(c, test.name))
			if test.is == nil && err != nil || test.is != nil && !test.is(err) {
				t.Errorf("create: got %v", err)
			}
			err = api.Get(t.Context(), client.ObjectKeyFromObject(configMap(c, test.name)), &corev1.ConfigMap{})
			if created := err == nil; created != test.created {
				t.Errorf("created is %v (%v); want %v", created, err, test.created)
			}
			want := map[string]int{"create configmaps": 1, "get configmaps": 1}
			if diff := cmp.Diff(want, faults.Counts()); diff != "" {
				t.Errorf("requests (-want +got):\n%s", diff)
			}
		})
	}
}

func injected(err error) bool { return errors.Is(err, cluster.ErrInjected) }

// TestFaultsWithProtobuf checks that a client which uses another format than the injected
// answer understands it.
func TestFaultsWithProtobuf(t *testing.T) {
	c := cluster.New(t)
	faults := cluster.NewFaults(func(verb, _, _, _ string) cluster.Fault {
		if verb == "create" {
			return cluster.Fault{Kind: cluster.Conflict}
		}
		return cluster.Fault{}
	})
	cfg := c.WithFaults(faults)
	cfg.ContentType = "application/vnd.kubernetes.protobuf"
	api, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	_, err = api.CoreV1().ConfigMaps(c.Namespace).Create(t.Context(), configMap(c, "x"), metav1.CreateOptions{})
	if !apierrors.IsConflict(err) {
		t.Errorf("got %v; want a conflict", err)
	}
}

func TestFaultsCountEveryVerb(t *testing.T) {
	c := cluster.New(t)
	faults := cluster.NewFaults(nil)
	api, err := kubernetes.NewForConfig(c.WithFaults(faults))
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	maps, pods := api.CoreV1().ConfigMaps(c.Namespace), api.CoreV1().Pods(c.Namespace)
	c.Pod("pod", "") // not through faults
	none := []byte(`{}`)
	steps := []func() error{
		func() error { _, err := maps.Create(ctx, configMap(c, "x"), metav1.CreateOptions{}); return err },
		func() error { _, err := maps.Update(ctx, configMap(c, "x"), metav1.UpdateOptions{}); return err },
		func() error {
			_, err := maps.Patch(ctx, "x", types.MergePatchType, none, metav1.PatchOptions{})
			return err
		},
		func() error { _, err := maps.List(ctx, metav1.ListOptions{}); return err },
		func() error {
			w, err := maps.Watch(ctx, metav1.ListOptions{})
			if err == nil {
				w.Stop()
			}
			return err
		},
		func() error { return maps.Delete(ctx, "x", metav1.DeleteOptions{}) },
		func() error { return maps.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}) },
		func() error {
			_, err := pods.Patch(ctx, "pod", types.MergePatchType, none, metav1.PatchOptions{}, "status")
			return err
		},
		func() error {
			_, err := api.CoreV1().Namespaces().Get(ctx, c.Namespace, metav1.GetOptions{})
			return err
		},
		func() error {
			_, err := api.CoordinationV1().Leases(c.Namespace).List(ctx, metav1.ListOptions{})
			return err
		},
		func() error { _, err := api.ServerVersion(); return err },
	}
	for i, step := range steps {
		if err := step(); err != nil {
			t.Errorf("step %d: %v", i, err)
		}
	}
	want := map[string]int{
		"create configmaps":           1,
		"update configmaps":           1,
		"patch configmaps":            1,
		"list configmaps":             1,
		"watch configmaps":            1,
		"delete configmaps":           1,
		"deletecollection configmaps": 1,
		"patch pods/status":           1,
		"get namespaces":              1,
		"list leases":                 1,
		"get /version":                1,
	}
	if diff := cmp.Diff(want, faults.Counts()); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
	faults.Reset()
	if got := faults.Count("create", "configmaps"); got != 0 {
		t.Errorf("after Reset: %d creates; want none", got)
	}
}

func TestFaultsDelay(t *testing.T) {
	c := cluster.New(t)
	faults := cluster.NewFaults(func(string, string, string, string) cluster.Fault {
		return cluster.Fault{Delay: time.Hour}
	})
	api := faultyClient(t, c, faults)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := api.Create(ctx, configMap(c, "late")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v; want the delay to last until the deadline", err)
	}
	faults.Set(func(string, string, string, string) cluster.Fault { return cluster.Fault{Delay: 20 * time.Millisecond} })
	start := time.Now()
	if err := api.Create(t.Context(), configMap(c, "late")); err != nil {
		t.Errorf("after the delay: %v", err)
	}
	if took := time.Since(start); took < 20*time.Millisecond {
		t.Errorf("took %v; want 20ms at least", took)
	}
}

// TestFaultsAtOnce makes every third request of many clients fail.
func TestFaultsAtOnce(t *testing.T) {
	c := cluster.New(t)
	calls := 0 // the chooser needs no lock
	faults := cluster.NewFaults(func(string, string, string, string) cluster.Fault {
		calls++
		if calls%3 == 0 {
			return cluster.Fault{Kind: cluster.Refuse}
		}
		return cluster.Fault{}
	})
	api := faultyClient(t, c, faults)
	const clients, each = 8, 6
	var group sync.WaitGroup
	var mu sync.Mutex
	failed := 0
	for i := range clients {
		group.Go(func() {
			for j := range each {
				err := api.Create(t.Context(), configMap(c, fmt.Sprintf("x-%d-%d", i, j)))
				if err == nil {
					continue
				}
				if !injected(err) {
					t.Errorf("create: %v", err)
				}
				mu.Lock()
				failed++
				mu.Unlock()
			}
		})
	}
	group.Wait()
	if failed != clients*each/3 || faults.Count("create", "configmaps") != clients*each {
		t.Errorf("%d of %d failed; want every third of %d", failed, faults.Count("create", "configmaps"), clients*each)
	}
}
