package apiserver

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/run"
	"fairlead.dev/fairlead/test/cluster"
	"fairlead.dev/fairlead/test/nodetest"
)

func TestIsNews(t *testing.T) {
	k := &Kube{node: "n1"}
	for _, tc := range []struct {
		name   string
		of     string
		change func(*v1alpha1.NodeNetwork)
		want   bool
	}{
		{"nothing", "n2", func(*v1alpha1.NodeNetwork) {}, false},
		{"condition", "n2", func(nn *v1alpha1.NodeNetwork) {
			nn.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionRouted}}
		}, false},
		{"own condition", "n1", func(nn *v1alpha1.NodeNetwork) {
			nn.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionRouted}}
		}, true},
		{"block", "n2", func(nn *v1alpha1.NodeNetwork) { nn.Spec.Blocks = nil }, true},
		{"address", "n2", func(nn *v1alpha1.NodeNetwork) { nn.Status.Addresses = []string{"192.168.77.13/24"} }, true},
		{"underlay", "n2", func(nn *v1alpha1.NodeNetwork) { nn.Spec.Underlay = []string{} }, true},
		{"tunnel", "n2", func(nn *v1alpha1.NodeNetwork) { nn.Status.Tunnel = nil }, true},
		{"dropped packets", "n2", func(nn *v1alpha1.NodeNetwork) { nn.Status.Dropped = []string{"n1"} }, true},
		{"routes of the cloud", "n2", func(nn *v1alpha1.NodeNetwork) {
			nn.Spec.Fabric = &v1alpha1.Fabric{Routed: []string{"10.244.2.0/26"}, Conditions: []metav1.Condition{{Type: v1alpha1.ConditionFabricReady, Status: metav1.ConditionTrue}}}
		}, true},
		{"a record of the cloud", "n2", func(nn *v1alpha1.NodeNetwork) {
			nn.Spec.Fabric = &v1alpha1.Fabric{Port: "p", Routed: []string{"10.244.2.0/26"}, Conditions: []metav1.Condition{{Type: v1alpha1.ConditionFabricReady, Status: metav1.ConditionFalse}}}
		}, false},
		{"made anew", "n2", func(nn *v1alpha1.NodeNetwork) { nn.UID = "another" }, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := nodetest.Tunnelled(tc.of, []string{"10.244.2.0/26"}, []string{"192.168.77.12/24"})
			after := before.DeepCopy()
			tc.change(after)
			if got := k.isRelevant(before, after); got != tc.want {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

// witness records the calls of Watch.
type witness struct {
	mu       sync.Mutex
	seen     []string
	synced   bool
	networks int
	last     *v1alpha1.PodAttachment
}

func (w *witness) events() Events {
	note := func(what string) func(*v1alpha1.PodAttachment) {
		return func(pa *v1alpha1.PodAttachment) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.seen, w.last = append(w.seen, what+" "+pa.Name), pa
		}
	}
	return Events{
		Updated: note("updated"), Deleted: note("deleted"),
		Synced:          func() { w.mu.Lock(); defer w.mu.Unlock(); w.synced = true },
		NetworksChanged: func() { w.mu.Lock(); defer w.mu.Unlock(); w.networks++ },
	}
}

// The calls of the daemon work with a real API server.
func TestKube(t *testing.T) {
	c := cluster.New(t)
	create := func(uid, node string) *v1alpha1.PodAttachment {
		pa := nodetest.Attachment("p", uid)
		pa.Namespace, pa.UID, pa.Finalizers, pa.Spec.NodeName = c.Namespace, "", nil, node
		pa.Spec.Summary = v1alpha1.AttachmentSummary{Interfaces: "eth0", Addresses: "10.244.1.5"}
		if err := c.Client.Create(t.Context(), pa); err != nil {
			t.Fatal(err)
		}
		return pa
	}
	mine, other := c.Namespace+"-1", c.Namespace+"-2"
	pa := create("u1", mine)
	create("u2", other)
	kube, err := NewKube(c.REST, mine, nil)
	if err != nil {
		t.Fatal(err)
	}
	w := &witness{}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- kube.Watch(ctx, w.events()) }()
	eventually := func(what string, want ...string) {
		t.Helper()
		c.Eventually(t, what, func(context.Context) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			if diff := cmp.Diff(want, w.seen); diff != "" || !w.synced || w.networks == 0 {
				return fmt.Errorf("synced %v, networks changed %d times, events:\n%s", w.synced, w.networks, diff)
			}
			return nil
		})
	}
	eventually("the PodAttachment of this node alone", "updated p-u1")
	if w.last.ManagedFields != nil {
		t.Error("managed fields are kept in memory")
	}

	key := client.ObjectKeyFromObject(pa)
	patch := fmt.Appendf(nil, `{"metadata":{"resourceVersion":%q},"status":{"sandbox":{"state":"Attached","id":"c1"}}}`, pa.ResourceVersion)
	got, err := kube.PatchAttachment(t.Context(), key, patch)
	if err != nil || got.Status.Sandbox.ID != "c1" || got.ManagedFields != nil || !run.Newer(got, pa) {
		t.Errorf("got %+v, %v", got, err)
	}
	eventually("our own write", "updated p-u1", "updated p-u1")
	if _, err := kube.PatchAttachment(t.Context(), key, patch); !apierrors.IsConflict(err) {
		t.Errorf("a patch of an older state: %v", err)
	}

	if err := c.Client.Delete(t.Context(), pa); err != nil {
		t.Fatal(err)
	}
	eventually("its end", "updated p-u1", "updated p-u1", "deleted p-u1")

	pod := c.Pod("q", mine)
	read, err := kube.Pod(t.Context(), client.ObjectKeyFromObject(pod))
	if err != nil || read.UID != pod.UID {
		t.Errorf("read %+v, %v", read, err)
	}
	if _, err := kube.Pod(t.Context(), types.NamespacedName{Namespace: c.Namespace, Name: "none"}); !apierrors.IsNotFound(err) {
		t.Errorf("a pod that is not there: %v", err)
	}

	nn := &v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: mine}}
	if err := c.Client.Create(t.Context(), nn); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Client.Delete(context.WithoutCancel(t.Context()), nn); err != nil {
			t.Error(err)
		}
	})
	wrote, err := kube.PatchNetwork(t.Context(), mine, []byte(`{"status":{"uplink":"eth0"}}`))
	if err != nil || wrote.Status.Uplink != "eth0" {
		t.Errorf("got %+v, %v", wrote, err)
	}
	c.Eventually(t, "the NodeNetwork in memory", func(ctx context.Context) error {
		all, err := kube.Networks(ctx)
		for _, n := range all {
			if n.Name == mine && n.Status.Uplink == "eth0" {
				return nil
			}
		}
		return fmt.Errorf("it is not among %d, %w", len(all), err)
	})
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
