package neutron

import (
	"context"
	"encoding/hex"
	"net/netip"
	"slices"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/openstack/cloud"
)

// owners finds the ports of this cluster in the cloud, and the pods that have them.
type owners struct {
	cluster  string
	projects *projects
}

// holderOf returns the holder of a port of this cluster. A port in a project that no port of
// this cluster can be in is another's, whatever it has in its texts.
func (o *owners) holderOf(c *cloud.Cloud, p cloud.Port) (holder, bool) {
	if !owned(p) || !o.projects.mayHold(c, p.ProjectID) {
		return holder{}, false
	}
	return read(o.cluster, texts{p.DeviceID, p.Name, p.Description})
}

// find returns the ports of an owner, that of the record first. There may be several, if a
// create whose reply was lost ended after the next one. The identity decides, not the
// record: the record of another pod may name any port.
func (o *owners) find(ctx context.Context, c *cloud.Cloud, ref driver.Ref) ([]cloud.Port, error) {
	var found []cloud.Port
	for _, q := range o.queries(ref) {
		some, err := c.Ports(ctx, q)
		if err != nil {
			return nil, unavailable(err)
		}
		for _, p := range some {
			if p.DeviceID == q.DeviceID && (q.Name == "" || p.Name == q.Name) && owned(p) && o.projects.mayHold(c, p.ProjectID) {
				found = append(found, p)
			}
		}
	}
	if n := slices.IndexFunc(found, func(p cloud.Port) bool { return p.ID == ref.Interface.Binding.Port() }); n > 0 {
		found[0], found[n] = found[n], found[0]
	}
	return found, nil
}

// Owners that Neutron gives to a port when it becomes a subport, and afterwards.
const (
	subportOwner = "trunk:subport"
	noOwner      = ""
)

// owned reports whether a port has an owner that ports of this driver may have.
func owned(p cloud.Port) bool {
	return p.DeviceOwner == DeviceOwner || p.DeviceID == "" && (p.DeviceOwner == subportOwner || p.DeviceOwner == noOwner)
}

// queries find the ports of an owner. A subport is found by its name, other ports by the
// device ID. Without a port in the record there may be either.
func (o *owners) queries(ref driver.Ref) []cloud.PortQuery {
	byDevice := cloud.PortQuery{DeviceID: deviceID(o.cluster, ref.Owner), DeviceOwner: DeviceOwner}
	if b := ref.Interface.Binding; b.OVS != nil || b.Macvlan != nil {
		return []cloud.PortQuery{byDevice}
	}
	t, err := holder{Owner: ref.Owner, way: Trunk}.write(o.cluster)
	if err != nil {
		return []cloud.PortQuery{byDevice} // no such port can have been made
	}
	return []cloud.PortQuery{{Name: t.name}, byDevice}
}

// candidates returns the ports that may be this cluster's, once each. Subports have the
// owner that Neutron gave them, and their tag by then.
func (o *owners) candidates(ctx context.Context, c *cloud.Cloud) ([]cloud.Port, error) {
	all, err := c.Ports(ctx, cloud.PortQuery{DeviceOwner: DeviceOwner})
	if err != nil {
		return nil, err
	}
	tagged, err := c.Ports(ctx, cloud.PortQuery{Tagged: true})
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	for _, p := range all {
		known[p.ID] = true
	}
	for _, p := range tagged {
		if !known[p.ID] && owned(p) {
			all = append(all, p)
		}
	}
	return all, nil
}

// portsOf returns the ports that a holder has on its network, bound on its node.
func (o *owners) portsOf(ctx context.Context, c *cloud.Cloud, h holder) ([]cloud.Port, error) {
	found, err := c.Ports(ctx, cloud.PortQuery{DeviceID: deviceID(o.cluster, h.Owner), DeviceOwner: DeviceOwner})
	return slices.DeleteFunc(found, func(p cloud.Port) bool {
		has, ok := o.holderOf(c, p)
		return !ok || has.network != h.network || has.isDefault != h.isDefault || has.way != ""
	}), err
}

// podAt returns the pod of a namespace that has an address; empty if none has it.
func (o *owners) podAt(ctx context.Context, c *cloud.Cloud, namespace string, a netip.Addr) string {
	found, err := c.Ports(ctx, cloud.PortQuery{Address: a, DeviceOwner: DeviceOwner})
	if err != nil {
		return ""
	}
	for _, p := range found {
		if h, ok := o.holderOf(c, p); ok && h.Namespace == namespace {
			return h.Namespace + "/" + h.PodName
		}
	}
	return ""
}

// collected returns the holders of a port that a pod has for itself, but for those seen
// before. There are none of any other port.
func (o *owners) collected(ctx context.Context, c *cloud.Cloud, p cloud.Port, seen map[driver.Owner]bool) []holder {
	if _, pooled := placeOf(o.cluster, p); pooled {
		return nil
	}
	h, ok := o.holderOf(c, p)
	if !ok && strings.HasPrefix(p.DeviceID, prefixOf(o.cluster)) {
		log.FromContext(ctx).Info("a port with the device ID of this cluster is not collected: its name, description or project was changed", "port", p.ID, "name", p.Name)
	}
	if !ok {
		return nil
	}
	return h.unseen(seen)
}

// Recognize reports whether a port is that of a pod of this cluster by its device ID, with or
// without a tag. odd is why garbage collection leaves such a port alone; empty if it does not.
func (d *Driver) Recognize(c *cloud.Cloud, p cloud.Port) (mine bool, odd string) {
	own, found := strings.CutPrefix(p.DeviceID, prefixOf(d.cfg.Cluster))
	if p.DeviceOwner != DeviceOwner || !found {
		return false, ""
	}
	parts := strings.Split(own, "/")
	if hash, err := hex.DecodeString(parts[len(parts)-1]); len(parts) != 3 || err != nil || len(hash) != hashLength {
		return false, "" // as of a pool: not the form of a pod
	}
	if _, ok := d.owners.holderOf(c, p); !ok {
		odd = "it has the device ID of this cluster, and its name, description or project was changed: delete it by hand if no pod uses it"
	}
	return true, odd
}
