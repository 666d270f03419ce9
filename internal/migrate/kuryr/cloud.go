package kuryr

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"fairlead.dev/fairlead/internal/openstack/cloud"
)

// Cloud is the part of OpenStack that Kuryr has to do with.
type Cloud struct {
	// Project is the ID of the project of the credentials.
	Project string
	// Ports of the project, and those of other projects that KuryrPorts name.
	Ports []cloud.Port
	// Trunks and Networks of the project.
	Trunks   []cloud.Trunk
	Networks []cloud.Network
}

// Trunk is a trunk of the project with subports.
type Trunk struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	// Parent is the ID of the port of the machine.
	Parent string `json:"parent"`
	// Nodes of the KuryrPorts whose subports it has.
	Nodes []string `json:"nodes"`
	// Subports is their number, and Named that of those which a KuryrPort names.
	Subports int `json:"subports"`
	Named    int `json:"named"`
}

// Foreign is something in OpenStack that no object of Kuryr names.
type Foreign struct {
	// Kind is Port, Subport or Network.
	Kind  string `json:"kind"`
	ID    string `json:"id"`
	Name  string `json:"name"`
	Where string `json:"where"`
	Text  string `json:"text"`
}

// ownerKuryr is the device_owner of ports of Kuryr. Subports lose it.
const ownerKuryr = "compute:kuryr"

// networkName is the form of the names of networks that Kuryr makes for namespaces.
var networkName = regexp.MustCompile(`^ns/(.+)-net$`)

// subport is the place of a port on a trunk.
type subport struct {
	trunk string
	vlan  int
}

// index has the parts of a Cloud by ID.
type index struct {
	ports    map[string]*cloud.Port
	subports map[string]subport
	networks map[string]*cloud.Network
	pairs    map[cloud.Pair]bool
}

func (c *Cloud) index() index {
	x := index{ports: map[string]*cloud.Port{}, subports: map[string]subport{}, networks: map[string]*cloud.Network{}, pairs: map[cloud.Pair]bool{}}
	for i := range c.Ports {
		p := &c.Ports[i]
		x.ports[p.ID] = p
		for _, pair := range p.Pairs {
			x.pairs[pair] = true
		}
	}
	for _, t := range c.Trunks {
		for _, s := range t.Subports {
			x.subports[s.Port] = subport{t.ID, s.VLAN}
		}
	}
	for i := range c.Networks {
		x.networks[c.Networks[i].ID] = &c.Networks[i]
	}
	return x
}

// compare compares the ports of KuryrPorts with those of the cloud.
func (c *Cloud) compare(ports []Port) {
	x := c.index()
	for i := range ports {
		p := &ports[i]
		if p.ID == "" {
			continue
		}
		have := x.ports[p.ID]
		switch {
		case have != nil:
			p.Cloud = x.describe(have)
			if differs := x.differences(p, have); p.Outcome == Adoptable && len(differs) > 0 {
				p.Outcome, p.Reason = Differs, "in OpenStack: "+strings.Join(differs, ", ")
			}
		case p.Outcome == Left:
			p.Reason = "its pod is gone, and so is its port"
		default:
			p.Outcome, p.Reason = Missing, fmt.Sprintf("OpenStack has no such port, or does not show it to project %s: the pod gets a new one", c.Project)
		}
	}
}

// describe returns the status and the place of a port.
func (x index) describe(p *cloud.Port) string {
	out := p.Status
	if s, ok := x.subports[p.ID]; ok {
		out += fmt.Sprintf(", VLAN %d of trunk %s", s.vlan, s.trunk)
	} else if p.Host != "" {
		out += ", bound on " + clip(p.Host)
	}
	return out
}

// differences describes each field of a KuryrPort that is not as in the cloud.
func (x index) differences(p *Port, have *cloud.Port) (out []string) {
	var addresses []string
	for _, a := range have.Addresses {
		addresses = append(addresses, a.Addr.String())
	}
	if a, b := slices.Sorted(slices.Values(p.Addresses)), slices.Sorted(slices.Values(addresses)); !slices.Equal(a, b) {
		out = append(out, "address "+strings.Join(addresses, ","))
	}
	if p.MAC != "" && !strings.EqualFold(p.MAC, have.MAC) {
		out = append(out, "MAC "+have.MAC)
	}
	if p.Network != "" && p.Network != have.NetworkID {
		out = append(out, "network "+have.NetworkID)
	}
	on, isSubport := x.subports[p.ID]
	switch p.Kind {
	case "VIFVlanNested":
		if !isSubport {
			out = append(out, "no subport of a trunk")
		} else if int64(on.vlan) != p.VLAN {
			out = append(out, fmt.Sprintf("VLAN %d", on.vlan))
		}
	case "VIFMacvlanNested":
		if !slices.ContainsFunc(have.Addresses, func(a cloud.Address) bool { return x.paired(a, have.MAC) }) {
			out = append(out, "no allowed address pair of a machine")
		}
	case "VIFOpenVSwitch":
		if have.Host != "" && p.Node != "" && have.Host != p.Node {
			out = append(out, "bound on "+clip(have.Host))
		}
	}
	return out
}

// paired reports whether a port has an address with a MAC, or without one, as a pair.
func (x index) paired(a cloud.Address, mac string) bool {
	if !a.Addr.IsValid() {
		return false
	}
	single, err := a.Addr.Prefix(a.Addr.BitLen())
	return err == nil && (x.pairs[cloud.Pair{Prefix: single, MAC: strings.ToLower(mac)}] || x.pairs[cloud.Pair{Prefix: single}])
}

// trunks returns the trunks that have a subport.
func (c *Cloud) trunks(ports []Port) []Trunk {
	named := byID(ports)
	out := []Trunk{}
	for _, t := range c.Trunks {
		if len(t.Subports) == 0 {
			continue
		}
		row := Trunk{ID: t.ID, Name: t.Name, Parent: t.Parent, Nodes: []string{}, Subports: len(t.Subports)}
		for _, s := range t.Subports {
			p, ok := named[s.Port]
			if !ok {
				continue
			}
			row.Named++
			if !slices.Contains(row.Nodes, p.Node) {
				row.Nodes = append(row.Nodes, p.Node)
			}
		}
		slices.Sort(row.Nodes)
		out = append(out, row)
	}
	slices.SortFunc(out, func(a, b Trunk) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID)) })
	return out
}

func byID(ports []Port) map[string]*Port {
	out := map[string]*Port{}
	for i := range ports {
		if ports[i].ID != "" {
			out[ports[i].ID] = &ports[i]
		}
	}
	return out
}

// foreign returns everything that no object of Kuryr names: subports of trunks, ports with a
// mark of Kuryr or on a network of a namespace, and networks with a name of Kuryr.
func (s State) foreign(ports []Port) []Foreign {
	named, x := byID(ports), s.Cloud.index()
	own := map[string]string{} // namespaces by network
	for _, o := range s.Networks {
		if id := text(o.Content, "status", "netId"); id != "" {
			own[id] = o.Namespace
		}
	}
	tags := s.Config.list("neutron_defaults.resource_tags")
	out := []Foreign{}
	for i := range s.Cloud.Ports {
		p := &s.Cloud.Ports[i]
		if named[p.ID] != nil || strings.HasPrefix(p.DeviceOwner, "network:") {
			continue
		}
		f := Foreign{Kind: "Port", ID: p.ID, Name: p.Name, Where: "network " + p.NetworkID}
		on, isSubport := x.subports[p.ID]
		marked := slices.ContainsFunc(p.Tags, func(t string) bool { return slices.Contains(tags, t) })
		switch {
		case isSubport:
			f.Kind, f.Where = "Subport", fmt.Sprintf("VLAN %d of trunk %s", on.vlan, on.trunk)
			f.Text = "of a pool of Kuryr, lost by it, or of another program: until it is deleted its VLAN is not given"
		case p.DeviceOwner == ownerKuryr || marked:
			f.Text = "of a pool of Kuryr, or lost by it: delete it in OpenStack when Kuryr is gone"
		case own[p.NetworkID] != "":
			f.Text = fmt.Sprintf("no port of Kuryr: the network of namespace %s cannot be deleted before it", own[p.NetworkID])
		default:
			continue
		}
		out = append(out, f)
	}
	for _, n := range s.Cloud.Networks {
		if m := networkName.FindStringSubmatch(n.Name); m != nil && own[n.ID] == "" {
			out = append(out, Foreign{Kind: "Network", ID: n.ID, Name: n.Name, Where: "namespace " + clip(m[1]), Text: "no KuryrNetwork names it: delete it in OpenStack when Kuryr is gone"})
		}
	}
	slices.SortFunc(out, func(a, b Foreign) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Where, b.Where), cmp.Compare(a.ID, b.ID))
	})
	return out
}

// missing describes the parts of a KuryrNetwork that the cloud lacks; empty if it has them.
func (c *Cloud) missing(network, subnet string) string {
	n := c.index().networks[network]
	switch {
	case network == "":
		return ""
	case n == nil:
		return fmt.Sprintf("OpenStack has no such network in project %s", c.Project)
	case subnet != "" && !slices.Contains(n.Subnets, subnet):
		return "the network has no such subnet in OpenStack"
	}
	return ""
}
