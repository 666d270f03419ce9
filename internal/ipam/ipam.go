// Package ipam decides which address is handed out next. It is pure: it does no I/O,
// reads no clock and starts no goroutine, so a test can call all of it directly.
//
// A Pool is a parsed pool spec: a filter over the addresses of a domain. A Block is the
// state of 64 neighbouring addresses of a domain. Pools of one domain may overlap. They
// share the blocks, so an address has one holder whatever pool it came from. Package
// block stores the blocks and lets many callers change them at once.
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

// FamilyOf returns the family of an address. An IPv4-mapped IPv6 address is IPv6;
// ParsePool accepts none.
func FamilyOf(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// String returns "IPv4" or "IPv6".
func (f Family) String() string { return fmt.Sprintf("IPv%d", uint8(f)) }

// Order decides which free address is handed out next.
type Order string

// The orders. An empty order is Fifo.
const (
	// Fifo takes, within a block, never-used addresses first, then the address that has
	// been free longest. A block is used up before another is begun, so there are only
	// as many blocks as the pods need. If never-used addresses of all blocks came
	// first, an IPv6 /64 would leave a block behind for every 64 pods that ever
	// existed.
	Fifo Order = "Fifo"
	// Lowest takes the lowest free address.
	Lowest Order = "Lowest"
)

// Limits of the cooldown, the time that a released address is not handed out.
const (
	// MinCooldown applies even when a pool is exhausted: CNI plugins give addresses
	// back before the link is gone.
	MinCooldown = 5 * time.Second
	// DefaultCooldown is the cooldown of a pool that sets none.
	DefaultCooldown = 30 * time.Second
	// MaxCooldown is the longest cooldown that a pool may set.
	MaxCooldown = 24 * time.Hour
)

// DefaultDomain is the domain of a pool that sets none.
const DefaultDomain = "default"

// Counts are the numbers of addresses of a pool, or of a part of it, by state. Always,
// Usable = Free + Allocated + Cooling + Held + Reserved. Usable is at most
// math.MaxInt64, which an IPv6 pool may exceed; Free is then too low by the difference.
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
	// Reserved addresses are withheld: by a reservation, because their record is
	// unreadable, or because they lie in a block that the pool may not use.
	Reserved uint64
}

// String lists the counts for an error text or a log.
func (c Counts) String() string {
	return fmt.Sprintf("usable=%d free=%d allocated=%d cooling=%d held=%d reserved=%d",
		c.Usable, c.Free, c.Allocated, c.Cooling, c.Held, c.Reserved)
}

// saturating is the limit of counts, so that they fit the int64 of the API.
const saturating = math.MaxInt64

func addSaturating(a, b uint64) uint64 {
	if a > saturating || b > saturating-a {
		return saturating
	}
	return a + b
}

// Holder has an address: it is an interface of one pod. All fields but Node are its
// identity; Node is for placement.
type Holder struct {
	// PodUID is the pod's own UID in the API, which no user can write.
	PodUID    string
	Interface string
	Namespace string
	Pod       string
	Node      string
}

// Same reports whether two holders have the same identity.
func (h Holder) Same(o Holder) bool {
	return h.PodUID == o.PodUID && h.Interface == o.Interface && h.Namespace == o.Namespace && h.Pod == o.Pod
}

// String returns the holder for messages.
func (h Holder) String() string {
	return fmt.Sprintf("%s/%s/%s (uid %s, node %s)", h.Namespace, h.Pod, h.Interface, h.PodUID, h.Node)
}

// Errors of Take and TakeAddr, beside *TakenError.
var (
	// ErrFull means that the pool may take no address of the block now.
	ErrFull = errors.New("no eligible address in the block")
	// ErrNotAllowed means that the pool does not hand out the requested address.
	ErrNotAllowed = errors.New("the pool does not hand out this address")
	// ErrBadHolder means that the holder cannot be recorded. The text names the field.
	ErrBadHolder = errors.New("invalid holder")
	// ErrBadClaim means that the key of the claim cannot be recorded.
	ErrBadClaim = errors.New("invalid claim")
)

// TakenError is the reason why a requested address is not available. Error is for the
// user who asked and reveals nothing of other namespaces; Detail is for operators.
type TakenError struct {
	Addr netip.Addr
	// Asker is the holder that requested the address.
	Asker Holder
	// Holder has the address; zero if it has no holder. Second shares it, as the other
	// launcher of a virtual machine that migrates; zero if none does.
	Holder, Second Holder
	// Claim is the key of the claim that the address is kept for; empty for none.
	Claim string
	// Reason completes the sentence "<addr> ..." if the address has neither holder nor
	// claim.
	Reason string
}

// Error names the address. It names the holder or the claim only if it is in the
// asker's namespace.
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

// Detail names the address and the holder or the claim.
func (e *TakenError) Detail() string {
	switch {
	case e.Second != (Holder{}):
		return fmt.Sprintf("%s is held by %s and by %s, between which its virtual machine migrates", e.Addr, e.Holder, e.Second)
	case e.Holder != (Holder{}):
		return e.Addr.String() + " is held by " + e.Holder.String()
	case e.Claim != "":
		return e.Addr.String() + " is kept for claim " + e.Claim
	}
	return e.Addr.String() + " " + e.Reason
}
