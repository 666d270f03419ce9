// Package plug makes, inspects and removes the interfaces of sandboxes.
//
// All that it puts on a host can be told from what others put there: routes carry
// link.RouteProtocol, links an alias that begins with link.AliasPrefix. It keeps no state
// of its own beyond open sockets; the kernel is asked each time.
package plug

import (
	"context"

	"github.com/vishvananda/netlink"

	"fairlead.dev/fairlead/internal/netdev/link"
)

// Kind makes the interfaces of one kind of binding, and answers for each of them later
// from its Made alone: the process that made it, the API and the configuration may be
// gone. Its methods may be called from many goroutines at once, for one interface by one
// at a time. Package plugtest has the tests that every kind passes.
type Kind interface {
	// Validate returns everything that is wrong with an interface, without a look at the
	// kernel. Errors: link.ErrInvalid, with the field, its value and what is accepted.
	Validate(i Interface) error
	// Plan returns what Make makes of an interface in the namespace at a place, without
	// a look at the kernel. It is written down before Make is called, so that a crash
	// leaves nothing unexplained. For an interface of which only ContainerID and Name
	// are known it returns enough for Remove.
	Plan(at link.Place, i Interface) Made
	// Make makes an interface in an open namespace, as Plan says. After an error nothing of
	// the attempt is left. What an earlier attempt for the same interface left, it
	// replaces. Errors: link.ErrInvalid, link.ErrExists if others have the name,
	// link.ErrNoBridge if what the interface is plugged into is missing, otherwise the
	// kernel's.
	Make(ctx context.Context, ns *link.Namespace, i Interface) error
	// Remove removes the interface and all that was made with it, and returns when it is
	// gone. It returns nil if there is nothing, or nothing any more.
	Remove(ctx context.Context, m Made) error
	// Gone tells whether there is evidence that nothing of the interface can be used any
	// more. As long as that is not clear it is false.
	Gone(ctx context.Context, m Made) (bool, error)
	// Differences returns in words how the host's side differs from what was made,
	// nothing if all is well. inside is the interface as Inspect returns it.
	Differences(ctx context.Context, m Made, inside Inspected) ([]string, error)
}

// Mender is a Kind that can put the host's side of an interface in order.
type Mender interface {
	// Mend puts the host's side in order, and tells whether it had to. What is missing as a
	// whole it does not make: the sandbox has to be made again.
	Mend(ctx context.Context, m Made) (bool, error)
}

// Finder is a Kind whose interfaces have links on the host.
type Finder interface {
	// Find returns the interfaces of the kind whose links are among all links of the
	// host.
	Find(all []netlink.Link) []Found
}

// Made is one interface as it was made, or is being made. It is part of a sandbox's
// record and holds within one boot of the node.
type Made struct {
	// Kind is the name of the kind, the member of v1alpha1.Binding.
	Kind string `json:"kind"`
	// ContainerID is the runtime's name of the sandbox. It is empty for what was found on
	// the host without a name of its owner.
	ContainerID string `json:"containerID,omitempty"`
	// Name of the interface inside the sandbox.
	Name string `json:"name,omitempty"`
	// Namespace is that of the sandbox, without a path for what was found on the host.
	Namespace link.Place `json:"namespace,omitzero"`
	// HostLink is the name of the host's link that carries the interface's traffic, by
	// which the packet filter knows the pod. It is empty for kinds that have none.
	HostLink string `json:"hostLink,omitempty"`
	// Bridge is the name of the bridge that HostLink is a port of, if the kind has one.
	Bridge string `json:"bridge,omitempty"`
}

// Found is an interface that was found by a link on the host.
type Found struct {
	// Made is as far as the link tells, and enough to remove it. Bridge is the one that the
	// link is a port of now.
	Made
	// Index of the link. A link that was made later has a higher index.
	Index int
	Up    bool
}

// Astray tells whether the link is not as the interface was made: down, or not on its
// bridge.
func (f Found) Astray(m Made) bool { return !f.Up || m.Bridge != "" && f.Bridge != m.Bridge }
