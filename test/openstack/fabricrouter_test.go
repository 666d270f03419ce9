package main

import (
	"context"
	"errors"
	"strings"

	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/layer3/routers"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// routed adds a node in another subnet, behind a router. It is reached through the tunnel,
// and by the router once the fabric has given that the routes.
func (f *fabricBed) routed(subnet string) {
	f.Helper()
	network, farSubnet := f.bed.network(fabricName+"-far", fabricFar)
	f.router = f.routerBetween(subnet, farSubnet)
	f.far = f.machine("fabric-far", network, fabricFar, f.bed.nodes[0], true)
	f.servePod(f.far)
	first := f.nodes[0]
	f.reach(first, f.far)
	f.awaitWay("", "dev fairlead-vx4", first, f.far)

	f.leads(map[string]any{"router": fabricName})
	f.awaitWay(metav1.ConditionTrue, "dev eth0", first, f.far)
	f.awaitRoutes(append(f.nodes, f.far)...)
	f.reach(append(f.nodes, f.far)...)

	none := []routers.Route{}
	if _, err := routers.Update(f.Context(), f.neutron, f.router, routers.UpdateOpts{Routes: &none}).Extract(); err != nil {
		f.Fatal(err)
	}
	f.pings(first.pod, f.far.pod, false)
	f.killLeader()
	f.awaitRoutes(append(f.nodes, f.far)...)
	f.reach(first, f.far)
}

// routerBetween makes a router with an interface in each subnet.
func (f *fabricBed) routerBetween(of ...string) string {
	f.Helper()
	r, err := routers.Create(f.Context(), f.neutron, routers.CreateOpts{Name: fabricName}).Extract()
	if err != nil {
		f.Fatal(err)
	}
	f.cleanup("delete router "+fabricName, func(ctx context.Context) error { return routers.Delete(ctx, f.neutron, r.ID).ExtractErr() })
	for _, id := range of {
		if _, err := routers.AddInterface(f.Context(), f.neutron, r.ID, routers.AddInterfaceOpts{SubnetID: id}).Extract(); err != nil {
			f.Fatal(err)
		}
		f.cleanup("take the router from subnet "+id, func(ctx context.Context) error {
			_, err := routers.RemoveInterface(ctx, f.neutron, r.ID, routers.RemoveInterfaceOpts{SubnetID: id}).Extract()
			return err
		})
	}
	return r.ID
}

// awaitRoutes waits until the router has the routes to the blocks of these nodes, and no
// others.
func (f *fabricBed) awaitRoutes(nodes ...*fabricNode) {
	f.Helper()
	f.await("the routes of the router", func(ctx context.Context) error {
		var want, has []string
		for _, n := range nodes {
			nn, err := f.nodeNetwork(ctx, n.Name)
			if err != nil {
				return err
			}
			for _, b := range nn.Spec.Blocks {
				want = append(want, b+" via "+n.address.String())
			}
		}
		r, err := routers.Get(ctx, f.neutron, f.router).Extract()
		if err != nil {
			return err
		}
		for _, x := range r.Routes {
			has = append(has, x.DestinationCIDR+" via "+x.NextHop)
		}
		inOVN, err := f.routesInOVN(ctx)
		return errors.Join(err, differ("routes of Neutron", want, has), differ("routes of OVN", want, inOVN))
	})
}

// routesInOVN returns the routes that OVN has for pods.
func (f *fabricBed) routesInOVN(ctx context.Context) (routes []string, err error) {
	rows, err := f.lab.Run(ctx, "ovn-nbctl", "--bare", "--columns=ip_prefix,nexthop", "list", "Logical_Router_Static_Route")
	if err != nil {
		return nil, err
	}
	words := strings.Fields(rows)
	for i := 0; i+1 < len(words); i += 2 {
		routes = append(routes, words[i]+" via "+words[i+1])
	}
	return routes, nil
}
