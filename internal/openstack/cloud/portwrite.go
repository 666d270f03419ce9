package cloud

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/dns"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/portsbinding"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/portsecurity"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/qos/policies"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/ports"
)

// PortSpec asks for a port.
type PortSpec struct {
	Name, Description     string
	Project               string // empty: that of the credentials
	Network               string
	Addresses             []Address // empty: the cloud chooses
	MAC                   string    // empty: the cloud chooses
	DeviceID, DeviceOwner string
	Host                  string
	// Groups nil is the default group of the project; empty is none.
	Groups     []string
	NoSecurity bool // port_security_enabled=false
	QoSPolicy  string
	DNSName    string
	Pairs      []Pair
	// Tags beside Cloud.Tag.
	Tags []string
}

// CreatePort returns the port with the name, device ID and owner of the spec, or creates it.
// If several exist, it returns the oldest and deletes the others that no host has bound. It
// puts missing tags. Errors: ErrQuota, ErrFull, ErrTaken, ErrNotFound (network, subnet, group),
// ErrInvalid, ErrForbidden, ErrUnavailable (the port may exist: call again).
//
// Name, DeviceID and DeviceOwner are set with the create, and find a port again whose reply
// was lost. The Name is needed. A port that is to be a subport has no DeviceID: Neutron
// refuses a port with a device as a subport (ErrTaken), and changes its owner.
func (c *Cloud) CreatePort(ctx context.Context, s PortSpec) (Port, error) {
	found, err := c.adopt(ctx, []PortSpec{s})
	if err != nil {
		return Port{}, err
	}
	p := found[0]
	if p.ID == "" {
		if p, err = c.newPort(ctx, s); err != nil {
			return Port{}, err
		}
	}
	tagged, err := c.tagPorts(ctx, []Port{p}, []PortSpec{s})
	if err != nil {
		return Port{}, err
	}
	return tagged[0], nil
}

// newPort creates a port.
func (c *Cloud) newPort(ctx context.Context, s PortSpec) (Port, error) {
	const call = "create port"
	body, err := s.body(s.allTags(c.api.tag))
	if err != nil {
		return Port{}, translate(call, err)
	}
	return object[Port](ctx, &c.api, call, "port", func(ctx context.Context) gophercloud.Result {
		return ports.Create(ctx, c.api.neutron, body).Result
	})
}

// CreatePorts creates ports with one request: all or none. It adopts those that exist
// already by name, device ID and owner. One request of this kind is in flight at a time. The
// result has the order of specs. Errors: as CreatePort.
func (c *Cloud) CreatePorts(ctx context.Context, specs []PortSpec) ([]Port, error) {
	const call = "create ports"
	select {
	case c.bulk <- struct{}{}:
		defer func() { <-c.bulk }()
	case <-ctx.Done():
		return nil, translate(call, ctx.Err())
	}
	all, err := c.adopt(ctx, specs)
	if err != nil {
		return nil, err
	}
	var bodies []any
	for i, p := range all {
		if p.ID != "" {
			continue
		}
		body, err := specs[i].body(specs[i].allTags(c.api.tag))
		if err != nil {
			return nil, translate(call, err)
		}
		one, err := body.ToPortCreateMap()
		if err != nil {
			return nil, translate(call, err)
		}
		bodies = append(bodies, one["port"])
	}
	if len(bodies) > 0 {
		var answer struct{ Ports []Port }
		if err := c.api.do(ctx, call, func(ctx context.Context) error {
			return c.api.request(ctx, http.MethodPost, map[string]any{"ports": bodies}, &answer, "ports")
		}); err != nil {
			return nil, err
		}
		if err := fill(all, specs, answer.Ports, c.api.project); err != nil {
			return nil, translate(call, err)
		}
	}
	return c.tagPorts(ctx, all, specs)
}

// fill puts created ports at the places of their specs.
func fill(ports []Port, specs []PortSpec, created []Port, project string) error {
	for i := range ports {
		if ports[i].ID != "" {
			continue
		}
		at := slices.IndexFunc(created, func(p Port) bool { return specs[i].matches(p, project) })
		if at < 0 {
			return fmt.Errorf("the answer lacks port %q", specs[i].Name)
		}
		ports[i] = created[at]
		created = slices.Delete(created, at, at+1)
	}
	return nil
}

// adopt returns the ports that exist of specs, at their places. Errors: ErrInvalid, and those
// of a list.
func (c *Cloud) adopt(ctx context.Context, specs []PortSpec) ([]Port, error) {
	for _, s := range specs {
		if s.Name == "" {
			return nil, &failure{call: "create port", kind: ErrInvalid, text: fmt.Sprintf(
				"the port of device %q has no name: it would not be found again", s.DeviceID)}
		}
	}
	ports := make([]Port, len(specs))
	found, err := c.candidates(ctx, specs)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(found, func(a, b Port) int {
		return cmp.Or(strings.Compare(a.created, b.created), strings.Compare(a.ID, b.ID))
	})
	for i, s := range specs {
		for _, p := range found {
			switch {
			case !s.matches(p, c.api.project):
			case ports[i].ID == "":
				ports[i] = p
			case p.Host == "" && p.Status != "ACTIVE":
				// A create whose reply was lost ended after the list of the next one.
				if err := c.DeletePort(ctx, p.ID); err != nil {
					return nil, err
				}
			}
		}
	}
	return ports, nil
}

// textsPerRequest is as perRequest: a name or a device ID may have 255 characters.
const textsPerRequest = 20

// candidates returns the ports with the device IDs of specs, and those with the names of
// specs that have none.
func (c *Cloud) candidates(ctx context.Context, specs []PortSpec) ([]Port, error) {
	var devices, names []string
	for _, s := range specs {
		if s.DeviceID != "" {
			devices = append(devices, s.DeviceID)
		} else {
			names = append(names, s.Name)
		}
	}
	var filters []portFilter
	for some := range slices.Chunk(distinct(devices), textsPerRequest) {
		filters = append(filters, portFilter{DeviceIDs: some})
	}
	for some := range slices.Chunk(distinct(names), textsPerRequest) {
		filters = append(filters, portFilter{Names: some})
	}
	var found []Port
	for _, f := range filters {
		more, err := list[Port](ctx, &c.api, "ports", f)
		if err != nil {
			return nil, err
		}
		found = append(found, more...)
	}
	return found, nil
}

// distinct sorts texts, and returns each once.
func distinct(all []string) []string {
	slices.Sort(all)
	return slices.Compact(all)
}

// matches reports whether a port is that of the spec, whose project is that of the
// credentials if it has none. The project is compared because a tenant of another one may name
// a port at will. Neutron takes the owner from a port without a device when it becomes a
// subport, and does not give it back.
func (s PortSpec) matches(p Port, project string) bool {
	isOwner := p.DeviceOwner == s.DeviceOwner ||
		s.DeviceID == "" && (p.DeviceOwner == subportOwner || p.DeviceOwner == "")
	return isOwner && p.Name == s.Name && p.DeviceID == s.DeviceID &&
		p.NetworkID == s.Network && p.ProjectID == cmp.Or(s.Project, project)
}

// subportOwner is the owner that Neutron gives to the subports of trunks.
const subportOwner = "trunk:subport"

// tagPorts gives ports the tags that they lack. Those are read again: a tag raises the
// revision of its port.
func (c *Cloud) tagPorts(ctx context.Context, ports []Port, specs []PortSpec) ([]Port, error) {
	var stale []string
	for i, p := range ports {
		tags, err := c.api.addTags(ctx, "ports", p.ID, p.Tags, specs[i].allTags(c.api.tag))
		if err != nil {
			return nil, err
		}
		if len(tags) > len(p.Tags) {
			stale = append(stale, p.ID)
		}
	}
	if len(stale) == 0 {
		return ports, nil
	}
	fresh, err := c.Ports(ctx, PortQuery{IDs: stale})
	if err != nil {
		return nil, err
	}
	for _, f := range fresh {
		ports[slices.IndexFunc(ports, func(p Port) bool { return p.ID == f.ID })] = f
	}
	return ports, nil
}

// allTags returns the tags of the spec with that of the cluster.
func (s PortSpec) allTags(cluster string) []string { return append([]string{cluster}, s.Tags...) }

// body returns the port of a spec in a request. Errors: ErrInvalid.
func (s PortSpec) body(tags []string) (ports.CreateOptsBuilder, error) {
	all, err := pairs(s.Pairs)
	if err != nil {
		return nil, err
	}
	up := true
	base := ports.CreateOpts{
		NetworkID: s.Network, Name: s.Name, Description: s.Description, ProjectID: s.Project, MACAddress: s.MAC,
		DeviceID: s.DeviceID, DeviceOwner: s.DeviceOwner, AdminStateUp: &up, AllowedAddressPairs: all,
	}
	if len(s.Addresses) > 0 {
		base.FixedIPs = fixedIPs(s.Addresses)
	}
	secured := portsecurity.PortCreateOptsExt{}
	switch {
	case s.NoSecurity:
		base.SecurityGroups, secured.PortSecurityEnabled = &[]string{}, new(bool)
	case s.Groups != nil:
		base.SecurityGroups = &s.Groups
	}
	secured.CreateOptsBuilder = portsbinding.CreateOptsExt{CreateOptsBuilder: base, HostID: s.Host}
	var body ports.CreateOptsBuilder = policies.PortCreateOptsExt{CreateOptsBuilder: secured, QoSPolicyID: s.QoSPolicy}
	body = dns.PortCreateOptsExt{CreateOptsBuilder: body, DNSName: s.DNSName}
	return withTags{body, tags}, nil
}

// withTags adds tags to a port in a request, which gophercloud lacks.
type withTags struct {
	ports.CreateOptsBuilder
	tags []string
}

// ToPortCreateMap returns the request.
func (w withTags) ToPortCreateMap() (map[string]any, error) {
	body, err := w.CreateOptsBuilder.ToPortCreateMap()
	if err == nil {
		body["port"].(map[string]any)["tags"] = w.tags
	}
	return body, err
}

func fixedIPs(addresses []Address) []ports.IP {
	var out []ports.IP
	for _, a := range addresses {
		ip := ports.IP{SubnetID: a.Subnet}
		if a.Addr.IsValid() {
			ip.IPAddress = a.Addr.String()
		}
		out = append(out, ip)
	}
	return out
}

// pairs returns address pairs in a request. Errors: ErrInvalid for one that is no prefix.
func pairs(all []Pair) ([]ports.AddressPair, error) {
	out := make([]ports.AddressPair, 0, len(all))
	for _, p := range all {
		if !p.Prefix.IsValid() {
			return nil, &failure{call: "write pairs", kind: ErrInvalid, text: "no prefix: the cloud gave one that is no address and no network"}
		}
		out = append(out, ports.AddressPair{IPAddress: writePrefix(p.Prefix), MACAddress: p.MAC})
	}
	return out, nil
}
