package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/portsbinding"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/security/groups"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/security/rules"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/networks"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/ports"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/subnets"

	"fairlead.dev/fairlead/test/openstack/lab"
)

const (
	smokeRange = "10.91.0.0/24"
	smokeOwner = "compute:smoke" // the device_owner of its ports
	// smokeTimeout bounds each effect of a call on packets.
	smokeTimeout = 30 * time.Second
)

// smoke is a network with one security group and pods on two chassis.
type smoke struct {
	*testing.T
	lab     *lab.Lab
	neutron *gophercloud.ServiceClient
	network *networks.Network
	subnet  *subnets.Subnet
	group   *groups.SecGroup
}

// smokePod is a pod by hand: a port, bound to a chassis, and a machine.
type smokePod struct {
	*lab.Machine
	port    ports.Port
	address netip.Addr
}

// The laboratory works: two pods by hand on two chassis reach each other as far as their
// security group lets them, and nothing is left of them.
func TestSmoke(t *testing.T) {
	s := &smoke{T: t, lab: lab.Use(t)}
	ctx := t.Context()
	var err error
	if s.neutron, err = s.lab.Network(ctx, lab.K8s); err != nil {
		t.Fatal(err)
	}
	first, second := s.chassis("smoke-1", 201), s.chassis("smoke-2", 202)
	t.Cleanup(s.nothingIsLeft(first, second))
	s.prepare()

	a, b := s.pod(first), s.pod(second)
	if in := s.portsInOVN(ctx); !strings.Contains(in, a.port.ID) || !strings.Contains(in, b.port.ID) {
		t.Errorf("OVN has the ports %q; want %s and %s", in, a.port.ID, b.port.ID)
	}
	serve(t, b.Namespace, b.address)
	s.must("ping", "before a rule allows it", false, func() bool { return ping(ctx, a.Namespace, b.address) })
	s.must("TCP", "before a rule allows it", false, func() bool { return connect(ctx, a.Namespace, b.address) })

	icmp := s.rule(rules.ProtocolICMP, 0)
	s.must("ping", "with its rule", true, func() bool { return ping(ctx, a.Namespace, b.address) })
	s.must("TCP", "with the rule of ping only", false, func() bool { return connect(ctx, a.Namespace, b.address) })

	s.rule(rules.ProtocolTCP, smokePort)
	s.must("TCP", "with its rule", true, func() bool { return connect(ctx, a.Namespace, b.address) })

	if err := rules.Delete(ctx, s.neutron, icmp).ExtractErr(); err != nil {
		t.Fatal(err)
	}
	s.must("ping", "without its rule", false, func() bool { return ping(ctx, a.Namespace, b.address) })
	s.must("TCP", "with its rule", true, func() bool { return connect(ctx, a.Namespace, b.address) })
}

// chassis makes a chassis that ends with the test.
func (s *smoke) chassis(name string, n int) *lab.Chassis {
	s.Helper()
	start := time.Now()
	c, err := s.lab.Chassis(s.Context(), name, n)
	if err != nil {
		s.Fatal(err)
	}
	s.Logf("%s: made in %v", name, time.Since(start))
	s.cleanup("end chassis "+name, c.Down)
	return c
}

// cleanup calls do after the test, when its context has ended.
func (s *smoke) cleanup(what string, do func(context.Context) error) {
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.Context()), smokeTimeout)
		defer cancel()
		if err := do(ctx); err != nil {
			s.Errorf("%s: %v", what, err)
		}
	})
}

// prepare makes a network, a subnet, and a security group that lets nothing in.
func (s *smoke) prepare() {
	s.Helper()
	ctx := s.Context()
	var err error
	if s.network, err = networks.Create(ctx, s.neutron, networks.CreateOpts{Name: "smoke"}).Extract(); err != nil {
		s.Fatal(err)
	}
	s.cleanup("delete the network", func(ctx context.Context) error { return networks.Delete(ctx, s.neutron, s.network.ID).ExtractErr() })
	dhcp := false
	s.subnet, err = subnets.Create(ctx, s.neutron, subnets.CreateOpts{
		NetworkID: s.network.ID, Name: "smoke", CIDR: smokeRange, IPVersion: gophercloud.IPv4, EnableDHCP: &dhcp,
	}).Extract()
	if err != nil {
		s.Fatal(err)
	}
	if s.group, err = groups.Create(ctx, s.neutron, groups.CreateOpts{Name: "smoke"}).Extract(); err != nil {
		s.Fatal(err)
	}
	s.cleanup("delete the security group", func(ctx context.Context) error { return groups.Delete(ctx, s.neutron, s.group.ID).ExtractErr() })
}

// rule lets a protocol in, from the range of the pods, and returns the rule's ID. The port
// is 0 if the protocol has none.
func (s *smoke) rule(protocol rules.RuleProtocol, port int) string {
	s.Helper()
	rule, err := rules.Create(s.Context(), s.neutron, rules.CreateOpts{
		SecGroupID: s.group.ID, Direction: rules.DirIngress, EtherType: rules.EtherType4, Protocol: protocol,
		PortRangeMin: port, PortRangeMax: port, RemoteIPPrefix: smokeRange,
	}).Extract()
	if err != nil {
		s.Fatal(err)
	}
	return rule.ID
}

// pod makes a pod on a chassis. It returns when its port is ACTIVE.
func (s *smoke) pod(c *lab.Chassis) *smokePod {
	s.Helper()
	ctx := s.Context()
	var made struct {
		ports.Port
		portsbinding.PortsBindingExt
	}
	start := time.Now()
	err := ports.Create(ctx, s.neutron, portsbinding.CreateOptsExt{
		HostID: c.Name,
		CreateOptsBuilder: ports.CreateOpts{
			NetworkID: s.network.ID, Name: "smoke-" + c.Name, DeviceOwner: smokeOwner, DeviceID: "pod-on-" + c.Name,
			SecurityGroups: &[]string{s.group.ID},
		},
	}).ExtractInto(&made)
	if err != nil {
		s.Fatal(err)
	}
	s.cleanup("delete the port", func(ctx context.Context) error { return ports.Delete(ctx, s.neutron, made.ID).ExtractErr() })
	if made.VIFType != "ovs" || made.HostID != c.Name {
		s.Fatalf("port bound as %q to %q; want ovs, %s", made.VIFType, made.HostID, c.Name)
	}
	created := time.Since(start)
	p := &smokePod{port: made.Port, address: netip.MustParseAddr(made.FixedIPs[0].IPAddress)}
	prefix := netip.MustParsePrefix(s.subnet.CIDR).Bits()
	p.Machine, err = c.Plug(ctx, lab.Port{
		ID: made.ID, MAC: made.MACAddress, Address: netip.PrefixFrom(p.address, prefix), MTU: s.mtu(),
	})
	if err != nil {
		s.Fatal(err)
	}
	s.cleanup("unplug the pod", p.Unplug)
	plugged := time.Since(start)
	s.await("port ACTIVE", func() bool {
		port, err := ports.Get(ctx, s.neutron, made.ID).Extract()
		return err == nil && port.Status == "ACTIVE"
	})
	s.Logf("%s: port bound after %v, plugged after %v, ACTIVE after %v", c.Name, created, plugged, time.Since(start))
	return p
}

// mtu returns the MTU of the network.
func (s *smoke) mtu() int {
	s.Helper()
	var body struct {
		Network struct {
			MTU int `json:"mtu"`
		} `json:"network"`
	}
	if _, err := s.neutron.Get(s.Context(), s.neutron.ServiceURL("networks", s.network.ID), &body, nil); err != nil { //nolint:bodyclose // gophercloud closes it
		s.Fatal(err)
	}
	return body.Network.MTU
}

// must waits until packets pass, or until they do not.
func (s *smoke) must(what, when string, want bool, passes func() bool) {
	s.Helper()
	start := time.Now()
	s.await(fmt.Sprintf("%s passes %s: %v", what, when, want), func() bool { return passes() == want })
	s.Logf("%s passes %s: %v, after %v", what, when, want, time.Since(start))
}

// await fails the test if a condition does not come.
func (s *smoke) await(what string, come func() bool) {
	s.Helper()
	s.within(smokeTimeout, what, come)
}

// within is await with another limit.
func (s *smoke) within(limit time.Duration, what string, come func() bool) {
	s.Helper()
	deadline := time.After(limit)
	next := time.NewTicker(20 * time.Millisecond)
	defer next.Stop()
	for !come() {
		select {
		case <-deadline:
			s.Fatalf("not within %v: %s", limit, what)
		case <-next.C:
		}
	}
}

// nothingIsLeft returns the last check of the test, before the chassis end: no port in
// Neutron and OVN, and on the chassis what they had at the begin.
func (s *smoke) nothingIsLeft(all ...*lab.Chassis) func() {
	s.Helper()
	look := func(ctx context.Context) (state []string, err error) {
		for _, c := range all {
			ns, err := c.Open()
			if err != nil {
				return nil, err
			}
			links, err := ns.State()
			if err = errors.Join(err, ns.Close()); err != nil {
				return nil, err
			}
			bridge, err := c.VSCtl(ctx, "list-ports", "br-int")
			if err != nil {
				return nil, err
			}
			for port := range strings.FieldsSeq(bridge) {
				if !strings.HasPrefix(port, "ovn-") { // OVN's tunnels to other chassis
					state = append(state, c.Name+": port "+port)
				}
			}
			for _, thing := range links.All() {
				state = append(state, c.Name+": "+thing)
			}
		}
		return state, nil
	}
	before, err := look(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.Context()), smokeTimeout)
		defer cancel()
		after, err := look(ctx)
		if err != nil {
			s.Error(err)
			return
		}
		if diff := cmp.Diff(before, after); diff != "" {
			s.Errorf("chassis (-before +after):\n%s", diff)
		}
		pages, err := ports.List(s.neutron, ports.ListOpts{DeviceOwner: smokeOwner}).AllPages(ctx)
		if err != nil {
			s.Error(err)
			return
		}
		if left, err := ports.ExtractPorts(pages); err != nil || len(left) > 0 {
			s.Errorf("ports left in Neutron: %+v, %v", left, err)
		}
		if left := s.portsInOVN(ctx); left != "" {
			s.Errorf("ports left in OVN: %s", left)
		}
	}
}

// portsInOVN returns the names of the pods' ports in OVN's database, one in a line.
func (s *smoke) portsInOVN(ctx context.Context) string {
	s.Helper()
	names, err := s.lab.Run(ctx, "ovn-nbctl", "--bare", "--columns=name", "find", "Logical_Switch_Port",
		`external_ids:"neutron:device_owner"="`+smokeOwner+`"`)
	if err != nil {
		s.Error(err)
	}
	return names
}
