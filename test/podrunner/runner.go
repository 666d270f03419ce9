package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"fairlead.dev/fairlead/internal/run"
	"fairlead.dev/fairlead/test/podrunner/sandbox"
)

const (
	// parallelPods is how many pods are processed at once. A kubelet has a worker for each
	// pod. With few workers, ADDs that wait for an address hold up the DELs that release some.
	parallelPods = 1000

	// notReadyRetry is after how long kubelet retries a pod that waits for the node's
	// network.
	notReadyRetry = time.Second

	byUID = "uid"
)

// errNetworkNotReady holds pods back; it does not count as a failure of the pod.
var errNetworkNotReady = errors.New("network is not ready")

// runner brings the sandboxes of one node in line with its pods.
type runner struct {
	node    string
	client  kubernetes.Interface
	network *network
	store   *sandbox.Store
	events  record.EventRecorder
	// networkReady returns nil if the node's network is ready.
	networkReady func() error
	nodeIPs      []string
	dns          dnsConfig
	netnsDir     string
	bootID       string
	// backoff is the least time that a pod waits after a failed sandbox; at most it waits
	// half as long again. Kubelet's is 10 s.
	backoff time.Duration

	queue workqueue.TypedDelayingInterface[types.UID]
	pods  cache.Indexer

	lock    sync.Mutex
	adding  map[types.UID]context.CancelFunc // running ADDs
	retryAt map[types.UID]time.Time          // when a failed pod may be retried
}

// run processes pods until ctx ends. The sandboxes stay.
func (r *runner) run(ctx context.Context) error {
	r.adding = map[types.UID]context.CancelFunc{}
	r.retryAt = map[types.UID]time.Time{}
	r.queue = workqueue.NewTypedDelayingQueue[types.UID]()
	defer r.queue.ShutDown()

	informer := informers.NewSharedInformerFactoryWithOptions(r.client, 0,
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", r.node).String()
		}),
		informers.WithTransform(withoutManagedFields),
	).Core().V1().Pods().Informer()
	if err := informer.AddIndexers(cache.Indexers{byUID: uidOf}); err != nil {
		return fmt.Errorf("index pods: %w", err)
	}
	r.pods = informer.GetIndexer()
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(pod any) { r.observe(pod, false) },
		UpdateFunc: func(_, pod any) { r.observe(pod, false) },
		DeleteFunc: func(pod any) { r.observe(pod, true) },
	}); err != nil {
		return fmt.Errorf("watch pods: %w", err)
	}

	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { informer.RunWithContext(ctx) })
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return nil // the context has ended
	}
	for _, uid := range r.store.Pods() {
		r.queue.Add(uid) // the pod may have been deleted while this program was down
	}
	for range parallelPods {
		running.Go(func() { r.work(ctx) })
	}
	<-ctx.Done()
	r.queue.ShutDown()
	return nil
}

func withoutManagedFields(obj any) (any, error) {
	if object, ok := obj.(metav1.Object); ok {
		object.SetManagedFields(nil)
	}
	return obj, nil
}

func uidOf(obj any) ([]string, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return nil, fmt.Errorf("index %T: must be a pod", obj)
	}
	return []string{string(pod.UID)}, nil
}

// observe queues a changed pod. If the pod is to end, it does not wait for its network:
// the runtime kills the plugin, and DEL follows at once.
func (r *runner) observe(obj any, gone bool) {
	pod, ok := run.Deleted(obj).(*corev1.Pod)
	if !ok {
		return
	}
	if gone || pod.DeletionTimestamp != nil {
		r.lock.Lock()
		if cancel := r.adding[pod.UID]; cancel != nil {
			cancel()
		}
		r.lock.Unlock()
	}
	r.queue.Add(pod.UID)
}

func (r *runner) work(ctx context.Context) {
	log := logr.FromContextOrDiscard(ctx)
	for {
		uid, done := r.queue.Get()
		if done {
			return
		}
		retry, err := r.reconcile(ctx, uid)
		if err != nil && ctx.Err() == nil {
			log.Error(err, "pod failed and will be tried again", "uid", uid, "after", retry.String())
		}
		if retry > 0 {
			r.queue.AddAfter(uid, retry)
		}
		r.queue.Done(uid)
	}
}

// reconcile brings one pod to its desired state, and returns when to retry; 0 if an event
// will come first.
func (r *runner) reconcile(ctx context.Context, uid types.UID) (retry time.Duration, err error) {
	pod, err := r.pod(uid)
	if err != nil {
		return 0, err
	}
	if pod == nil || pod.DeletionTimestamp != nil || finished(pod) {
		if err := r.tearDown(ctx, r.store.OfPod(uid)); err != nil {
			return r.jittered(), err
		}
		r.forget(uid)
		if pod == nil || pod.DeletionTimestamp == nil {
			return 0, nil
		}
		return r.finalDelete(ctx, pod)
	}
	if pod.Spec.HostNetwork {
		return r.report(ctx, pod, r.nodeIPs, pod.CreationTimestamp.Time)
	}
	if wait := r.untilRetry(uid); wait > 0 {
		return wait, nil
	}
	box, err := r.ensure(ctx, pod)
	switch {
	case errors.Is(err, errNetworkNotReady):
		logr.FromContextOrDiscard(ctx).V(1).Info("pod waits for the node's network", "pod", klog.KObj(pod), "reason", err.Error())
		return notReadyRetry, nil
	case err != nil:
		r.events.Event(pod, corev1.EventTypeWarning, "FailedCreatePodSandBox", "Failed to create pod sandbox: "+err.Error())
		return r.failed(uid), fmt.Errorf("pod %s: %w", klog.KObj(pod), err)
	}
	return r.report(ctx, pod, box.IPs, box.StartedAt)
}

// pod returns the pod with a UID, nil if there is none.
func (r *runner) pod(uid types.UID) (*corev1.Pod, error) {
	found, err := r.pods.ByIndex(byUID, string(uid))
	if err != nil {
		return nil, fmt.Errorf("look up a pod: %w", err)
	}
	if len(found) == 0 {
		return nil, nil
	}
	pod, ok := found[0].(*corev1.Pod)
	if !ok {
		return nil, fmt.Errorf("look up a pod: found a %T", found[0])
	}
	return pod, nil
}

func finished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// ensure returns the pod's ready sandbox. Sandboxes that are not ready, after a failure,
// a restart or a reboot, are removed first; a new sandbox has a new ID.
func (r *runner) ensure(ctx context.Context, pod *corev1.Pod) (sandbox.Record, error) {
	var ready []sandbox.Record
	var others []sandbox.Record
	for _, box := range r.store.OfPod(pod.UID) {
		if box.State == sandbox.Ready && box.BootID == r.bootID && isNetns(box.NetnsPath) {
			ready = append(ready, box)
		} else {
			others = append(others, box)
		}
	}
	if err := r.tearDown(ctx, others); err != nil {
		return sandbox.Record{}, err
	}
	if len(ready) > 0 {
		return ready[0], nil
	}
	if err := r.networkReady(); err != nil {
		return sandbox.Record{}, fmt.Errorf("%w: %w", errNetworkNotReady, err)
	}
	return r.create(ctx, pod)
}

// create makes a sandbox with its network. On an error it leaves nothing, or, if even DEL
// fails, a record of the pending DEL.
func (r *runner) create(ctx context.Context, pod *corev1.Pod) (sandbox.Record, error) {
	args, err := capabilityArgs(pod, r.dns, time.Now())
	if err != nil {
		return sandbox.Record{}, err
	}
	id := sandbox.NewID()
	box := sandbox.Record{
		ID:           id,
		Namespace:    pod.Namespace,
		Pod:          pod.Name,
		UID:          pod.UID,
		NetnsPath:    filepath.Join(r.netnsDir, "podrunner-"+id[:12]),
		BootID:       r.bootID,
		State:        sandbox.Creating,
		Capabilities: args,
	}
	if err := r.store.Put(box); err != nil {
		return box, err
	}
	if err := makeNetns(box.NetnsPath); err != nil {
		return box, errors.Join(err, r.store.Remove(id))
	}
	ips, err := r.add(ctx, box)
	if err != nil {
		if ctx.Err() != nil {
			return box, err // the next start cleans up, as after a crash
		}
		return box, errors.Join(err, r.undo(ctx, box))
	}
	box.State, box.IPs, box.StartedAt = sandbox.Ready, ips, time.Now()
	return box, r.store.Put(box)
}

// add runs ADD so that observe can cancel it.
func (r *runner) add(ctx context.Context, box sandbox.Record) ([]string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r.lock.Lock()
	r.adding[box.UID] = cancel
	r.lock.Unlock()
	defer func() {
		r.lock.Lock()
		delete(r.adding, box.UID)
		r.lock.Unlock()
	}()
	// The pod may have been deleted before observe could cancel this ADD.
	if pod, err := r.pod(box.UID); err != nil || pod == nil || pod.DeletionTimestamp != nil {
		return nil, errors.Join(errors.New("the pod was deleted"), err)
	}
	return r.network.add(ctx, box)
}

// undo does the runtime's steps after a failed ADD: one DEL and, if it succeeds, the
// removal of the sandbox.
func (r *runner) undo(ctx context.Context, box sandbox.Record) error {
	if err := r.network.del(ctx, box, box.NetnsPath); err != nil {
		return err
	}
	if err := removeNetns(box.NetnsPath); err != nil {
		return err
	}
	return r.store.Remove(box.ID)
}

// tearDown stops and removes sandboxes. A failure of one does not affect the others.
func (r *runner) tearDown(ctx context.Context, boxes []sandbox.Record) error {
	var errs []error
	for _, box := range boxes {
		errs = append(errs, r.stopAndRemove(ctx, box))
	}
	return errors.Join(errs...)
}

// stopAndRemove sends DEL twice: kubelet stops a sandbox and removes it later, and
// containerd sends a DEL each time, the second without the namespace.
func (r *runner) stopAndRemove(ctx context.Context, box sandbox.Record) error {
	if box.State != sandbox.Stopped {
		netns := box.NetnsPath
		if !isNetns(netns) {
			netns = ""
		}
		if err := r.network.del(ctx, box, netns); err != nil {
			return err
		}
		if err := removeNetns(box.NetnsPath); err != nil {
			return err
		}
		box.State = sandbox.Stopped
		if err := r.store.Put(box); err != nil {
			return err
		}
	}
	if err := r.network.del(ctx, box, ""); err != nil {
		return err
	}
	return r.store.Remove(box.ID)
}

// finalDelete is kubelet's last step: the pod's processes are gone, so the API server may
// delete it.
func (r *runner) finalDelete(ctx context.Context, pod *corev1.Pod) (time.Duration, error) {
	now := int64(0)
	err := r.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &now,
		Preconditions:      &metav1.Preconditions{UID: &pod.UID},
	})
	// A conflict means that the name belongs to another pod by now.
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return notReadyRetry, fmt.Errorf("delete pod %s for good: %w", klog.KObj(pod), err)
	}
	return 0, nil
}

func (r *runner) jittered() time.Duration { return wait.Jitter(r.backoff, 0.5) }

// failed records a failure and returns when the pod may be retried.
func (r *runner) failed(uid types.UID) time.Duration {
	after := r.jittered()
	r.lock.Lock()
	defer r.lock.Unlock()
	r.retryAt[uid] = time.Now().Add(after)
	return after
}

func (r *runner) untilRetry(uid types.UID) time.Duration {
	r.lock.Lock()
	defer r.lock.Unlock()
	return time.Until(r.retryAt[uid])
}

func (r *runner) forget(uid types.UID) {
	r.lock.Lock()
	defer r.lock.Unlock()
	delete(r.retryAt, uid)
}
