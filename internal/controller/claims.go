package controller

import (
	"slices"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// wakeHeirs enqueues the pods that may have waited for this record to go: those of its
// namespace that got nothing so far, if a driver says that they may.
func (r *Attachments) wakeHeirs(gone *v1alpha1.PodAttachment, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	awaited := func(i v1alpha1.Interface) bool {
		d := r.Drivers[i.Driver]
		return d.Awaited != nil && d.Awaited(i)
	}
	if !slices.ContainsFunc(gone.Spec.Interfaces, awaited) {
		return
	}
	for _, req := range r.waiting.all() {
		if req.Namespace == gone.Pod().Namespace {
			q.Add(req)
		}
	}
}
