// Package ipam decides which address is handed out next. It is pure: it does
// no I/O, reads no clock and starts no goroutine, so everything in it can be
// tested by calling it.
//
// A Pool is the parsed form of what an operator wrote: a filter over the
// address space of a domain. A Block is what became of 64 neighbouring
// addresses of a domain. Pools of one domain may overlap; because they meet in
// the same blocks, an address has one holder whatever pool it came from. How
// blocks are stored and changed by many at once is the business of package
// block.
package ipam

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strings"
	"time"
)

// Family is an IP address family.
type Family uint8

// The families, named by the version in the IP header.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// FamilyOf says which family an address belongs to. An IPv4-mapped IPv6
// address is IPv6; ParsePool accepts none.
func FamilyOf(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// String returns "IPv4" or "IPv6".
func (f Family) String() string { return fmt.Sprintf("IPv%d", uint8(f)) }

// Order says which free address comes next.
type Order string

// The orders. An empty order is Fifo.
const (
	// Fifo takes, within a block, never-used addresses first, then the one that
	// has been free longest. A block is used up before another is begun, so that
	// there are as many blocks as the pods need: with the never-used addresses of
	// all blocks first, an IPv6 /64 would leave a block behind for each 64 pods
	// that ever were.
	Fifo Order = "Fifo"
	// Lowest takes the lowest free address.
	Lowest Order = "Lowest"
)

// Limits of the cooldown: how long a released address rests.
const (
	// MinCooldown is never undercut, not even when a pool is exhausted: CNI
	// plugins give addresses back before the link is gone.
	MinCooldown = 5 * time.Second
	// DefaultCooldown is used for a pool that does not name one.
	DefaultCooldown = 30 * time.Second
	// MaxCooldown is the longest that a pool may name.
	MaxCooldown = 24 * time.Hour
)

// DefaultDomain is used for a pool that does not name one.
const DefaultDomain = "default"

// Counts says how full a pool or a piece of it is. Usable = Free + Allocated +
// Cooling + Held + Reserved, always. Usable stops at math.MaxInt64, which an
// IPv6 pool may exceed; Free is then too low by as much.
type Counts struct {
	// Usable addresses: the ranges without excludes, gateways and edges.
	Usable uint64
	// Free addresses can be taken now.
	Free uint64
	// Allocated addresses have a holder.
	Allocated uint64
	// Cooling addresses were released less than the pool's cooldown ago.
	Cooling uint64
	// Held addresses are kept for a claim.
	Held uint64
	// Reserved addresses are withheld: by a reservation, because their record
	// cannot be read, or because they lie in a block that the pool may not
	// draw from.
	Reserved uint64
}

// String lists the counts for an error text or a log.
func (c Counts) String() string {
	return fmt.Sprintf("usable=%d free=%d allocated=%d cooling=%d held=%d reserved=%d",
		c.Usable, c.Free, c.Allocated, c.Cooling, c.Held, c.Reserved)
}

// saturating limits counts so that they fit the int64 of the API.
const saturating = math.MaxInt64

func addSaturating(a, b uint64) uint64 {
	if a > saturating || b > saturating-a {
		return saturating
	}
	return a + b
}

// Holder is who has an address: an interface of one incarnation of a pod. All but
// Node, which is for placement, is its identity.
type Holder struct {
	// PodUID is the pod's own UID in the API, which no user can write.
	PodUID    string
	Interface string
	Namespace string
	Pod       string
	Node      string
}

// Same says whether two holders are one: the same interface of the same pod.
func (h Holder) Same(o Holder) bool {
	return h.PodUID == o.PodUID && h.Interface == o.Interface && h.Namespace == o.Namespace && h.Pod == o.Pod
}

// String names the holder for people.
func (h Holder) String() string {
	return fmt.Sprintf("%s/%s/%s (uid %s, node %s)", h.Namespace, h.Pod, h.Interface, h.PodUID, h.Node)
}

// What Take and TakeAddr fail with, beside a *TakenError.
var (
	// ErrFull says that the block has no address that the pool may have now.
	ErrFull = errors.New("no eligible address in the block")
	// ErrNotAllowed says that the pool does not hand out the address asked for.
	ErrNotAllowed = errors.New("the pool does not hand out this address")
	// ErrBadHolder says that a holder cannot be written down; the text names
	// the field.
	ErrBadHolder = errors.New("invalid holder")
	// ErrBadClaim says that the key of a claim cannot be written down.
	ErrBadClaim = errors.New("invalid claim")
)

// TakenError says why a requested address cannot be had. Its text is for who asked,
// and says nothing of other namespaces; Detail is for operators.
type TakenError struct {
	Addr netip.Addr
	// Asker wants the address.
	Asker Holder
	// Holder has the address; the zero Holder when nobody has.
	Holder Holder
	// Claim is the key of the claim that the address is kept for; empty for none.
	Claim string
	// Reason completes the sentence "<addr> ..." where neither has it.
	Reason string
}

// Error names the address, and the holder or the claim of the asker's namespace.
func (e *TakenError) Error() string {
	namespace, _, _ := strings.Cut(e.Claim, "/")
	switch {
	case e.Holder != (Holder{}) && e.Holder.Namespace != e.Asker.Namespace:
		return e.Addr.String() + " is held by another pod"
	case e.Claim != "" && namespace != e.Asker.Namespace:
		return e.Addr.String() + " is kept for a claim of others"
	}
	return e.Detail()
}

// Detail names the address, and the holder or the claim wherever it is.
func (e *TakenError) Detail() string {
	switch {
	case e.Holder != (Holder{}):
		return e.Addr.String() + " is held by " + e.Holder.String()
	case e.Claim != "":
		return e.Addr.String() + " is kept for claim " + e.Claim
	}
	return e.Addr.String() + " " + e.Reason
}
