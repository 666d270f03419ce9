package controller

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/pod"
)

// slowWrites is an API server whose writes wait for the test.
type slowWrites struct {
	client.Client
	answer chan struct{}

	mu                   sync.Mutex
	underWay, most, made int
}

func (s *slowWrites) write() error {
	s.count(1)
	defer s.count(-1)
	<-s.answer
	s.mu.Lock()
	s.made++
	s.mu.Unlock()
	return nil
}

func (s *slowWrites) count(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.underWay += n
	s.most = max(s.most, s.underWay)
}

func (s *slowWrites) Create(context.Context, client.Object, ...client.CreateOption) error {
	return s.write()
}

func (s *slowWrites) Delete(context.Context, client.Object, ...client.DeleteOption) error {
	return s.write()
}

func (s *slowWrites) Patch(context.Context, client.Object, client.Patch, ...client.PatchOption) error {
	return s.write()
}

func (s *slowWrites) Status() client.SubResourceWriter { return slowStatus{s: s} }

type slowStatus struct {
	client.SubResourceWriter
	s *slowWrites
}

func (s slowStatus) Patch(context.Context, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
	return s.s.write()
}

// Get reads a cache without records.
func (s *slowWrites) Get(_ context.Context, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
}

// writesOf returns every kind of write that the reconciler makes for a pod.
func writesOf(ctx context.Context, r *Attachments) map[string]func() error {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "web", UID: "pod"}, Spec: corev1.PodSpec{NodeName: "node"}}
	record := pod.Record(pod.IdentityOf(p), []v1alpha1.Interface{
		{Name: "eth0", Network: v1alpha1.DefaultNetwork, Default: true, WaitForActive: true}, {Name: "net1", Network: "blue/lan"},
	})
	record.OwnerReferences = []metav1.OwnerReference{pod.OwnerOf(p)}
	record.Status.Sandbox = &v1alpha1.Sandbox{State: v1alpha1.SandboxAttached, Links: []v1alpha1.SandboxLink{{Name: "net1"}}}
	seen := func() *observed { return &observed{pod: p, served: true, current: record.DeepCopy()} }
	step := func(take step) func() error {
		return func() error {
			_, err := take(ctx, seen())
			return err
		}
	}
	return map[string]func() error{
		"create": func() error { return r.ensurer.write(ctx, p, record.DeepCopy()) },
		"change": func() error {
			return r.ensurer.changeRecord(ctx, seen(), func(spec *v1alpha1.PodAttachmentSpec) { spec.Plug = []string{"net2"} })
		},
		"activate": step(r.ensurer.activate),
		"project":  step(r.ensurer.project),
		"delete": func() error {
			_, err := r.releaser.askDeletion(ctx, record.DeepCopy(), p)
			return err
		},
		"condition": func() error { return r.releaser.showUnreleased(ctx, record.DeepCopy(), "Unavailable", "it is away") },
		"finalizer": func() error { return r.releaser.dropFinalizer(ctx, record.DeepCopy()) },
	}
}

// No more writes than there are turns run at the same time, of any kind, and all are
// made.
func TestWritesTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &slowWrites{answer: make(chan struct{})}
		r := New(Config{Client: api, Turns: NewTurns(3)})
		var done atomic.Int32
		const rounds = 5
		writes := writesOf(t.Context(), r)
		for range rounds {
			for name, write := range writes {
				go func() {
					if err := write(); err != nil {
						t.Errorf("%s: %v", name, err)
					}
					done.Add(1)
				}()
			}
		}
		synctest.Wait()
		if n := api.underWay; n != 3 {
			t.Errorf("%d writes are under way, want 3", n)
		}
		close(api.answer)
		synctest.Wait()
		if most, done, want := api.most, int(done.Load()), rounds*len(writes); most != 3 || done != want || api.made != want {
			t.Errorf("%d writes were under way at most, %d were made and %d returned, want 3, %d and %d", most, api.made, done, want, want)
		}
	})
}

// A write that waits for its turn returns at the end of its context, without having
// written.
func TestWriteWaitsNoLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &slowWrites{answer: make(chan struct{})}
		r := New(Config{Client: api, Turns: NewTurns(1)})
		first := writesOf(t.Context(), r)["create"]
		go func() { _ = first() }()
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		writes := writesOf(ctx, r)
		ended := make(chan error, len(writes))
		for _, write := range writes {
			go func() { ended <- write() }()
		}
		synctest.Wait()
		cancel()
		for range writes {
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("error %v, want that it was cancelled", err)
			}
		}
		close(api.answer)
		synctest.Wait()
		if most, made := api.most, api.made; most != 1 || made != 1 {
			t.Errorf("%d writes were under way and %d made, want 1", most, made)
		}
	})
}

// A reconciler is busy while a pod is in its queue or with a worker.
func TestBusy(t *testing.T) {
	r := New(Config{Turns: NewTurns(2)})
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer queue.ShutDown()
	want := func(busy bool, when string) {
		t.Helper()
		if got := r.Busy(); got != busy {
			t.Errorf("%s: busy %v, want %v", when, got, busy)
		}
	}
	want(false, "before it began")
	r.queue.Store(&queue)
	want(false, "without a pod")
	queue.Add(reconcile.Request{NamespacedName: types.NamespacedName{Name: "waits"}})
	want(true, "with a pod that waits")
	_, _ = queue.Get()
	r.working.Add(1)
	want(true, "with a pod that is worked on")
	r.working.Add(-1)
	want(false, "when that is done")
}
