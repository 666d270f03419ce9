package controller

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/test/cluster"
)

// TestLiveMigration runs the controller against an API server with KubeVirt's instances. The
// test plays virt-controller and three nodes. Two launchers of one machine have one address
// and one MAC, on two nodes.
func TestLiveMigration(t *testing.T) {
	t.Parallel()
	c := cluster.Exclusive(t)
	serveInstances(t, c)
	for name, sticky := range map[string]v1alpha1.Sticky{"default": v1alpha1.StickyVirtualMachine, "plain": v1alpha1.StickyOff} {
		pool := &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.IPPoolSpec{
			Domain: name, Ranges: []string{"10.1.0.0/29"}, Sticky: sticky, Cooldown: &metav1.Duration{Duration: 5 * time.Second},
		}}
		if err := c.Client.Create(t.Context(), pool); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 3 {
		c.Node(fmt.Sprintf("node-%d", i))
	}
	supervise(t, c.Account(cluster.ControllerAccount, ""))
	w := &migrationTest{claimTest{&observer{c: c, domain: "default"}}}
	w.repeat(t, 10*time.Millisecond, func(ctx context.Context) {
		records, err := w.records(ctx)
		if err == nil {
			w.detach(ctx, records)
		}
	})
	t.Run("either launcher ends", w.eitherEnds)
	t.Run("without a claim", w.withoutClaim)
}

type migrationTest struct{ claimTest }

// serveInstances installs a kind as KubeVirt's VirtualMachineInstance.
func serveInstances(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	anything := &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: new(true)}
	for kind, plural := range map[string]string{"VirtualMachineInstance": "virtualmachineinstances", "VirtualMachine": "virtualmachines"} {
		crd := &apiextensionsv1.CustomResourceDefinition{
			ObjectMeta: metav1.ObjectMeta{Name: plural + ".kubevirt.io"},
			Spec: apiextensionsv1.CustomResourceDefinitionSpec{
				Group: "kubevirt.io", Scope: apiextensionsv1.NamespaceScoped,
				Names:    apiextensionsv1.CustomResourceDefinitionNames{Kind: kind, Plural: plural},
				Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true, Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: anything}}},
			},
		}
		if err := c.Client.Create(t.Context(), crd); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := c.Client.Delete(context.Background(), crd); err != nil {
				t.Error(err)
			}
		})
	}
}

// instance starts a virtual machine: it creates its instance.
func (w *migrationTest) instance(t *testing.T, name string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	o.SetAPIVersion("kubevirt.io/v1")
	o.SetKind(pod.InstanceKind)
	o.SetNamespace(w.c.Namespace)
	o.SetName(name)
	w.c.Eventually(t, "instance "+name, func(ctx context.Context) error { return w.c.Client.Create(ctx, o) })
	return o
}

// launcher creates a launcher of an instance. migration is empty for the first.
func (w *migrationTest) launcher(of *unstructured.Unstructured, name, node, migration, pool string) *corev1.Pod {
	return w.c.Pod(name, node, func(p *corev1.Pod) {
		p.Labels = map[string]string{"kubevirt.io": "virt-launcher", pod.LabelInstance: string(of.GetUID())}
		if migration != "" {
			p.Labels["kubevirt.io/migrationJobUID"] = migration
		}
		p.Annotations = map[string]string{v1alpha1.AnnotationPools: pool}
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: of.GetAPIVersion(), Kind: of.GetKind(), Name: of.GetName(), UID: of.GetUID(), Controller: new(true)}}
	})
}

// eth0 waits for the record of a pod and returns its interface.
func (w *migrationTest) eth0(t *testing.T, p *corev1.Pod) v1alpha1.Interface {
	t.Helper()
	r := &v1alpha1.PodAttachment{}
	key := types.NamespacedName{Namespace: p.Namespace, Name: pod.AttachmentName(p.Name, p.UID)}
	w.c.Eventually(t, "the network of pod "+p.Name, func(ctx context.Context) error { return w.c.Client.Get(ctx, key, r) })
	return r.Spec.Interfaces[0]
}

// holders waits until the slot of an address has these pods.
func (w *migrationTest) holders(t *testing.T, address string, want ...string) {
	t.Helper()
	w.c.Eventually(t, fmt.Sprintf("%s to be of %v", address, want), func(ctx context.Context) error {
		var list v1alpha1.IPBlockList
		if err := w.c.Client.List(ctx, &list, client.MatchingLabels{v1alpha1.LabelDomain: "default"}); err != nil {
			return err
		}
		var got []string
		for _, b := range list.Items {
			slot, _ := ipam.DecodeBlock(netip.MustParsePrefix(b.Spec.CIDR), b.Spec.Node, b.Spec.Slots).Slot(netip.MustParseAddr(address))
			for h := range slot.Holders() {
				got = append(got, h.Pod)
			}
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("it is of %v", got)
		}
		return nil
	})
}

func (w *migrationTest) eitherEnds(t *testing.T) {
	vm := w.instance(t, "vm1")
	source := w.launcher(vm, "source", "node-0", "", "default")
	has := w.eth0(t, source)
	address := netip.MustParsePrefix(has.Addresses[0]).Addr().String()
	if has.MAC == "" {
		t.Error("the claim has no MAC")
	}
	same := func(p *corev1.Pod) {
		t.Helper()
		if got := w.eth0(t, p); got.Addresses[0] != has.Addresses[0] || got.MAC != has.MAC {
			t.Errorf("pod %s has %v and MAC %s, the source has %v and %s", p.Name, got.Addresses, got.MAC, has.Addresses, has.MAC)
		}
	}
	target := w.launcher(vm, "target", "node-1", "m1", "default")
	same(target)
	w.holders(t, address, "source", "target")
	w.c.Eventually(t, "a clean audit while the machine migrates", func(ctx context.Context) error { return audited(ctx, w.c) })

	third := w.launcher(vm, "third", "node-2", "m2", "default")
	w.refused(t, third, "NetworkConflict", address, "between which its virtual machine migrates")
	other := w.launcher(w.instance(t, "vm2"), "other", "node-2", "m3", "default")
	if got := w.eth0(t, other); got.Addresses[0] == has.Addresses[0] {
		t.Errorf("another machine has %v too", got.Addresses)
	}
	w.delete(t, source)
	w.holders(t, address, "target", "third") // it waited for either to end
	same(third)
	w.delete(t, third) // aborted
	w.holders(t, address, "target")
	w.claim(t, "vm1", "be of the target", func(s v1alpha1.IPClaimStatus) bool { return s.Pod == "target" && s.MAC == has.MAC })
	w.c.Eventually(t, "a clean audit after the migrations", func(ctx context.Context) error { return audited(ctx, w.c) })
	w.delete(t, target)
	w.slot(t, address, ipam.Held)
	w.delete(t, vm)
	w.slot(t, address, ipam.Freed) // the instance had no machine: the claim ends with it
}

func (w *migrationTest) withoutClaim(t *testing.T) {
	plain := &migrationTest{claimTest{&observer{c: w.c, domain: "plain"}}}
	vm := w.instance(t, "vm3")
	source := w.launcher(vm, "plain-source", "node-0", "", "plain")
	has := w.eth0(t, source)
	address := netip.MustParsePrefix(has.Addresses[0]).Addr().String()
	target := w.launcher(vm, "plain-target", "node-1", "m1", "plain")
	if got := w.eth0(t, target); got.Addresses[0] == has.Addresses[0] {
		t.Errorf("the target has %v, as the source", got.Addresses)
	}
	w.delete(t, source)
	plain.slot(t, address, ipam.Held)
	asks := w.c.Pod("asks", "node-2", func(p *corev1.Pod) {
		p.Annotations = map[string]string{v1alpha1.AnnotationPools: "plain", v1alpha1.AnnotationAddresses: address}
	})
	w.refused(t, asks, "NetworkConflict", address, "is kept for claim")
	w.delete(t, target)
	w.delete(t, vm)
	if got := w.eth0(t, asks); got.Addresses[0] != has.Addresses[0] {
		t.Errorf("after the machine has stopped the pod has %v, want %s", got.Addresses, address)
	}
}
