package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/ports"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/pod"
)

// poisonObjects has broken pods, networks and records beside a pod that starts and ends. Each
// broken pod has an event with its reason, and all of them can be deleted.
func (b *bed) poisonObjects() {
	b.c.Network("poison-json", `{"cniVersion":"1.0.0","type":"fairlead-neutron","network":`)
	b.c.Network("poison-key", `{"cniVersion":"1.0.0","type":"fairlead-neutron","network":"`+bedName+`","vlan":7}`)
	b.c.Network("poison-none", `{"cniVersion":"1.0.0","type":"fairlead-neutron","network":"`+bedName+`-none"}`)
	var broken []*corev1.Pod
	for i, tc := range []struct{ key, value, words string }{
		{pod.AnnotationNetworks, "poison-json", "poison-json"},
		{pod.AnnotationNetworks, "poison-key", `"vlan": is not served`},
		{pod.AnnotationNetworks, "poison-none", bedName + "-none"},
		{pod.AnnotationNetworks, "[{", pod.AnnotationNetworks},
		{v1alpha1.AnnotationSecurityGroups, ",", v1alpha1.AnnotationSecurityGroups},
		{v1alpha1.AnnotationSecurityGroups, bedName + "-no-such-group", bedName + "-no-such-group"},
		{v1alpha1.AnnotationAddresses, "192.0.2.1", "192.0.2.1"},
	} {
		p := b.pod(fmt.Sprintf("poison-%d", i), b.nodes[i%2], annotated(tc.key, tc.value))
		b.await(fmt.Sprintf("the event of %s=%s", tc.key, tc.value), func(ctx context.Context) error {
			if err := b.warnings(ctx, p); !strings.Contains(err.Error(), strings.ReplaceAll(tc.words, `"`, `\"`)) {
				return err
			}
			return nil
		})
		broken = append(broken, p)
	}
	b.poisonRecord()
	good, changed := b.pod("good", b.nodes[0]), b.pod("changed", b.nodes[1])
	b.pings(b.running(good), b.running(changed), true)
	b.changePort(changed)
	b.delete(changed)
	b.goes(changed)
	b.delete(append(broken, good)...)
	b.nothingIsLeft()
}

// poisonRecord makes a record by hand, of a pod that never was, with a port that never was.
// The controller removes it.
func (b *bed) poisonRecord() {
	b.Helper()
	o := &v1alpha1.PodAttachment{
		ObjectMeta: metav1.ObjectMeta{Namespace: b.c.Namespace, Name: "poison-0badc0de", Finalizers: []string{v1alpha1.ReleaseFinalizer}},
		Spec: v1alpha1.PodAttachmentSpec{
			PodName: "poison", PodUID: "0badc0de-0000-4000-8000-000000000001", NodeName: b.nodes[0].Name,
			Interfaces: []v1alpha1.Interface{{
				Name: "eth0", Network: v1alpha1.DefaultNetwork, Driver: "neutron", Default: true,
				Addresses: []string{"10.92.3.250/22"}, MAC: "fa:16:3e:00:00:01", MTU: 1442, WaitForActive: true,
				Binding: v1alpha1.Binding{OVS: &v1alpha1.OVSBinding{Bridge: "br-int", PortID: "0badc0de-0000-4000-8000-000000000002"}},
			}},
		},
	}
	if err := b.c.Client.Create(b.Context(), o); err != nil {
		b.Fatal(err)
	}
}

// changePort changes the description of a pod's port by hand.
func (b *bed) changePort(p *corev1.Pod) {
	b.Helper()
	all, err := b.portsOf(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	for _, port := range all {
		if strings.Contains(port.DeviceID, string(p.UID)) {
			changed := "next=a/b/c/d network= poison"
			if _, err := ports.Update(b.Context(), b.neutron, port.ID, ports.UpdateOpts{Description: &changed}).Extract(); err != nil {
				b.Fatal(err)
			}
			return
		}
	}
	b.Fatalf("no port of pod %s among %d", p.Name, len(all))
}
