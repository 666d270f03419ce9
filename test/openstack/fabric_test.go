package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/portsbinding"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/security/groups"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/security/rules"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/ports"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/test/openstack/lab"
)

const (
	fabricName  = bedName + "-nodes"
	fabricNodes = "10.94.8.0/24"
	fabricFar   = "10.94.9.0/24" // of a node behind the router
	fabricPods  = "10.97.0.0/24"
	fabricMore  = "10.98.0.0/24" // of a second pool
	// fabricMTU is that of a network of the laboratory.
	fabricMTU = 1442
)

// fabricBed has nodes that are machines with port security, each on a chassis.
type fabricBed struct {
	*bed
	network string
	own     string // the security group of the machines, which knows only their addresses
	nodes   []*fabricNode
	router  string // between the subnets of the nodes
	far     *fabricNode
}

type fabricNode struct {
	*bedNode
	port    string
	address netip.Addr
	pod     *endpoint
}

// fabric has Neutron pass the packets of pods between nodes that are machines, and takes
// everything back.
func (b *bed) fabric() {
	f := &fabricBed{bed: b}
	network, subnet := b.network(fabricName, fabricNodes)
	f.network = network
	f.own = b.group(fabricName)
	b.letIn(f.own, fabricNodes)
	b.letIn(f.own, fabricFar)
	f.pool("fabric", fabricPods)
	for i, h := range b.nodes {
		f.nodes = append(f.nodes, f.machine(fmt.Sprintf("fabric-%d", i+1), network, fabricNodes, h, i == 0))
	}
	f.leads(nil)
	f.tunnelled()
	f.opened()
	f.healed()
	f.poolsChange()
	f.perBlock()
	f.beside()
	f.routed(subnet)
	f.removed()
}

// leads starts the controllers with a fabric, nil for none.
func (f *fabricBed) leads(fabric map[string]any) {
	f.Helper()
	f.lead(map[string]any{"driver": "native", "pools": []string{"fabric"}}, fabric)
}

func (f *fabricBed) pool(name, cidr string) *v1alpha1.IPPool {
	f.Helper()
	p := &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.IPPoolSpec{
		Domain: name, Ranges: []string{cidr}, Placement: v1alpha1.PlacementPerNode,
	}}
	if err := f.c.Client.Create(f.Context(), p); err != nil {
		f.Fatal(err)
	}
	return p
}

// letIn lets everything in from a range of addresses.
func (b *bed) letIn(group, cidr string) {
	b.Helper()
	_, err := rules.Create(b.Context(), b.neutron, rules.CreateOpts{
		SecGroupID: group, Direction: rules.DirIngress, EtherType: rules.EtherType4, RemoteIPPrefix: cidr,
	}).Extract()
	if err != nil {
		b.Fatal(err)
	}
}

// port makes the port of a machine on a host.
func (f *fabricBed) port(name, network, host string) *ports.Port {
	f.Helper()
	port, err := ports.Create(f.Context(), f.neutron, portsbinding.CreateOptsExt{
		HostID: host,
		CreateOptsBuilder: ports.CreateOpts{
			NetworkID: network, Name: name, DeviceOwner: "compute:nova", DeviceID: "machine-" + name, SecurityGroups: &[]string{f.own},
		},
	}).Extract()
	if err != nil {
		f.Fatal(err)
	}
	f.cleanup("delete port "+name, func(ctx context.Context) error { return ports.Delete(ctx, f.neutron, port.ID).ExtractErr() })
	return port
}

// machine makes a node that is a machine on a chassis. If it is named, its Node has the ID
// of the machine, as from the cloud provider, otherwise only the address.
func (f *fabricBed) machine(name, network, cidr string, on *bedNode, named bool) *fabricNode {
	f.Helper()
	port := f.port(name, network, on.Chassis.Name)
	address, subnet := netip.MustParseAddr(port.FixedIPs[0].IPAddress), netip.MustParsePrefix(cidr)
	m, err := on.Plug(f.Context(), lab.Port{
		ID: port.ID, MAC: port.MACAddress, Address: netip.PrefixFrom(address, subnet.Bits()), Gateway: subnet.Addr().Next(), MTU: fabricMTU,
	})
	if err != nil {
		f.Fatal(err)
	}
	f.cleanup("unplug "+name, m.Unplug)
	n := &fabricNode{bedNode: &bedNode{Chassis: on.Chassis, Name: name, uplink: "eth0", ns: m.Namespace}, port: port.ID, address: address}
	f.join(n.bedNode, ofMachine(n, named))
	f.Cleanup(n.stop)
	return n
}

// ofMachine gives a Node its address and the ID of its machine.
func ofMachine(n *fabricNode, named bool) func(*corev1.Node) {
	return func(o *corev1.Node) {
		o.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: n.address.String()}}
		if named {
			o.Spec.ProviderID = "openstack:///machine-" + n.Name
		}
	}
}

func (n *fabricNode) stop() {
	n.daemon.Kill()
	n.runner.Kill()
}

// tunnelled checks that the nodes find out that their port security drops packets of pods,
// and use the tunnel.
func (f *fabricBed) tunnelled() {
	f.Helper()
	for _, n := range f.nodes {
		f.servePod(n)
	}
	start := time.Now()
	f.reach(f.nodes...)
	f.Logf("without pairs: pods reach each other after %v", time.Since(start).Round(time.Second/10))
	f.awaitWay(metav1.ConditionFalse, "dev fairlead-vx4", f.nodes...)
}

// servePod has a pod on a node.
func (f *fabricBed) servePod(n *fabricNode) {
	f.Helper()
	n.pod = f.running(f.pod(n.Name, n.bedNode))
	serve(f.T, n.pod.Namespace, n.pod.address)
}

// reach checks that the pods of all nodes reach each other.
func (f *fabricBed) reach(nodes ...*fabricNode) {
	f.Helper()
	for _, n := range nodes {
		for _, other := range nodes {
			if n != other {
				f.pings(n.pod, other.pod, true)
				f.connects(n.pod, other.pod, true)
			}
		}
	}
}

// awaitWay waits until the condition Direct of two nodes has a status, any if it is empty,
// and the routes to pods of the other lead to a link.
func (f *fabricBed) awaitWay(want metav1.ConditionStatus, link string, nodes ...*fabricNode) {
	f.Helper()
	start := time.Now()
	for i, n := range nodes {
		f.await(fmt.Sprintf("node %s to have Direct %q and a route with %s", n.Name, want, link), func(ctx context.Context) error {
			nn, err := f.nodeNetwork(ctx, n.Name)
			if err != nil {
				return err
			}
			other, err := f.nodeNetwork(ctx, nodes[1-i].Name)
			if err != nil {
				return err
			}
			state, err := n.ns.State()
			if err != nil {
				return err
			}
			routes := slices.DeleteFunc(state.Routes, func(r string) bool { return !strings.Contains(r, other.Spec.Blocks[0]) })
			c := meta.FindStatusCondition(nn.Status.Conditions, v1alpha1.ConditionDirect)
			if want != "" && (c == nil || c.Status != want) || len(routes) != 1 || !strings.Contains(routes[0], link) {
				return fmt.Errorf("condition %+v, routes %q", c, routes)
			}
			return nil
		})
	}
	f.Logf("pods of %s and %s are reached by %s after %v", nodes[0].Name, nodes[1].Name, link, time.Since(start).Round(time.Second/10))
}

func (f *fabricBed) nodeNetwork(ctx context.Context, name string) (*v1alpha1.NodeNetwork, error) {
	nn := &v1alpha1.NodeNetwork{}
	return nn, f.c.Client.Get(ctx, client.ObjectKey{Name: name}, nn)
}

// opened checks that the fabric adds its entries and that the traffic becomes direct.
func (f *fabricBed) opened() {
	f.Helper()
	_, begin := f.proxy.since(0)
	start := time.Now()
	f.leads(map[string]any{})
	f.awaitEntries([]string{fabricPods}, []string{fabricPods})
	calls, _ := f.proxy.since(begin)
	f.Logf("with the fabric: all entries after %v; calls %q", time.Since(start).Round(time.Second/10), calls)
	f.awaitWay(metav1.ConditionTrue, "dev eth0", f.nodes...)
	f.reach(f.nodes...)
}

// awaitEntries waits until both ports have these pairs and the group of the fabric, and the
// group these prefixes.
func (f *fabricBed) awaitEntries(pairs, prefixes []string) {
	f.Helper()
	for _, n := range f.nodes {
		f.await("the entries of "+n.Name, func(ctx context.Context) error {
			group, has, err := f.groupOf(ctx, bedName)
			if err != nil {
				return err
			}
			nn, err := f.nodeNetwork(ctx, n.Name)
			if err != nil {
				return err
			}
			if nn.Spec.Fabric == nil || !meta.IsStatusConditionTrue(nn.Spec.Fabric.Conditions, v1alpha1.ConditionFabricReady) {
				return fmt.Errorf("the record is %+v", nn.Spec.Fabric)
			}
			return errors.Join(differ("rules", prefixes, has), f.portDiffers(ctx, n.port, pairs, []string{f.own, group}))
		})
	}
}

func (f *fabricBed) portDiffers(ctx context.Context, id string, pairs, groups []string) error {
	p, err := ports.Get(ctx, f.neutron, id).Extract()
	if err != nil {
		return err
	}
	var has []string
	for _, pair := range p.AllowedAddressPairs {
		has = append(has, pair.IPAddress)
	}
	return errors.Join(differ("pairs", pairs, has), differ("groups", groups, p.SecurityGroups), differ("tags", nil, p.Tags))
}

func differ(what string, want, got []string) error {
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty(), cmpopts.SortSlices(strings.Compare)); diff != "" {
		return fmt.Errorf("%s (-want +got): %s", what, diff)
	}
	return nil
}

// groupOf returns the ID of the group of a cluster's fabric, empty if there is none, and
// the prefixes that it lets in.
func (f *fabricBed) groupOf(ctx context.Context, cluster string) (id string, prefixes []string, err error) {
	pages, err := groups.List(f.neutron, groups.ListOpts{Name: "fairlead-" + cluster + "-fabric"}).AllPages(ctx)
	if err != nil {
		return "", nil, err
	}
	all, err := groups.ExtractGroups(pages)
	if err != nil || len(all) != 1 {
		return "", nil, err
	}
	for _, r := range all[0].Rules {
		if r.Direction == string(rules.DirIngress) {
			prefixes = append(prefixes, r.RemoteIPPrefix)
		}
	}
	return all[0].ID, prefixes, nil
}

// healed edits entries by hand, which the comparison of the next leader puts back.
func (f *fabricBed) healed() {
	f.Helper()
	ctx := f.Context()
	group, _, err := f.groupOf(ctx, bedName)
	if err != nil {
		f.Fatal(err)
	}
	_, err = ports.Update(ctx, f.neutron, f.nodes[0].port, ports.UpdateOpts{AllowedAddressPairs: &[]ports.AddressPair{}}).Extract()
	if err != nil {
		f.Fatal(err)
	}
	if _, err := ports.Update(ctx, f.neutron, f.nodes[1].port, ports.UpdateOpts{SecurityGroups: &[]string{f.own}}).Extract(); err != nil {
		f.Fatal(err)
	}
	pages, err := rules.List(f.neutron, rules.ListOpts{SecGroupID: group, Direction: string(rules.DirIngress)}).AllPages(ctx)
	if err != nil {
		f.Fatal(err)
	}
	all, err := rules.ExtractRules(pages)
	if err != nil || len(all) != 1 {
		f.Fatalf("rules %v, %v; want one", all, err)
	}
	if err := rules.Delete(ctx, f.neutron, all[0].ID).ExtractErr(); err != nil {
		f.Fatal(err)
	}
	start := time.Now()
	f.killLeader()
	f.awaitEntries([]string{fabricPods}, []string{fabricPods})
	f.Logf("after edits by hand and a new leader: all entries after %v", time.Since(start).Round(time.Second/10))
	f.reach(f.nodes...)
}

// poolsChange adds a pool and removes it.
func (f *fabricBed) poolsChange() {
	f.Helper()
	p := f.pool("fabric-more", fabricMore)
	f.awaitEntries([]string{fabricPods, fabricMore}, []string{fabricPods, fabricMore})
	if err := f.c.Client.Delete(f.Context(), p); err != nil {
		f.Fatal(err)
	}
	f.awaitEntries([]string{fabricPods}, []string{fabricPods})
}

// perBlock narrows the pairs to the blocks of each node, and measures the way from a block
// to its pair.
func (f *fabricBed) perBlock() {
	f.Helper()
	f.leads(map[string]any{"pairs": "PerBlock"})
	for _, n := range f.nodes {
		nn, err := f.nodeNetwork(f.Context(), n.Name)
		if err != nil {
			f.Fatal(err)
		}
		group, _, err := f.groupOf(f.Context(), bedName)
		if err != nil {
			f.Fatal(err)
		}
		f.await("the pairs of the blocks of "+n.Name, func(ctx context.Context) error {
			return f.portDiffers(ctx, n.port, nn.Spec.Blocks, []string{f.own, group})
		})
	}
	f.reach(f.nodes...)
	f.measure()
	f.leads(map[string]any{})
	f.awaitEntries([]string{fabricPods}, []string{fabricPods})
}

// measure has a Node without a daemon join, and get a block.
func (f *fabricBed) measure() {
	f.Helper()
	port := f.port("fabric-3", f.network, f.bed.nodes[0].Chassis.Name)
	n := &fabricNode{bedNode: &bedNode{Name: "fabric-3"}, port: port.ID, address: netip.MustParseAddr(port.FixedIPs[0].IPAddress)}
	_, begin := f.proxy.since(0)
	start := time.Now()
	node := f.c.Node(n.Name, ofMachine(n, true))
	f.await("the record of "+n.Name, func(ctx context.Context) error {
		nn, err := f.nodeNetwork(ctx, n.Name)
		if err == nil && (nn.Spec.Fabric == nil || nn.Spec.Fabric.Group == "" || len(nn.Spec.Fabric.Conditions) == 0) {
			err = errNotYet
		}
		return err
	})
	calls, _ := f.proxy.since(begin)
	f.Logf("a node that joins: entries after %v, calls %q", time.Since(start).Round(time.Millisecond), calls)

	written := make(chan time.Time, 1)
	f.proxy.intercept(func(call string, at moment) bool {
		if call == "PUT /ports/ID" && at == after {
			select {
			case written <- time.Now():
			default:
			}
		}
		return false
	})
	defer f.proxy.intercept(nil)
	_, begin = f.proxy.since(0)
	p := f.pod(n.Name, n.bedNode)
	f.await("a block of "+n.Name, func(ctx context.Context) error {
		nn, err := f.nodeNetwork(ctx, n.Name)
		if err == nil && len(nn.Spec.Blocks) == 0 {
			err = errNotYet
		}
		return err
	})
	block := time.Now() // at most a look late
	f.await("the pair of the block", func(ctx context.Context) error {
		nn, err := f.nodeNetwork(ctx, n.Name)
		if err != nil {
			return err
		}
		return f.portDiffers(ctx, n.port, nn.Spec.Blocks, []string{f.own, nn.Spec.Fabric.Group})
	})
	calls, _ = f.proxy.since(begin)
	f.Logf("from block to pair: %v; calls %q", (<-written).Sub(block).Round(time.Millisecond), calls)
	f.delete(p)
	if err := f.c.Client.Delete(f.Context(), node); err != nil {
		f.Fatal(err)
	}
	f.awaitGone(n)
}

// awaitGone waits until a removed node has no record, and its port no entry.
func (f *fabricBed) awaitGone(n *fabricNode, others ...string) {
	f.Helper()
	f.await("the entries of "+n.Name+" to go", func(ctx context.Context) error {
		if nn, err := f.nodeNetwork(ctx, n.Name); !apierrors.IsNotFound(err) {
			return fmt.Errorf("its NodeNetwork is %+v, %w", nn.Spec, err)
		}
		return f.portDiffers(ctx, n.port, nil, append([]string{f.own}, others...))
	})
}

// removed removes a node and then the fabric. Nothing is left.
func (f *fabricBed) removed() {
	f.Helper()
	for _, n := range append(slices.Clone(f.nodes), f.far) {
		f.delete(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: f.c.Namespace, Name: n.pod.name}})
	}
	f.await("the pods to be gone", func(ctx context.Context) error {
		all, err := f.records(ctx)
		if err == nil && len(all) > 0 {
			err = fmt.Errorf("%d records are left", len(all))
		}
		return err
	})
	first := f.nodes[0]
	for _, n := range []*fabricNode{f.nodes[1], f.far} {
		n.stop()
		if err := f.c.Client.Delete(f.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name}}); err != nil {
			f.Fatal(err)
		}
		f.awaitGone(n)
	}
	f.awaitRoutes(first) // the chassis are nodes in another subnet
	f.leads(map[string]any{"remove": true})
	f.await("the entries to go", func(ctx context.Context) error {
		nn, err := f.nodeNetwork(ctx, first.Name)
		if err != nil {
			return err
		}
		if nn.Spec.Fabric != nil {
			return fmt.Errorf("the record is %+v", nn.Spec.Fabric)
		}
		return f.portDiffers(ctx, first.port, nil, []string{f.own})
	})
	f.awaitRoutes()
	f.killLeader() // the comparison of the next leader removes the group
	f.await("the group to go", func(ctx context.Context) error {
		id, _, err := f.groupOf(ctx, bedName)
		if err == nil && id != "" {
			err = fmt.Errorf("group %s is left", id)
		}
		return err
	})
}
