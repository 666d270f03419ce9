package cloud

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/bits"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// Network is a network of Neutron.
type Network struct {
	ID, Name, ProjectID string
	MTU                 int
	Shared              bool
	Subnets             []string
	Tags                []string
	Revision            int
}

// networkJSON is a network in an answer.
type networkJSON struct {
	ID          string   `json:"id"`
	Name        string   `json:"name"`
	Description string   `json:"description"`
	ProjectID   string   `json:"project_id"`
	MTU         int      `json:"mtu"`
	Shared      bool     `json:"shared"`
	Subnets     []string `json:"subnets"`
	Tags        []string `json:"tags"`
	Revision    int      `json:"revision_number"`
}

func (j networkJSON) network() Network {
	return Network{
		ID: j.ID, Name: j.Name, ProjectID: j.ProjectID, MTU: j.MTU, Shared: j.Shared,
		Subnets: unempty(j.Subnets), Tags: unempty(j.Tags), Revision: j.Revision,
	}
}

// Subnet is a subnet of Neutron.
type Subnet struct {
	ID, Name, NetworkID, ProjectID string
	Prefix                         netip.Prefix
	Gateway                        netip.Addr // invalid if none
	Routes                         []Route
	Nameservers                    []netip.Addr
	// Size is the number of addresses that the cloud may choose for ports.
	Size     uint64
	Tags     []string
	Revision int
}

// subnetJSON is a subnet in an answer.
type subnetJSON struct {
	ID          string       `json:"id"`
	Name        string       `json:"name"`
	Description string       `json:"description"`
	NetworkID   string       `json:"network_id"`
	ProjectID   string       `json:"project_id"`
	Prefix      netip.Prefix `json:"cidr"`
	Gateway     *netip.Addr  `json:"gateway_ip"`
	Routes      []routeJSON  `json:"host_routes"`
	Nameservers []netip.Addr `json:"dns_nameservers"`
	Allocation  []struct {
		Start netip.Addr `json:"start"`
		End   netip.Addr `json:"end"`
	} `json:"allocation_pools"`
	Tags     []string `json:"tags"`
	Revision int      `json:"revision_number"`
}

func (j subnetJSON) subnet() Subnet {
	s := Subnet{
		ID: j.ID, Name: j.Name, NetworkID: j.NetworkID, ProjectID: j.ProjectID, Prefix: j.Prefix,
		Routes: routes(j.Routes), Nameservers: unempty(j.Nameservers), Tags: unempty(j.Tags), Revision: j.Revision,
	}
	if j.Gateway != nil {
		s.Gateway = *j.Gateway
	}
	for _, a := range j.Allocation {
		s.Size = sum(s.Size, addresses(a.Start, a.End))
	}
	return s
}

// addresses returns the number of addresses of a range, at most the largest number.
func addresses(first, last netip.Addr) uint64 {
	if first.BitLen() != last.BitLen() || first.Compare(last) > 0 {
		return 0
	}
	a, b := first.As16(), last.As16()
	high := binary.BigEndian.Uint64(b[:8]) - binary.BigEndian.Uint64(a[:8])
	low, borrow := bits.Sub64(binary.BigEndian.Uint64(b[8:]), binary.BigEndian.Uint64(a[8:]), 0)
	if high-borrow > 0 {
		return math.MaxUint64
	}
	return sum(low, 1)
}

func sum(a, b uint64) uint64 {
	s, carry := bits.Add64(a, b, 0)
	if carry > 0 {
		return math.MaxUint64
	}
	return s
}

// Network reads a network by ID, or by name if it is unique. A name is that of a network of
// the project or of a shared one: any tenant may name its own alike. Errors: ErrNotFound,
// ErrInvalid (several have the name).
func (c *Cloud) Network(ctx context.Context, idOrName string) (Network, error) {
	j, err := find(ctx, c, "networks", idOrName, func(n networkJSON) bool { return n.Shared || n.ProjectID == c.project })
	return j.network(), err
}

// Subnet reads a subnet by ID or unique name. A name is that of a subnet of the project.
// Errors: ErrNotFound, ErrInvalid.
func (c *Cloud) Subnet(ctx context.Context, idOrName string) (Subnet, error) {
	j, err := find(ctx, c, "subnets", idOrName, func(s subnetJSON) bool { return s.ProjectID == c.project })
	return j.subnet(), err
}

// find reads an object by ID, or by its name among those that count.
func find[T any](ctx context.Context, c *Cloud, resource, idOrName string, counts func(T) bool) (T, error) {
	if isID(idOrName) {
		return read[T](ctx, c, resource, idOrName)
	}
	found, err := list[identified[T]](ctx, c, resource, url.Values{"name": {idOrName}})
	if err != nil {
		var none T
		return none, err
	}
	return only(noun(resource), idOrName, slices.DeleteFunc(found, func(o identified[T]) bool { return !counts(o.object) }))
}

// identified is an object in an answer, with its ID.
type identified[T any] struct {
	id     string
	object T
}

// UnmarshalJSON reads an object of an answer.
func (o *identified[T]) UnmarshalJSON(b []byte) error {
	var j struct {
		ID string `json:"id"`
	}
	if err := json.Unmarshal(b, &j); err != nil {
		return err
	}
	o.id = j.ID
	return json.Unmarshal(b, &o.object)
}

// maxListed bounds the IDs in an error.
const maxListed = 8

// only returns the one object of a name. Errors: ErrNotFound, ErrInvalid with the IDs if there
// are several.
func only[T any](noun, name string, found []identified[T]) (T, error) {
	var none T
	call := "read " + noun
	switch len(found) {
	case 0:
		return none, &failure{call: call, kind: ErrNotFound, text: fmt.Sprintf("the project has no %s %q", noun, clean(name))}
	case 1:
		return found[0].object, nil
	}
	var ids []string
	for _, o := range found[:min(len(found), maxListed)] {
		ids = append(ids, clean(o.id))
	}
	slices.Sort(ids)
	return none, &failure{call: call, kind: ErrInvalid, text: fmt.Sprintf("%d of the name %q exist: give the ID, as one of %s", len(found), clean(name), strings.Join(ids, ", "))}
}

// Subnets returns the subnets of a network.
func (c *Cloud) Subnets(ctx context.Context, network string) ([]Subnet, error) {
	found, err := list[subnetJSON](ctx, c, "subnets", url.Values{"network_id": {network}})
	if err != nil {
		return nil, err
	}
	var all []Subnet
	for _, s := range found {
		all = append(all, s.subnet())
	}
	return all, nil
}

// Networks returns the networks with Cloud.Tag.
func (c *Cloud) Networks(ctx context.Context) ([]Network, error) {
	return c.networks(ctx, url.Values{"tags": {c.tag}})
}

func (c *Cloud) networks(ctx context.Context, filter url.Values) ([]Network, error) {
	found, err := list[networkJSON](ctx, c, "networks", filter)
	if err != nil {
		return nil, err
	}
	var all []Network
	for _, n := range found {
		all = append(all, n.network())
	}
	return all, nil
}

// NetworksOf returns the networks that this cluster made in a project: those with Cloud.Tag,
// and those whose tag was never put. Empty is the project of the credentials.
func (c *Cloud) NetworksOf(ctx context.Context, project string) ([]Network, error) {
	if project == "" {
		project = c.project
	}
	var all []Network
	for filter, value := range map[string]string{"tags": c.tag, "description": c.describe("")} {
		found, err := c.networks(ctx, url.Values{filter: {value}, "project_id": {project}})
		if err != nil {
			return nil, err
		}
		for _, n := range found {
			if !slices.ContainsFunc(all, func(has Network) bool { return has.ID == n.ID }) {
				all = append(all, n)
			}
		}
	}
	return all, nil
}

// NetworksNamed returns the networks of a project with a name that this cluster made, each
// with Cloud.Tag. Several are there if replies were lost, or two made one at once.
func (c *Cloud) NetworksNamed(ctx context.Context, project, name string) ([]Network, error) {
	if project == "" {
		project = c.project
	}
	found, err := list[networkJSON](ctx, c, "networks", url.Values{"name": {name}, "project_id": {project}})
	if err != nil {
		return nil, err
	}
	var all []Network
	for _, n := range found {
		if !c.isOurs(n.Tags, n.Description) {
			continue
		}
		if n, err = tagged(ctx, c, "networks", n.ID, n.Tags, n); err != nil {
			return nil, err
		}
		all = append(all, n.network())
	}
	return all, nil
}

// CreateNetwork returns the tagged network with the name, or creates it.
func (c *Cloud) CreateNetwork(ctx context.Context, project, name string) (Network, error) {
	if project == "" {
		project = c.project
	}
	found, err := c.NetworksNamed(ctx, project, name)
	if err != nil {
		return Network{}, err
	}
	if len(found) > 0 {
		return found[0], nil
	}
	n, err := create[networkJSON](ctx, c, "networks", map[string]any{
		"name": name, "project_id": project, "description": c.describe(""),
	})
	if err != nil {
		return Network{}, err
	}
	if n, err = tagged(ctx, c, "networks", n.ID, n.Tags, n); err != nil {
		return Network{}, err
	}
	return n.network(), nil
}

// DeleteNetwork deletes a network; nil if it is gone. Errors: ErrInUse.
func (c *Cloud) DeleteNetwork(ctx context.Context, id string) error {
	return c.remove(ctx, "networks", id)
}

// SubnetPool is a subnet pool of Neutron.
type SubnetPool struct {
	ID, Name string
	IPv6     bool
}

// SubnetPool reads a subnet pool by ID or unique name. A name is that of a pool of the
// project or of a shared one. Errors: ErrNotFound, ErrInvalid.
func (c *Cloud) SubnetPool(ctx context.Context, idOrName string) (SubnetPool, error) {
	type poolJSON struct {
		ID        string `json:"id"`
		Name      string `json:"name"`
		ProjectID string `json:"project_id"`
		Shared    bool   `json:"shared"`
		Version   int    `json:"ip_version"`
	}
	j, err := find(ctx, c, "subnetpools", idOrName, func(p poolJSON) bool { return p.Shared || p.ProjectID == c.project })
	return SubnetPool{ID: j.ID, Name: j.Name, IPv6: j.Version == 6}, err
}

// SubnetSpec asks for a subnet: of Prefix, or with a prefix from Pool (a subnet pool) of
// Length bits; Length 0 is the pool's default.
type SubnetSpec struct {
	Name, Network, Project string
	IPv6                   bool
	Prefix                 netip.Prefix
	Pool                   string
	Length                 int
}

// CreateSubnet returns the subnet with the name in the network, or creates it, without DHCP.
// Errors: ErrFull (the subnet pool is empty), ErrQuota, ErrNotFound, ErrInvalid.
func (c *Cloud) CreateSubnet(ctx context.Context, s SubnetSpec) (Subnet, error) {
	found, err := list[subnetJSON](ctx, c, "subnets", url.Values{"name": {s.Name}, "network_id": {s.Network}})
	if err != nil {
		return Subnet{}, err
	}
	at := slices.IndexFunc(found, func(n subnetJSON) bool { return c.isOurs(n.Tags, n.Description) })
	var n subnetJSON
	if at >= 0 {
		n = found[at]
	} else {
		if n, err = create[subnetJSON](ctx, c, "subnets", c.subnetBody(s)); err != nil {
			return Subnet{}, err
		}
	}
	if n, err = tagged(ctx, c, "subnets", n.ID, n.Tags, n); err != nil {
		return Subnet{}, err
	}
	return n.subnet(), nil
}

func (c *Cloud) subnetBody(s SubnetSpec) map[string]any {
	body := map[string]any{
		"name": s.Name, "network_id": s.Network, "description": c.describe(""), "enable_dhcp": false, "ip_version": 4,
	}
	if s.IPv6 || s.Prefix.Addr().Is6() {
		body["ip_version"] = 6
	}
	if s.Project != "" {
		body["project_id"] = s.Project
	}
	if s.Prefix.IsValid() {
		body["cidr"] = s.Prefix.String()
	}
	if s.Pool != "" {
		body["subnetpool_id"] = s.Pool
	}
	if s.Length > 0 {
		body["prefixlen"] = s.Length
	}
	return body
}

// tagged returns an object with this cluster's tag: as it is if it has the tag, and
// otherwise read again after it got it.
func tagged[T any](ctx context.Context, c *Cloud, resource, id string, tags []string, as T) (T, error) {
	all, err := c.addTags(ctx, resource, id, tags, []string{c.tag})
	if err != nil || len(all) == len(tags) {
		return as, err
	}
	return read[T](ctx, c, resource, id)
}

// DeleteSubnet deletes a subnet; nil if it is gone. Errors: ErrInUse.
func (c *Cloud) DeleteSubnet(ctx context.Context, id string) error {
	return c.remove(ctx, "subnets", id)
}
