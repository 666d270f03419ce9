package kuryr

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/types"
)

// Outcome of a port.
type Outcome string

const (
	// Adoptable ports are of a kind that a driver of Fairlead serves: they could be kept.
	Adoptable Outcome = "Adoptable"
	// New is a port in whose place the pod gets another.
	New Outcome = "New"
	// Left is a port that no pod has.
	Left Outcome = "Left"
	// Missing is a port that OpenStack does not have.
	Missing Outcome = "Missing"
	// Differs is a port that OpenStack has with another address or another place.
	Differs Outcome = "Differs"
	// Unreadable is a KuryrPort without a port in the form of Kuryr.
	Unreadable Outcome = "Unreadable"
)

// Port is an interface of a KuryrPort.
type Port struct {
	// Pod is the namespace/name of the KuryrPort, which are those of the pod.
	Pod       string   `json:"pod"`
	Interface string   `json:"interface"`
	ID        string   `json:"id"`
	Addresses []string `json:"addresses"`
	MAC       string   `json:"mac"`
	// Kind of the interface in the words of Kuryr, such as VIFOpenVSwitch.
	Kind string `json:"kind"`
	Node string `json:"node"`
	// Network and Subnets are the ID of the network and the CIDRs of its subnets.
	Network string   `json:"network"`
	Subnets []string `json:"subnets"`
	// VLAN is the ID of a subport on its trunk; 0 for none.
	VLAN int64 `json:"vlan,omitempty"`
	// Cloud has the status and the place of the port in OpenStack; empty if OpenStack was not
	// asked, or does not have it.
	Cloud   string  `json:"cloud,omitempty"`
	Outcome Outcome `json:"outcome"`
	Reason  string  `json:"reason"`
}

// Bounds of a KuryrPort that is read.
const (
	maxInterfaces = 32
	maxAddresses  = 32
)

// uuid is the form of an ID in OpenStack.
var uuid = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)

// kinds are the kinds of interfaces of Kuryr, with the outcome for a pod that lives.
var kinds = map[string]struct {
	outcome Outcome
	reason  string
}{
	"VIFOpenVSwitch":   {Adoptable, "the driver neutron serves such ports; this release makes a new one"},
	"VIFBridge":        {New, "the node plugs ports into Open vSwitch directly, without the bridge of a hybrid firewall"},
	"VIFVlanNested":    {Adoptable, "the driver neutron serves subports of trunks; this release makes a new one"},
	"VIFMacvlanNested": {Adoptable, "the driver neutron serves address pairs of machines; this release makes a new port"},
	"VIFVHostUser":     {New, "Fairlead makes no vhost-user sockets"},
	"VIFDPDKNested":    {New, "Fairlead attaches no interface of a machine for DPDK"},
	"VIFSriov":         {New, "use networks of type sriov"},
}

// ports judges all KuryrPorts.
func (s State) ports() []Port {
	alive, out := s.alive(), []Port{}
	for i := range s.Ports {
		o := &s.Ports[i]
		base := Port{Pod: o.Namespace + "/" + o.Name, Node: text(o.Content, "spec", "podNodeName"), Addresses: []string{}, Subnets: []string{}}
		p, lives := alive[types.UID(text(o.Content, "spec", "podUid"))]
		lives = lives && p.Namespace == o.Namespace && p.Name == o.Name
		vifs, _ := at(o.Content, "status", "vifs").(map[string]any)
		if len(vifs) == 0 {
			base.Outcome, base.Reason = New, "it has no port yet"
			if at(o.Content, "status", "vifs") != nil && vifs == nil {
				base.Outcome, base.Reason = Unreadable, "status.vifs is no object"
			}
			if !lives {
				base.Outcome, base.Reason = Left, "its pod is gone"
			}
			out = append(out, base)
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(vifs))[:min(len(vifs), maxInterfaces)] {
			out = append(out, base.read(name, vifs[name], lives))
		}
	}
	slices.SortFunc(out, func(a, b Port) int { return cmp.Or(cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Interface, b.Interface)) })
	return out
}

// read returns the port of one interface of a KuryrPort.
func (p Port) read(name string, entry any, lives bool) Port {
	vif := at(entry, "vif")
	p.Interface, p.Kind = name, text(vif, "versioned_object.name")
	p.ID, p.MAC = field(vif, "id"), field(vif, "address")
	network := data(vif, "network")
	p.Network = field(network, "id")
	for _, subnet := range elements(data(network, "subnets")) {
		if cidr, err := netip.ParsePrefix(field(subnet, "cidr")); err == nil && len(p.Subnets) < maxAddresses {
			p.Subnets = append(p.Subnets, cidr.String())
		}
		for _, ip := range elements(data(subnet, "ips")) {
			if a, err := netip.ParseAddr(field(ip, "address")); err == nil && len(p.Addresses) < maxAddresses {
				p.Addresses = append(p.Addresses, a.String())
			}
		}
	}
	switch id := data(vif, "vlan_id").(type) {
	case int64:
		p.VLAN = id
	case float64:
		p.VLAN = int64(id)
	}
	k, known := kinds[p.Kind]
	switch {
	case !uuid.MatchString(p.ID):
		p.Outcome, p.Reason = Unreadable, fmt.Sprintf("status.vifs: %s: the ID of the port is %s: must be a UUID", strconv.QuoteToASCII(clip(name)), strconv.QuoteToASCII(clip(p.ID)))
		p.ID = ""
	case !lives:
		p.Outcome, p.Reason = Left, "its pod is gone: delete the port in OpenStack"
	case !known:
		p.Outcome, p.Reason = New, fmt.Sprintf("%s is no kind of Kuryr that is known", strconv.QuoteToASCII(clip(p.Kind)))
	case len(p.Addresses) == 0:
		p.Outcome, p.Reason = New, "it has no address"
	default:
		p.Outcome, p.Reason = k.outcome, k.reason
	}
	return p
}

// clip shortens a text for an error.
func clip(s string) string { return s[:min(len(s), 64)] }

// at returns the value at a path of objects; nil if there is none.
func at(o any, path ...string) any {
	for _, key := range path {
		m, ok := o.(map[string]any)
		if !ok {
			return nil
		}
		o = m[key]
	}
	return o
}

// text returns the text at a path; empty if there is none.
func text(o any, path ...string) string {
	s, _ := at(o, path...).(string)
	return s
}

// data returns a field of an object of oslo.versionedobjects.
func data(o any, name string) any { return at(o, "versioned_object.data", name) }

// field returns a field that is a text; empty if it is none.
func field(o any, name string) string {
	s, _ := data(o, name).(string)
	return s
}

// elements returns the objects of a list of oslo.versionedobjects.
func elements(o any) []any {
	list, _ := data(o, "objects").([]any)
	return list
}
