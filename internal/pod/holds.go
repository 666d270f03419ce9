package pod

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// MayHold reports whether a node may still have the interfaces of a record. It is false
// if the record is being deleted and the node has confirmed that it holds nothing, if the
// release has begun, on that confirmation or on proof, and has failed, or if the
// finalizer is gone.
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
