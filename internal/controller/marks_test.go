package controller

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// A new record enqueues its pod, unless nothing is left to do for the pod.
func TestRecordThatAppears(t *testing.T) {
	now := metav1.Now()
	for name, tc := range map[string]struct {
		pod     func(*corev1.Pod) // nil if there is none
		record  func(*v1alpha1.PodAttachment)
		waiting bool
		want    bool // the pod is enqueued
	}{
		"its pod lives":              {pod: func(*corev1.Pod) {}},
		"its pod is gone":            {want: true},
		"its pod is another":         {pod: func(p *corev1.Pod) { p.UID = "later" }, want: true},
		"its pod terminates":         {pod: func(p *corev1.Pod) { p.DeletionTimestamp = &now }, want: true},
		"its pod has ended":          {pod: func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, want: true},
		"its pod waits for it":       {pod: func(*corev1.Pod) {}, waiting: true, want: true},
		"it is being deleted":        {pod: func(*corev1.Pod) {}, record: func(a *v1alpha1.PodAttachment) { a.DeletionTimestamp = &now }, want: true},
		"an interface is not active": {pod: func(*corev1.Pod) {}, record: func(a *v1alpha1.PodAttachment) { a.Spec.Interfaces[0].WaitForActive = true }, want: true},
		"one was said to be active": {pod: func(*corev1.Pod) {}, record: func(a *v1alpha1.PodAttachment) {
			a.Status.Interfaces = []v1alpha1.InterfaceStatus{{Name: "eth0", Active: true}}
		}, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			var only onePod
			if tc.pod != nil {
				only.pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "p", UID: "u"}, Spec: corev1.PodSpec{NodeName: "node"}}
				tc.pod(only.pod)
			}
			record := &v1alpha1.PodAttachment{
				ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "p-u"},
				Spec:       v1alpha1.PodAttachmentSpec{PodName: "p", PodUID: "u", NodeName: "node", Interfaces: []v1alpha1.Interface{{Name: "eth0"}}},
			}
			if tc.record != nil {
				tc.record(record)
			}
			metrics, err := NewMetrics(prometheus.NewRegistry())
			if err != nil {
				t.Fatal(err)
			}
			r := New(Config{Client: only, Turns: NewTurns(1), Metrics: metrics})
			if tc.waiting {
				r.memory.wait(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: record.Namespace, Name: record.Spec.PodName}}, nil)
			}
			queue := workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](time.Second, time.Second))
			defer queue.ShutDown()
			r.AttachmentEvents().Create(t.Context(), event.CreateEvent{Object: record}, queue)
			if got := queue.Len() > 0; got != tc.want {
				t.Errorf("its pod is looked at: %v, want %v", got, tc.want)
			}
			if names := r.memory.namesOf(podOf(record)); len(names) != 1 {
				t.Errorf("records that are known of the pod: %q, want this one", names)
			}
		})
	}
}

// onePod is a client that has one pod, or none.
type onePod struct {
	client.Client
	pod *corev1.Pod
}

func (c onePod) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	if c.pod == nil || client.ObjectKeyFromObject(c.pod) != key {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, key.Name)
	}
	c.pod.DeepCopyInto(o.(*corev1.Pod))
	return nil
}
