package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/security/rules"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/trunks"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/driver/neutron"
	"fairlead.dev/fairlead/internal/driver/neutron/choice"
	"fairlead.dev/fairlead/internal/netdev/kinds"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/openstack/cloud"
	"fairlead.dev/fairlead/test/drivertest"
	"fairlead.dev/fairlead/test/netlab"
	"fairlead.dev/fairlead/test/openstack/lab"
)

// nested is a node that is a machine of the laboratory, beside a peer on the same network,
// with the driver of its pods.
type nested struct {
	*smoke
	machine, peer *smokePod
	driver        driver.Driver
	endShim       func() // of the last pod that was plugged by tagged; nil for none
}

// Pods of a node that is a machine of OpenStack reach the network by the way that the label
// of the node chooses, and are reached, until they are released. Nothing of them is left.
func TestNested(t *testing.T) {
	s := &smoke{T: t, lab: lab.Use(t)}
	var err error
	if s.neutron, err = s.lab.Network(t.Context(), lab.K8s); err != nil {
		t.Fatal(err)
	}
	hypervisor, other := s.chassis("nested-1", 221), s.chassis("nested-2", 222)
	t.Cleanup(s.nothingIsLeft(hypervisor, other))
	s.prepare()
	s.rule(rules.ProtocolICMP, 0)
	n := &nested{smoke: s, machine: s.pod(hypervisor), peer: s.pod(other)}
	trunk, err := trunks.Create(t.Context(), s.neutron, trunks.CreateOpts{Name: "nested", PortID: n.machine.port.ID}).Extract()
	if err != nil {
		t.Fatal(err)
	}
	s.cleanup("delete the trunk", func(ctx context.Context) error { return trunks.Delete(ctx, s.neutron, trunk.ID).ExtractErr() })
	n.start()
	n.macvlan()
	n.trunk()
	n.pooled(trunk.ID)
}

// nodeManager is a manager of loops, with the Node in its cache.
type nodeManager struct {
	manager.Manager
	run  func(manager.Runnable)
	node client.Client
}

func (l *nodeManager) Add(r manager.Runnable) error {
	l.run(r)
	return nil
}

func (l *nodeManager) GetClient() client.Client { return l.node }

// node is the Node of the machine.
func (n *nested) node() client.Client {
	return fake.NewClientBuilder().WithObjects(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node-1"}, Spec: corev1.NodeSpec{ProviderID: "openstack:///" + n.machine.port.DeviceID},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: n.machine.address.String()}}},
	}).Build()
}

// config is that of the driver.
func (n *nested) config() neutron.Config {
	return neutron.Config{
		Cluster: "nested", Choice: choice.Config{Default: choice.Settings{Network: n.network.ID, Groups: []string{n.group.ID}}},
		Connect: func(ctx context.Context) (*cloud.Cloud, error) {
			return cloud.New(ctx, cloud.Config{File: filepath.Join(n.lab.State, "clouds.yaml"), Cloud: lab.K8s, Cluster: "nested"})
		},
	}
}

// start starts the driver with the Node of the machine.
func (n *nested) start() {
	n.Helper()
	parts := neutron.New(n.config()).Parts()
	n.driver = parts.Driver
	run := func(r manager.Runnable) { go func() { _ = r.Start(n.Context()) }() }
	if err := parts.Run.Setup(n.Context(), &nodeManager{run: run, node: n.node()}, nil); err != nil {
		n.Fatal(err)
	}
}

// attach gives a pod its interface.
func (n *nested) attach(number int, way string) driver.Ref {
	n.Helper()
	r := drivertest.Request(number)
	r.NodeLabels = map[string]string{v1alpha1.LabelNeutronPort: way}
	var got *driver.Attachment
	var err error
	n.await("interface by "+way, func() bool {
		got, err = n.driver.Ensure(n.Context(), r)
		if err != nil && driver.Result(err) != "Unavailable" {
			n.Fatal(err)
		}
		return err == nil
	})
	ref := driver.Ref{Owner: r.Owner, Interface: got.Interface}
	n.cleanup("release the pod", func(ctx context.Context) error { return n.driver.Release(ctx, ref) })
	return ref
}

// sandbox makes the namespace of a pod.
func (n *nested) sandbox(ref driver.Ref) *smokePod {
	n.Helper()
	ns, err := netlab.NewNamespace()
	if err != nil {
		n.Fatal(err)
	}
	n.cleanup("close the pod", func(context.Context) error { return ns.Close() })
	return &smokePod{Machine: &lab.Machine{Namespace: ns}, address: netip.MustParsePrefix(ref.Interface.Addresses[0]).Addr()}
}

// passes checks the way to the peer and back.
func (n *nested) passes(way string, p *smokePod) {
	n.Helper()
	n.must("ping to the peer", "by "+way, true, func() bool { return ping(n.Context(), p.Namespace, n.peer.address) })
	n.must("ping from the peer", "by "+way, true, func() bool { return ping(n.Context(), n.peer.Namespace, p.address) })
}

// reaches checks the way to the peer and back, and that it ends with the release.
func (n *nested) reaches(way string, p *smokePod, ref driver.Ref) {
	n.Helper()
	n.passes(way, p)
	if err := n.driver.Release(n.Context(), ref); err != nil {
		n.Fatal(err)
	}
	n.must("ping to the peer", "after the release", false, func() bool { return ping(n.Context(), p.Namespace, n.peer.address) })
}

// macvlan has the node's kind plug a pod, on the link that has the MAC of the machine's port.
func (n *nested) macvlan() {
	n.Helper()
	ref := n.attach(1, "macvlan")
	p := n.sandbox(ref)
	host, err := link.OpenNamespace(n.machine.Path())
	if err != nil {
		n.Fatal(err)
	}
	defer host.Close()
	sockets, err := link.OpenAt(host)
	if err != nil {
		n.Fatal(err)
	}
	defer sockets.Close()
	inside, err := link.OpenNamespace(p.Path())
	if err != nil {
		n.Fatal(err)
	}
	defer inside.Close()
	mac, err := net.ParseMAC(ref.Interface.MAC)
	if err != nil {
		n.Fatal(err)
	}
	err = kinds.All(sockets).Make(n.Context(), inside, plug.Interface{
		ContainerID: "c1", Name: "eth0", Binding: ref.Interface.Binding, MAC: mac, MTU: int(ref.Interface.MTU),
		Addresses: []netip.Prefix{netip.MustParsePrefix(ref.Interface.Addresses[0])},
	})
	if err != nil {
		n.Fatal(err)
	}
	n.reaches("macvlan", p, ref)
}

// trunk has a pod on a subport.
func (n *nested) trunk() {
	n.Helper()
	ref := n.attach(2, "trunk")
	n.reaches("trunk", n.tagged("pod2", ref), ref)
}

// tagged plugs a pod by hand behind the stand-in for VLAN devices, by a link with a name. The
// pod before has no stand-in any more: its VLAN may be that of this pod.
func (n *nested) tagged(name string, ref driver.Ref) *smokePod {
	n.Helper()
	if n.endShim != nil {
		n.endShim()
	}
	p := n.sandbox(ref)
	vlan := ref.Interface.Binding.VLAN
	if vlan == nil || vlan.ParentMAC != n.machine.port.MACAddress {
		n.Fatalf("binding %+v", ref.Interface.Binding)
	}
	handle, err := n.machine.Netlink()
	if err != nil {
		n.Fatal(err)
	}
	defer handle.Close()
	mac, err := net.ParseMAC(ref.Interface.MAC)
	if err != nil {
		n.Fatal(err)
	}
	inside, err := p.Netlink()
	if err != nil {
		n.Fatal(err)
	}
	defer inside.Close()
	file, err := os.Open(p.Path())
	if err != nil {
		n.Fatal(err)
	}
	defer file.Close()
	mtu := int(ref.Interface.MTU)
	veth := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: name, MTU: mtu},
		PeerName:  "eth0", PeerHardwareAddr: mac, PeerMTU: uint32(mtu), PeerNamespace: netlink.NsFd(int(file.Fd())),
	}
	address, err := netlink.ParseAddr(ref.Interface.Addresses[0])
	if err != nil {
		n.Fatal(err)
	}
	if err := errors.Join(handle.LinkAdd(veth), handle.LinkSetUp(veth)); err != nil {
		n.Fatal(err)
	}
	eth0, err := inside.LinkByName("eth0")
	if err != nil {
		n.Fatal(err)
	}
	if err := errors.Join(inside.AddrAdd(eth0, address), inside.LinkSetUp(eth0)); err != nil {
		n.Fatal(err)
	}
	shim := filepath.Join(n.TempDir(), "vlanshim")
	if out, err := exec.CommandContext(n.Context(), "go", "build", "-o", shim, "./vlanshim").CombinedOutput(); err != nil {
		n.Fatalf("%v: %s", err, out)
	}
	cmd := exec.Command(shim, "eth0", fmt.Sprintf("%s=%d", name, vlan.ID))
	out, err := cmd.StdoutPipe()
	if err != nil {
		n.Fatal(err)
	}
	if err := n.machine.Start(cmd); err != nil {
		n.Fatal(err)
	}
	n.endShim = sync.OnceFunc(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			n.Errorf("end vlanshim: %v", err)
		}
	})
	n.Cleanup(n.endShim)
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		n.Fatalf("vlanshim: %q, %v", line, err)
	}
	return p
}
