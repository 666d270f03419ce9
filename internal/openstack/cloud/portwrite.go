package cloud

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
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
	ports, err := c.adopt(ctx, []PortSpec{s})
	if err != nil {
		return Port{}, err
	}
	p := ports[0]
	if p.ID == "" {
		if p, err = create[Port](ctx, c, "ports", c.portBody(s)); err != nil {
			return Port{}, err
		}
	}
	tagged, err := c.tagPorts(ctx, []Port{p}, []PortSpec{s})
	if err != nil {
		return Port{}, err
	}
	return tagged[0], nil
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
	ports, err := c.adopt(ctx, specs)
	if err != nil {
		return nil, err
	}
	var bodies []map[string]any
	for i, p := range ports {
		if p.ID == "" {
			bodies = append(bodies, c.portBody(specs[i]))
		}
	}
	if len(bodies) > 0 {
		var answer struct{ Ports []Port }
		if err := c.do(ctx, request{
			call: call, method: http.MethodPost, path: []string{"ports"},
			body: map[string]any{"ports": bodies}, into: &answer,
		}); err != nil {
			return nil, err
		}
		if err := fill(ports, specs, answer.Ports, c); err != nil {
			return nil, translate(call, err)
		}
	}
	return c.tagPorts(ctx, ports, specs)
}

// fill puts created ports at the places of their specs.
func fill(ports []Port, specs []PortSpec, created []Port, c *Cloud) error {
	for i := range ports {
		if ports[i].ID != "" {
			continue
		}
		at := slices.IndexFunc(created, func(p Port) bool { return c.matches(specs[i], p) })
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
			case !c.matches(s, p):
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
	wanted := map[string][]string{}
	for _, s := range specs {
		filter, value := "device_id", s.DeviceID
		if value == "" {
			filter, value = "name", s.Name
		}
		if !slices.Contains(wanted[filter], value) {
			wanted[filter] = append(wanted[filter], value)
		}
	}
	var found []Port
	for filter, values := range wanted {
		for some := range slices.Chunk(values, textsPerRequest) {
			more, err := list[Port](ctx, c, "ports", url.Values{filter: some})
			if err != nil {
				return nil, err
			}
			found = append(found, more...)
		}
	}
	return found, nil
}

// matches reports whether a port is that of the spec. The project is compared as well: a
// tenant of another one may name a port at will. Neutron takes the owner from a port without
// a device when it becomes a subport, and does not give it back.
func (c *Cloud) matches(s PortSpec, p Port) bool {
	isOwner := p.DeviceOwner == s.DeviceOwner ||
		s.DeviceID == "" && (p.DeviceOwner == subportOwner || p.DeviceOwner == "")
	return isOwner && p.Name == s.Name && p.DeviceID == s.DeviceID &&
		p.NetworkID == s.Network && p.ProjectID == cmp.Or(s.Project, c.project)
}

// subportOwner is the owner that Neutron gives to the subports of trunks.
const subportOwner = "trunk:subport"

// tagPorts gives ports the tags that they lack. Those are read again: a tag raises the
// revision of its port.
func (c *Cloud) tagPorts(ctx context.Context, ports []Port, specs []PortSpec) ([]Port, error) {
	var stale []string
	for i, p := range ports {
		tags, err := c.addTags(ctx, "ports", p.ID, p.Tags, c.tagsOf(specs[i]))
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

func (c *Cloud) tagsOf(s PortSpec) []string { return append([]string{c.tag}, s.Tags...) }

// portBody returns the port of a spec in a request.
func (c *Cloud) portBody(s PortSpec) map[string]any {
	body := map[string]any{
		"network_id": s.Network, "name": s.Name, "device_id": s.DeviceID, "device_owner": s.DeviceOwner,
		"admin_state_up": true, "tags": c.tagsOf(s),
	}
	for name, value := range map[string]string{
		"description": s.Description, "project_id": s.Project, "mac_address": s.MAC,
		"binding:host_id": s.Host, "qos_policy_id": s.QoSPolicy, "dns_name": s.DNSName,
	} {
		if value != "" {
			body[name] = value
		}
	}
	if len(s.Addresses) > 0 {
		body["fixed_ips"] = fixedIPs(s.Addresses)
	}
	if s.Groups != nil {
		body["security_groups"] = s.Groups
	}
	if s.NoSecurity {
		body["port_security_enabled"] = false
		body["security_groups"] = []string{}
	}
	if len(s.Pairs) > 0 {
		body["allowed_address_pairs"] = pairs(s.Pairs)
	}
	return body
}

func fixedIPs(addresses []Address) []map[string]string {
	var out []map[string]string
	for _, a := range addresses {
		ip := map[string]string{}
		if a.Subnet != "" {
			ip["subnet_id"] = a.Subnet
		}
		if a.Addr.IsValid() {
			ip["ip_address"] = a.Addr.String()
		}
		out = append(out, ip)
	}
	return out
}

func pairs(all []Pair) []pairJSON {
	out := make([]pairJSON, 0, len(all))
	for _, p := range all {
		out = append(out, pairJSON{Prefix: prefix{p.Prefix}, MAC: p.MAC})
	}
	return out
}

// body returns the change in a request.
func (ch PortChange) body() map[string]any {
	body := map[string]any{}
	for name, value := range ch.texts() {
		if value != nil {
			body[name] = *value
		}
	}
	if ch.QoSPolicy != nil {
		body["qos_policy_id"] = json.RawMessage("null")
		if *ch.QoSPolicy != "" {
			body["qos_policy_id"] = *ch.QoSPolicy
		}
	}
	if ch.Groups != nil {
		body["security_groups"] = append([]string{}, *ch.Groups...)
	}
	if ch.Pairs != nil {
		body["allowed_address_pairs"] = pairs(*ch.Pairs)
	}
	if ch.PortSecurity != nil {
		body["port_security_enabled"] = *ch.PortSecurity
	}
	return body
}

func (ch PortChange) texts() map[string]*string {
	return map[string]*string{
		"name": ch.Name, "description": ch.Description, "device_id": ch.DeviceID,
		"device_owner": ch.DeviceOwner, "binding:host_id": ch.Host, "dns_name": ch.DNSName,
	}
}

// dropped returns the first field of the change that a port lacks, empty if it has all.
func (ch PortChange) dropped(p Port) string {
	has := map[string]string{
		"name": p.Name, "description": p.Description, "device_id": p.DeviceID,
		"device_owner": p.DeviceOwner, "binding:host_id": p.Host, "dns_name": p.DNSName,
	}
	var lost []string
	for name, value := range ch.texts() {
		if value != nil && *value != has[name] {
			lost = append(lost, name)
		}
	}
	if ch.QoSPolicy != nil && *ch.QoSPolicy != p.QoSPolicy {
		lost = append(lost, "qos_policy_id")
	}
	if ch.PortSecurity != nil && *ch.PortSecurity != p.PortSecurity {
		lost = append(lost, "port_security_enabled")
	}
	if ch.Groups != nil && !sameSet(*ch.Groups, p.Groups, strings.Compare) {
		lost = append(lost, "security_groups")
	}
	if ch.Pairs != nil && !sameSet(ch.pairsOf(p.MAC), p.Pairs, comparePairs) {
		lost = append(lost, "allowed_address_pairs")
	}
	if len(lost) == 0 {
		return ""
	}
	return slices.Min(lost)
}

// pairsOf returns the pairs of the change as a port with the MAC answers them.
func (ch PortChange) pairsOf(mac string) []Pair {
	var out []Pair
	for _, p := range *ch.Pairs {
		if strings.EqualFold(p.MAC, mac) {
			p.MAC = ""
		}
		p.MAC = strings.ToLower(p.MAC)
		out = append(out, p)
	}
	return out
}

func comparePairs(a, b Pair) int {
	return cmp.Or(a.Prefix.Addr().Compare(b.Prefix.Addr()), cmp.Compare(a.Prefix.Bits(), b.Prefix.Bits()), strings.Compare(a.MAC, b.MAC))
}

// sameSet reports whether two lists have the same elements.
func sameSet[T comparable](a, b []T, compare func(T, T) int) bool {
	a, b = slices.SortedFunc(slices.Values(a), compare), slices.SortedFunc(slices.Values(b), compare)
	return slices.Equal(slices.Compact(a), slices.Compact(b))
}
