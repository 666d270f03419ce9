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

// Reconcile brings one pod's name to where it should be: an attachment for the pod that
// lives, none for any that does not. Every step looks at the same sight, does its part if
// it is due, and stops no other step by an error.
func (r *Attachments) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	s, err := r.observe(ctx, req.NamespacedName)
	if err != nil {
		return ctrl.Result{}, err
	}
	return inOrder(ctx, s,
		r.releaseRecords, // of which the pod, or its predecessor, has no need any more
		r.leave,          // what a pod had obtained that went before it had a record
		r.awaitItsNode,   // a pod on a node that is not known is given nothing
		r.ensure,         // every interface, and the record that names them
		r.activate,       // interfaces that carry traffic now
	)
}

// sight is what a run sees of a pod's name. Its objects are the cache's own: a step that
// changes one copies it first.
type sight struct {
	key types.NamespacedName
	// pod is nil when it is gone; served reports whether it is on a node that is ours.
	pod    *corev1.Pod
	served bool
	// records that were made for pods of that name; current is that of pod, nil when there
	// is none.
	records []v1alpha1.PodAttachment
	current *v1alpha1.PodAttachment
}

// step is one part of a run. It returns when to look again.
type step func(ctx context.Context, s *sight) (ctrl.Result, error)

// inOrder takes every step, and returns the soonest time to look again, or all errors.
func inOrder(ctx context.Context, s *sight, steps ...step) (ctrl.Result, error) {
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

// observe reads, from the caches, a pod and every attachment that was made for its name.
func (r *Attachments) observe(ctx context.Context, key types.NamespacedName) (*sight, error) {
	s := &sight{key: key, pod: &corev1.Pod{}}
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

// serves reports whether a pod is on a node that is there and ours. Anybody can bind a
// pod to a node that does not exist, and every such node would take a whole block.
func (r *Attachments) serves(ctx context.Context, p *corev1.Pod) bool {
	known, ours := r.nodeOf(ctx, p)
	return known && ours
}

// sooner is the one of two results that comes back first.
func sooner(a, b ctrl.Result) ctrl.Result {
	if a.RequeueAfter == 0 || b.RequeueAfter != 0 && b.RequeueAfter < a.RequeueAfter {
		return b
	}
	return a
}
