package cloud

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/dns"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/portsbinding"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/portsecurity"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/qos/policies"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/ports"
)

// Port is a port of Neutron.
type Port struct {
	ID          string
	Name        string
	Description string
	ProjectID   string `json:"project_id"`
	NetworkID   string `json:"network_id"`
	MAC         string `json:"mac_address"`
	// Addresses in the order of the cloud.
	Addresses []Address `json:"fixed_ips"`
	// Status is "ACTIVE", "DOWN", "BUILD" or "ERROR"; Up is admin_state_up.
	Status string
	Up     bool `json:"admin_state_up"`
	// DeviceID and DeviceOwner are set with the create, atomically, unlike Tags.
	DeviceID    string `json:"device_id"`
	DeviceOwner string `json:"device_owner"`
	// Host is binding:host_id, empty if the port is not bound or the cloud does not show it.
	Host string `json:"binding:host_id"`
	// VIFType is "ovs", "unbound", "binding_failed" and others. Bridge is the bridge in
	// binding:vif_details; empty on some releases (then br-int).
	VIFType string   `json:"binding:vif_type"`
	Bridge  string   `json:"-"`
	Groups  []string `json:"security_groups"`
	// PortSecurity is absent in a cloud without the extension, where no port is secured.
	PortSecurity bool   `json:"port_security_enabled"`
	Pairs        []Pair `json:"allowed_address_pairs"`
	QoSPolicy    string `json:"qos_policy_id"`
	DNSName      string `json:"dns_name"`
	Tags         []string
	// Revision is for If-Match.
	Revision int `json:"revision_number"`

	// created is the time of creation as the cloud writes it.
	created string
}

// Address is a fixed address of a port. In a request, an invalid Addr asks for any address
// of the subnet, and an empty Subnet for the subnet that has Addr.
type Address struct {
	Subnet string     `json:"subnet_id"`
	Addr   netip.Addr `json:"ip_address"`
}

// Pair is an allowed address pair. An empty MAC is that of the port.
type Pair struct {
	Prefix netip.Prefix
	MAC    string
}

// UnmarshalJSON reads a pair of an answer.
func (p *Pair) UnmarshalJSON(b []byte) error {
	var j ports.AddressPair
	err := json.Unmarshal(b, &j)
	*p = Pair{Prefix: readPrefix(j.IPAddress), MAC: strings.ToLower(j.MACAddress)}
	return err
}

// UnmarshalJSON reads a port of an answer.
func (p *Port) UnmarshalJSON(b []byte) error {
	type plain Port
	var j struct {
		plain
		VIFDetails struct { // it has more members, of many types
			Bridge string `json:"bridge_name"`
		} `json:"binding:vif_details"`
		Created string `json:"created_at"`
	}
	if err := json.Unmarshal(b, &j); err != nil {
		return err
	}
	*p = Port(j.plain)
	p.Bridge, p.created = j.VIFDetails.Bridge, j.Created
	p.Groups, p.Pairs, p.Tags = unempty(p.Groups), unempty(p.Pairs), unempty(p.Tags)
	for i := range p.Pairs {
		if strings.EqualFold(p.Pairs[i].MAC, p.MAC) {
			p.Pairs[i].MAC = "" // Neutron completes a pair with it
		}
	}
	return nil
}

// readPrefix returns an address or a prefix of an answer, as "192.0.2.1" and "192.0.2.0/24".
// Any other text is the invalid prefix: ports of tenants are in lists too, and one of them
// must not end a list.
func readPrefix(s string) netip.Prefix {
	if addr, err := netip.ParseAddr(s); err == nil {
		return netip.PrefixFrom(addr, addr.BitLen())
	}
	p, _ := netip.ParsePrefix(s) // the zero prefix if it is none
	return p
}

// writePrefix returns a prefix for a request: a single address has no length.
func writePrefix(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

// unempty returns nil for a list without elements: clouds answer [] and null alike.
func unempty[T any](s []T) []T {
	if len(s) == 0 {
		return nil
	}
	return s
}

// PortQuery filters ports. Empty fields match all. Tagged restricts to ports with Cloud.Tag;
// without it, the caller decides by DeviceOwner and Name which ports are its own.
type PortQuery struct {
	Tagged      bool
	IDs         []string `q:"id"`
	Name        string   `q:"name"`
	DeviceID    string   `q:"device_id"`
	DeviceOwner string   `q:"device_owner"`
	Network     string   `q:"network_id"`
	Project     string   `q:"project_id"`
	Host        string   `q:"binding:host_id"`
	Status      string   `q:"status"`
	Address     netip.Addr
	// Tags that ports have beside Cloud.Tag.
	Tags []string `q:"tags" format:"comma-separated"`
}

// portsOf is a query for the ports of several devices or names, or in a subnet, with some
// fields only.
type portsOf struct {
	Devices  []string `q:"device_id"`
	Names    []string `q:"name"`
	FixedIPs []string `q:"fixed_ips"`
	Fields   []string `q:"fields"`
}

// perRequest is the number of IDs in the query of one request: an address of more than 8 KiB
// is refused.
const perRequest = 100

// Ports returns all ports that match, from one list that is read page by page.
func (c *Cloud) Ports(ctx context.Context, q PortQuery) ([]Port, error) {
	var at portsOf
	if q.Address.IsValid() {
		at.FixedIPs = []string{"ip_address=" + q.Address.String()}
	}
	if q.Tagged {
		q.Tags = append(slices.Clone(q.Tags), c.api.tag)
	}
	if len(q.IDs) == 0 {
		return list[Port](ctx, &c.api, "ports", q, at)
	}
	var all []Port
	for q.IDs = range slices.Chunk(q.IDs, perRequest) {
		some, err := list[Port](ctx, &c.api, "ports", q, at)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, nil
}

// Statuses returns the status of those of the ports that exist, by ID: one request for some
// 100 ports, with only the fields that it needs.
func (c *Cloud) Statuses(ctx context.Context, ids []string) (map[string]string, error) {
	out := make(map[string]string, len(ids))
	for some := range slices.Chunk(ids, perRequest) {
		found, err := list[struct{ ID, Status string }](ctx, &c.api, "ports", PortQuery{IDs: some}, portsOf{Fields: []string{"id", "status"}})
		if err != nil {
			return nil, err
		}
		for _, p := range found {
			out[p.ID] = p.Status
		}
	}
	return out, nil
}

// Port reads a port. Errors: ErrNotFound.
func (c *Cloud) Port(ctx context.Context, id string) (Port, error) {
	return read[Port](ctx, &c.api, "port", id, ports.Get)
}

// DeletePort deletes a port; nil if it is gone. Errors: ErrInUse (a subport), ErrForbidden,
// ErrUnavailable.
func (c *Cloud) DeletePort(ctx context.Context, id string) error {
	return remove(ctx, &c.api, "delete port", id, ports.Delete)
}

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
		if p, err = c.create(ctx, s); err != nil {
			return Port{}, err
		}
	}
	tagged, err := c.tagPorts(ctx, []Port{p}, []PortSpec{s})
	if err != nil {
		return Port{}, err
	}
	return tagged[0], nil
}

// create creates a port.
func (c *Cloud) create(ctx context.Context, s PortSpec) (Port, error) {
	return object[Port](ctx, &c.api, "create port", "port", func(ctx context.Context) gophercloud.Result {
		return ports.Create(ctx, c.api.neutron, newPort{s, s.allTags(c.api.tag)}).Result
	})
}

// CreatePorts creates ports with one request: all or none. It adopts those that exist
// already by name, device ID and owner. One request of this kind is in flight at a time. The
// result has the order of specs. Errors: as CreatePort.
func (c *Cloud) CreatePorts(ctx context.Context, specs []PortSpec) ([]Port, error) {
	const call = "create ports"
	leave, err := c.bulk.Lock(ctx, call)
	if err != nil {
		return nil, translate(call, err)
	}
	defer leave()
	all, err := c.adopt(ctx, specs)
	if err != nil {
		return nil, err
	}
	var bodies []any
	for i, p := range all {
		if p.ID != "" {
			continue
		}
		one, err := newPort{specs[i], specs[i].allTags(c.api.tag)}.ToPortCreateMap()
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
	slices.Sort(devices)
	slices.Sort(names)
	var queries []portsOf
	for some := range slices.Chunk(slices.Compact(devices), textsPerRequest) {
		queries = append(queries, portsOf{Devices: some})
	}
	for some := range slices.Chunk(slices.Compact(names), textsPerRequest) {
		queries = append(queries, portsOf{Names: some})
	}
	var found []Port
	for _, q := range queries {
		more, err := list[Port](ctx, &c.api, "ports", q)
		if err != nil {
			return nil, err
		}
		found = append(found, more...)
	}
	return found, nil
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

// newPort is a port in a request that creates it.
type newPort struct {
	PortSpec
	tags []string
}

// ToPortCreateMap returns the request. Errors: ErrInvalid, and those of gophercloud.
func (s newPort) ToPortCreateMap() (map[string]any, error) {
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
	limited := policies.PortCreateOptsExt{CreateOptsBuilder: secured, QoSPolicyID: s.QoSPolicy}
	body, err := dns.PortCreateOptsExt{CreateOptsBuilder: limited, DNSName: s.DNSName}.ToPortCreateMap()
	if err != nil {
		return nil, err
	}
	body["port"].(map[string]any)["tags"] = s.tags // gophercloud lacks them
	return body, nil
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

// pairs returns address pairs in a request. Errors: ErrInvalid if an address is no prefix.
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
