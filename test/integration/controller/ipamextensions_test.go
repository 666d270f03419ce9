package controller

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/test/cluster"
)

// ipamExtensions does what kubevirt/ipam-extensions does, by its source: a controller writes
// the IPAMClaims of a machine, with the machine as owner and a finalizer, and a webhook has
// launchers reference them, whether they exist or not. The project is no Go module that a
// test could import here.
type ipamExtensions struct{ migrationTest }

const persistentFinalizer = "kubevirt.io/persistent-ipam"

// Network names: that of the definition, and that of the machine's interface.
const definition, logical = "lan", "blue"

// claims is the controller's part when an instance comes or changes: it creates the claim,
// and leaves one alone that has this owner.
func (e *ipamExtensions) claims(t *testing.T, vm *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"network": definition, "interface": ""}}}
	o.SetAPIVersion("k8s.cni.cncf.io/v1alpha1")
	o.SetKind("IPAMClaim")
	o.SetNamespace(vm.GetNamespace())
	o.SetName(vm.GetName() + "." + logical)
	o.SetLabels(map[string]string{"kubevirt.io/vm": vm.GetName()})
	o.SetFinalizers([]string{persistentFinalizer})
	o.SetOwnerReferences([]metav1.OwnerReference{{
		APIVersion: vm.GetAPIVersion(), Kind: vm.GetKind(), Name: vm.GetName(), UID: vm.GetUID(), Controller: new(true), BlockOwnerDeletion: new(true),
	}})
	err := e.c.Client.Create(t.Context(), o)
	if !apierrors.IsAlreadyExists(err) {
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	if err := e.c.Client.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
		t.Fatal(err)
	}
	if owners := o.GetOwnerReferences(); len(owners) != 1 || owners[0].UID != vm.GetUID() {
		t.Fatalf("a leaked IPAMClaim of %v", owners)
	}
	return o
}

// cleanup is the controller's part when the instance is gone and its machine is being
// deleted: the claim may go.
func (e *ipamExtensions) cleanup(t *testing.T, o *unstructured.Unstructured) {
	t.Helper()
	e.c.Eventually(t, "the finalizer to be removed", func(ctx context.Context) error {
		now := o.DeepCopy()
		if err := e.c.Client.Get(ctx, client.ObjectKeyFromObject(o), now); err != nil {
			return err
		}
		now.SetFinalizers(nil)
		return e.c.Client.Update(ctx, now)
	})
}

// started creates an instance of a machine.
func (e *ipamExtensions) started(t *testing.T, vm *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	o.SetAPIVersion("kubevirt.io/v1")
	o.SetKind(pod.InstanceKind)
	o.SetNamespace(vm.GetNamespace())
	o.SetName(vm.GetName())
	o.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: vm.GetAPIVersion(), Kind: vm.GetKind(), Name: vm.GetName(), UID: vm.GetUID(), Controller: new(true)}})
	if err := e.c.Client.Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	return o
}

// launch creates a launcher as virt-controller does, with the annotation as the webhook
// writes it back.
func (e *ipamExtensions) launch(t *testing.T, vmi *unstructured.Unstructured, name, node, migration string) *corev1.Pod {
	t.Helper()
	text, err := json.Marshal([]map[string]string{{
		"name": definition, "namespace": vmi.GetNamespace(), "interface": "pod16477688c0e", "ipam-claim-reference": vmi.GetName() + "." + logical,
	}})
	if err != nil {
		t.Fatal(err)
	}
	return e.c.Pod(name, node, func(p *corev1.Pod) {
		p.Labels = map[string]string{"kubevirt.io": "virt-launcher", pod.LabelInstance: string(vmi.GetUID()), "vmi.kubevirt.io/id": vmi.GetName()}
		if migration != "" {
			p.Labels["kubevirt.io/migrationJobUID"] = migration
		}
		p.Annotations = map[string]string{"kubevirt.io/domain": vmi.GetName(), pod.AnnotationNetworks: string(text)}
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: vmi.GetAPIVersion(), Kind: vmi.GetKind(), Name: vmi.GetName(), UID: vmi.GetUID(), Controller: new(true), BlockOwnerDeletion: new(true)}}
	})
}

// further waits for the record of a launcher and returns its further interface.
func (e *ipamExtensions) further(t *testing.T, p *corev1.Pod) v1alpha1.Interface {
	t.Helper()
	r := &v1alpha1.PodAttachment{}
	key := client.ObjectKey{Namespace: p.Namespace, Name: pod.AttachmentName(p.Name, p.UID)}
	e.c.Eventually(t, "the network of pod "+p.Name, func(ctx context.Context) error { return e.c.Client.Get(ctx, key, r) })
	return r.Spec.Interfaces[1]
}

// TestIPAMExtensions runs the life of a machine whose claim kubevirt/ipam-extensions write:
// start, live migration, an aborted one, restart, end. kubevirt#7967, kubevirt#9589,
// kubevirt#18636, whereabouts#500, whereabouts#576, spiderpool#3903: the address and the MAC
// stay the same throughout.
func TestIPAMExtensions(t *testing.T) {
	t.Parallel()
	c := cluster.Exclusive(t)
	serveInstances(t, c)
	serveIPAMClaims(t, c)
	for name, cidr := range map[string]string{"default": "10.1.0.0/24", "kv": "10.9.0.0/29"} {
		create(t, c, &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.IPPoolSpec{
			Domain: name, Ranges: []string{cidr}, Cooldown: &metav1.Duration{Duration: 5 * time.Second}, NetworkNamespaceSelector: &metav1.LabelSelector{},
		}})
	}
	c.Node("node-0")
	c.Node("node-1")
	c.Network(definition, `{"cniVersion":"1.0.0","name":"lan","type":"bridge","bridge":"br-lan","allowPersistentIPs":true,"ipam":{"type":"fairlead-ipam","pools":["kv"]}}`)
	supervise(t, c.Account(cluster.ControllerAccount, ""), "multiVIFSources: [npwg]",
		"networks: {attachedBy: Fairlead, open: [{bridges: [br-lan]}]}")
	e := &ipamExtensions{migrationTest{claimTest{&observer{c: c, domain: "kv"}}}}
	e.repeat(t, 10*time.Millisecond, func(ctx context.Context) {
		if records, err := e.records(ctx); err == nil {
			e.detach(ctx, records)
		}
	})
	shown := &ipamClaimTest{e.claimTest}

	vm := &unstructured.Unstructured{}
	vm.SetAPIVersion("kubevirt.io/v1")
	vm.SetKind("VirtualMachine")
	vm.SetNamespace(c.Namespace)
	vm.SetName("vm1")
	c.Eventually(t, "the machine", func(ctx context.Context) error { return c.Client.Create(ctx, vm) })
	vmi := e.started(t, vm)
	source := e.launch(t, vmi, "virt-launcher-vm1-a", "node-0", "")
	e.refused(t, source, "NetworkNotFound", "vm1.blue") // virt-controller was faster
	o := e.claims(t, vm)
	has := e.further(t, source)
	address, _, _ := strings.Cut(has.Addresses[0], "/")
	if has.MAC == "" || has.Name != "pod16477688c0e" {
		t.Errorf("the launcher's interface is %+v", has)
	}
	same := func(p *corev1.Pod) {
		t.Helper()
		got := e.further(t, p)
		if diff := cmp.Diff([]any{has.Addresses, has.MAC}, []any{got.Addresses, got.MAC}); diff != "" {
			t.Errorf("%s (-before +now):\n%s", p.Name, diff)
		}
	}
	shown.shows(t, o, has.Addresses, source.Name, "SuccessfulAllocation", "")

	// The garbage collector may have deleted the launcher of a deleted machine.
	ended := func(p *corev1.Pod) {
		t.Helper()
		if err := c.Client.Delete(t.Context(), p, client.GracePeriodSeconds(0)); client.IgnoreNotFound(err) != nil {
			t.Fatal(err)
		}
	}

	target := e.launch(t, vmi, "virt-launcher-vm1-b", "node-1", "job-1") // live migration
	same(target)
	e.delete(t, source)
	shown.shows(t, o, has.Addresses, target.Name, "SuccessfulAllocation", "")
	aborted := e.launch(t, vmi, "virt-launcher-vm1-c", "node-0", "job-2")
	same(aborted)
	e.delete(t, aborted)
	shown.shows(t, o, has.Addresses, target.Name, "SuccessfulAllocation", "")

	e.delete(t, vmi) // restart
	ended(target)
	e.slot(t, address, ipam.Held)
	vmi = e.started(t, vm)
	e.claims(t, vm)
	restarted := e.launch(t, vmi, "virt-launcher-vm1-d", "node-1", "")
	same(restarted)
	shown.shows(t, o, has.Addresses, restarted.Name, "SuccessfulAllocation", "")

	e.delete(t, vm) // the end: the claim waits for the finalizer, the address for the launcher
	e.delete(t, o)
	ended(restarted)
	e.slot(t, address, ipam.Held)
	if err := c.Client.Delete(t.Context(), vmi); client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	e.cleanup(t, o)
	e.slot(t, address, ipam.Freed)
	c.Eventually(t, "a clean audit", func(ctx context.Context) error { return audited(ctx, c) })
}
