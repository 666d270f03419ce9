package cloud

import (
	"context"
	"encoding/json"
	"net/netip"
	"slices"
	"strings"

	"github.com/gophercloud/gophercloud/v2"
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
	Tagged                      bool
	IDs                         []string
	Name, DeviceID, DeviceOwner string
	Network, Project, Host      string
	Status                      string
	Address                     netip.Addr
	// Tags that ports have beside Cloud.Tag.
	Tags []string
}

// portFilter is the query for a list of ports. ports.ListOpts lacks several values for one
// field, the host, and the choice of fields.
type portFilter struct {
	IDs         []string `q:"id"`
	Names       []string `q:"name"`
	DeviceIDs   []string `q:"device_id"`
	DeviceOwner string   `q:"device_owner"`
	Network     string   `q:"network_id"`
	Project     string   `q:"project_id"`
	Host        string   `q:"binding:host_id"`
	Status      string   `q:"status"`
	FixedIPs    []string `q:"fixed_ips"`
	Tags        []string `q:"tags" format:"comma-separated"`
	Fields      []string `q:"fields"`
}

// filter returns the query for a list of ports.
func (q PortQuery) filter(tag string) portFilter {
	f := portFilter{
		DeviceOwner: q.DeviceOwner, Network: q.Network, Project: q.Project, Host: q.Host, Status: q.Status,
		Tags: slices.Clone(q.Tags),
	}
	if q.Name != "" {
		f.Names = []string{q.Name}
	}
	if q.DeviceID != "" {
		f.DeviceIDs = []string{q.DeviceID}
	}
	if q.Address.IsValid() {
		f.FixedIPs = []string{"ip_address=" + q.Address.String()}
	}
	if q.Tagged {
		f.Tags = append(f.Tags, tag)
	}
	return f
}

// perRequest is the number of IDs in the query of one request: an address of more than 8 KiB
// is refused.
const perRequest = 100

// Ports returns all ports that match, from one list that is read page by page.
func (c *Cloud) Ports(ctx context.Context, q PortQuery) ([]Port, error) {
	f := q.filter(c.api.tag)
	if len(q.IDs) == 0 {
		return list[Port](ctx, &c.api, "ports", f)
	}
	var all []Port
	for f.IDs = range slices.Chunk(q.IDs, perRequest) {
		some, err := list[Port](ctx, &c.api, "ports", f)
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
		found, err := list[struct{ ID, Status string }](ctx, &c.api, "ports", portFilter{IDs: some, Fields: []string{"id", "status"}})
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
	return object[Port](ctx, &c.api, "read port", "port", func(ctx context.Context) gophercloud.Result {
		return ports.Get(ctx, c.api.neutron, id).Result
	}, id)
}

// DeletePort deletes a port; nil if it is gone. Errors: ErrInUse (a subport), ErrForbidden,
// ErrUnavailable.
func (c *Cloud) DeletePort(ctx context.Context, id string) error {
	return remove(ctx, &c.api, "delete port", id, ports.Delete)
}
