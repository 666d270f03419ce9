package neutron

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/fault"
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

// DeviceOwner is the device_owner of all ports. Its prefix has the OVS agent and DVR treat
// them as ports of machines. A port without an owner may become a virtual port of OVN, if
// its address is an allowed address pair of another port.
const DeviceOwner = "compute:fairlead"

const (
	hashLength = 12  // bytes of the hash in a device ID
	maxText    = 255 // bounds name, description and device_id of a port in Neutron
)

// holder is the owner of a port and its interface, as far as Neutron has to keep them. It is
// written with the create, unlike tags.
type holder struct {
	driver.Owner
	network   string
	isDefault bool
	// way is empty for Host. parent is the ID of the port of the node's machine for the
	// other ways.
	way    Way
	parent string
	// next is the owner after this one, while a machine migrates; nil without one.
	next *nextOwner
}

// nextOwner is the target launcher of a machine that migrates. Namespace and interface are those
// of the source. host is that of its Neutron agent, empty if that has the node's name.
type nextOwner struct {
	uid             types.UID
	pod, node, host string
}

// on returns the host of its Neutron agent.
func (n nextOwner) on() string { return cmp.Or(n.host, n.node) }

// successor returns the holder of a port after its owner; its next is not nil.
func (h holder) successor() holder {
	next := driver.Owner{PodUID: h.next.uid, Interface: h.Interface, Namespace: h.Namespace, PodName: h.next.pod, NodeName: h.next.node}
	return holder{Owner: next, network: h.network, isDefault: h.isDefault}
}

// unseen returns the holder, and the next one if there is one, unless they were seen before.
func (h holder) unseen(seen map[driver.Owner]bool) (all []holder) {
	both := []holder{h}
	if h.next != nil {
		both = append(both, h.successor())
	}
	for _, h := range both {
		if !seen[keyOf(h.Owner)] {
			seen[keyOf(h.Owner)] = true
			all = append(all, h)
		}
	}
	return all
}

// keyOf returns the identity of a port's owner: the owner without its node.
func keyOf(o driver.Owner) driver.Owner {
	o.NodeName = ""
	return o
}

// deviceID returns the identity of an owner in a cluster: "fairlead/CLUSTER/UID/IFNAME/HASH".
// The hash is that of namespace and name, because a UID alone is no identity. The form is
// not that of a machine's ID, so Neutron does not notify Nova.
func deviceID(cluster string, o driver.Owner) string {
	sum := sha256.Sum256([]byte(o.Namespace + "/" + o.PodName))
	return strings.Join([]string{prefixOf(cluster) + string(o.PodUID), o.Interface, hex.EncodeToString(sum[:hashLength])}, "/")
}

// prefixOf is the beginning of the device IDs of a cluster.
func prefixOf(cluster string) string { return "fairlead/" + cluster + "/" }

// texts are the fields of a port that hold a holder.
type texts struct{ deviceID, name, description string }

// write returns the texts of a port. The name is "namespace/pod/interface", and the
// description has the part of the name that Neutron has no room for. A subport has no device
// ID, because Neutron refuses it: its name begins with the identity. Errors:
// fault.ErrInvalid if the texts are too long.
func (h holder) write(cluster string) (texts, error) {
	t := texts{deviceID: deviceID(cluster, h.Owner)}
	name, rest := strings.Join([]string{h.Namespace, h.PodName, h.Interface}, "/"), ""
	if h.way == Trunk {
		name, t.deviceID = t.deviceID+"/"+h.Namespace+"/"+h.PodName, ""
	}
	if len(name) > maxText {
		name, rest = name[:maxText], name[maxText:]
	}
	fields := []string{"network=" + h.network, "node=" + h.NodeName}
	if h.isDefault {
		fields = append(fields, "default=true")
	}
	if h.way != "" {
		fields = append(fields, "way="+string(h.way), "parent="+h.parent)
	}
	if n := h.next; n != nil {
		fields = append(fields, strings.Join([]string{"next=" + string(n.uid), n.pod, n.node, n.host}, "/"))
	}
	if rest != "" {
		fields = append(fields, "name="+rest)
	}
	t.name, t.description = name, strings.Join(fields, " ")
	if len(t.description) > maxText || len(t.deviceID) > maxText {
		return texts{}, fmt.Errorf("%w: the names of pod %s/%s, of network %s and of node %s are too long together for the description of a port in Neutron: %d characters: at most %d: use a shorter name for the network or the pod",
			fault.ErrInvalid, h.Namespace, h.PodName, h.network, h.NodeName, max(len(t.description), len(t.deviceID)), maxText)
	}
	return t, nil
}

// read is the reverse of write. ok is false if the texts are not those of a port of the
// cluster, or were changed.
func read(cluster string, t texts) (h holder, ok bool) {
	identity := t.deviceID
	if identity == "" {
		identity = t.name
	}
	own, found := strings.CutPrefix(identity, prefixOf(cluster))
	parts := strings.SplitN(own, "/", 4)
	if !found || len(parts) != 3 && t.deviceID != "" || len(parts) != 4 && t.deviceID == "" {
		return holder{}, false
	}
	rest := ""
	for field := range strings.FieldsSeq(t.description) {
		key, value, _ := strings.Cut(field, "=")
		switch key {
		case "network":
			h.network = value
		case "node":
			h.NodeName = value
		case "default":
			h.isDefault = value == "true"
		case "way":
			h.way = Way(value)
		case "parent":
			h.parent = value
		case "next":
			if n := strings.Split(value, "/"); len(n) == 4 {
				h.next = &nextOwner{types.UID(n[0]), n[1], n[2], n[3]}
			}
		case "name":
			rest = value
		}
	}
	name := t.name + rest
	if t.deviceID == "" {
		name = parts[3] + rest + "/" + parts[1]
	}
	names := strings.Split(name, "/")
	if len(names) != 3 {
		return holder{}, false
	}
	h.PodUID, h.Namespace, h.PodName, h.Interface = types.UID(parts[0]), names[0], names[1], names[2]
	written, err := h.write(cluster)
	return h, err == nil && written == t
}
