package pod

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// MayHold reports whether a record stands for interfaces that a node may have. It
// does not when they are given back: the node has said that it holds nothing of
// a record that is being deleted, giving back has begun, on that word or on
// proof, and did not go through, or the finalizer is gone.
func MayHold(r *v1alpha1.PodAttachment) bool {
	if !slices.Contains(r.Finalizers, v1alpha1.ReleaseFinalizer) {
		return false
	}
	if r.DeletionTimestamp == nil {
		return true
	}
	released := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionReleased)
	begun := released != nil && released.Status == metav1.ConditionFalse && released.Reason != v1alpha1.ReasonWaitingForNode
	detached := r.Status.Sandbox != nil && r.Status.Sandbox.State == v1alpha1.SandboxDetached
	return !begun && !detached
}
