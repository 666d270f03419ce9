package contract

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/fairlead/internal/openstack/cloud"
)

func subnets(t *testing.T, l Lab) {
	ctx := t.Context()
	pool := l.Pool(t, "contract-pool", "10.70.0.0/23")
	n, err := l.Cloud.CreateNetwork(ctx, "", "contract-subnets")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Cloud.DeleteNetwork(context.Background(), n.ID); err != nil {
			t.Error(err)
		}
	})
	again, err := l.Cloud.CreateNetwork(ctx, "", "contract-subnets")
	if diff := cmp.Diff(n, again); err != nil || diff != "" {
		t.Errorf("adopted network: %v (-created +adopted):\n%s", err, diff)
	}
	if named, err := l.Cloud.Network(ctx, "contract-subnets"); err != nil || named.ID != n.ID || named.MTU < 1280 {
		t.Errorf("network by name: %+v, %v; want %s with an MTU", named, err, n.ID)
	}
	for _, find := range []func() ([]cloud.Network, error){
		func() ([]cloud.Network, error) { return l.Cloud.NetworksNamed(ctx, "", "contract-subnets") },
		func() ([]cloud.Network, error) { return l.Cloud.NetworksOf(ctx, l.Cloud.Project()) },
	} {
		found, err := find()
		if err != nil || len(found) != 1 || found[0].ID != n.ID || found[0].Name != "contract-subnets" {
			t.Errorf("own networks %+v, %v; want %s", found, err, n.ID)
		}
	}
	if found, err := l.Other.NetworksNamed(ctx, "", "contract-subnets"); err != nil || len(found) > 0 {
		t.Errorf("another cluster takes %+v, %v as its own", found, err)
	}
	for _, name := range []string{"contract-pool", pool} {
		if p, err := l.Cloud.SubnetPool(ctx, name); err != nil || p != (cloud.SubnetPool{ID: pool, Name: "contract-pool"}) {
			t.Errorf("subnet pool %s: %+v, %v", name, p, err)
		}
	}
	var made []cloud.Subnet
	for i := range 2 {
		s, err := l.Cloud.CreateSubnet(ctx, cloud.SubnetSpec{Name: fmt.Sprintf("s%d", i), Network: n.ID, Pool: pool})
		if err != nil {
			t.Fatal(err)
		}
		want := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 70, byte(i), 0}), 24)
		if s.Prefix != want || s.Gateway != want.Addr().Next() || s.Size != 253 || !slices.Contains(s.Tags, l.Cloud.Tag()) {
			t.Errorf("subnet of the pool: %+v, want %v with its first address as gateway, 253 addresses for ports, and the tag", s, want)
		}
		made = append(made, s)
	}
	_, err = l.Cloud.CreateSubnet(ctx, cloud.SubnetSpec{Name: "s2", Network: n.ID, Pool: pool})
	if !errors.Is(err, cloud.ErrFull) {
		t.Errorf("subnet of an empty pool: %v, want %v", err, cloud.ErrFull)
	}
	adopted, err := l.Cloud.CreateSubnet(ctx, cloud.SubnetSpec{Name: "s1", Network: n.ID, Pool: pool})
	if err != nil || adopted.ID != made[1].ID {
		t.Errorf("adopted subnet %s, %v; want %s", adopted.ID, err, made[1].ID)
	}
	all, err := l.Cloud.Subnets(ctx, n.ID)
	if err != nil || len(all) != 2 {
		t.Errorf("subnets %v, %v; want 2", all, err)
	}
	for range 2 {
		if err := l.Cloud.DeleteSubnet(ctx, made[1].ID); err != nil {
			t.Error(err)
		}
	}
	if _, err := l.Cloud.Subnet(ctx, made[1].ID); !errors.Is(err, cloud.ErrNotFound) {
		t.Errorf("read a deleted subnet: %v, want %v", err, cloud.ErrNotFound)
	}
	if _, err := l.Cloud.Network(ctx, "no-such-network"); !errors.Is(err, cloud.ErrNotFound) {
		t.Errorf("network by an unknown name: %v, want %v", err, cloud.ErrNotFound)
	}
}

func routers(t *testing.T, l Lab) {
	ctx := t.Context()
	n, v4, _ := l.network(t)
	id := l.Router(t, "contract-router")
	for range 2 {
		if err := l.Cloud.Routers.Connect(ctx, id, v4.ID); err != nil {
			t.Fatal(err)
		}
	}
	hop := netip.MustParseAddr("10.66.0.9")
	route := cloud.Route{Destination: netip.MustParsePrefix("10.1.0.0/24"), NextHop: hop}
	for range 2 {
		if err := l.Cloud.Routers.AddRoutes(ctx, id, []cloud.Route{route}); err != nil {
			t.Fatal(err)
		}
	}
	var many []cloud.Route
	for i := range 31 {
		many = append(many, cloud.Route{Destination: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 2, byte(i), 0}), 24), NextHop: hop})
	}
	if err := l.Cloud.Routers.AddRoutes(ctx, id, many); !errors.Is(err, cloud.ErrLimit) {
		t.Errorf("32 routes: %v, want %v", err, cloud.ErrLimit)
	}
	elsewhere := []cloud.Route{{Destination: route.Destination, NextHop: netip.MustParseAddr("192.0.2.1")}}
	if err := l.Cloud.Routers.AddRoutes(ctx, id, elsewhere); !errors.Is(err, cloud.ErrInvalid) {
		t.Errorf("next hop in no subnet: %v, want %v", err, cloud.ErrInvalid)
	}
	if err := l.Cloud.Routers.Disconnect(ctx, id, v4.ID); !errors.Is(err, cloud.ErrInUse) {
		t.Errorf("disconnect a subnet with a next hop: %v, want %v", err, cloud.ErrInUse)
	}
	r, err := l.Cloud.Routers.Router(ctx, "contract-router")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]cloud.Route{route}, r.Routes, addrs); diff != "" {
		t.Errorf("routes (-want +got):\n%s", diff)
	}
	for range 2 {
		if err := l.Cloud.Routers.RemoveRoutes(ctx, id, []cloud.Route{route}); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := l.Cloud.Routers.Disconnect(ctx, id, v4.ID); err != nil {
			t.Fatal(err)
		}
	}
	if found, err := l.Cloud.Ports(ctx, cloud.PortQuery{Network: n.ID}); err != nil || len(found) != 0 {
		t.Errorf("ports of a router without interfaces: %v, %v", found, err)
	}
}

func groups(t *testing.T, l Lab) {
	ctx := t.Context()
	n, _, _ := l.network(t)
	g, err := l.Cloud.Groups.CreateGroup(ctx, "", "contract-group", "rules of nodes")
	if err != nil {
		t.Fatal(err)
	}
	again, err := l.Cloud.Groups.CreateGroup(ctx, "", "contract-group", "rules of nodes")
	if err != nil || again.ID != g.ID || !slices.Contains(g.Tags, l.Cloud.Tag()) {
		t.Fatalf("adopted group %s, %v; want %s with the tag", again.ID, err, g.ID)
	}
	rules := []cloud.Rule{
		{Remote: netip.MustParsePrefix("10.0.0.0/8"), Description: "pods"},
		{Protocol: "tcp", PortMin: 80, PortMax: 90},
		{IPv6: true, Remote: netip.MustParsePrefix("fd00::/8")},
		{IPv6: true, RemoteGroup: g.ID},
	}
	added, err := l.Cloud.Groups.AddRules(ctx, g.ID, rules)
	if err != nil || len(added) != len(rules) {
		t.Fatalf("added %v, %v; want %d", added, err, len(rules))
	}
	more, err := l.Cloud.Groups.AddRules(ctx, g.ID, append(rules, cloud.Rule{Protocol: "udp"}, cloud.Rule{Remote: netip.MustParsePrefix("10.9.9.9/8")}))
	if err != nil || len(more) != 1 || more[0].Protocol != "udp" {
		t.Errorf("added %v, %v; want only the rule that is new", more, err)
	}
	if _, err := l.Cloud.Groups.AddRules(ctx, g.ID, []cloud.Rule{{PortMin: 80, PortMax: 80}}); !errors.Is(err, cloud.ErrInvalid) {
		t.Errorf("ports without a protocol: %v, want %v", err, cloud.ErrInvalid)
	}
	for range 2 {
		if err := l.Cloud.Groups.DeleteRule(ctx, added[0].ID); err != nil {
			t.Error(err)
		}
	}
	g, err = l.Cloud.Groups.Group(ctx, "contract-group")
	if err != nil {
		t.Fatal(err)
	}
	var ingress []cloud.Rule
	for _, r := range g.Rules {
		if !r.Egress {
			r.ID = ""
			ingress = append(ingress, r)
		}
	}
	slices.SortFunc(ingress, func(a, b cloud.Rule) int {
		return slices.Compare([]string{fmt.Sprint(a)}, []string{fmt.Sprint(b)})
	})
	want := append(slices.Clone(rules[1:]), cloud.Rule{Protocol: "udp"})
	slices.SortFunc(want, func(a, b cloud.Rule) int { return slices.Compare([]string{fmt.Sprint(a)}, []string{fmt.Sprint(b)}) })
	if diff := cmp.Diff(want, ingress, addrs); diff != "" {
		t.Errorf("rules of the group (-want +got):\n%s", diff)
	}
	s := spec(n.ID, "in-group")
	s.Groups = []string{g.ID}
	p, err := l.Cloud.CreatePort(ctx, s)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Cloud.Groups.DeleteGroup(ctx, g.ID); !errors.Is(err, cloud.ErrInUse) {
		t.Errorf("delete a group with a port: %v, want %v", err, cloud.ErrInUse)
	}
	if err := l.Cloud.DeletePort(ctx, p.ID); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := l.Cloud.Groups.DeleteGroup(ctx, g.ID); err != nil {
			t.Error(err)
		}
	}
}

func trunks(t *testing.T, l Lab) {
	ctx := t.Context()
	n, _, _ := l.network(t)
	parent, err := l.Cloud.CreatePort(ctx, spec(n.ID, "parent"))
	if err != nil {
		t.Fatal(err)
	}
	var specs []cloud.PortSpec
	for i := range 3 {
		s := spec(n.ID, fmt.Sprintf("sub-%d", i))
		s.DeviceID = ""
		specs = append(specs, s)
	}
	subs, err := l.Cloud.CreatePorts(ctx, specs)
	if err != nil {
		t.Fatal(err)
	}
	tr, err := l.Cloud.CreateTrunk(ctx, "contract-trunk", parent.ID)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for range 2 {
			if err := l.Cloud.DeleteTrunk(context.Background(), tr.ID); err != nil {
				t.Error(err)
			}
		}
	})
	if again, err := l.Cloud.CreateTrunk(ctx, "contract-trunk", parent.ID); err != nil || again.ID != tr.ID {
		t.Errorf("adopted trunk %s, %v; want %s", again.ID, err, tr.ID)
	}
	want := []cloud.Subport{{Port: subs[0].ID, VLAN: 101}, {Port: subs[1].ID, VLAN: 102}}
	if err := l.Cloud.AddSubports(ctx, tr.ID, want); err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]cloud.Subport{
		"VLAN in use": {Port: subs[2].ID, VLAN: 101},
		"port in use": {Port: subs[0].ID, VLAN: 103},
		"the parent":  {Port: parent.ID, VLAN: 104},
	} {
		if err := l.Cloud.AddSubports(ctx, tr.ID, []cloud.Subport{s}); !errors.Is(err, cloud.ErrTaken) {
			t.Errorf("%s: %v, want %v", name, err, cloud.ErrTaken)
		}
	}
	found, err := l.Cloud.TrunkOf(ctx, parent.ID)
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(found.Subports, func(a, b cloud.Subport) int { return a.VLAN - b.VLAN })
	if diff := cmp.Diff(want, found.Subports); diff != "" {
		t.Errorf("subports (-want +got):\n%s", diff)
	}
	if err := l.Cloud.DeletePort(ctx, subs[0].ID); !errors.Is(err, cloud.ErrInUse) {
		t.Errorf("delete a subport: %v, want %v", err, cloud.ErrInUse)
	}
	// A subport is found again, though Neutron changed its owner.
	again, err := l.Cloud.CreatePorts(ctx, specs)
	if err != nil {
		t.Fatal(err)
	}
	for i := range subs {
		if again[i].ID != subs[i].ID {
			t.Errorf("port %q is %s, want %s", specs[i].Name, again[i].ID, subs[i].ID)
		}
	}
	for range 2 {
		if err := l.Cloud.RemoveSubports(ctx, tr.ID, []string{subs[0].ID, subs[1].ID, subs[2].ID}); err != nil {
			t.Fatal(err)
		}
	}
	if again, err := l.Cloud.CreatePort(ctx, specs[0]); err != nil || again.ID != subs[0].ID {
		t.Errorf("port that was a subport: %s, %v; want %s", again.ID, err, subs[0].ID)
	}
	device, err := l.Cloud.CreatePort(ctx, spec(n.ID, "device"))
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Cloud.AddSubports(ctx, tr.ID, []cloud.Subport{{Port: device.ID, VLAN: 110}}); !errors.Is(err, cloud.ErrTaken) {
		t.Errorf("a port with a device as a subport: %v, want %v", err, cloud.ErrTaken)
	}
	if _, err := l.Cloud.TrunkOf(ctx, subs[0].ID); !errors.Is(err, cloud.ErrNotFound) {
		t.Errorf("trunk of a port that is no parent: %v, want %v", err, cloud.ErrNotFound)
	}
}

func quota(t *testing.T, l Lab) {
	ctx := t.Context()
	n, _, _ := l.network(t)
	has, err := l.Cloud.Quotas(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	limit := has["port"].Used + 1
	l.SetQuota(t, limit)
	t.Cleanup(func() { l.SetQuota(t, -1) })
	if _, err := l.Cloud.CreatePorts(ctx, []cloud.PortSpec{spec(n.ID, "q0"), spec(n.ID, "q1")}); !errors.Is(err, cloud.ErrQuota) {
		t.Errorf("two ports with room for one: %v, want %v", err, cloud.ErrQuota)
	}
	if _, err := l.Cloud.CreatePort(ctx, spec(n.ID, "q2")); err != nil {
		t.Error(err)
	}
	if q, err := l.Cloud.Quotas(ctx, ""); err != nil || q["port"] != (cloud.Quota{Limit: limit, Used: limit}) {
		t.Errorf("quota of ports %v, %v; want all of %d used", q["port"], err, limit)
	}
}

func member(t *testing.T, l Lab) {
	if l.Member == nil {
		t.Skip("this cloud has no plain member of another project")
	}
	ctx := t.Context()
	n, _, _ := l.network(t)
	mine, err := l.Cloud.CreatePort(ctx, spec(n.ID, "mine"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Member.CreatePort(ctx, spec(n.ID, "theirs")); !errors.Is(err, cloud.ErrNotFound) {
		t.Errorf("port in the network of another project: %v, want %v", err, cloud.ErrNotFound)
	}
	if _, err := l.Member.Port(ctx, mine.ID); !errors.Is(err, cloud.ErrNotFound) {
		t.Errorf("port of another project: %v, want %v", err, cloud.ErrNotFound)
	}
	if _, err := l.Member.Quotas(ctx, l.Cloud.Project()); !errors.Is(err, cloud.ErrForbidden) {
		t.Errorf("quotas of another project: %v, want %v", err, cloud.ErrForbidden)
	}
	own, err := l.Member.CreateNetwork(ctx, "", "contract-member")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Member.DeleteNetwork(context.Background(), own.ID); err != nil {
			t.Error(err)
		}
	})
	s := spec(own.ID, "bound")
	s.Host = l.Host
	if _, err := l.Member.CreatePort(ctx, s); !errors.Is(err, cloud.ErrForbidden) {
		t.Errorf("bound port of a member: %v, want %v", err, cloud.ErrForbidden)
	}
	// A tenant names a network as she likes, and an administrator sees it.
	if _, err := l.Cloud.Network(ctx, "contract-member"); !errors.Is(err, cloud.ErrNotFound) {
		t.Errorf("network of another project by name: %v, want %v", err, cloud.ErrNotFound)
	}
	// She also names a port as the administrator's program would.
	s.Host = ""
	theirs, err := l.Member.CreatePort(ctx, s)
	if err != nil {
		t.Fatal(err)
	}
	p, err := l.Cloud.CreatePort(ctx, s)
	if err != nil || p.ID == theirs.ID || p.ProjectID != l.Cloud.Project() {
		t.Errorf("port %s of project %s, %v; want a new one instead of the tenant's", p.ID, p.ProjectID, err)
	}
	for _, id := range []string{theirs.ID, p.ID} {
		if err := l.Cloud.DeletePort(ctx, id); err != nil {
			t.Error(err)
		}
	}
}

func clusters(t *testing.T, l Lab) {
	ctx := t.Context()
	n, err := l.Cloud.CreateNetwork(ctx, "", "contract-clusters")
	if err != nil {
		t.Fatal(err)
	}
	other, err := l.Other.CreateNetwork(ctx, "", "contract-clusters")
	if err != nil {
		t.Fatal(err)
	}
	if other.ID == n.ID {
		t.Error("two clusters have one network")
	}
	for c, want := range map[*cloud.Cloud]string{l.Cloud: n.ID, l.Other: other.ID} {
		all, err := c.Networks(ctx)
		if err != nil || !slices.ContainsFunc(all, func(n cloud.Network) bool { return n.ID == want }) ||
			slices.ContainsFunc(all, func(o cloud.Network) bool { return o.ID != want && (o.ID == n.ID || o.ID == other.ID) }) {
			t.Errorf("networks of %s: %v, %v; want %s and not the other's", c.Tag(), all, err, want)
		}
		if err := c.DeleteNetwork(ctx, want); err != nil {
			t.Error(err)
		}
	}
}

func capabilities(t *testing.T, l Lab) {
	ctx := t.Context()
	n, _, _ := l.network(t)
	found, err := l.Cloud.Capabilities(ctx, n.ID, l.Host)
	if err != nil {
		t.Fatal(err)
	}
	has := map[string]bool{}
	for _, c := range found {
		has[c.Name] = c.Has
	}
	if !has[cloud.BindHost] || !has[cloud.SetPairs] {
		t.Errorf("capabilities of an administrator: %+v, want %s and %s", found, cloud.BindHost, cloud.SetPairs)
	}
	if _, known := has[cloud.TagInCreate]; !known {
		t.Errorf("capabilities %+v lack %s", found, cloud.TagInCreate)
	}
	if left, err := l.Cloud.Ports(ctx, cloud.PortQuery{Network: n.ID}); err != nil || len(left) != 0 {
		t.Errorf("ports that are left: %v, %v", left, err)
	}
}

// A tenant shares an object under a name that is in use. The project's own has the name as before. A
// shared object has a name that the project has given to none of its own.
func sharedNames(t *testing.T, l Lab) {
	ctx := t.Context()
	for resource, kind := range map[string]struct {
		own  func(name string) string
		find func(name string) (id string, err error)
	}{
		"networks": {
			func(name string) string {
				n, err := l.Cloud.CreateNetwork(ctx, "", name)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					if err := l.Cloud.DeleteNetwork(context.WithoutCancel(ctx), n.ID); err != nil {
						t.Error(err)
					}
				})
				return n.ID
			},
			func(name string) (string, error) { n, err := l.Cloud.Network(ctx, name); return n.ID, err },
		},
		"subnetpools": {
			func(name string) string { return l.Pool(t, name, "10.78.0.0/23") },
			func(name string) (string, error) { p, err := l.Cloud.SubnetPool(ctx, name); return p.ID, err },
		},
		"qos/policies": {
			func(name string) string { return l.Policy(t, name) },
			func(name string) (string, error) { return l.Cloud.QoSPolicy(ctx, name) },
		},
	} {
		shared := l.Shared(t, resource, "contract-shared")
		if id, err := kind.find("contract-shared"); err != nil || id != shared {
			t.Errorf("%s: the shared one by its name: %q, %v; want %s", resource, id, err, shared)
		}
		own := kind.own("contract-shared")
		if id, err := kind.find("contract-shared"); err != nil || id != own {
			t.Errorf("%s: the project's own by its name: %q, %v; want %s", resource, id, err, own)
		}
	}
}

// policies are found by ID or by name, and a name that two have is refused with both IDs.
func policies(t *testing.T, l Lab) {
	ctx := t.Context()
	gold := l.Policy(t, "contract-gold")
	twins := []string{l.Policy(t, "contract-twin"), l.Policy(t, "contract-twin")}
	n, _, _ := l.network(t) // its ports end before the policies
	for _, name := range []string{"contract-gold", gold} {
		id, err := l.Cloud.QoSPolicy(ctx, name)
		if err != nil || id != gold {
			t.Errorf("policy %s: %q, %v; want %s", name, id, err, gold)
		}
	}
	if _, err := l.Cloud.QoSPolicy(ctx, "contract-none"); !errors.Is(err, cloud.ErrNotFound) {
		t.Errorf("unknown policy: %v, want %v", err, cloud.ErrNotFound)
	}
	_, err := l.Cloud.QoSPolicy(ctx, "contract-twin")
	if !errors.Is(err, cloud.ErrInvalid) || !strings.Contains(err.Error(), twins[0]) || !strings.Contains(err.Error(), twins[1]) {
		t.Errorf("policy of a name that two have: %v, want %v with %v", err, cloud.ErrInvalid, twins)
	}
	s := spec(n.ID, "limited")
	s.QoSPolicy = gold
	if p, err := l.Cloud.CreatePort(ctx, s); err != nil || p.QoSPolicy != gold {
		t.Errorf("port %+v, %v; want policy %s", p, err, gold)
	}
	s = spec(n.ID, "unlimited")
	s.QoSPolicy = n.ID
	if _, err := l.Cloud.CreatePort(ctx, s); !errors.Is(err, cloud.ErrNotFound) {
		t.Errorf("port with an unknown policy: %v, want %v", err, cloud.ErrNotFound)
	}
}

// projects are those that the credentials may see, with the project of their own.
func projects(t *testing.T, l Lab) {
	for who, c := range map[string]*cloud.Cloud{"administrator": l.Cloud, "member": l.Member} {
		if c == nil {
			continue
		}
		all, err := c.Projects(t.Context())
		own := slices.IndexFunc(all, func(p cloud.Project) bool { return p.ID == c.Project() })
		if err != nil || own < 0 || all[own].Name == "" {
			t.Errorf("%s: projects %+v, %v; want %s with its name", who, all, err, c.Project())
		}
		if seen := slices.ContainsFunc(all, func(p cloud.Project) bool { return p.ID == l.Cloud.Project() }); c == l.Member && seen {
			t.Errorf("a member sees the projects of others: %+v", all)
		}
	}
}
