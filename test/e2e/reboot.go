package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// upgrade replaces fairlead-node on both nodes, like the DaemonSet, while pods are
// created and deleted: the old program ends, then the new one starts. No ADD may fail
// because of that.
func (w *testbed) upgrade(ctx context.Context) error {
	before, err := w.failedSandboxes(ctx)
	if err != nil {
		return err
	}
	if err := w.restart(ctx); err != nil {
		return err
	}
	for range 3 {
		for _, n := range w.nodes {
			// Let pods start under the running daemon.
			if err := w.asked(ctx, n, 1); err != nil {
				return err
			}
			if err := n.running[fairleadNode].Stop(); err != nil {
				return err
			}
			if err := n.start(fairleadNode); err != nil {
				return err
			}
			err := w.await(ctx, "fairlead-node to be ready again", func(ctx context.Context) (string, error) { return n.daemonReady(ctx), nil })
			if err != nil {
				return err
			}
		}
	}
	if err := w.rolledOut(ctx); err != nil {
		return err
	}
	after, err := w.failedSandboxes(ctx)
	if err != nil {
		return err
	}
	if news := slices.DeleteFunc(after, func(s string) bool { return slices.Contains(before, s) }); len(news) > 0 {
		return fmt.Errorf("pods were refused during the upgrade: %s", summary(news))
	}
	w.Say("fairlead-node was exchanged three times on each node, and no sandbox failed")
	return w.allReachAll(ctx)
}

// failedSandboxes returns the kubelets' events of pods whose network could not be set up.
func (w *testbed) failedSandboxes(ctx context.Context) ([]string, error) {
	list := &corev1.EventList{}
	if err := w.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return nil, err
	}
	var out []string
	for _, event := range list.Items {
		if event.Reason == "FailedCreatePodSandBox" {
			out = append(out, event.InvolvedObject.Name+": "+event.Message)
		}
	}
	return out, nil
}

// reboot cuts the power of both nodes and starts them again. Every pod comes back with a
// network of the new boot.
func (w *testbed) reboot(ctx context.Context) error {
	g, poweringOff := errgroup.WithContext(ctx)
	for _, n := range w.nodes {
		g.Go(func() error { return n.powerOff(poweringOff) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	w.Say("every process of both nodes was killed; their namespaces and control groups are gone")
	for i, n := range w.nodes {
		if err := w.Net.Reboot(i); err != nil {
			return err
		}
		if err := n.boot(); err != nil {
			return err
		}
		if err := n.startRuntime(ctx); err != nil {
			return err
		}
		for _, program := range []string{fairleadNode, kubelet, kubeProxy} {
			if err := n.start(program); err != nil {
				return err
			}
		}
	}
	if err := w.await(ctx, "the nodes to be Ready", w.nodesAre(corev1.ConditionTrue)); err != nil {
		return err
	}
	w.Say("both nodes booted and are Ready")
	if err := w.await(ctx, "the pods to come back", w.attachedInThisBoot); err != nil {
		return err
	}
	if err := w.rolledOut(ctx); err != nil {
		return err
	}
	return w.allReachAll(ctx)
}

// attachedInThisBoot checks that every pod has the addresses of its PodAttachment and was
// plugged after its node booted.
func (w *testbed) attachedInThisBoot(ctx context.Context) (string, error) {
	attachments := &v1alpha1.PodAttachmentList{}
	if err := w.List(ctx, attachments, client.InNamespace(namespace)); err != nil {
		return "", err
	}
	pods, err := w.pods(ctx)
	if err != nil {
		return "", err
	}
	var not []string
	for _, pod := range pods {
		if why := w.notAttached(pod, attachments.Items); why != "" {
			not = append(not, pod.Name+" "+why)
		}
	}
	return summary(not), nil
}

func (w *testbed) notAttached(pod corev1.Pod, attachments []v1alpha1.PodAttachment) string {
	n := w.nodeOf(pod)
	if n == nil {
		return "is not scheduled"
	}
	for _, pa := range attachments {
		if pa.Spec.PodUID != pod.UID {
			continue
		}
		s := pa.Status.Sandbox
		if s == nil || s.State != v1alpha1.SandboxAttached || s.BootID != n.bootID {
			return "is not plugged since the boot"
		}
		var want, got []string
		for _, address := range pa.Spec.Interfaces[0].Addresses {
			addr, _, _ := strings.Cut(address, "/")
			want = append(want, addr)
		}
		for _, ip := range pod.Status.PodIPs {
			got = append(got, ip.IP)
		}
		slices.Sort(want)
		slices.Sort(got)
		if !slices.Equal(want, got) {
			return fmt.Sprintf("has the addresses %v; its PodAttachment has %v", got, want)
		}
		return ""
	}
	return "has no PodAttachment"
}
