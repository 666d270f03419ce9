package cloud

import (
	"context"
	"encoding/json"
	"math"
	"math/big"
	"math/bits"
	"net/netip"
	"slices"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/subnetpools"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/subnets"
)

// Subnet is a subnet of Neutron.
type Subnet struct {
	ID          string
	Name        string
	Description string
	NetworkID   string       `json:"network_id"`
	ProjectID   string       `json:"project_id"`
	Prefix      netip.Prefix `json:"cidr"`
	Gateway     netip.Addr   `json:"gateway_ip"` // invalid if none
	Routes      []Route      `json:"host_routes"`
	Nameservers []netip.Addr `json:"dns_nameservers"`
	// Size is the number of addresses that the cloud may choose for ports.
	Size     uint64 `json:"-"`
	Tags     []string
	Revision int `json:"revision_number"`
}

// UnmarshalJSON reads a subnet of an answer.
func (s *Subnet) UnmarshalJSON(b []byte) error {
	type plain Subnet
	var j struct {
		plain
		Ranges []struct{ Start, End netip.Addr } `json:"allocation_pools"`
	}
	if err := json.Unmarshal(b, &j); err != nil {
		return err
	}
	*s = Subnet(j.plain)
	for _, r := range j.Ranges {
		s.Size = sum(s.Size, addresses(r.Start, r.End))
	}
	return nil
}

// addresses returns the number of addresses of a range, at most the largest number.
func addresses(first, last netip.Addr) uint64 {
	if first.BitLen() != last.BitLen() || first.Compare(last) > 0 {
		return 0
	}
	a, b := first.As16(), last.As16()
	n := new(big.Int).SetBytes(b[:])
	n.Sub(n, new(big.Int).SetBytes(a[:])).Add(n, big.NewInt(1))
	if !n.IsUint64() {
		return math.MaxUint64
	}
	return n.Uint64()
}

func sum(a, b uint64) uint64 {
	s, carry := bits.Add64(a, b, 0)
	if carry > 0 {
		return math.MaxUint64
	}
	return s
}

// Subnet reads a subnet by ID or unique name. A name is that of a subnet of the project.
// Errors: ErrNotFound, ErrInvalid.
func (c *Cloud) Subnet(ctx context.Context, idOrName string) (Subnet, error) {
	if isID(idOrName) {
		return read[Subnet](ctx, &c.api, "subnet", idOrName, subnets.Get)
	}
	found, err := list[Subnet](ctx, &c.api, "subnets", subnets.ListOpts{Name: idOrName})
	return only("subnet", idOrName, found, err, func(s Subnet) owned { return c.api.owned(s.ID, s.ProjectID, false) })
}

// Subnets returns the subnets of a network.
func (c *Cloud) Subnets(ctx context.Context, network string) ([]Subnet, error) {
	return list[Subnet](ctx, &c.api, "subnets", subnets.ListOpts{NetworkID: network})
}

// SubnetPool is a subnet pool of Neutron.
type SubnetPool struct {
	ID, Name string
	IPv6     bool
}

// plainPool is a pool without gophercloud's way to read it, which needs all lengths.
type plainPool subnetpools.SubnetPool

// SubnetPool reads a subnet pool by ID or unique name. A pool of the project comes before
// shared ones of the same name. Errors: ErrNotFound, ErrInvalid.
func (c *Cloud) SubnetPool(ctx context.Context, idOrName string) (SubnetPool, error) {
	var p plainPool
	var err error
	if isID(idOrName) {
		p, err = read[plainPool](ctx, &c.api, "subnetpool", idOrName, subnetpools.Get)
	} else {
		var found []plainPool
		found, err = list[plainPool](ctx, &c.api, "subnetpools", subnetpools.ListOpts{Name: idOrName})
		p, err = only("subnetpool", idOrName, found, err, func(p plainPool) owned { return c.api.owned(p.ID, p.ProjectID, p.Shared) })
	}
	return SubnetPool{ID: p.ID, Name: p.Name, IPv6: p.IPversion == 6}, err
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
	found, err := list[Subnet](ctx, &c.api, "subnets", subnets.ListOpts{Name: s.Name, NetworkID: s.Network})
	if err != nil {
		return Subnet{}, err
	}
	found = slices.DeleteFunc(found, func(n Subnet) bool { return !c.api.isOurs(n.Tags, n.Description) })
	if len(found) == 0 {
		made, err := object[Subnet](ctx, &c.api, "create subnet", "subnet", func(ctx context.Context) gophercloud.Result {
			return subnets.Create(ctx, c.api.neutron, s.body(c.api.describe(""))).Result
		})
		if err != nil {
			return Subnet{}, err
		}
		found = append(found, made)
	}
	return tagged(ctx, &c.api, "subnets", tags{found[0].ID, found[0].Tags}, found[0], subnets.Get)
}

// body returns the subnet in a request.
func (s SubnetSpec) body(description string) subnets.CreateOpts {
	var dhcp bool
	o := subnets.CreateOpts{
		Name: s.Name, NetworkID: s.Network, ProjectID: s.Project, Description: description, EnableDHCP: &dhcp,
		IPVersion: gophercloud.IPv4, SubnetPoolID: s.Pool, Prefixlen: s.Length,
	}
	if s.IPv6 || s.Prefix.Addr().Is6() {
		o.IPVersion = gophercloud.IPv6
	}
	if s.Prefix.IsValid() {
		o.CIDR = s.Prefix.String()
	}
	return o
}

// DeleteSubnet deletes a subnet; nil if it is gone. Errors: ErrInUse.
func (c *Cloud) DeleteSubnet(ctx context.Context, id string) error {
	return remove(ctx, &c.api, "delete subnet", id, subnets.Delete)
}
