// Package objects converts objects of the API to the types of package ipam, which does
// not know the API.
package objects

import (
	"fmt"
	"net/netip"
	"time"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/ipam"
)

// Pool converts an IPPool. The error joins an *ipam.FieldError for every problem of the
// spec.
func Pool(o *v1alpha1.IPPool) (*ipam.Pool, error) {
	var cooldown time.Duration // the default, unless the API server has filled it in
	if o.Spec.Cooldown != nil {
		cooldown = o.Spec.Cooldown.Duration
	}
	return ipam.ParsePool(ipam.PoolSpec{
		Name:     o.Name,
		Domain:   o.Spec.Domain,
		Ranges:   o.Spec.Ranges,
		Excludes: o.Spec.Excludes,
		Gateways: o.Spec.Gateways,
		UseEdges: o.Spec.UseEdges,
		Cooldown: cooldown,
		Order:    ipam.Order(o.Spec.Order),
		PerNode:  o.Spec.Placement == v1alpha1.PlacementPerNode,

		MaxBlocksPerNode: int(o.Spec.MaxBlocksPerNode),
	})
}

// Block converts an IPBlock. It fails if spec.cidr is not the prefix of a block.
// Unreadable slots are quarantined and cause no error.
func Block(o *v1alpha1.IPBlock) (*ipam.Block, error) {
	prefix, err := netip.ParsePrefix(o.Spec.CIDR)
	if err != nil || ipam.BlockOf(prefix.Addr()) != prefix {
		return nil, fmt.Errorf("spec.cidr: %q is not a block: an IPv4 /26 or an IPv6 /122 without host bits", o.Spec.CIDR)
	}
	return ipam.DecodeBlock(prefix, o.Spec.Node, o.Spec.Slots), nil
}

// Reservations converts IPReservations. If a reservation has mistakes, its valid
// entries are in force, and its status reports the mistakes.
func Reservations(list []v1alpha1.IPReservation) []*ipam.Reservation {
	var out []*ipam.Reservation
	for i := range list {
		r, _ := ipam.ParseReservation(list[i].Spec.Domain, list[i].Spec.Ranges)
		out = append(out, r)
	}
	return out
}
