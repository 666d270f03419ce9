package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev"
)

// doubtAfter is for how long an ADD waits before it asks the API server
// whether the pod is still there. The controller is faster than that.
const doubtAfter = time.Second

// lastAsk bounds the question with which a wait ends.
const lastAsk = time.Second

// await returns the pod's PodAttachment when it can be plugged. The errors are
// errGone when the pod is, errNotReady when ctx ended first.
func (v *verbs) await(ctx context.Context, pod podRef) (*v1alpha1.PodAttachment, error) {
	if pa, _ := v.registry.lookup(pod); ready(pa) { // as a rule
		return pa, nil
	}
	changed, done := v.registry.subscribe(pod)
	defer done()
	doubt := time.NewTimer(doubtAfter)
	defer doubt.Stop()
	asked := map[types.UID]bool{} // by UID of the PodAttachment, "" for none
	doubtful := false             // it takes long, or what was there is gone
	seen := false
	for {
		pa, stale := v.registry.lookup(pod)
		if ready(pa) {
			return pa, nil
		}
		doubtful = doubtful || seen && pa == nil
		seen = pa != nil
		if err := v.doubt(ctx, pod, pa, doubtful, asked); err != nil {
			return nil, err
		}
		select {
		case <-changed:
		case <-doubt.C:
			doubtful = true
		case <-ctx.Done():
			if err := context.Cause(ctx); !errors.Is(err, context.DeadlineExceeded) {
				return nil, fmt.Errorf("pod %s: ADD ended while it waited: %w", pod, err)
			}
			if err := v.lastDoubt(ctx, pod, pa); err != nil {
				return nil, err
			}
			return nil, because(errNotReady, "pod %s: %s", pod, v.missing(pod, pa, stale))
		}
	}
}

// ready reports whether a PodAttachment can be plugged: it says what, is not being
// deleted, and is not of a pod whose namespace is gone.
func ready(pa *v1alpha1.PodAttachment) bool {
	return pa != nil && pa.DeletionTimestamp == nil && pa.Spec.PodNamespace == "" && len(pa.Spec.Interfaces) > 0
}

// doubt asks the API server about the pod until it answers once, when its
// PodAttachment is late or went while it was waited for, and once for each that is
// being deleted.
func (v *verbs) doubt(ctx context.Context, pod podRef, pa *v1alpha1.PodAttachment, doubtful bool, asked map[types.UID]bool) error {
	var about types.UID
	switch {
	case pa == nil && doubtful:
	case pa != nil && pa.DeletionTimestamp != nil:
		about = pa.UID
	default:
		return nil
	}
	if asked[about] {
		return nil
	}
	answered, err := v.ask(ctx, pod, pa != nil)
	asked[about] = answered
	return err
}

// lastDoubt asks once more when the time is over: the pod may have gone since, and
// a runtime that is told to try again would do so in vain.
func (v *verbs) lastDoubt(ctx context.Context, pod podRef, pa *v1alpha1.PodAttachment) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastAsk)
	defer cancel()
	_, err := v.ask(ctx, pod, pa != nil && pa.DeletionTimestamp != nil)
	return err
}

// ask reads the pod once. The error is errGone when the pod is gone, is another
// one under the same name, or, where its PodAttachment is being deleted, is
// being deleted itself. An API server that has not answered proves nothing.
func (v *verbs) ask(ctx context.Context, pod podRef, leaving bool) (answered bool, err error) {
	got, err := v.api.Pod(ctx, types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name})
	switch {
	case apierrors.IsNotFound(err):
		return true, because(errGone, "pod %s is gone", pod)
	case err != nil:
		logr.FromContextOrDiscard(ctx).Error(err, "cannot ask the API server for a pod", "pod", pod)
		return false, nil
	case !isPod(got, pod.UID):
		return true, because(errGone, "pod %s with UID %s is gone: the pod of that name is another one, with UID %s", pod, pod.UID, got.UID)
	case leaving && got.DeletionTimestamp != nil:
		return true, because(errGone, "pod %s is being deleted, and its addresses are being given back", pod)
	}
	return true, nil
}

// identify asks the API server which pod has a name: old runtimes do not pass its
// UID, and what is in memory may still be of the pod before. The UID of a static
// pod is in the annotation of its mirror.
func (v *verbs) identify(ctx context.Context, pod podRef) (podRef, error) {
	got, err := v.api.Pod(ctx, types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name})
	switch {
	case apierrors.IsNotFound(err):
		return pod, because(errGone, "pod %s is gone", pod)
	case err != nil:
		return pod, because(errNotReady, "pod %s: CNI_ARGS lacks K8S_POD_UID, and the API server cannot be asked for it: %w", pod, err)
	}
	pod.UID = got.UID
	if static := got.Annotations[corev1.MirrorPodAnnotationKey]; static != "" {
		pod.UID = types.UID(static)
	}
	return pod, nil
}

// isPod also knows the mirror of a static pod, which carries the UID that the
// kubelet, and so CNI, knows the pod by.
func isPod(got *metav1.PartialObjectMetadata, uid types.UID) bool {
	return uid == "" || got.UID == uid || got.Annotations[corev1.MirrorPodAnnotationKey] == string(uid)
}

// missing says what an ADD waited for in vain.
func (v *verbs) missing(pod podRef, pa, stale *v1alpha1.PodAttachment) string {
	waited := v.addTimeout
	switch {
	case !v.registry.isSynced():
		return fmt.Sprintf("node %s could not read its PodAttachments from the API server within %s", v.node, waited)
	case pa == nil && stale != nil:
		return fmt.Sprintf("no PodAttachment for UID %s within %s: %s is of an earlier pod of that name, with UID %s", pod.UID, waited, stale.Name, stale.Spec.PodUID)
	case pa == nil:
		return fmt.Sprintf("no PodAttachment for UID %q on node %s within %s: the controller has not written one", pod.UID, v.node, waited)
	case pa.DeletionTimestamp != nil:
		return fmt.Sprintf("PodAttachment %s is being deleted, and no other was written within %s", pa.Name, waited)
	}
	return fmt.Sprintf("PodAttachment %s has no interfaces yet after %s", pa.Name, waited)
}

// reserve waits for the pod's PodAttachment and claims it for the sandbox of a
// draft: from then on its status does not become Detached behind the ADD's back.
//
// What the runtime asks for beside the interfaces is settled here, before anything
// is done. It returns the record with its interfaces as they are to be plugged.
func (v *verbs) reserve(ctx context.Context, draft record, c capabilities, mtu int) (*record, []netdev.Plug, error) {
	for {
		pa, err := v.await(ctx, draft.Pod)
		if err != nil {
			return nil, nil, err
		}
		interfaces, err := plan(pa, draft.ContainerID, draft.IfName, mtu)
		if err != nil {
			return nil, nil, err
		}
		rec := draft.with(func(r *record) {
			r.Pod.UID, r.Interfaces = pa.Spec.PodUID, interfaces
			r.Attachment = attachmentRef{Name: pa.Name, UID: pa.UID}
		})
		if err := c.apply(rec, pa); err != nil {
			return nil, nil, err
		}
		if err := notReserved(rec, v.reserved); err != nil {
			return nil, nil, err
		}
		parsed, err := plugs(pa, rec)
		if err != nil {
			return nil, nil, err
		}
		got, err := v.claim(ctx, pa, rec)
		switch {
		case err != nil:
			return nil, nil, err
		case got.before != nil: // it is gone, and so is what was waited with
		case got.taken != nil:
			return nil, nil, because(errNotReady, "pod %s: host port %d/%s is taken on node %s by %s",
				draft.Pod, got.taken.HostPort, got.taken.Protocol, v.node, told(draft.Pod, got.by))
		case !got.sealed:
			return rec, parsed, nil
		}
		// What is sealed is being deleted, which the next look shows.
	}
}

// claim puts down a record when no sandbox before it has its addresses. Heirs of
// the same addresses come one after the other.
func (v *verbs) claim(ctx context.Context, pa *v1alpha1.PodAttachment, rec *record) (got claim, err error) {
	err = v.manager.Identity(ctx, rec.identity(), func(ctx context.Context) error {
		for {
			if got = v.ledger.claim(rec); got.before == nil {
				return nil
			}
			if err := v.succeed(ctx, rec, got); err != nil {
				return err
			}
			if now := v.registry.get(keyOf(pa)); !ready(now) || now.UID != pa.UID {
				return nil
			}
		}
	})
	return got, err
}

// succeed waits until the sandbox before is gone: two with the same addresses
// on one bridge would take each other's traffic. When its namespace is gone its
// DEL is not waited for.
func (v *verbs) succeed(ctx context.Context, rec *record, c claim) error {
	if c.before.State == attached {
		if err := v.reap(ctx, c.before.ContainerID); err != nil {
			return err
		}
	}
	select {
	case <-c.gone:
		return nil
	case <-ctx.Done():
		if err := context.Cause(ctx); !errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("pod %s: ADD ended while it waited for sandbox %s to go: %w", rec.Pod, c.before.ContainerID, err)
		}
		return because(errNotReady, "pod %s: its addresses are still those of %s, which was not removed within %s",
			rec.Pod, told(rec.Pod, c.before), v.addTimeout)
	}
}

// told names a pod to another, whose owner reads it in an event of the kubelet: one of
// her namespace by its name, any other by its sandbox alone.
func told(to podRef, of *record) string {
	if of.Pod.Namespace != to.Namespace {
		return "a pod of another namespace (sandbox " + of.ContainerID + ")"
	}
	return fmt.Sprintf("pod %s (sandbox %s)", of.Pod, of.ContainerID)
}
