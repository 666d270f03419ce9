package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/test/cluster"
	"fairlead.dev/fairlead/test/kubeclient"
	"fairlead.dev/fairlead/test/lab"
	"fairlead.dev/fairlead/test/netlab"
	"fairlead.dev/fairlead/test/podrunner/sandbox"
)

func newPod(namespace, name, nodeName string, annotations map[string]string) *corev1.Pod {
	pod := lab.NewPod(namespace, name, nodeName, annotations)
	if _, mirror := annotations[corev1.MirrorPodAnnotationKey]; mirror {
		pod.Spec.AutomountServiceAccountToken = nil // the API server accepts no other value
	}
	return pod
}

// podResult is the result of creating a pod: its record, or the reason of the controller
// or the runtime why it has none.
type podResult struct {
	record *v1alpha1.PodAttachment
	note   string
}

func (f podResult) String() string {
	if f.record != nil {
		return "a record with " + f.record.Spec.Summary.Addresses
	}
	return "no address: " + oneLine(f.note)
}

// has reports whether the pod has an address.
func (f podResult) has(addr netip.Addr) bool {
	return f.record != nil && hasAddress(f.record, addr)
}

func hasAddress(record *v1alpha1.PodAttachment, addr netip.Addr) bool {
	for _, i := range record.Spec.Interfaces {
		for _, text := range i.Addresses {
			if p, err := netip.ParsePrefix(text); err == nil && p.Addr() == addr {
				return true
			}
		}
	}
	return false
}

// patience is how long a test waits for a refusal that is not reported.
const patience = 4 * time.Second

// resultOf waits until a pod has a record or an event of Fairlead gives the reason why
// not.
func (w *testbed) resultOf(ctx context.Context, pod *corev1.Pod) (f podResult, err error) {
	_, err = within(ctx, patience, func(ctx context.Context) (bool, error) {
		if f.record, err = w.recordOf(ctx, pod); err != nil || f.record != nil {
			return true, err
		}
		f.note, err = w.noteOn(ctx, pod)
		return f.note != "", err
	})
	if f.record == nil && f.note == "" {
		f.note = fmt.Sprintf("no event within %v", patience)
	}
	return f, err
}

func (w *testbed) recordOf(ctx context.Context, pod *corev1.Pod) (*v1alpha1.PodAttachment, error) {
	var list v1alpha1.PodAttachmentList
	if err := w.List(ctx, &list, client.InNamespace(pod.Namespace)); err != nil {
		return nil, err
	}
	for i := range list.Items {
		for _, owner := range list.Items[i].OwnerReferences {
			if owner.UID == pod.UID {
				return &list.Items[i], nil
			}
		}
	}
	return nil, nil
}

// noteOn returns the warnings in the events of a pod.
func (w *testbed) noteOn(ctx context.Context, pod *corev1.Pod) (string, error) {
	var list eventsv1.EventList
	if err := w.List(ctx, &list, client.InNamespace(pod.Namespace)); err != nil {
		return "", err
	}
	var notes []string
	for _, e := range list.Items {
		if e.Regarding.UID == pod.UID && e.Type == corev1.EventTypeWarning {
			notes = append(notes, e.Reason+": "+e.Note)
		}
	}
	return strings.Join(notes, "; "), nil
}

// try creates a pod as a user and waits for the result.
func (w *testbed) try(ctx context.Context, api client.Client, pod *corev1.Pod) (podResult, error) {
	if err := api.Create(ctx, pod); err != nil {
		if refused(err) {
			return podResult{note: err.Error()}, nil
		}
		return podResult{}, fmt.Errorf("create pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return w.resultOf(ctx, pod)
}

// refused reports whether an error is a refusal by the API server.
func refused(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) }

// remove deletes pods and waits until neither they nor their records are left.
func (w *testbed) remove(ctx context.Context, pods ...*corev1.Pod) error {
	for _, pod := range pods {
		if pod.UID == "" {
			continue // it was never created
		}
		if err := w.Delete(ctx, pod, client.GracePeriodSeconds(0)); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
	}
	for _, pod := range pods {
		err := await(ctx, "pod "+pod.Namespace+"/"+pod.Name+" to go", func(ctx context.Context) (string, error) {
			err := w.Get(ctx, client.ObjectKeyFromObject(pod), &corev1.Pod{})
			if err == nil {
				return "it is there", nil
			}
			if client.IgnoreNotFound(err) != nil {
				return "", err
			}
			record, err := w.recordOf(ctx, pod)
			if record != nil {
				return "its record is there", err
			}
			return "", err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// clear removes pods of nodes that do not exist, and their records, which no node would
// confirm.
func (w *testbed) clear(ctx context.Context, pods ...*corev1.Pod) error {
	controller, err := kubeclient.New(cluster.AsController(w.REST))
	if err != nil {
		return err
	}
	for _, pod := range pods {
		record, err := w.recordOf(ctx, pod)
		if err != nil {
			return err
		}
		if err := w.Delete(ctx, pod, client.GracePeriodSeconds(0)); client.IgnoreNotFound(err) != nil {
			return err
		}
		if record == nil {
			continue
		}
		err = errors.Join(client.IgnoreNotFound(controller.Delete(ctx, record)), client.IgnoreNotFound(controller.Patch(ctx, record, patchOf(`{"metadata":{"finalizers":null}}`))))
		if err != nil {
			return err
		}
	}
	return w.remove(ctx, pods...)
}

// running waits until a pod has its network, and opens its network namespace.
func (w *testbed) running(ctx context.Context, pod *corev1.Pod, n *node) (*netlab.Namespace, error) {
	var ns *netlab.Namespace
	err := await(ctx, "pod "+pod.Namespace+"/"+pod.Name+" to run", func(ctx context.Context) (string, error) {
		path, err := n.sandboxOf(pod.UID)
		if err != nil || path == "" {
			note, noteErr := w.noteOn(ctx, pod)
			if err == nil {
				err = noteErr
			}
			return "no sandbox yet; " + note, err
		}
		ns, err = netlab.OpenNamespace(path)
		return "", err
	})
	return ns, err
}

// sandboxOf returns the path of the network namespace of a pod's ready sandbox on the
// node, empty if there is none.
func (n *node) sandboxOf(uid types.UID) (string, error) {
	box, err := n.boxOf(uid)
	return box.NetnsPath, err
}

func (n *node) boxOf(uid types.UID) (sandbox.Record, error) {
	boxes, err := sandbox.Read(n.RunnerDir())
	if err != nil {
		return sandbox.Record{}, err
	}
	for _, box := range boxes {
		if box.UID == uid && box.State == sandbox.Ready {
			return box, nil
		}
	}
	return sandbox.Record{}, nil
}

// slots returns the slots of a domain that are not free.
func (w *testbed) slots(ctx context.Context, domain string) ([]ipam.Slot, error) {
	blocks, err := w.blocks(ctx)
	var out []ipam.Slot
	for _, item := range blocks {
		if item.Spec.Domain != domain {
			continue
		}
		prefix, err := netip.ParsePrefix(item.Spec.CIDR)
		if err != nil {
			return nil, err
		}
		block := ipam.DecodeBlock(prefix, item.Spec.Node, item.Spec.Slots)
		for addr := prefix.Addr(); prefix.Contains(addr); addr = addr.Next() {
			if slot, ok := block.Slot(addr); ok && slot.State != ipam.Freed {
				out = append(out, slot)
			}
		}
	}
	return out, err
}

func (w *testbed) blocks(ctx context.Context) ([]v1alpha1.IPBlock, error) {
	var list v1alpha1.IPBlockList
	if err := w.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("list the blocks: %w", err)
	}
	return list.Items, nil
}
