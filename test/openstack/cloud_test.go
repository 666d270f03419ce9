package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/portsbinding"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/security/groups"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/security/rules"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/networks"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/ports"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/subnets"

	"fairlead.dev/fairlead/internal/driver/neutron"
	"fairlead.dev/fairlead/test/openstack/lab"
)

const (
	// bedName begins the names of all objects in the cloud.
	bedName  = "e2e"
	podRange = "10.92.0.0/22"
	// nativeRange is that of the native default network, without its last byte.
	nativeRange = "10.93.0."
)

// cloudObjects are the IDs of what the operator has made in the cloud.
type cloudObjects struct {
	network, subnet, group string
}

// prepareCloud makes a network and a security group that lets everything in from the range
// of the pods.
func (b *bed) prepareCloud() *cloudObjects {
	b.Helper()
	o := &cloudObjects{}
	o.network, o.subnet = b.network(bedName, podRange)
	o.group = b.group(bedName)
	b.rule(o.group, "", 0)
	return o
}

// network makes a network with a subnet.
func (b *bed) network(name, cidr string) (id, subnet string) {
	b.Helper()
	ctx := b.Context()
	n, err := networks.Create(ctx, b.neutron, networks.CreateOpts{Name: name}).Extract()
	if err != nil {
		b.Fatal(err)
	}
	b.cleanup("delete network "+name, func(ctx context.Context) error { return networks.Delete(ctx, b.neutron, n.ID).ExtractErr() })
	dhcp := false
	s, err := subnets.Create(ctx, b.neutron, subnets.CreateOpts{
		NetworkID: n.ID, Name: name, CIDR: cidr, IPVersion: gophercloud.IPv4, EnableDHCP: &dhcp,
	}).Extract()
	if err != nil {
		b.Fatal(err)
	}
	return n.ID, s.ID
}

// group makes a security group that lets nothing in.
func (b *bed) group(name string) string {
	b.Helper()
	g, err := groups.Create(b.Context(), b.neutron, groups.CreateOpts{Name: name}).Extract()
	if err != nil {
		b.Fatal(err)
	}
	b.cleanup("delete security group "+name, func(ctx context.Context) error { return groups.Delete(ctx, b.neutron, g.ID).ExtractErr() })
	return g.ID
}

// groupID returns the ID of a security group by its name.
func (b *bed) groupID(name string) string {
	b.Helper()
	pages, err := groups.List(b.neutron, groups.ListOpts{Name: name}).AllPages(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	all, err := groups.ExtractGroups(pages)
	if err != nil || len(all) != 1 {
		b.Fatalf("security groups %q: %v, %v; want one", name, all, err)
	}
	return all[0].ID
}

// rule lets a protocol in, from the range of the pods, and returns the rule's ID.
func (b *bed) rule(group string, protocol rules.RuleProtocol, port int) string {
	b.Helper()
	rule, err := rules.Create(b.Context(), b.neutron, rules.CreateOpts{
		SecGroupID: group, Direction: rules.DirIngress, EtherType: rules.EtherType4, Protocol: protocol,
		PortRangeMin: port, PortRangeMax: port, RemoteIPPrefix: podRange,
	}).Extract()
	if err != nil {
		b.Fatal(err)
	}
	return rule.ID
}

// deletePorts returns a function that deletes all ports of a network.
func (b *bed) deletePorts(network string) func(context.Context) error {
	return func(ctx context.Context) error {
		pages, err := ports.List(b.neutron, ports.ListOpts{NetworkID: network}).AllPages(ctx)
		if err != nil {
			return err
		}
		all, err := ports.ExtractPorts(pages)
		for _, p := range all {
			err = errors.Join(err, ports.Delete(ctx, b.neutron, p.ID).ExtractErr())
		}
		return err
	}
}

// portsOf returns the ports that Fairlead has made.
func (b *bed) portsOf(ctx context.Context) ([]ports.Port, error) {
	pages, err := ports.List(b.neutron, ports.ListOpts{DeviceOwner: neutron.DeviceOwner}).AllPages(ctx)
	if err != nil {
		return nil, err
	}
	all, err := ports.ExtractPorts(pages)
	return slices.DeleteFunc(all, func(p ports.Port) bool { return !strings.HasPrefix(p.DeviceID, deviceIDs) }), err
}

// deviceIDs begins the device_id of all ports of the cluster.
const deviceIDs = "fairlead/" + bedName + "/"

// machine plugs a port by hand, as that of a virtual machine, on a node.
// The returned function removes it.
func (b *bed) machine(n *bedNode) (*endpoint, func()) {
	b.Helper()
	ctx := b.Context()
	port, err := ports.Create(ctx, b.neutron, portsbinding.CreateOptsExt{
		HostID: n.Name,
		CreateOptsBuilder: ports.CreateOpts{
			NetworkID: b.cloud.network, Name: "machine", DeviceOwner: "compute:nova", DeviceID: "machine-" + n.Name, SecurityGroups: &[]string{b.cloud.group},
		},
	}).Extract()
	if err != nil {
		b.Fatal(err)
	}
	address := netip.MustParseAddr(port.FixedIPs[0].IPAddress)
	m, err := n.Plug(ctx, lab.Port{ID: port.ID, MAC: port.MACAddress, Address: netip.PrefixFrom(address, netip.MustParsePrefix(podRange).Bits()), MTU: 1442})
	if err != nil {
		b.Fatal(err)
	}
	return &endpoint{Namespace: m.Namespace, name: "machine", address: address}, sync.OnceFunc(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(b.Context()), bedTimeout)
		defer cancel()
		if err := errors.Join(m.Unplug(ctx), ports.Delete(ctx, b.neutron, port.ID).ExtractErr()); err != nil {
			b.Error(err)
		}
	})
}

// nothingIsLeft waits until there is no port in Neutron and OVN, no record, and nothing
// new on the nodes.
func (b *bed) nothingIsLeft() {
	b.Helper()
	b.await("nothing to be left", func(ctx context.Context) error {
		var left []string
		all, err := b.portsOf(ctx)
		if err != nil {
			return err
		}
		for _, p := range all {
			left = append(left, "port "+p.Name)
		}
		rows, err := b.lab.Run(ctx, "ovn-nbctl", "--bare", "--columns=external_ids", "list", "Logical_Switch_Port")
		if err != nil {
			return err
		}
		for row := range strings.FieldsSeq(rows) {
			if strings.Contains(row, deviceIDs) {
				left = append(left, "port in OVN "+row)
			}
		}
		records, err := b.records(ctx)
		if err != nil {
			return err
		}
		for _, r := range records {
			left = append(left, "record "+r.Name)
		}
		pools, err := b.portPools(ctx)
		if err != nil {
			return err
		}
		for _, p := range pools {
			left = append(left, "PortPool "+p.Name)
		}
		for _, n := range b.nodes {
			now, err := n.state(ctx)
			if err != nil {
				return err
			}
			for _, thing := range now {
				if !slices.Contains(n.baseline, thing) && !ofNative(thing) {
					left = append(left, thing)
				}
			}
		}
		if len(left) > 0 {
			return fmt.Errorf("%d things are left: %s", len(left), strings.Join(left[:min(len(left), 8)], ", "))
		}
		return nil
	})
}

// ofNative reports whether a thing of a node belongs to the native network, which stays: its
// tunnel, and the routes to its range.
func ofNative(thing string) bool {
	return strings.Contains(thing, "fairlead-vx") || strings.Contains(thing, " "+nativeRange)
}

// state lists links, routes, packet filters, ports of Open vSwitch, files and network
// namespaces of pods of a node.
func (n *bedNode) state(ctx context.Context) (state []string, err error) {
	links, err := n.ns.State()
	if err != nil {
		return nil, err
	}
	rows, err := n.VSCtl(ctx, "--bare", "--columns=name", "list", "Interface")
	if err != nil {
		return nil, err
	}
	for row := range strings.FieldsSeq(rows) {
		if !strings.HasPrefix(row, "ovn-") { // OVN's tunnels to other chassis
			state = append(state, n.Name+": row "+row)
		}
	}
	for _, thing := range links.All() {
		// The table stays; its chains end with the links.
		if !strings.HasSuffix(thing, " netdev fairlead-shut") {
			state = append(state, n.Name+": "+thing)
		}
	}
	chains, err := n.chains()
	if err != nil {
		return nil, err
	}
	for _, chain := range chains {
		state = append(state, n.Name+": shut "+chain)
	}
	files, err := n.files()
	return append(state, files...), err
}

// chains lists the links whose packets are kept from the node.
func (n *bedNode) chains() (links []string, err error) {
	var out bytes.Buffer
	list := exec.Command("nft", "list", "chains", "netdev")
	list.Stdout, list.Stderr = &out, &out
	if err := n.ns.Start(list); err != nil {
		return nil, err
	}
	if err := list.Wait(); err != nil {
		return nil, fmt.Errorf("%v: %w: %s", list.Args, err, out.Bytes())
	}
	for line := range strings.Lines(out.String()) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "chain "); ok {
			links = append(links, strings.TrimSuffix(name, " {"))
		}
	}
	return links, nil
}

var errNotYet = errors.New("not yet")
