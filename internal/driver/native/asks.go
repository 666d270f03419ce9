package native

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/pod"
)

// Asks is what a pod and a network ask of pools and claims: the driver's own part of a
// driver.Request.
type Asks struct {
	// Pools that the pod asks for, in order; empty for those of the default network.
	Pools []string
	// EachPool asks for addresses of every one of Pools, not of the first that serves the
	// pod. Request.Addresses then has at most one per family of each.
	EachPool bool
	// Claim names the IPClaim, in the pod's namespace, that the pod asks for.
	Claim string
	// ClaimText is what the pod calls that claim, if it is not its name; it says nothing
	// where Claim is empty.
	ClaimText string
	// Sticky names the claim, in the pod's namespace, that the pod has in pools of this
	// stickiness if it asks for none.
	Sticky map[v1alpha1.Sticky]string
	// Owners are what those claims are made for, and end with.
	Owners map[v1alpha1.Sticky]metav1.OwnerReference
	// Former are names that those claims had in an earlier version.
	Former map[v1alpha1.Sticky]string
}

// Read is driver.Parts.Read. What a pod asks for on the default network holds nowhere
// else.
func Read(p *corev1.Pod, i *pod.Interface) (any, error) {
	pools, err := pod.Pools(p)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", driver.ErrInvalid, err)
	}
	wishes, err := pod.WishesOf(p)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", driver.ErrInvalid, err)
	}
	if i.Network != v1alpha1.DefaultNetwork {
		return &Asks{
			Pools: i.Pools, EachPool: i.EachPool,
			Sticky: furtherClaims(wishes.Sticky, i.Name), Owners: wishes.Owners, Former: furtherClaims(wishes.Former, i.Name),
		}, nil
	}
	return &Asks{
		Pools: pools,
		Claim: wishes.Claim, ClaimText: wishes.ClaimText,
		Sticky: wishes.Sticky, Owners: wishes.Owners, Former: wishes.Former,
	}, nil
}

// furtherClaims are those that a pod has in sticky pools for a further interface.
func furtherClaims(byDefault map[v1alpha1.Sticky]string, iface string) map[v1alpha1.Sticky]string {
	out := make(map[v1alpha1.Sticky]string, len(byDefault))
	for sticky, claim := range byDefault {
		out[sticky] = pod.ClaimOn(claim, iface)
	}
	return out
}

// request is a driver.Request with what it asks of pools.
type request struct {
	driver.Request
	Asks
}

// newRequest returns a copy: it changes nothing of the driver.Request.
func newRequest(asked *driver.Request) *request {
	r := &request{Request: *asked}
	if asks, ok := asked.Asks.(*Asks); ok {
		r.Asks = *asks
	}
	return r
}
