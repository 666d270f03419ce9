package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// report writes a running pod's status if it differs.
func (r *runner) report(ctx context.Context, pod *corev1.Pod, ips []string, since time.Time) (time.Duration, error) {
	if pod.Status.Phase == corev1.PodRunning && slices.EqualFunc(pod.Status.PodIPs, ips, func(a corev1.PodIP, b string) bool { return a.IP == b }) {
		return 0, nil
	}
	patch, err := statusPatch(pod.UID, runningStatus(pod, ips, r.nodeIPs, metav1.NewTime(since)), "podIPs", "hostIPs")
	if err != nil {
		return 0, fmt.Errorf("encode the status of pod %s: %w", klog.KObj(pod), err)
	}
	_, err = r.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return notReadyRetry, fmt.Errorf("write the status of pod %s: %w", klog.KObj(pod), err)
	}
	return 0, nil
}

// statusPatch returns a strategic merge patch that writes a status, only into the object
// with the UID. The named lists are replaced: without a good merge key the old elements
// would stay beside the new ones.
func statusPatch(uid types.UID, status any, lists ...string) ([]byte, error) {
	raw, err := json.Marshal(status)
	if err != nil {
		return nil, err
	}
	fields := map[string]any{}
	if err := json.Unmarshal(raw, &fields); err != nil {
		return nil, err
	}
	for _, list := range lists {
		if elements, ok := fields[list].([]any); ok {
			fields[list] = append([]any{map[string]any{"$patch": "replace"}}, elements...)
		}
	}
	patch := map[string]any{"status": fields}
	if uid != "" {
		patch["metadata"] = map[string]any{"uid": uid}
	}
	return json.Marshal(patch)
}

// runningStatus returns kubelet's status of a pod whose containers all run. No container
// runs here.
func runningStatus(pod *corev1.Pod, ips, nodeIPs []string, since metav1.Time) corev1.PodStatus {
	status := corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &since, QOSClass: pod.Status.QOSClass}
	for _, ip := range ips {
		status.PodIPs = append(status.PodIPs, corev1.PodIP{IP: ip})
	}
	for _, ip := range nodeIPs {
		status.HostIPs = append(status.HostIPs, corev1.HostIP{IP: ip})
	}
	if len(ips) > 0 {
		status.PodIP = ips[0]
	}
	if len(nodeIPs) > 0 {
		status.HostIP = nodeIPs[0]
	}
	conditions := []corev1.PodConditionType{
		corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady,
	}
	for _, condition := range conditions {
		status.Conditions = append(status.Conditions, corev1.PodCondition{
			Type: condition, Status: corev1.ConditionTrue, LastTransitionTime: since,
		})
	}
	for _, container := range pod.Spec.InitContainers {
		status.InitContainerStatuses = append(status.InitContainerStatuses, containerStatus(container, corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{Reason: "Completed", StartedAt: since, FinishedAt: since},
		}))
	}
	for _, container := range pod.Spec.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, containerStatus(container, corev1.ContainerState{
			Running: &corev1.ContainerStateRunning{StartedAt: since},
		}))
	}
	return status
}

func containerStatus(container corev1.Container, state corev1.ContainerState) corev1.ContainerStatus {
	started := state.Running != nil
	return corev1.ContainerStatus{
		Name:        container.Name,
		Image:       container.Image,
		ImageID:     "podrunner://" + container.Image,
		ContainerID: "podrunner://" + container.Name,
		Ready:       true,
		Started:     &started,
		State:       state,
	}
}
