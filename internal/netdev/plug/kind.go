// Package plug makes, inspects and removes the interfaces of sandboxes.
//
// Its objects on a host carry marks that distinguish them from those of other programs:
// routes carry link.RouteProtocol, links an alias that begins with link.AliasPrefix. The
// package keeps no state beyond open sockets; it reads the kernel each time.
package plug

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/vishvananda/netlink"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/link"
)

// Names of kinds, which are the names of the members of v1alpha1.Binding.
const (
	KindBridge      = "bridge"
	KindRouted      = "routed"
	KindOVS         = "ovs"
	KindMacvlan     = "macvlan"
	KindIPVLAN      = "ipvlan"
	KindVLAN        = "vlan"
	KindHostDevice  = "hostDevice"
	KindAddressOnly = "addressOnly"
	KindDelegate    = "delegate"
)

// Kind makes the interfaces of one kind of binding. The later methods need only the Made
// of an interface: the process that made it, the API and the configuration may be gone.
// Methods may be called concurrently, but for one interface only one at a time. Package
// plugtest has the tests that every kind passes.
type Kind interface {
	// Validate returns all errors of an interface, without reading the kernel. Errors:
	// link.ErrInvalid, with the field, its value and the accepted values.
	Validate(i Interface) error
	// Plan returns the Made of an interface in the namespace at a place, without reading
	// the kernel. It is recorded before Make is called, so that every object is explained
	// after a crash. If only ContainerID and Name of the interface are known, the result
	// is still enough for Remove.
	Plan(at link.Place, i Interface) Made
	// Make makes an interface in an open namespace, as Plan describes it. On an error it
	// leaves nothing of its attempt. It replaces the objects of an earlier attempt for
	// the same interface. Errors: link.ErrInvalid, link.ErrExists if others have the
	// name, link.ErrNoBridge or link.ErrNoParent if the bridge, the parent or the device of
	// the interface is missing on the host, otherwise the kernel's.
	Make(ctx context.Context, ns *link.Namespace, i Interface) error
	// Remove removes the interface and all objects that were made with it, and returns
	// when they are gone. It returns nil if there are none.
	Remove(ctx context.Context, m Made) error
	// Gone reports whether there is evidence that no part of the interface can be used
	// any more. It is false in case of doubt.
	Gone(ctx context.Context, m Made) (bool, error)
	// Differences describes how the host's side differs from Made; empty if it does not.
	// inside is the interface as Inspect returns it.
	Differences(ctx context.Context, m Made, inside Inspected) ([]string, error)
}

// Repairer is a Kind that can repair the host's side of an interface.
type Repairer interface {
	// Repair repairs the host's side, and reports whether that was necessary. It does not
	// replace a missing link: the sandbox has to be made again.
	Repair(ctx context.Context, m Made) (bool, error)
}

// Finder is a Kind whose interfaces have links on the host, or leave some there.
type Finder interface {
	// Find returns the interfaces of the kind whose links are among all links of the
	// host, or whose traces are elsewhere on it.
	Find(ctx context.Context, all []netlink.Link) []Found
}

// Resolver is a Kind whose interfaces exist before they are plugged.
type Resolver interface {
	// Resolve completes the Made of an interface with what the kernel knows about it. It
	// leaves the Made as it is if the interface is not there yet.
	Resolve(i Interface, m *Made) error
}

// Borrower is a Kind whose interfaces may have the MAC of another link.
type Borrower interface {
	// BorrowsMAC reports whether an interface without a requested MAC has that of another
	// link, and must not get a random one.
	BorrowsMAC(b v1alpha1.Binding) bool
}

// Made describes one interface that was made, or is being made. It is part of a sandbox's
// record and valid within one boot of the node.
type Made struct {
	// Kind is the name of the kind, the member of v1alpha1.Binding.
	Kind string `json:"kind"`
	// ContainerID is the runtime's name of the sandbox. It is empty for an interface that
	// was found on the host without the name of its owner.
	ContainerID string `json:"containerID,omitempty"`
	// Name of the interface inside the sandbox.
	Name string `json:"name,omitempty"`
	// Namespace is the place of the sandbox's namespace, without a path for an interface
	// that was found on the host.
	Namespace link.Place `json:"namespace,omitzero"`
	// HostLink is the name of the host's link that carries the interface's traffic. The
	// packet filter identifies the pod by it. It is empty for kinds without such a link.
	HostLink string `json:"hostLink,omitempty"`
	// Bridge is the name of the bridge that HostLink is a port of, if the kind has one.
	Bridge string `json:"bridge,omitempty"`
	// Port has the settings of HostLink as a port of Bridge that differ from those of a
	// binding without options, nil for none.
	Port *Port `json:"port,omitempty"`
	// Routes are the destinations that the host routes to HostLink, in order; none if the kind
	// has no such routes.
	Routes []string `json:"routes,omitempty"`
	// Leg is true for a host end without addresses of its own interface.
	Leg bool `json:"leg,omitempty"`
	// MAC is the requested MAC of the interface, if the host's neighbours need it.
	MAC string `json:"mac,omitempty"`
	// OVS describes HostLink as a port of Open vSwitch; nil for another kind, or if it is not
	// known.
	OVS *OVSPort `json:"ovs,omitempty"`
	// Parent is the name of the host's link that the interface is made on, if the kind has
	// one.
	Parent string `json:"parent,omitempty"`
	// Device is the device of the host that becomes the interface, as it was before; nil if
	// the kind has none or the device was not there.
	Device *Device `json:"device,omitempty"`
	// Plugins are the CNI plugins that are executed for the interface; nil for none.
	Plugins *Plugins `json:"plugins,omitempty"`
}

// EndGroup returns the group (ip-link(8)) of the host end.
func (m Made) EndGroup() uint32 {
	switch {
	case m.Kind != KindRouted:
		return link.GroupPort
	case m.Leg:
		return link.GroupLeg
	}
	return link.GroupRouted
}

// Device is a device of the host as it was before it became the interface of a sandbox.
type Device struct {
	Name string `json:"name"`
	MTU  int    `json:"mtu"`
	MAC  string `json:"mac,omitempty"`
	Up   bool   `json:"up,omitempty"`
	// Alias of the device.
	Alias string `json:"alias,omitempty"`
	// PCIAddress of the device, "" if it is on another bus. It is not part of the mark.
	PCIAddress string `json:"pciAddress,omitempty"`
	// PermanentMAC is the MAC that the hardware has, which no sandbox can change. It is not
	// part of the mark.
	PermanentMAC string `json:"permanentMAC,omitempty"`
	// VF are the settings of a virtual function that its interface changes, as package
	// hostdevice writes them.
	VF string `json:"vf,omitempty"`
}

// Found is an interface that was found by a link on the host.
type Found struct {
	// Made is as complete as the link allows, and enough to remove the interface. Its
	// Bridge is the current bridge of the link.
	Made
	// Index of the link. Later links have higher indexes.
	Index int
	Up    bool
	// Unchecked is true for a host end outside of the groups whose sources the packet filter checks.
	Unchecked bool
	// Shaper is true if the shaper of the host end is left alone, and Index is that of the shaper.
	Shaper bool
}

// Astray reports whether the link differs from Made: it is down, not a port of its bridge,
// without its routes or in another group.
func (f Found) Astray(m Made) bool {
	return !f.Up || f.Unchecked || m.Bridge != "" && f.Bridge != m.Bridge || !slices.Equal(f.Routes, m.Routes)
}

// Port has settings of a port of a bridge. The zero value has those of a binding
// without options.
type Port struct {
	// NoHairpin keeps the bridge from sending frames back out of the port.
	NoHairpin bool `json:"noHairpin,omitempty"`
	// Isolated keeps frames of other isolated ports away.
	Isolated bool `json:"isolated,omitempty"`
	// VLAN is that of untagged frames, 0 for none. Trunk are the VLANs with tags.
	VLAN  int32                `json:"vlan,omitempty"`
	Trunk []v1alpha1.VLANRange `json:"trunk,omitempty"`
}

// Plugins are the CNI plugins that are executed for an interface: those that make it, or
// those of its chain. It has the whole input of their DEL and CHECK.
type Plugins struct {
	List v1alpha1.PluginList `json:"list"`
	// Args is CNI_ARGS.
	Args string `json:"args,omitempty"`
	// Result is the result of the ADD, of CNI version 1.1.0. It is empty before.
	Result json.RawMessage `json:"result,omitempty"`
}
