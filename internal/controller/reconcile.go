package controller

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/pod"
)

// Reconcile brings one pod name to its desired state: a record for the pod that lives,
// and no record for any other pod of that name. All steps work on the same observation. A
// step acts if it is due, and its error stops no other step.
func (r *Attachments) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	s, err := r.observe(ctx, req.NamespacedName)
	if err != nil {
		return ctrl.Result{}, err
	}
	return inOrder(ctx, s,
		r.releaseRecords,     // records that neither the pod nor a predecessor needs any more
		r.giveBackUnrecorded, // interfaces of a pod that went before it had a record
		r.awaitItsNode,       // a pod on an unknown node gets nothing
		r.ensure,             // every interface, and the record that names them
		r.activate,           // the interfaces that carry traffic
		r.follow,             // the interfaces of a running pod, which asks for other networks
		r.project,            // the interfaces, in the pod's annotation for other programs
	)
}

// observed is the state of a pod name at the start of a reconcile. Its objects are the
// cache's own: a step that changes one copies it first.
type observed struct {
	key types.NamespacedName
	// pod is nil if it is gone; served is true if its node is known and served.
	pod    *corev1.Pod
	served bool
	// records made for pods of that name; current is the record of pod, nil if there is
	// none.
	records []v1alpha1.PodAttachment
	current *v1alpha1.PodAttachment
}

// step is one part of a reconcile. Its result holds when to run again.
type step func(ctx context.Context, s *observed) (ctrl.Result, error)

// inOrder runs every step, and returns the soonest time to run again, or all errors.
func inOrder(ctx context.Context, s *observed, steps ...step) (ctrl.Result, error) {
	var (
		result ctrl.Result
		errs   []error
	)
	for _, take := range steps {
		again, err := take(ctx, s)
		errs = append(errs, err)
		result = sooner(result, again)
	}
	if err := errors.Join(errs...); err != nil {
		return ctrl.Result{}, err
	}
	return result, nil
}

// observe reads a pod and all records made for its name from the caches.
func (r *Attachments) observe(ctx context.Context, key types.NamespacedName) (*observed, error) {
	s := &observed{key: key, pod: &corev1.Pod{}}
	var uid types.UID
	if err := r.Client.Get(ctx, key, s.pod, client.UnsafeDisableDeepCopy); apierrors.IsNotFound(err) {
		s.pod = nil
	} else if err != nil {
		return nil, fmt.Errorf("read pod from cache: %w", err)
	} else {
		uid, s.served = s.pod.UID, r.serves(ctx, s.pod)
	}
	r.creations.onlyOf(key, uid)
	for _, name := range r.names.of(key) {
		var record v1alpha1.PodAttachment
		err := r.Client.Get(ctx, client.ObjectKey{Namespace: key.Namespace, Name: name}, &record, client.UnsafeDisableDeepCopy)
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("read attachment from cache: %w", err)
		}
		if err == nil {
			s.records = append(s.records, record)
		}
	}
	for i := range s.records {
		if s.pod != nil && pod.Of(&s.records[i]) == pod.KeyOf(s.pod) {
			s.current = &s.records[i]
		}
	}
	return s, nil
}

// serves reports whether a pod's Node exists and is served. A pod can be bound to a node
// that does not exist, and each such node would take a whole block.
func (r *Attachments) serves(ctx context.Context, p *corev1.Pod) bool {
	known, ours := r.nodeOf(ctx, p)
	return known && ours
}

// sooner returns the result with the earlier time to run again.
func sooner(a, b ctrl.Result) ctrl.Result {
	if a.RequeueAfter == 0 || b.RequeueAfter != 0 && b.RequeueAfter < a.RequeueAfter {
		return b
	}
	return a
}
