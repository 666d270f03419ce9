package block

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/ipam"
)

// Kube is a Client over the API server, without a cache.
type Kube struct {
	Writer client.Writer
	Live   client.Reader
}

// Create implements Client.
func (k Kube) Create(ctx context.Context, o *v1alpha1.IPBlock) (*v1alpha1.IPBlock, error) {
	o = o.DeepCopy()
	return o, k.Writer.Create(ctx, o)
}

// Update implements Client. One empty entry clears the managed fields (Kubernetes,
// server-side apply, "clearing managedFields"). IPBlocks have one writer, so the fields
// are useless, and the API server spends a quarter of a write on them (3.7 ms of
// processor time with, 2.9 ms without).
func (k Kube) Update(ctx context.Context, o *v1alpha1.IPBlock) (*v1alpha1.IPBlock, error) {
	o = o.DeepCopy()
	o.ManagedFields = []metav1.ManagedFieldsEntry{{}}
	return o, k.Writer.Update(ctx, o)
}

// Get implements Client.
func (k Kube) Get(ctx context.Context, name string) (*v1alpha1.IPBlock, error) {
	o := &v1alpha1.IPBlock{}
	return o, k.Live.Get(ctx, client.ObjectKey{Name: name}, o)
}

// Delete implements Client.
func (k Kube) Delete(ctx context.Context, o *v1alpha1.IPBlock) error {
	return k.Writer.Delete(ctx, o, client.Preconditions{UID: &o.UID, ResourceVersion: &o.ResourceVersion})
}

// PoolOf converts an IPPool. The error joins an *ipam.FieldError for every problem of the
// spec.
func PoolOf(o *v1alpha1.IPPool) (*ipam.Pool, error) {
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

// Decode converts an IPBlock. It fails if spec.cidr is not the prefix of a block.
// Unreadable slots are quarantined and cause no error.
func Decode(o *v1alpha1.IPBlock) (*ipam.Block, error) {
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
