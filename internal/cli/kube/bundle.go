package kube

import (
	"context"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
)

// Bundle reads whole objects and logs.
type Bundle struct {
	objects dynamic.Interface
	api     kubernetes.Interface
}

// Bundle returns a reader of whole objects and logs. It sends no request.
func (c *Connection) Bundle() (*Bundle, error) {
	cfg, err := c.config()
	if err != nil {
		return nil, err
	}
	objects, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	api, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	return &Bundle{objects, api}, nil
}

// Objects returns the objects of a resource in all namespaces, or in one.
func (b *Bundle) Objects(ctx context.Context, r schema.GroupVersionResource, namespace string) (*unstructured.UnstructuredList, error) {
	return b.objects.Resource(r).Namespace(namespace).List(ctx, metav1.ListOptions{})
}

// Log returns the end of the log of a container, at most limit bytes; previous is that of
// its last restart.
func (b *Bundle) Log(ctx context.Context, namespace, pod, container string, previous bool, limit int64) (io.ReadCloser, error) {
	lines := int64(logLines)
	return b.api.CoreV1().Pods(namespace).GetLogs(pod, &corev1.PodLogOptions{
		Container: container, Previous: previous, Timestamps: true, LimitBytes: &limit, TailLines: &lines,
	}).Stream(ctx)
}

// logLines is how many lines of a log are read at most.
const logLines = 20_000
