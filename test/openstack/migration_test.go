package main

import (
	"context"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/pod"
)

// launcher has a pod be a launcher of the virtual machine vm, whose guest has its address.
func launcher(migration string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		annotated(pod.AnnotationBridged, "")(p)
		controller := true
		p.OwnerReferences = append(p.OwnerReferences, metav1.OwnerReference{
			APIVersion: "kubevirt.io/v1", Kind: pod.InstanceKind, Name: "vm", UID: "7f3c9f4e-0000-4000-8000-000000000001", Controller: &controller,
		})
		p.Labels = map[string]string{"kubevirt.io": "virt-launcher", pod.LabelInstance: "7f3c9f4e-0000-4000-8000-000000000001"}
		if migration != "" {
			p.Labels["kubevirt.io/migrationJobUID"] = migration
		}
	}
}

// migration moves a virtual machine to the other chassis and back: its launchers have one
// port, with the traffic where the machine runs. The first migration is aborted.
func (b *bed) migration() {
	peer, source := b.pod("peer", b.nodes[0]), b.pod("launcher-1", b.nodes[0], launcher(""))
	from, at := b.running(peer), b.running(source)
	b.pings(from, at, true)
	aborted := b.pod("launcher-2", b.nodes[1], launcher("m2"))
	b.running(aborted)
	b.together(source, aborted)
	b.delete(aborted)
	b.goes(aborted)
	b.pings(from, at, true)
	for i, name := range []string{"launcher-3", "launcher-4"} {
		target := b.pod(name, b.nodes[1-i], launcher("m"+name))
		next := b.running(target)
		b.together(source, target)
		b.pings(from, at, true)
		b.delete(source)
		b.pings(from, next, true)
		b.goes(source)
		b.pings(from, next, true)
		source, at = target, next
	}
	b.delete(source, peer)
	b.nothingIsLeft()
}

// together checks that two launchers have one address and one port.
func (b *bed) together(a, z *corev1.Pod) {
	b.Helper()
	var of [2]v1alpha1.Interface
	for n, p := range []*corev1.Pod{a, z} {
		record := &v1alpha1.PodAttachment{}
		if err := b.c.Client.Get(b.Context(), client.ObjectKey{Namespace: p.Namespace, Name: pod.AttachmentName(p.Name, p.UID)}, record); err != nil {
			b.Fatal(err)
		}
		of[n] = record.Spec.Interfaces[0]
		of[n].WaitForActive = false
	}
	if diff := cmp.Diff(of[0], of[1]); diff != "" {
		b.Errorf("interfaces of %s and %s (-source +target):\n%s", a.Name, z.Name, diff)
	}
}

// goes waits until the controller has released the ports and addresses of a pod.
func (b *bed) goes(p *corev1.Pod) {
	b.Helper()
	b.await("the release of pod "+p.Name, func(ctx context.Context) error {
		err := b.c.Client.Get(ctx, client.ObjectKey{Namespace: p.Namespace, Name: pod.AttachmentName(p.Name, p.UID)}, &v1alpha1.PodAttachment{})
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err == nil:
			return errNotYet
		}
		return err
	})
}
