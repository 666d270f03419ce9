package cloud

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/dns"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/portsbinding"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/portsecurity"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/qos/policies"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/ports"
)

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
	body, err := ch.body(revision)
	if err != nil {
		return Port{}, translate(call, err)
	}
	p, err := object[Port](ctx, &c.api, call, "port", func(ctx context.Context) gophercloud.Result {
		return ports.Update(ctx, c.api.neutron, id, body).Result
	}, id)
	if err != nil {
		return Port{}, err
	}
	if dropped := ch.dropped(p); dropped != "" {
		return Port{}, &failure{call: call, kind: ErrInvalid, text: "the cloud accepted " + dropped + " of port " + id + " and dropped it"}
	}
	return p, nil
}

// atRevision is a change of a port that still has a revision. gophercloud reads the header of
// the outermost part of a change.
type atRevision struct {
	ports.UpdateOptsBuilder
	Revision *int `h:"If-Match"`
}

// body returns the change in a request; the revision 0 is any. Errors: ErrInvalid.
func (ch PortChange) body(revision int) (ports.UpdateOptsBuilder, error) {
	base := ports.UpdateOpts{Name: ch.Name, Description: ch.Description, DeviceID: ch.DeviceID, DeviceOwner: ch.DeviceOwner}
	if ch.Groups != nil {
		all := append([]string{}, *ch.Groups...)
		base.SecurityGroups = &all
	}
	if ch.Pairs != nil {
		all, err := pairs(*ch.Pairs)
		if err != nil {
			return nil, err
		}
		base.AllowedAddressPairs = &all
	}
	var body ports.UpdateOptsBuilder = portsbinding.UpdateOptsExt{UpdateOptsBuilder: base, HostID: ch.Host}
	body = portsecurity.PortUpdateOptsExt{UpdateOptsBuilder: body, PortSecurityEnabled: ch.PortSecurity}
	body = policies.PortUpdateOptsExt{UpdateOptsBuilder: body, QoSPolicyID: ch.QoSPolicy}
	body = dns.PortUpdateOptsExt{UpdateOptsBuilder: body, DNSName: ch.DNSName}
	if revision == 0 {
		return body, nil
	}
	return atRevision{body, &revision}, nil
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
