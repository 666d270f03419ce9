package main

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// pollInterval is the time between two checks of a component that is starting and has no
// event for that.
const pollInterval = 10 * time.Millisecond

// adminClient talks to the new API server as its administrator.
type adminClient struct {
	api kubernetes.Interface
}

func (p *controlPlane) adminClient() (*adminClient, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", p.adminConfig())
	if err != nil {
		return nil, fmt.Errorf("administrator's client: %w", err)
	}
	cfg.QPS = -1 // no limit
	api, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("administrator's client: %w", err)
	}
	return &adminClient{api: api}, nil
}

// await calls check until it succeeds. It fails when a component fails, and when ctx
// ends, with the check's last error.
func (p *controlPlane) await(ctx context.Context, what string, check func(context.Context) error) error {
	var last error
	err := wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (bool, error) {
		select {
		case err := <-p.failed:
			return false, err
		default:
		}
		last = check(ctx)
		return last == nil, nil
	})
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("waiting for the %s: %w: %w", what, context.Cause(ctx), last)
	}
	return err
}

// ready returns nil when the API server has finished its start, including the default
// roles.
func (c *adminClient) ready(ctx context.Context) error {
	return c.api.CoreV1().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
}

// controllersWork returns nil when the controllers work. Other programs first need the
// service account of a namespace from them: no pod is admitted without it.
func (c *adminClient) controllersWork(ctx context.Context) error {
	_, err := c.api.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
	return err
}

// nodeName returns the name of the i-th node, counted from 0: node-1, node-2, ...
func nodeName(i int) string { return fmt.Sprintf("node-%d", i+1) }

// makeNodes creates the Node objects node-1 to node-count, ready for the scheduler.
// Others write their addresses.
func (c *adminClient) makeNodes(ctx context.Context, count int) error {
	for i := range count {
		name := nodeName(i)
		nodes := c.api.CoreV1().Nodes()
		if _, err := nodes.Create(ctx, newNode(name), metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("node %s: %w", name, err)
		}
		// Admission gives every new node the not-ready taint, which the node-lifecycle
		// controller removes. This is a patch, because the controllers write to a new
		// node as well.
		untaint := []byte(`{"spec":{"taints":null}}`)
		if _, err := nodes.Patch(ctx, name, types.MergePatchType, untaint, metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("node %s: %w", name, err)
		}
	}
	return nil
}

func newNode(name string) *corev1.Node {
	capacity := corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse("64"),
		corev1.ResourceMemory: resource.MustParse("256Gi"),
		corev1.ResourcePods:   resource.MustParse("500"),
	}
	now := metav1.Now()
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:   name,
			Labels: map[string]string{corev1.LabelHostname: name, corev1.LabelOSStable: "linux"},
		},
		Status: corev1.NodeStatus{
			Capacity:    capacity,
			Allocatable: capacity,
			Conditions: []corev1.NodeCondition{{
				Type:               corev1.NodeReady,
				Status:             corev1.ConditionTrue,
				Reason:             "StandIn",
				Message:            "a stand-in made by kubelab; no kubelet reports for it",
				LastHeartbeatTime:  now,
				LastTransitionTime: now,
			}},
		},
	}
}
