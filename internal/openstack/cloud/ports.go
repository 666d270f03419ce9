package cloud

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// Port is a port of Neutron.
type Port struct {
	ID, Name, Description string
	ProjectID, NetworkID  string
	MAC                   string
	// Addresses in the order of the cloud.
	Addresses []Address
	// Status is "ACTIVE", "DOWN", "BUILD" or "ERROR"; Up is admin_state_up.
	Status string
	Up     bool
	// DeviceID and DeviceOwner are set with the create, atomically, unlike Tags.
	DeviceID, DeviceOwner string
	// Host is binding:host_id, empty if the port is not bound or the cloud does not show it.
	Host string
	// VIFType is binding:vif_type: "ovs", "unbound", "binding_failed" and others. Bridge is
	// the bridge in binding:vif_details; empty on some releases (then br-int).
	VIFType, Bridge string
	Groups          []string
	// PortSecurity is port_security_enabled.
	PortSecurity bool
	Pairs        []Pair
	QoSPolicy    string
	DNSName      string
	Tags         []string
	// Revision is for If-Match.
	Revision int

	// created is the time of creation as the cloud writes it.
	created string
}

// Address is a fixed address of a port. In a request, an invalid Addr asks for any address
// of the subnet, and an empty Subnet for the subnet that has Addr.
type Address struct {
	Subnet string
	Addr   netip.Addr
}

// Pair is an allowed address pair. An empty MAC is that of the port.
type Pair struct {
	Prefix netip.Prefix
	MAC    string
}

// portJSON is a port in an answer.
type portJSON struct {
	ID          string `json:"id"`
	Name        string `json:"name"`
	Description string `json:"description"`
	ProjectID   string `json:"project_id"`
	NetworkID   string `json:"network_id"`
	MAC         string `json:"mac_address"`
	FixedIPs    []struct {
		Subnet string     `json:"subnet_id"`
		Addr   netip.Addr `json:"ip_address"`
	} `json:"fixed_ips"`
	Status      string `json:"status"`
	Up          bool   `json:"admin_state_up"`
	DeviceID    string `json:"device_id"`
	DeviceOwner string `json:"device_owner"`
	Host        string `json:"binding:host_id"`
	VIFType     string `json:"binding:vif_type"`
	// VIFDetails has more members, of many types.
	VIFDetails struct {
		Bridge *string `json:"bridge_name"`
	} `json:"binding:vif_details"`
	Groups []string `json:"security_groups"`
	// PortSecurity is absent in a cloud without the extension, where no port is secured.
	PortSecurity bool       `json:"port_security_enabled"`
	Pairs        []pairJSON `json:"allowed_address_pairs"`
	QoSPolicy    *string    `json:"qos_policy_id"`
	DNSName      string     `json:"dns_name"`
	Tags         []string   `json:"tags"`
	Revision     int        `json:"revision_number"`
	Created      string     `json:"created_at"`
}

type pairJSON struct {
	Prefix prefix `json:"ip_address"`
	MAC    string `json:"mac_address,omitempty"`
}

// prefix is an address or a prefix in JSON, as in "192.0.2.1" and "192.0.2.0/24".
type prefix struct{ netip.Prefix }

// UnmarshalJSON reads either form. Any other text is the invalid prefix: ports of tenants
// are in lists too, and one of them must not end a list.
func (p *prefix) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	addr, err := netip.ParseAddr(s)
	if err == nil {
		p.Prefix = netip.PrefixFrom(addr, addr.BitLen())
		return nil
	}
	p.Prefix, _ = netip.ParsePrefix(s) // the zero prefix if it is none
	return nil
}

// MarshalJSON writes a single address without a length. Errors: the prefix is invalid.
func (p prefix) MarshalJSON() ([]byte, error) {
	if !p.IsValid() {
		return nil, errors.New("no prefix: the cloud gave one that is no address and no network")
	}
	if p.IsSingleIP() {
		return json.Marshal(p.Addr())
	}
	return json.Marshal(p.String())
}

// UnmarshalJSON reads a port of an answer.
func (p *Port) UnmarshalJSON(b []byte) error {
	var j portJSON
	if err := json.Unmarshal(b, &j); err != nil {
		return err
	}
	*p = Port{
		ID: j.ID, Name: j.Name, Description: j.Description, ProjectID: j.ProjectID, NetworkID: j.NetworkID,
		MAC: j.MAC, Status: j.Status, Up: j.Up, DeviceID: j.DeviceID, DeviceOwner: j.DeviceOwner,
		Host: j.Host, VIFType: j.VIFType, Groups: unempty(j.Groups), PortSecurity: j.PortSecurity,
		QoSPolicy: value(j.QoSPolicy), DNSName: j.DNSName, Tags: unempty(j.Tags), Revision: j.Revision,
		Bridge: value(j.VIFDetails.Bridge), created: j.Created,
	}
	for _, a := range j.FixedIPs {
		p.Addresses = append(p.Addresses, Address{Subnet: a.Subnet, Addr: a.Addr})
	}
	for _, a := range j.Pairs {
		mac := strings.ToLower(a.MAC)
		if mac == strings.ToLower(j.MAC) {
			mac = "" // Neutron completes a pair with it
		}
		p.Pairs = append(p.Pairs, Pair{Prefix: a.Prefix.Prefix, MAC: mac})
	}
	return nil
}

// unempty returns nil for a list without elements: clouds answer [] and null alike.
func unempty[T any](s []T) []T {
	if len(s) == 0 {
		return nil
	}
	return s
}

func value(s *string) string {
	if s == nil {
		return ""
	}
	return *s
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

// values returns the filters of Neutron for the query, without IDs.
func (q PortQuery) values(tag string) url.Values {
	v := url.Values{}
	for name, value := range map[string]string{
		"name": q.Name, "device_id": q.DeviceID, "device_owner": q.DeviceOwner,
		"network_id": q.Network, "project_id": q.Project, "binding:host_id": q.Host, "status": q.Status,
	} {
		if value != "" {
			v.Set(name, value)
		}
	}
	if q.Address.IsValid() {
		v.Set("fixed_ips", "ip_address="+q.Address.String())
	}
	tags := slices.Clone(q.Tags)
	if q.Tagged {
		tags = append(tags, tag)
	}
	if len(tags) > 0 {
		v.Set("tags", joinTags(tags))
	}
	return v
}

// perRequest is the number of IDs in the query of one request: an address of more than 8 KiB
// is refused.
const perRequest = 100

// Ports returns all ports that match, from one list that is read page by page.
func (c *Cloud) Ports(ctx context.Context, q PortQuery) ([]Port, error) {
	v := q.values(c.tag)
	if len(q.IDs) == 0 {
		return list[Port](ctx, c, "ports", v)
	}
	var all []Port
	for ids := range slices.Chunk(q.IDs, perRequest) {
		v["id"] = ids
		some, err := list[Port](ctx, c, "ports", v)
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
		ports, err := list[struct{ ID, Status string }](ctx, c, "ports", url.Values{"id": some, "fields": {"id", "status"}})
		if err != nil {
			return nil, err
		}
		for _, p := range ports {
			out[p.ID] = p.Status
		}
	}
	return out, nil
}

// Port reads a port. Errors: ErrNotFound.
func (c *Cloud) Port(ctx context.Context, id string) (Port, error) {
	return read[Port](ctx, c, "ports", id)
}

// DeletePort deletes a port; nil if it is gone. Errors: ErrInUse (a subport), ErrForbidden,
// ErrUnavailable.
func (c *Cloud) DeletePort(ctx context.Context, id string) error {
	return c.remove(ctx, "ports", id)
}

// PortChange changes a port. Nil fields stay.
type PortChange struct {
	Name, Description, DeviceID, DeviceOwner *string
	Host                                     *string
	Groups                                   *[]string
	Pairs                                    *[]Pair
	DNSName, QoSPolicy                       *string
	PortSecurity                             *bool
}

// UpdatePort changes a port that still has the revision; 0 is any. It reads the answer back
// and returns ErrInvalid with the field's name if the cloud dropped a field. Errors:
// ErrChanged, ErrNotFound, ErrLimit (pairs), ErrForbidden, ErrInvalid, ErrUnavailable.
func (c *Cloud) UpdatePort(ctx context.Context, id string, revision int, ch PortChange) (Port, error) {
	const call = "update port"
	p, err := send[Port](ctx, c, request{
		call: call, method: http.MethodPut, path: []string{"ports", id},
		body: map[string]any{"port": ch.body()}, revision: revision,
	})
	if err != nil {
		return Port{}, err
	}
	if dropped := ch.dropped(p); dropped != "" {
		return Port{}, &failure{call: call, kind: ErrInvalid, text: "the cloud accepted " + dropped + " of port " + id + " and dropped it"}
	}
	return p, nil
}
