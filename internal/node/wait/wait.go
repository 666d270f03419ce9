// Package wait has the waits of ADDs for the controller and for the network.
package wait

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/node/apiserver"
	"fairlead.dev/fairlead/internal/node/ledger"
	"fairlead.dev/fairlead/internal/node/report"
)

// Config has what Waits works with.
type Config struct {
	API      API
	Registry *apiserver.Registry
	Statuses *report.Statuses
	Events   *report.Events
	// Steps has the durations of steps.
	Steps *prometheus.HistogramVec
	// AddTimeout bounds how long an ADD waits for the controller, the node's network and
	// other sandboxes.
	AddTimeout time.Duration
	// Node is the name of the node, for messages.
	Node string
}

// API reads pods from the API server.
type API interface {
	// Pod reads the metadata of a pod.
	Pod(ctx context.Context, key types.NamespacedName) (*metav1.PartialObjectMetadata, error)
}

// Waits are the waits of ADDs.
type Waits struct {
	Config
	// stopping is closed when this daemon hands waiting requests to the next one.
	stopping chan struct{}
	stopOnce sync.Once
}

// New returns Waits.
func New(c Config) *Waits { return &Waits{Config: c, stopping: make(chan struct{})} }

// Leave ends all waits, with fault.ErrLeaving. The next daemon serves the requests.
func (w *Waits) Leave() { w.stopOnce.Do(func() { close(w.stopping) }) }

// WithAddTimeout returns a context for the waiting of an ADD, which ends after AddTimeout.
func (w *Waits) WithAddTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return w.forWaiting(ctx, w.AddTimeout)
}

// forWaiting returns a context that ends after a timeout, and with fault.ErrLeaving when this
// daemon is to end. The next daemon serves the request then; it cannot start, and no other
// request is served, until this one has ended.
func (w *Waits) forWaiting(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	ctx, end := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-w.stopping:
			end(fault.ErrLeaving)
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		end(nil)
		cancel()
	}
}

// confirmAfter is how long an ADD waits before it asks the API server whether the pod
// still exists. The controller normally is faster.
const confirmAfter = time.Second

// LastConfirmTimeout bounds the last question to the API server before a wait fails.
const LastConfirmTimeout = time.Second

// Attachment returns the pod's PodAttachment when it can be plugged. Errors: fault.ErrGone if
// the pod is gone, fault.ErrNotReady if ctx ended first.
func (w *Waits) Attachment(ctx context.Context, pod ledger.Pod) (*v1alpha1.PodAttachment, error) {
	if pa, _ := w.Registry.Lookup(pod); apiserver.Ready(pa) { // as a rule
		return pa, nil
	}
	changed, done := w.Registry.Subscribe(pod)
	defer done()
	late := time.NewTimer(confirmAfter)
	defer late.Stop()
	asked := map[types.UID]bool{} // by UID of the PodAttachment, "" for none
	suspect := false              // the PodAttachment is late, or it is gone
	seen := false
	for {
		pa, stale := w.Registry.Lookup(pod)
		if apiserver.Ready(pa) {
			return pa, nil
		}
		suspect = suspect || seen && pa == nil
		seen = pa != nil
		if err := w.confirmPod(ctx, pod, pa, suspect, asked); err != nil {
			return nil, err
		}
		select {
		case <-changed:
		case <-late.C:
			suspect = true
		case <-ctx.Done():
			if err := context.Cause(ctx); !errors.Is(err, context.DeadlineExceeded) {
				return nil, fmt.Errorf("pod %s: ADD ended while it waited: %w", pod, err)
			}
			if err := w.confirmLast(ctx, pod, pa); err != nil {
				return nil, err
			}
			return nil, fault.Errorf(fault.ErrNotReady, "pod %s: %s", pod, w.missing(pod, pa, stale))
		}
	}
}

// confirmPod asks the API server about the pod in two cases, in each until it has
// answered once: when the PodAttachment is late or has gone during the wait, and for each
// PodAttachment that is being deleted. Errors: fault.ErrGone.
func (w *Waits) confirmPod(ctx context.Context, pod ledger.Pod, pa *v1alpha1.PodAttachment, suspect bool, asked map[types.UID]bool) error {
	var about types.UID
	switch {
	case pa == nil && suspect:
	case pa != nil && pa.DeletionTimestamp != nil:
		about = pa.UID
	default:
		return nil
	}
	if asked[about] {
		return nil
	}
	answered, err := w.ask(ctx, pod, pa != nil)
	asked[about] = answered
	return err
}

// confirmLast asks the API server once more when the time is over: if the pod is gone
// meanwhile, a retry by the runtime would be in vain.
func (w *Waits) confirmLast(ctx context.Context, pod ledger.Pod, pa *v1alpha1.PodAttachment) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), LastConfirmTimeout)
	defer cancel()
	_, err := w.ask(ctx, pod, pa != nil && pa.DeletionTimestamp != nil)
	return err
}

// ask reads the pod once, and reports whether the API server answered; no answer proves
// nothing. Errors: fault.ErrGone if the pod is gone, if another pod has its name, or if
// its PodAttachment (terminating) and the pod are being deleted.
func (w *Waits) ask(ctx context.Context, pod ledger.Pod, terminating bool) (answered bool, err error) {
	got, err := w.API.Pod(ctx, types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name})
	switch {
	case apierrors.IsNotFound(err):
		return true, fault.Errorf(fault.ErrGone, "pod %s is gone", pod)
	case err != nil:
		logr.FromContextOrDiscard(ctx).Error(err, "cannot ask the API server for a pod", "pod", pod)
		return false, nil
	case !isPod(got, pod.UID):
		return true, fault.Errorf(fault.ErrGone, "pod %s with UID %s is gone: the pod of that name is another one, with UID %s", pod, pod.UID, got.UID)
	case terminating && got.DeletionTimestamp != nil:
		return true, fault.Errorf(fault.ErrGone, "pod %s is being deleted, and its addresses are being given back", pod)
	}
	return true, nil
}

// Identify asks the API server for the UID of a pod: old runtimes do not pass it, and
// memory may still hold an earlier pod with the same name. The UID of a static pod is in
// the annotation of its mirror.
func (w *Waits) Identify(ctx context.Context, pod ledger.Pod) (ledger.Pod, error) {
	got, err := w.API.Pod(ctx, types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name})
	switch {
	case apierrors.IsNotFound(err):
		return pod, fault.Errorf(fault.ErrGone, "pod %s is gone", pod)
	case err != nil:
		return pod, fault.Errorf(fault.ErrNotReady, "pod %s: CNI_ARGS lacks K8S_POD_UID, and the API server cannot be asked for it: %w", pod, err)
	}
	pod.UID = got.UID
	if static := got.Annotations[corev1.MirrorPodAnnotationKey]; static != "" {
		pod.UID = types.UID(static)
	}
	return pod, nil
}

// isPod reports whether a pod has a UID. The mirror of a static pod has it in an
// annotation: it is the UID by which the kubelet, and so CNI, knows the pod.
func isPod(got *metav1.PartialObjectMetadata, uid types.UID) bool {
	return uid == "" || got.UID == uid || got.Annotations[corev1.MirrorPodAnnotationKey] == string(uid)
}

// missing describes the state in which an ADD ran out of time.
func (w *Waits) missing(pod ledger.Pod, pa, stale *v1alpha1.PodAttachment) string {
	waited := w.AddTimeout
	switch {
	case !w.Registry.IsSynced():
		return fmt.Sprintf("node %s could not read its PodAttachments from the API server within %s", w.Node, waited)
	case pa == nil && stale != nil:
		return fmt.Sprintf("no PodAttachment for UID %s within %s: %s is of an earlier pod of that name, with UID %s", pod.UID, waited, stale.Name, stale.Spec.PodUID)
	case pa == nil:
		return fmt.Sprintf("no PodAttachment for UID %q on node %s within %s: the controller has not written one", pod.UID, w.Node, waited)
	case pa.DeletionTimestamp != nil:
		return fmt.Sprintf("PodAttachment %s is being deleted, and no other was written within %s", pa.Name, waited)
	}
	return fmt.Sprintf("PodAttachment %s has no interfaces yet after %s", pa.Name, waited)
}

// MarkRebooted writes the current boot into the status before the claimed sandbox is
// plugged. As long as the status names an earlier boot, the end of the earlier boot is
// proof for the controller that the addresses are free (ADR 0003). If the node plugged
// the pod first and was then cut off, it could not refute that proof.
//
// Errors: fault.ErrNotReady if the status cannot be written.
func (w *Waits) MarkRebooted(ctx context.Context, rec *ledger.Record) error {
	key := rec.AttachmentKey()
	if !ofEarlierBoot(w.Registry.Get(key), rec.BootID) { // as a rule
		return nil
	}
	start := time.Now()
	defer func() { w.Steps.WithLabelValues("mark_rebooted").Observe(time.Since(start).Seconds()) }()
	changed, done := w.Registry.Subscribe(rec.Pod)
	defer done()
	for {
		pa := w.Registry.Get(key)
		switch {
		case pa == nil || pa.UID != rec.Attachment.UID || pa.DeletionTimestamp != nil:
			return fault.Errorf(fault.ErrNotReady, "pod %s: its PodAttachment %s is being deleted, and its status is of an earlier boot", rec.Pod, key.Name)
		case !ofEarlierBoot(pa, rec.BootID):
			return nil
		}
		not := metav1.Condition{Status: metav1.ConditionFalse, Reason: "Plugging", Message: "is being plugged again after the node has booted"}
		err := w.Statuses.Write(ctx, pa, v1alpha1.Sandbox{ID: rec.ContainerID, BootID: rec.BootID, State: v1alpha1.SandboxAttached}, not, not)
		if !apierrors.IsConflict(err) {
			if err != nil {
				err = fault.Errorf(fault.ErrNotReady, "pod %s: it was plugged before node %s booted, and its status cannot be written before it is plugged again: %w", rec.Pod, w.Node, err)
			}
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			if cause := context.Cause(ctx); !errors.Is(cause, context.DeadlineExceeded) {
				return fmt.Errorf("pod %s: %w", rec.Pod, cause)
			}
			return fault.Errorf(fault.ErrNotReady, "pod %s: the current state of PodAttachment %s did not arrive within %s", rec.Pod, key.Name, w.AddTimeout)
		}
	}
}

// ofEarlierBoot reports whether the status is of a sandbox of another boot. It returns
// false if the boot of the sandbox is unknown.
func ofEarlierBoot(pa *v1alpha1.PodAttachment, bootID string) bool {
	if pa == nil || pa.Status.Sandbox == nil {
		return false
	}
	of := pa.Status.Sandbox.BootID
	return of != "" && of != bootID
}

// UndoTimeout bounds the undo of an ADD that failed or was cancelled. The rest is removed
// in the background. Active leaves this time.
const UndoTimeout = 10 * time.Second

// ReasonNotActive is the reason of the event on a pod whose interface is not active after
// AddTimeout.
const ReasonNotActive = "InterfaceNotActive"

// ActiveTimeout bounds the wait for active interfaces. It is longer than AddTimeout, because
// the network begins anew with each plug: with a shorter wait, a network that always takes
// longer would never have a pod.
const ActiveTimeout = 3 * time.Minute

// forActive returns how long the ADD of a request waits for active interfaces. The rest of
// the request's time is for the undo.
func forActive(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return min(ActiveTimeout, max(time.Until(deadline)-UndoTimeout, 0))
	}
	return ActiveTimeout
}

// Active waits, after the interfaces are made, until the networks of the drivers
// carry the traffic of the interfaces with WaitForActive. A driver often can activate an
// interface only after it is plugged. After AddTimeout an event gives the reason. Errors:
// fault.ErrGone if the pod is gone, fault.ErrNotReady if the time is over or the PodAttachment
// is being deleted.
func (w *Waits) Active(ctx context.Context, rec *ledger.Record, add *ledger.Add) error {
	start := time.Now()
	ctx, cancel := w.forWaiting(ctx, forActive(ctx))
	defer cancel()
	changed, done := w.Registry.Subscribe(rec.Pod)
	defer done()
	late := time.NewTimer(w.AddTimeout)
	defer late.Stop()
	notYet := func(pa *v1alpha1.PodAttachment, name string) error {
		waited := time.Since(start).Round(time.Second)
		err := fault.Errorf(fault.ErrNotReady, "pod %s: %s", rec.Pod, notActive(pa, name, waited))
		w.Events.Report(report.Event{Pod: rec.Pod, Reason: ReasonNotActive, Note: err.Error()})
		return err
	}
	for {
		pa := w.Registry.Get(rec.AttachmentKey())
		if pa == nil || pa.UID != rec.Attachment.UID || pa.DeletionTimestamp != nil {
			if _, err := w.ask(ctx, rec.Pod, true); err != nil {
				return err
			}
			return fault.Errorf(fault.ErrNotReady, "pod %s: PodAttachment %s is being deleted, while its ADD waited for interfaces to become active", rec.Pod, rec.Attachment.Name)
		}
		name := inactive(pa, add)
		if name == "" {
			return nil
		}
		select {
		case <-changed:
		case <-late.C:
			_ = notYet(pa, name) // the event; the wait goes on
		case <-ctx.Done():
			if err := context.Cause(ctx); !errors.Is(err, context.DeadlineExceeded) {
				return fmt.Errorf("pod %s: ADD ended while it waited for interface %s: %w", rec.Pod, name, err)
			}
			return notYet(pa, name)
		}
	}
}

// inactive returns the name of the first interface of an ADD that waits to become active,
// "" if none does. The PodAttachment may have got other interfaces since.
func inactive(pa *v1alpha1.PodAttachment, add *ledger.Add) string {
	active := map[string]bool{}
	for _, s := range pa.Status.Interfaces {
		active[s.Name] = s.Active
	}
	for _, i := range pa.Spec.Interfaces {
		of := func(a ledger.Interface) bool { return a.Name == i.Name || a.Default && i.Default }
		if i.WaitForActive && !active[i.Name] && slices.ContainsFunc(add.Interfaces, of) {
			return i.Name
		}
	}
	return ""
}

// notActive describes an interface that did not become active in time, with the reason
// that the controller wrote.
func notActive(pa *v1alpha1.PodAttachment, name string, waited time.Duration) string {
	msg := fmt.Sprintf("interface %s of PodAttachment %s did not become active within %s", name, pa.Name, waited)
	for _, s := range pa.Status.Interfaces {
		if s.Name == name && s.Message != "" {
			return msg + ": " + s.Message
		}
	}
	if c := meta.FindStatusCondition(pa.Status.Conditions, v1alpha1.ConditionReady); c != nil && c.Message != "" {
		return msg + ": " + c.Message
	}
	return msg + ": the controller has given no reason"
}
