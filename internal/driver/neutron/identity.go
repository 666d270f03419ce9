package neutron

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/fault"
)

// DeviceOwner is the device_owner of all ports. Its prefix has the OVS agent and DVR treat
// them as ports of machines. A port without an owner may become a virtual port of OVN, if
// its address is an allowed address pair of another port.
const DeviceOwner = "compute:fairlead"

// hashLength is the number of bytes of the hash in a device ID.
const hashLength = 12

// maxText bounds name, description and device_id of a port in Neutron.
const maxText = 255

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
