// Package neutron is the driver of interfaces that are ports of OpenStack Neutron. Neutron
// itself gives no address twice, also with two leaders. A port has the
// identity of its owner in fields that are written with the create, so that it is adopted
// after a crash, and found without its tag.
package neutron

import (
	"context"
	"fmt"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/util/validation"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/driver/neutron/activation"
	"fairlead.dev/fairlead/internal/driver/neutron/choice"
	"fairlead.dev/fairlead/internal/driver/neutron/nested"
	"fairlead.dev/fairlead/internal/driver/neutron/pool"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/keyed"
	"fairlead.dev/fairlead/internal/openstack/cloud"
)

// Name of the driver in records and networks.
const Name = "neutron"

// Config of the driver.
type Config struct {
	// Cluster names this cluster among all that use the same cloud.
	Cluster string
	// Connect connects to the cloud. It is called until it succeeds.
	Connect func(ctx context.Context) (*cloud.Cloud, error)
	// Choice gives ports their settings.
	Choice choice.Config
	// HostLabel is the label of a Node that names the host of its Neutron agent; empty, and
	// for a Node without it, the host is the Node's name.
	HostLabel string
	// Way of the nodes without a label; empty is Host.
	Way Way
	// Namespaces has networks that default interfaces are on instead of that of Default; nil
	// for none.
	Namespaces Namespaces
	// Machines knows virtual machines that migrate; nil if there are none.
	Machines Machines
	// Pools configures pools of ready ports: the API, the marks and what is read of the
	// cluster. Nil: each port is made when its pod needs it, and there never were pools.
	Pools *pool.Config
}

// Namespaces gives namespaces networks of their own. Both errors are those of the driver
// contract, and pods are woken when they are over.
type Namespaces interface {
	// Network returns the ID of a namespace's own network, and has it made for the first pod;
	// empty if the namespace has none.
	Network(ctx context.Context, namespace, project string) (id string, err error)
	// Failed takes the cause for which the network has no port for a pod, and returns the
	// error for the pod. A full network is extended, and a missing network is made again.
	Failed(ctx context.Context, namespace string, cause error) error
	// OnChange registers a function that is called when pods may get on.
	OnChange(changed func())
}

// Driver implements driver.Driver.
type Driver struct {
	cfg   Config
	conn  connection
	known lookups
	// projects are known by name.
	projects projects
	owners   owners
	gates    keyed.Gates[string]
	ports    *activation.Ports
	nodes    nodes
	ways     map[Way]way
	trunks   *nested.Trunks
	pairs    *nested.Pairs
	pools    *pool.Pools // nil without
	// synced is set once the PortPools are watched.
	synced atomic.Pointer[func() bool]
}

// New returns a driver that is not connected yet: Run.Setup connects it.
func New(cfg Config) *Driver {
	d := &Driver{cfg: cfg}
	d.projects.choice = cfg.Choice
	d.owners = owners{cluster: cfg.Cluster, projects: &d.projects}
	d.nodes = nodes{known: &d.known, way: cfg.Way, hostLabel: cfg.HostLabel}
	d.trunks = nested.NewTrunks(func() (nested.TrunkCalls, error) { return d.conn.get() })
	d.pairs = nested.NewPairs(func() (nested.PairCalls, error) { return d.conn.get() })
	d.ways = map[Way]way{Host: bound{}, Trunk: subport{d}, Macvlan: pair{d}}
	d.ports = activation.New(func(ctx context.Context, ids []string) (map[string]string, error) {
		c, err := d.conn.get()
		if err != nil {
			return nil, err
		}
		return c.Statuses(ctx, ids)
	}, d.reattach)
	d.pools = d.newPools()
	return d
}

// Parts returns the driver's parts. Without pools it is always ready, because Neutron gives no
// address twice.
func (d *Driver) Parts() driver.Parts {
	return driver.Parts{
		Driver:     d,
		Networks:   driver.Networks{PluginTypes: choice.PluginTypes(), Annotations: []string{choice.AnnotationKuryr}, Read: d.cfg.Choice.Read, Origin: origin},
		Run:        driver.Run{Setup: d.setUp, Synced: d.isSynced, Ready: d.isReady, Wake: d.wake, Awaited: awaited},
		Activation: driver.Activation{Active: d.ports.IsActive, Changes: d.ports.Activations},
		Collect:    driver.Collect{Held: d.ports.Held, SecondLook: true},
	}
}

// awaited is driver.Run.Awaited. A pod may wait for the address, the MAC or the place in a
// quota of another.
func awaited(v1alpha1.Interface) bool { return true }

// origin is driver.Networks.Origin.
func origin(i v1alpha1.Interface) string {
	if id := i.Binding.Port(); id != "" {
		return "Neutron port " + id
	}
	return "Neutron"
}

// Ensure implements driver.Driver.
func (d *Driver) Ensure(ctx context.Context, r *driver.Request) (*driver.Attachment, error) {
	if r.Binding != nil || r.AddressOnly {
		return nil, fmt.Errorf("%w: network %s: driver %s plugs its ports of Neutron itself: remove the binding", fault.ErrInvalid, r.Network, Name)
	}
	asked, _ := r.Asks.(choice.Asks)
	chosen, err := d.cfg.Choice.Choose(r, asked)
	if err != nil {
		return nil, err
	}
	what := target{Choice: chosen}
	if what.Project, err = d.projects.find(ctx, &d.conn, what.Project); err != nil {
		return nil, err
	}
	if what, err = d.cfg.inNamespace(ctx, r, what); err != nil {
		return nil, err
	}
	if what.way, err = d.nodes.wayOf(r); err != nil {
		return nil, err
	}
	host, err := d.nodes.hostOf(r)
	if err != nil {
		return nil, err
	}
	h := holder{Owner: r.Owner, network: r.Network, isDefault: r.Default}
	if a, ok, err := d.fromPool(ctx, r, h, what, host); ok || err != nil {
		return a, err
	}
	c, err := d.conn.get()
	if err != nil {
		return nil, err
	}
	if what.way == Host {
		if a, ok, err := d.ofSource(ctx, c, r, h, host, asked.Machine); ok || err != nil {
			return a, err
		}
	} else {
		if what.at, err = d.nodes.machinePort(ctx, c, r.NodeName); err != nil {
			return nil, err
		}
		host, h.way, h.parent = "", what.way, what.at.ID
	}
	spec, err := d.specOf(r, h, what, host)
	if err != nil {
		return nil, err
	}
	return d.obtain(ctx, c, r, h, what, spec)
}

// target is a choice with its place.
type target struct {
	choice.Choice
	// own is true if the network is the own one of the pod's namespace.
	own bool
	// way of the node, and the port of its machine; empty for Host.
	way Way
	at  parent
}

// inNamespace returns the target for a default interface with the own network of the pod's
// namespace, if it has one. Neutron takes an address of each family from any of its subnets.
func (c Config) inNamespace(ctx context.Context, r *driver.Request, what target) (target, error) {
	if c.Namespaces == nil || r.Network != v1alpha1.DefaultNetwork || !r.Default {
		return what, nil
	}
	id, err := c.Namespaces.Network(ctx, r.Namespace, what.Project)
	if err == nil && id != "" {
		what.Network, what.Subnets, what.own = id, nil, true
	}
	return what, err
}

// specOf returns the port of a request, without its network, groups and policy. Errors:
// fault.ErrInvalid.
func (d *Driver) specOf(r *driver.Request, h holder, what target, host string) (cloud.PortSpec, error) {
	t, err := h.write(d.cfg.Cluster)
	if err != nil {
		return cloud.PortSpec{}, err
	}
	spec := cloud.PortSpec{
		Name: t.name, Description: t.description, DeviceID: t.deviceID, DeviceOwner: DeviceOwner, Project: what.Project,
		MAC: r.MAC, Host: host, NoSecurity: what.NoSecurity,
	}
	if what.PodDNS {
		if problems := validation.IsDNS1123Label(r.PodName); len(problems) > 0 {
			return spec, fmt.Errorf("%w: dnsName: true: the pod's name %q is no DNS label: must have at most 63 of a-z, 0-9 and '-'", fault.ErrInvalid, r.PodName)
		}
		spec.DNSName = r.PodName
	}
	return spec, nil
}
