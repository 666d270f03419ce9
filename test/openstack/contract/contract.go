// Package contract has the tests of cloud.Cloud that every Neutron passes: the one in memory
// and a real one.
package contract

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/fairlead/internal/openstack/cloud"
)

// Lab is a cloud with credentials of an administrator that owns its project.
type Lab struct {
	Cloud *cloud.Cloud
	// Other is another cluster in the same project.
	Other *cloud.Cloud
	// Member is a plain member of another project; nil if there is none.
	Member *cloud.Cloud
	// Host is a name for binding:host_id to which ports can be bound. SecondHost is another;
	// empty if there is none.
	Host, SecondHost string
	// Router creates a router and returns its ID; it is deleted with the test.
	Router func(tb testing.TB, name string) string
	// Pool creates a subnet pool of two networks of 24 bits, and returns its ID.
	Pool func(tb testing.TB, name, prefix string) string
	// Policy creates a QoS policy and returns its ID.
	Policy func(tb testing.TB, name string) string
	// Shared creates a network, subnet pool or QoS policy of another project that all projects see,
	// and returns its ID. resource is its path in the API.
	Shared func(tb testing.TB, resource, name string) string
	// SetQuota limits the ports of the project; -1 is no limit.
	SetQuota func(tb testing.TB, ports int)
}

// Run runs the contract.
func Run(t *testing.T, l Lab) {
	for name, test := range map[string]func(*testing.T, Lab){
		"ports":          ports,
		"adoption":       adoption,
		"bulk":           bulk,
		"changes":        changes,
		"bindings":       bindings,
		"errors":         refusals,
		"subnets":        subnets,
		"routers":        routers,
		"groups":         groups,
		"trunks":         trunks,
		"QoS policies":   policies,
		"projects":       projects,
		"shared names":   sharedNames,
		"quota":          quota,
		"member":         member,
		"other clusters": clusters,
		"capabilities":   capabilities,
	} {
		t.Run(name, func(t *testing.T) { test(t, l) })
	}
}

// network returns a network with a subnet of each family, which end with the test.
func (l Lab) network(t *testing.T) (cloud.Network, cloud.Subnet, cloud.Subnet) {
	t.Helper()
	ctx := t.Context()
	n, err := l.Cloud.CreateNetwork(ctx, "", "contract-"+t.Name())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.Background()
		left, err := l.Cloud.Ports(ctx, cloud.PortQuery{Network: n.ID})
		if err != nil {
			t.Error(err)
		}
		for _, p := range left {
			if err := l.Cloud.DeletePort(ctx, p.ID); err != nil {
				t.Error(err)
			}
		}
		if err := l.Cloud.DeleteNetwork(ctx, n.ID); err != nil {
			t.Error(err)
		}
	})
	v4, err := l.Cloud.CreateSubnet(ctx, cloud.SubnetSpec{Name: "v4", Network: n.ID, Prefix: netip.MustParsePrefix("10.66.0.0/28")})
	if err != nil {
		t.Fatal(err)
	}
	v6, err := l.Cloud.CreateSubnet(ctx, cloud.SubnetSpec{Name: "v6", Network: n.ID, Prefix: netip.MustParsePrefix("fd00:66::/64")})
	if err != nil {
		t.Fatal(err)
	}
	return n, v4, v6
}

func spec(network, name string) cloud.PortSpec {
	return cloud.PortSpec{Name: name, Network: network, DeviceID: "uid-" + name, DeviceOwner: "compute:fairlead", Tags: []string{"kind=test"}}
}

func ports(t *testing.T, l Lab) {
	ctx := t.Context()
	n, v4, v6 := l.network(t)
	s := spec(n.ID, "full")
	s.Description, s.Host = "a pod", l.Host
	s.Addresses = []cloud.Address{{Subnet: v4.ID, Addr: netip.MustParseAddr("10.66.0.9")}, {Subnet: v6.ID}}
	s.MAC = "fa:16:3e:66:00:09"
	s.Groups = []string{}
	s.Pairs = []cloud.Pair{{Prefix: netip.MustParsePrefix("10.1.0.0/16")}, {Prefix: netip.MustParsePrefix("10.2.0.1/32"), MAC: "fa:16:3e:66:00:aa"}}
	s.DNSName = "full"
	p, err := l.Cloud.CreatePort(ctx, s)
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Addresses) != 2 || !v6.Prefix.Contains(p.Addresses[1].Addr) {
		t.Fatalf("addresses %v, want one of each subnet", p.Addresses)
	}
	tags := slices.Sorted(slices.Values(p.Tags))
	want := cloud.Port{
		ID: p.ID, Name: "full", Description: "a pod", ProjectID: l.Cloud.Project(), NetworkID: n.ID, MAC: s.MAC,
		Addresses: []cloud.Address{{Subnet: v4.ID, Addr: s.Addresses[0].Addr}, {Subnet: v6.ID, Addr: p.Addresses[1].Addr}},
		Status:    p.Status, Up: true, DeviceID: s.DeviceID, DeviceOwner: s.DeviceOwner, Host: l.Host, VIFType: "ovs", Bridge: p.Bridge,
		PortSecurity: true, Pairs: s.Pairs, DNSName: "full", Tags: p.Tags, Revision: p.Revision,
	}
	if diff := cmp.Diff(want, p, unexported, addrs); diff != "" {
		t.Errorf("created port (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{l.Cloud.Tag(), "kind=test"}, tags); diff != "" {
		t.Errorf("tags (-want +got):\n%s", diff)
	}
	read, err := l.Cloud.Port(ctx, p.ID)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, read, unexported, addrs, ofTheCloud); diff != "" {
		t.Errorf("port that is read (-created +read):\n%s", diff)
	}
	for name, q := range map[string]cloud.PortQuery{
		"tag":     {Tagged: true, Tags: []string{"kind=test"}, Network: n.ID},
		"IDs":     {IDs: []string{p.ID, l.Cloud.Project()}},
		"name":    {Name: "full", Network: n.ID},
		"device":  {DeviceID: s.DeviceID, DeviceOwner: s.DeviceOwner, Network: n.ID},
		"address": {Address: s.Addresses[0].Addr, Network: n.ID},
		"host":    {Host: l.Host, Network: n.ID, Project: l.Cloud.Project(), Status: read.Status},
	} {
		found, err := l.Cloud.Ports(ctx, q)
		if err != nil || len(found) != 1 || found[0].ID != p.ID {
			t.Errorf("ports by %s: %v, %v; want the one", name, found, err)
		}
	}
	statuses, err := l.Cloud.Statuses(ctx, []string{p.ID, "aaaaaaaa-aaaa-4aaa-8aaa-aaaaaaaaaaaa"})
	if err != nil || len(statuses) != 1 || statuses[p.ID] == "" {
		t.Errorf("statuses %v, %v; want that of %s", statuses, err, p.ID)
	}
	for range 2 {
		if err := l.Cloud.DeletePort(ctx, p.ID); err != nil {
			t.Error(err)
		}
	}
	if _, err := l.Cloud.Port(ctx, p.ID); !errors.Is(err, cloud.ErrNotFound) || cloud.RequestID(err) == "" {
		t.Errorf("read a deleted port: %v (request %q), want %v with its request", err, cloud.RequestID(err), cloud.ErrNotFound)
	}
}

func adoption(t *testing.T, l Lab) {
	ctx := t.Context()
	n, _, _ := l.network(t)
	first, err := l.Cloud.CreatePort(ctx, spec(n.ID, "a"))
	if err != nil {
		t.Fatal(err)
	}
	again, err := l.Cloud.CreatePort(ctx, spec(n.ID, "a"))
	if err != nil {
		t.Fatal(err)
	}
	if again.ID != first.ID || again.Revision != first.Revision {
		t.Errorf("adopted port %s of revision %d, want %s of revision %d", again.ID, again.Revision, first.ID, first.Revision)
	}
	other := spec(n.ID, "a")
	other.DeviceID = "another"
	if p, err := l.Cloud.CreatePort(ctx, other); err != nil || p.ID == first.ID {
		t.Errorf("port of another device: %v, %v; want another port", p.ID, err)
	}
}

func bulk(t *testing.T, l Lab) {
	ctx := t.Context()
	n, v4, _ := l.network(t)
	if _, err := l.Cloud.CreatePort(ctx, spec(n.ID, "p1")); err != nil {
		t.Fatal(err)
	}
	specs := []cloud.PortSpec{spec(n.ID, "p0"), spec(n.ID, "p1"), spec(n.ID, "p2")}
	made, err := l.Cloud.CreatePorts(ctx, specs)
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range made {
		if p.Name != specs[i].Name || !slices.Contains(p.Tags, l.Cloud.Tag()) {
			t.Errorf("port %d is %q with tags %v, want %q with the tag of the cluster", i, p.Name, p.Tags, specs[i].Name)
		}
	}
	bad := []cloud.PortSpec{spec(n.ID, "p3"), spec(n.ID, "p4")}
	bad[1].Addresses = []cloud.Address{{Subnet: v4.ID, Addr: made[0].Addresses[0].Addr}}
	if !v4.Prefix.Contains(made[0].Addresses[0].Addr) {
		bad[1].Addresses[0].Addr = made[0].Addresses[1].Addr
	}
	if _, err := l.Cloud.CreatePorts(ctx, bad); !errors.Is(err, cloud.ErrTaken) {
		t.Errorf("a port of two with a taken address: %v, want %v", err, cloud.ErrTaken)
	}
	left, err := l.Cloud.Ports(ctx, cloud.PortQuery{Network: n.ID, Tagged: true})
	if err != nil || len(left) != 3 {
		t.Errorf("%d ports, %v; want all of one request or none: 3", len(left), err)
	}
}

func changes(t *testing.T, l Lab) {
	ctx := t.Context()
	n, _, _ := l.network(t)
	p, err := l.Cloud.CreatePort(ctx, spec(n.ID, "c"))
	if err != nil {
		t.Fatal(err)
	}
	name, device, description := "new", "uid-new", "changed"
	pairs := []cloud.Pair{{Prefix: netip.MustParsePrefix("10.9.0.0/16")}, {Prefix: netip.MustParsePrefix("fd09::/64")}}
	changed, err := l.Cloud.UpdatePort(ctx, p.ID, p.Revision, cloud.PortChange{
		Name: &name, DeviceID: &device, Description: &description, Host: &l.Host, Pairs: &pairs, Groups: &[]string{},
	})
	if err != nil {
		t.Fatal(err)
	}
	if changed.Name != name || changed.Host != l.Host || changed.Groups != nil || changed.Revision <= p.Revision {
		t.Errorf("changed port %+v", changed)
	}
	if diff := cmp.Diff(pairs, changed.Pairs, addrs); diff != "" {
		t.Errorf("pairs (-want +got):\n%s", diff)
	}
	if _, err := l.Cloud.UpdatePort(ctx, p.ID, p.Revision, cloud.PortChange{Name: &name}); !errors.Is(err, cloud.ErrChanged) {
		t.Errorf("update of an old revision: %v, want %v", err, cloud.ErrChanged)
	}
	var many []cloud.Pair
	for i := range 60 {
		many = append(many, cloud.Pair{Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i), 0, 0}), 16)})
	}
	if _, err := l.Cloud.UpdatePort(ctx, p.ID, 0, cloud.PortChange{Pairs: &many}); !errors.Is(err, cloud.ErrLimit) {
		t.Errorf("60 pairs: %v, want %v", err, cloud.ErrLimit)
	}
	insecure := false
	if _, err := l.Cloud.UpdatePort(ctx, p.ID, 0, cloud.PortChange{PortSecurity: &insecure}); !errors.Is(err, cloud.ErrInvalid) {
		t.Errorf("port security off with pairs: %v, want %v", err, cloud.ErrInvalid)
	}
	if p, err := l.Cloud.UpdatePort(ctx, p.ID, 0, cloud.PortChange{PortSecurity: &insecure, Pairs: &[]cloud.Pair{}}); err != nil || p.PortSecurity {
		t.Errorf("port security off: %v, %v", p.PortSecurity, err)
	}
	host := ""
	if p, err := l.Cloud.UpdatePort(ctx, p.ID, 0, cloud.PortChange{Host: &host}); err != nil || p.VIFType != "unbound" {
		t.Errorf("unbind: VIF type %q, %v", p.VIFType, err)
	}
}

func refusals(t *testing.T, l Lab) {
	ctx := t.Context()
	n, v4, _ := l.network(t)
	taken, err := l.Cloud.CreatePort(ctx, spec(n.ID, "taken"))
	if err != nil {
		t.Fatal(err)
	}
	const missing = "aaaaaaaa-aaaa-4aaa-8aaa-aaaaaaaaaaaa"
	long := fmt.Sprintf("%0300d", 0)
	for name, test := range map[string]struct {
		change func(*cloud.PortSpec)
		want   error
	}{
		"no such network":   {func(s *cloud.PortSpec) { s.Network = missing }, cloud.ErrNotFound},
		"no such subnet":    {func(s *cloud.PortSpec) { s.Addresses = []cloud.Address{{Subnet: missing}} }, cloud.ErrNotFound},
		"no such group":     {func(s *cloud.PortSpec) { s.Groups = []string{missing} }, cloud.ErrNotFound},
		"MAC in use":        {func(s *cloud.PortSpec) { s.MAC = taken.MAC }, cloud.ErrTaken},
		"no MAC":            {func(s *cloud.PortSpec) { s.MAC = "zz" }, cloud.ErrInvalid},
		"name too long":     {func(s *cloud.PortSpec) { s.Name = long }, cloud.ErrInvalid},
		"address in use":    {func(s *cloud.PortSpec) { s.Addresses = []cloud.Address{{Addr: taken.Addresses[0].Addr}} }, cloud.ErrTaken},
		"address elsewhere": {func(s *cloud.PortSpec) { s.Addresses = []cloud.Address{{Addr: netip.MustParseAddr("192.0.2.1")}} }, cloud.ErrInvalid},
		"address of no subnet": {func(s *cloud.PortSpec) {
			s.Addresses = []cloud.Address{{Subnet: v4.ID, Addr: netip.MustParseAddr("192.0.2.1")}}
		}, cloud.ErrInvalid},
	} {
		s := spec(n.ID, "refused")
		test.change(&s)
		if p, err := l.Cloud.CreatePort(ctx, s); !errors.Is(err, test.want) || cloud.RequestID(err) == "" {
			t.Errorf("%s: port %q, %v; want %v with its request", name, p.ID, err, test.want)
		}
	}
	for i := range 20 {
		s := spec(n.ID, fmt.Sprintf("fill-%d", i))
		s.Addresses = []cloud.Address{{Subnet: v4.ID}}
		if _, err = l.Cloud.CreatePort(ctx, s); err != nil {
			break
		}
	}
	if !errors.Is(err, cloud.ErrFull) {
		t.Errorf("ports until the subnet is full: %v, want %v", err, cloud.ErrFull)
	}
	if err := l.Cloud.DeleteNetwork(ctx, n.ID); !errors.Is(err, cloud.ErrInUse) {
		t.Errorf("delete a network with ports: %v, want %v", err, cloud.ErrInUse)
	}
	if err := l.Cloud.DeleteSubnet(ctx, v4.ID); !errors.Is(err, cloud.ErrInUse) {
		t.Errorf("delete a subnet with ports: %v, want %v", err, cloud.ErrInUse)
	}
}

// unexported is the part of a port that is not compared.
var unexported = cmp.FilterPath(func(p cmp.Path) bool { return p.String() == "created" }, cmp.Ignore())

// addrs compares addresses and prefixes by their values.
var addrs = cmp.Options{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
}

// ofTheCloud ignores the members of a port that the cloud changes by itself.
var ofTheCloud = cmp.FilterPath(func(p cmp.Path) bool {
	return slices.Contains([]string{"Revision", "Status", "Bridge"}, p.String())
}, cmp.Ignore())
