package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"

	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/portsbinding"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/security/rules"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/ports"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// namespace makes a namespace with annotations, and returns a change of pods that puts them
// there.
func (b *bed) namespace(name string, annotations map[string]string) func(*corev1.Pod) {
	b.Helper()
	o := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: name + "-", Annotations: annotations}}
	if err := b.c.Client.Create(b.Context(), o); err != nil {
		b.Fatal(err)
	}
	b.cleanup("delete namespace "+o.Name, func(ctx context.Context) error {
		return errors.Join(b.c.Client.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(o.Name)), b.c.Client.Delete(ctx, o))
	})
	return func(p *corev1.Pod) { p.Namespace = o.Name }
}

// isolatedGroup makes a security group that lets in only its own members.
func (b *bed) isolatedGroup(name string) {
	b.Helper()
	id := b.group(name)
	_, err := rules.Create(b.Context(), b.neutron, rules.CreateOpts{
		SecGroupID: id, Direction: rules.DirIngress, EtherType: rules.EtherType4, RemoteGroupID: id,
	}).Extract()
	if err != nil {
		b.Fatal(err)
	}
}

// namespaceIsolation has namespaces whose annotation names a group of their own. Their pods
// reach each other and those of open namespaces, and are reached by no others.
func (b *bed) namespaceIsolation() {
	var in []func(*corev1.Pod)
	for _, name := range []string{bedName + "-blue", bedName + "-red"} {
		b.isolatedGroup(name)
		in = append(in, b.namespace("iso", map[string]string{v1alpha1.AnnotationSecurityGroups: name}))
	}
	pods := []*corev1.Pod{
		b.pod("blue-0", b.nodes[0], in[0]), b.pod("blue-1", b.nodes[1], in[0]),
		b.pod("red-0", b.nodes[0], in[1]), b.pod("open-0", b.nodes[1]),
	}
	var ends []*endpoint
	for _, p := range pods {
		e := b.running(p)
		serve(b.T, e.Namespace, e.address)
		ends = append(ends, e)
	}
	for i, from := range ends {
		for j, to := range ends {
			if i == j {
				continue
			}
			own := strings.HasPrefix(to.name, from.name[:3])
			want := own || strings.HasPrefix(to.name, "open")
			b.pings(from, to, want)
			b.connects(from, to, want)
		}
	}
	b.delete(pods...)
	b.nothingIsLeft()
}

// hostToNamespace has a node reach the pods of a namespace with a network policy by group, by a
// port of its own on their network.
func (b *bed) hostToNamespace() {
	b.isolatedGroup(bedName + "-hosted")
	in := b.namespace("hosted", map[string]string{v1alpha1.AnnotationSecurityGroups: bedName + "-hosted"})
	near, far := b.pod("near", b.nodes[0], in), b.pod("far", b.nodes[1], in)
	ends := []*endpoint{b.running(near), b.running(far)}
	for _, e := range ends {
		serve(b.T, e.Namespace, e.address)
	}
	for _, group := range []string{bedName + "-hosted", bedName} {
		host, remove := b.hostPort(b.nodes[0], group)
		for _, e := range ends {
			b.pings(host, e, group != bedName)
			b.connects(host, e, group != bedName)
		}
		remove()
	}
	b.delete(near, far)
	b.nothingIsLeft()
}

// hostPort gives a node itself a port on the network of the pods. The returned function
// removes it.
func (b *bed) hostPort(n *bedNode, group string) (*endpoint, func()) {
	b.Helper()
	ctx := b.Context()
	id := b.groupID(group)
	port, err := ports.Create(ctx, b.neutron, portsbinding.CreateOptsExt{
		HostID: n.Name,
		CreateOptsBuilder: ports.CreateOpts{
			NetworkID: b.cloud.network, Name: "host", DeviceOwner: "compute:nova", DeviceID: "host-" + n.Name, SecurityGroups: &[]string{id},
		},
	}).Extract()
	if err != nil {
		b.Fatal(err)
	}
	const link = "host0"
	remove := sync.OnceFunc(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(b.Context()), bedTimeout)
		defer cancel()
		_, err := n.VSCtl(ctx, "--if-exists", "del-port", "br-int", link)
		if err := errors.Join(err, ports.Delete(ctx, b.neutron, port.ID).ExtractErr()); err != nil {
			b.Error(err)
		}
	})
	b.Cleanup(remove)
	_, err = n.VSCtl(ctx, "add-port", "br-int", link, "--", "set", "Interface", link, "type=internal",
		fmt.Sprintf("mac=%q", port.MACAddress), "external_ids:iface-id="+port.ID, fmt.Sprintf("external_ids:attached-mac=%q", port.MACAddress))
	if err != nil {
		b.Fatal(err)
	}
	handle, err := n.ns.Netlink()
	if err != nil {
		b.Fatal(err)
	}
	defer handle.Close()
	address := netip.MustParseAddr(port.FixedIPs[0].IPAddress)
	b.await("link "+link, func(context.Context) error {
		l, err := handle.LinkByName(link)
		if err != nil {
			return err
		}
		a, err := netlink.ParseAddr(netip.PrefixFrom(address, netip.MustParsePrefix(podRange).Bits()).String())
		if err != nil {
			return err
		}
		return errors.Join(handle.LinkSetMTU(l, 1442), handle.LinkSetUp(l), handle.AddrReplace(l, a))
	})
	return &endpoint{Namespace: n.ns, name: "node " + n.Name + " in group " + group, address: address}, remove
}
