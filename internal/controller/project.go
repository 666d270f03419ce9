package controller

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/internal/pod"
)

// project writes the interfaces of a pod into its annotation
// k8s.v1.cni.cncf.io/network-status, once they are plugged, if the pod has further
// interfaces: other programs read it. The annotation is written again when it differs
// from the record.
func (r *Attachments) project(ctx context.Context, s *observed) (ctrl.Result, error) {
	if !s.served || s.current == nil || s.current.DeletionTimestamp != nil || !pod.Holds(s.pod) {
		return ctrl.Result{}, nil
	}
	text, err := pod.NetworkStatus(s.pod, s.current)
	if err != nil || text == "" {
		return ctrl.Result{}, err
	}
	if has := s.pod.Annotations[pod.AnnotationNetworkStatus]; has == pod.Digest(text) || has == text { // pod.Kept
		return ctrl.Result{}, nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid":         s.pod.UID, // of no other pod of this name
		"annotations": map[string]string{pod.AnnotationNetworkStatus: text},
	}})
	if err != nil {
		return ctrl.Result{}, err
	}
	o := &corev1.Pod{}
	o.Namespace, o.Name = s.pod.Namespace, s.pod.Name
	// Multus writes it through the status, too: no right to change pods is needed.
	if err := r.Client.Status().Patch(ctx, o, client.RawPatch(types.MergePatchType, patch)); client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, fmt.Errorf("write annotation %s of pod %s: %w", pod.AnnotationNetworkStatus, s.key, err)
	}
	return ctrl.Result{}, nil
}
