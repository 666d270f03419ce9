package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/internal/node/report"
)

const (
	// namespace has the pods.
	namespace = "scale"
	// clients is the number of pods that are created or deleted at the same time.
	clients = 32
)

// workload makes pods, and does to them what kubelets do: the status Running after the
// pod is plugged, and the removal after its end.
type workload struct {
	// watcher watches the pods, in place of all kubelets. replicas creates and deletes them.
	watcher, replicas corev1client.CoreV1Interface
	lives             *lives
	// ends has the pods that are being deleted, starts those that are plugged.
	ends, starts workqueue.TypedRateLimitingInterface[types.NamespacedName]
	names        atomic.Int64
}

func newWorkload(watcher, replicas corev1client.CoreV1Interface, all *lives) *workload {
	w := &workload{watcher: watcher, replicas: replicas, lives: all, ends: report.NewQueue[types.NamespacedName]("ends"), starts: report.NewQueue[types.NamespacedName]("starts")}
	all.attached = w.starts.Add
	return w
}

// run removes pods that are being deleted, after their DEL, until ctx ends.
func (w *workload) run(ctx context.Context) error {
	lw := toolscache.NewListWatchFromClient(w.watcher.RESTClient(), "pods", namespace, fields.Everything())
	pods := toolscache.NewSharedIndexInformer(lw, &corev1.Pod{}, 0, toolscache.Indexers{})
	err := pods.SetTransform(func(o any) (any, error) {
		if p, ok := o.(*corev1.Pod); ok {
			return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
				Namespace: p.Namespace, Name: p.Name, UID: p.UID, ResourceVersion: p.ResourceVersion, DeletionTimestamp: p.DeletionTimestamp,
			}}, nil
		}
		return o, nil
	})
	if err != nil {
		return err
	}
	_, err = pods.AddEventHandler(toolscache.ResourceEventHandlerFuncs{UpdateFunc: func(_, o any) {
		if p := o.(*corev1.Pod); p.DeletionTimestamp != nil {
			w.ends.Add(client.ObjectKeyFromObject(p))
		}
	}})
	if err != nil {
		return err
	}
	var g sync.WaitGroup
	g.Go(func() { report.RunQueue(ctx, w.ends, clients, w.end) })
	g.Go(func() { report.RunQueue(ctx, w.starts, clients, w.start) })
	pods.RunWithContext(ctx)
	g.Wait()
	return nil
}

// start is the one status of a started pod that is written here; a kubelet writes a few.
func (w *workload) start(ctx context.Context, key types.NamespacedName) error {
	l := w.lives.of(key)
	if l == nil {
		return nil
	}
	patch := []byte(`{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}`)
	_, err := l.node.kubelet.Pods(key.Namespace).Patch(ctx, key.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return client.IgnoreNotFound(err)
}

// end is the end of a pod: DEL, then the removal of the object.
func (w *workload) end(ctx context.Context, key types.NamespacedName) error {
	l := w.lives.of(key)
	if l == nil {
		return nil
	}
	if err := l.node.unplug(key); err != nil {
		return err
	}
	return client.IgnoreNotFound(l.node.kubelet.Pods(key.Namespace).Delete(ctx, key.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
}

// plan returns a batch of n pods that are spread over nodes.
func (w *workload) plan(n int, nodes []*node) *batch {
	b := newBatch()
	for i := range n {
		key := types.NamespacedName{Namespace: namespace, Name: fmt.Sprintf("web-6d4cf56db6-%07d", w.names.Add(1))}
		l := &life{key: key, node: nodes[i%len(nodes)], batch: b}
		b.lives = append(b.lives, l)
		w.lives.add(l)
	}
	return b
}

// create creates the pods of a batch, at a rate per second; 0 means at once.
func (w *workload) create(ctx context.Context, b *batch, rate int) error {
	return w.each(ctx, b, rate, func(ctx context.Context, l *life) error {
		l.reach(created)
		_, err := w.replicas.Pods(namespace).Create(ctx, podOf(l), metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("create pod %s: %w", l.key, err)
		}
		return nil
	})
}

// delete deletes the pods of a batch at once.
func (w *workload) delete(ctx context.Context, b *batch) error {
	return w.each(ctx, b, 0, func(ctx context.Context, l *life) error {
		l.reach(deleted)
		err := w.replicas.Pods(namespace).Delete(ctx, l.key.Name, metav1.DeleteOptions{})
		if err != nil {
			return fmt.Errorf("delete pod %s: %w", l.key, err)
		}
		return nil
	})
}

// each calls do for each pod of a batch, for a number of pods at the same time.
func (w *workload) each(ctx context.Context, b *batch, rate int, do func(context.Context, *life) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(clients)
	var ticks <-chan time.Time
	if rate > 0 {
		ticker := time.NewTicker(time.Second / time.Duration(rate))
		defer ticker.Stop()
		ticks = ticker.C
	}
	for _, l := range b.lives {
		if ticks != nil {
			select {
			case <-ticks:
			case <-ctx.Done():
			}
		}
		if ctx.Err() != nil {
			break
		}
		g.Go(func() error { return do(ctx, l) })
	}
	return g.Wait()
}

// podOf returns the object of a pod, bound to its node.
func podOf(l *life) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: l.key.Namespace, Name: l.key.Name, Labels: map[string]string{"app": "web", "pod-template-hash": "6d4cf56db6"}},
		Spec: corev1.PodSpec{
			NodeName:                      l.node.name,
			TerminationGracePeriodSeconds: new(int64(1)),
			Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers:                    []corev1.Container{{Name: "main", Image: "registry.example/web:1"}},
		},
	}
}
