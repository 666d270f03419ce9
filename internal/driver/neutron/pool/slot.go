// Package pool keeps ports ready before pods need them. A PortPool in the cluster has the
// ports of one key and the pod that has each. A port is handed out, and comes back, by
// compare-and-swap on this object: two leaders at once never give one port to two pods.
//
// The package does not know how a port is made: a Maker does.
package pool

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// maxSlots is the number of ports of one PortPool, maxObjects that of PortPools of one key.
const (
	maxSlots   = 64
	maxObjects = 8
)

// state of a slot.
type state string

const (
	// ready: the next pod gets the port.
	ready state = "ready"
	// cooling: a pod had the port until now.
	cooling state = "cooling"
	// stale: the port has other security groups than its pool, and is changed first.
	stale state = "stale"
	// used: a pod has the port.
	used state = "used"
	// leaving: the port is being deleted, and stays in this state until then.
	leaving state = "leaving"
)

// Port is a port in the cloud.
type Port struct {
	ID, MAC string
	// Addresses with the length of the prefix of their subnet.
	Addresses []netip.Prefix
	// VLAN is the segment of the port in the node's trunk; 0 for none.
	VLAN int
	// Bridge that the port belongs to, as the cloud names it; empty if it does not.
	Bridge string
}

// Holder is the interface of a pod that has a port. UID, Namespace, Pod and Interface are
// its identity.
type Holder struct {
	UID                                types.UID
	Namespace, Pod, Interface, Network string
	Default                            bool
}

// identity of a holder.
type identity struct {
	uid                       types.UID
	namespace, pod, ifaceName string
}

func (h Holder) identity() identity { return identity{h.UID, h.Namespace, h.Pod, h.Interface} }

// slot is a port in its place.
type slot struct {
	n     int
	state state
	Port
	// holder of a used slot.
	holder Holder
}

// String returns the form of a slot in a PortPool, with a space between the fields: its
// number, its state, the port's ID, MAC, addresses, VLAN (0 for none) and bridge ("-" for
// none). A used slot also has the pod's UID, "namespace/pod/interface", the network, and
// "default" or "further".
func (s slot) String() string {
	var addresses []string
	for _, a := range s.Addresses {
		addresses = append(addresses, a.String())
	}
	fields := []string{strconv.Itoa(s.n), string(s.state), s.ID, s.MAC, strings.Join(addresses, ","), strconv.Itoa(s.VLAN), cmp.Or(s.Bridge, "-")}
	if s.state == used {
		kind := "further"
		if s.holder.Default {
			kind = "default"
		}
		fields = append(fields, string(s.holder.UID), s.holder.Namespace+"/"+s.holder.Pod+"/"+s.holder.Interface, s.holder.Network, kind)
	}
	return strings.Join(fields, " ")
}

// Numbers of fields of a slot, and of a used slot.
const (
	slotFields = 7
	usedFields = 11
)

// parseSlot is the reverse of slot.String.
func parseSlot(text string) (slot, error) {
	fields := strings.Split(text, " ")
	s, problem := slot{}, fmt.Sprintf("%d fields: must be %d, or %d if a pod has it", len(fields), slotFields, usedFields)
	if len(fields) == slotFields || len(fields) == usedFields {
		s, problem = readSlot(fields)
	}
	if problem == "" {
		problem = s.readPort(fields[2:])
	}
	if problem == "" && s.state == used {
		problem = s.readHolder(fields[slotFields:])
	}
	if problem != "" {
		return slot{}, fmt.Errorf("port %.80q: %s", text, problem)
	}
	return s, nil
}

// readSlot reads number and state. It returns the problem; empty if there is none.
func readSlot(fields []string) (s slot, problem string) {
	n, err := strconv.Atoi(fields[0])
	if err != nil || n < 0 || n >= maxSlots {
		return s, fmt.Sprintf("number %q: must be 0 to %d", fields[0], maxSlots-1)
	}
	s = slot{n: n, state: state(fields[1])}
	switch s.state {
	case ready, cooling, stale, leaving, used:
	default:
		return s, fmt.Sprintf("state %q: must be ready, cooling, stale, used or leaving", fields[1])
	}
	if (s.state == used) != (len(fields) == usedFields) {
		return s, fmt.Sprintf("%d fields: must be %d if it is used, otherwise %d", len(fields), usedFields, slotFields)
	}
	return s, ""
}

// readPort reads ID, MAC, addresses, VLAN and bridge.
func (s *slot) readPort(fields []string) (problem string) {
	s.ID, s.MAC, s.Bridge = fields[0], fields[1], fields[4]
	if s.ID == "" {
		return "the ID of the port is empty"
	}
	if mac, err := net.ParseMAC(s.MAC); err != nil || len(mac) != 6 {
		return fmt.Sprintf("MAC %q: must be as fa:16:3e:00:00:01", s.MAC)
	}
	for a := range strings.SplitSeq(fields[2], ",") {
		p, err := netip.ParsePrefix(a)
		if err != nil {
			return fmt.Sprintf("address %q: must be as 10.8.0.5/24", a)
		}
		s.Addresses = append(s.Addresses, p)
	}
	var err error
	if s.VLAN, err = strconv.Atoi(fields[3]); err != nil || s.VLAN < 0 || s.VLAN > 4094 {
		return fmt.Sprintf("VLAN %q: must be 1 to 4094, or 0 for none", fields[3])
	}
	if s.Bridge == "" || len(s.Bridge) > 15 {
		return fmt.Sprintf("bridge %q: must have 1 to 15 characters; \"-\" for none", s.Bridge)
	}
	if s.Bridge == "-" {
		s.Bridge = ""
	}
	return ""
}

// readHolder reads the pod.
func (s *slot) readHolder(fields []string) (problem string) {
	names := strings.Split(fields[1], "/")
	if len(names) != 3 || fields[0] == "" || fields[3] != "default" && fields[3] != "further" {
		return "the pod must be as UID namespace/pod/interface network default"
	}
	s.holder = Holder{UID: types.UID(fields[0]), Namespace: names[0], Pod: names[1], Interface: names[2], Network: fields[2], Default: fields[3] == "default"}
	return ""
}
