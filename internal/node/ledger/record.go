package ledger

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/nft"
)

// State is the stage of an ADD.
type State string

const (
	// Attaching means that the interfaces are being made. An ADD in this state is in
	// memory alone, unless it makes interfaces that have no link on the host.
	Attaching State = "attaching"
	// Attached means that the ADD has answered, or is about to.
	Attached State = "attached"
	// Deleting means that the DEL has answered, or is about to. The links are being
	// removed.
	Deleting State = "deleting"
)

// Record is the daemon's record of one sandbox. It is put into the ledger before the
// first link is made, written to disk before an ADD answers, and removed after the last
// link is gone. A record in the ledger is never changed, only replaced.
type Record struct {
	Version     int    `json:"version"`
	ContainerID string `json:"containerID"`
	BootID      string `json:"bootID"`

	// Netns is the path that the runtime passed, and NetnsID the namespace at that path.
	// Both are empty in a damaged record, and in that of links whose ADD is not known.
	Netns   string           `json:"netns,omitempty"`
	NetnsID link.NamespaceID `json:"netnsID"`

	Pod        Pod        `json:"pod"`
	Attachment Attachment `json:"attachment"`

	// Adds are the ADDs of the sandbox, oldest first.
	Adds []Add `json:"adds"`

	// Damaged is true if the file of the sandbox could not be read, or was lost. Nothing
	// but the sandbox's ContainerID is known: there are no Adds.
	Damaged bool `json:"damaged,omitempty"`
	// Ended is true if a DEL of a damaged record named no namespace: the runtime has ended it.
	Ended bool `json:"ended,omitempty"`
	// Wanted are the interfaces of the PodAttachment of a damaged record, also when it is away.
	Wanted []v1alpha1.Interface `json:"wanted,omitempty"`
}

// Add is one ADD and its interfaces: either all interfaces of the pod that Fairlead
// plugs, the default interface first, or one interface that another plugin makes, after
// that plugin has asked for its addresses.
type Add struct {
	// IfName is the CNI_IFNAME of the ADD.
	IfName     string      `json:"ifName,omitempty"`
	State      State       `json:"state"`
	Interfaces []Interface `json:"interfaces"`
	// HostPorts are forwarded to the default interface.
	HostPorts []nft.Port `json:"hostPorts,omitempty"`
	// Result is the CNI result, in the version in which the ADD answered.
	Result json.RawMessage `json:"result,omitempty"`

	// Generation is that of the PodAttachment whose spec the sandbox has, 0 if it is not
	// known.
	Generation int64 `json:"generation,omitempty"`
	// Failures are the reasons why the running sandbox has not got interfaces, by name.
	Failures map[string]string `json:"failures,omitempty"`

	StartedAt time.Time `json:"startedAt,omitzero"`
	// AttachedAt is the time at which the ADD was about to answer. The file has a
	// slightly earlier time, that of Prepare.
	AttachedAt time.Time `json:"attachedAt,omitzero"`
}

// Interface is one interface as it was resolved for this sandbox. DEL uses it and not
// the PodAttachment, which may have changed since.
type Interface struct {
	v1alpha1.Interface
	// Made describes the interface in the kernel. It is known before the interface is
	// made.
	Made plug.Made `json:"made"`
	// Bandwidth limits the interface; nil means no limit.
	Bandwidth *plug.Bandwidth `json:"bandwidth,omitempty"`
	// State is Attaching while the running sandbox gets the interface, Deleting while it
	// loses the interface, and otherwise empty.
	State State `json:"state,omitempty"`
	// HotPlugged is true if the running sandbox got the interface after its ADD, whose
	// result lacks it.
	HotPlugged bool `json:"hotPlugged,omitempty"`
	// Unannounced is true until the addresses of a hot-plugged interface are announced, after
	// its network carries its traffic.
	Unannounced bool `json:"unannounced,omitempty"`
}

// Pod names a pod.
type Pod struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid,omitempty"`
}

// PodOf returns the pod of a PodAttachment, as a runtime names it.
func PodOf(pa *v1alpha1.PodAttachment) Pod {
	of := pa.Pod()
	return Pod{Namespace: of.Namespace, Name: of.Name, UID: pa.Spec.PodUID}
}

func (p Pod) String() string { return p.Namespace + "/" + p.Name }

// Is reports whether o may name the same pod. An empty UID of o matches every UID,
// because old runtimes do not pass it.
func (p Pod) Is(o Pod) bool {
	return p.Namespace == o.Namespace && p.Name == o.Name && (o.UID == "" || p.UID == o.UID)
}

// Attachment names one PodAttachment. The UID is never used again for another.
type Attachment struct {
	Name string    `json:"name,omitempty"`
	UID  types.UID `json:"uid,omitempty"`
}

// With returns a changed copy.
func (r *Record) With(change func(*Record)) *Record {
	c := *r
	c.Adds = slices.Clone(r.Adds)
	change(&c)
	return &c
}

// WithAdd returns a copy that has ADD a, in place of an earlier ADD that is the same.
func (r *Record) WithAdd(a Add) *Record {
	return r.With(func(r *Record) {
		if i := slices.IndexFunc(r.Adds, a.same); i >= 0 {
			r.Adds[i] = a
		} else {
			r.Adds = append(r.Adds, a)
		}
	})
}

// AttachmentKey names the PodAttachment that the sandbox holds.
func (r *Record) AttachmentKey() types.NamespacedName {
	return types.NamespacedName{Namespace: r.Pod.Namespace, Name: r.Attachment.Name}
}

// Plug returns the ADD that Fairlead plugs, nil if the sandbox has none.
func (r *Record) Plug() *Add {
	return r.find(func(a Add) bool { return !a.AddressOnly() })
}

// Attached returns the ADD that Fairlead plugs if it is in state Attached, nil otherwise.
// A nil record has none.
func (r *Record) Attached() *Add {
	if r == nil {
		return nil
	}
	if add := r.Plug(); add != nil && add.State == Attached {
		return add
	}
	return nil
}

// AddressesFor returns the ADD of another plugin's interface by its CNI_IFNAME, nil if
// the sandbox has none.
func (r *Record) AddressesFor(ifName string) *Add {
	return r.find(func(a Add) bool { return a.AddressOnly() && a.IfName == ifName })
}

func (r *Record) find(is func(Add) bool) *Add {
	if i := slices.IndexFunc(r.Adds, is); i >= 0 {
		return &r.Adds[i]
	}
	return nil
}

// Interfaces returns the interfaces of all ADDs.
func (r *Record) Interfaces() (out []Interface) {
	for _, a := range r.Adds {
		out = append(out, a.Interfaces...)
	}
	return out
}

// AttachedAt returns the latest AttachedAt of the ADDs in state Attached, zero if there
// is none.
func (r *Record) AttachedAt() (at time.Time) {
	for _, a := range r.Adds {
		if a.State == Attached && a.AttachedAt.After(at) {
			at = a.AttachedAt
		}
	}
	return at
}

// In returns the ADDs of the sandbox that are in state s.
func (r *Record) In(s State) []Add {
	return slices.DeleteFunc(slices.Clone(r.Adds), func(a Add) bool { return a.State != s })
}

// Has reports whether an ADD of the sandbox is in state s.
func (r *Record) Has(s State) bool {
	return r.find(func(a Add) bool { return a.State == s }) != nil
}

// isInUse reports whether the sandbox has interfaces and no DEL is removing any.
func (r *Record) isInUse() bool { return r.Has(Attached) && !r.Has(Deleting) }

// AddressOnly reports whether the ADD is of an interface that another plugin makes.
func (a *Add) AddressOnly() bool {
	return len(a.Interfaces) == 1 && a.Interfaces[0].Binding.AddressOnly != nil
}

// Executes reports whether plugins are executed for an interface of the ADD.
func (a *Add) Executes() bool {
	return slices.ContainsFunc(a.Interfaces, func(i Interface) bool { return i.Made.Plugins != nil })
}

// Borrows reports whether an interface of the ADD is a device of the host.
func (a *Add) Borrows() bool {
	return slices.ContainsFunc(a.Interfaces, func(i Interface) bool { return i.Made.Kind == plug.KindHostDevice })
}

// Delegated returns the interface that executed plugins make under a name, nil if the
// sandbox has none.
func (r *Record) Delegated(ifName string) (*Add, *Interface) {
	add := r.Plug()
	if add == nil {
		return nil, nil
	}
	for n := range add.Interfaces {
		if i := &add.Interfaces[n]; i.Name == ifName && i.Binding.Delegate != nil {
			return add, i
		}
	}
	return nil, nil
}

// same reports whether two ADDs of a sandbox are for the same interfaces. A sandbox has
// one ADD that Fairlead plugs, and one for each interface of other plugins.
func (a *Add) same(o Add) bool {
	return a.AddressOnly() == o.AddressOnly() && a.IfName == o.IfName
}

// IsOf reports whether ifName may be the CNI_IFNAME of the ADD. Either name may be
// empty, which matches every name: that of the ADD if it is not known, ifName in a DEL
// without CNI_IFNAME.
func (a *Add) IsOf(ifName string) bool {
	return ifName == "" || a.IfName == "" || ifName == a.IfName
}

// shares reports whether two ADDs for one PodAttachment have an interface name or an
// address in common.
func (a *Add) shares(o *Add) bool {
	for _, i := range a.Interfaces {
		for _, j := range o.Interfaces {
			if i.Name == j.Name || slices.ContainsFunc(i.Addresses, func(s string) bool { return slices.Contains(j.Addresses, s) }) {
				return true
			}
		}
	}
	return false
}

// claims returns the names of the claims that hold addresses of the ADD, each once, in
// order.
func (a *Add) claims() []string {
	var names []string
	for _, i := range a.Interfaces {
		if i.Claim != "" {
			names = append(names, i.Claim)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Identity returns the names of the ADD's claims, joined by commas. ADDs of a pod and of
// its successors with the same identity wait for each other. It is empty for most pods,
// which have no claim.
func (a *Add) Identity() string { return strings.Join(a.claims(), ",") }

// PlainAddresses returns the addresses of an interface without their prefix lengths. The
// error names the interface with an address that cannot be parsed.
func PlainAddresses(i v1alpha1.Interface) ([]netip.Addr, error) {
	var addrs []netip.Addr
	for _, cidr := range i.Addresses {
		p, err := netip.ParsePrefix(cidr)
		if err != nil {
			return nil, fmt.Errorf("interface %s: %w", i.Name, err)
		}
		addrs = append(addrs, p.Addr())
	}
	return addrs, nil
}

// Parse returns the interface in the form that kinds of binding take. Errors name the
// field that cannot be parsed.
func (i *Interface) Parse(containerID string) (plug.Interface, error) {
	p, err := i.ParseAddresses()
	if err != nil {
		return p, err
	}
	p.ContainerID, p.Name, p.MTU, p.Bandwidth = containerID, i.Name, int(i.MTU), i.Bandwidth
	p.Binding, p.Chain = i.Binding, i.Chain
	if i.MAC != "" {
		mac, err := net.ParseMAC(i.MAC)
		if err != nil {
			return p, fmt.Errorf("mac: %w", err)
		}
		p.MAC = mac
	}
	return p, nil
}

// Known returns the MAC and the MTU of the interface, in bytes; empty and 0 where they are
// those of another link. A device keeps its own unless others are requested.
func (i *Interface) Known() (mac string, mtu int) {
	mac, mtu = i.MAC, int(i.MTU)
	if d := i.Made.Device; d != nil {
		mac, mtu = cmp.Or(mac, d.MAC), cmp.Or(mtu, d.MTU)
	}
	return mac, mtu
}

// ParseAddresses returns the addresses, gateways and routes of an interface, which
// another plugin may make. Errors name the field that cannot be parsed.
func (i *Interface) ParseAddresses() (p plug.Interface, err error) {
	for n, s := range i.Addresses {
		a, err := netip.ParsePrefix(s)
		if err != nil {
			return p, fmt.Errorf("addresses[%d]: %w", n, err)
		}
		p.Addresses = append(p.Addresses, a)
	}
	for n, s := range i.Gateways {
		g, err := netip.ParseAddr(s)
		if err != nil {
			return p, fmt.Errorf("gateways[%d]: %w", n, err)
		}
		p.Gateways = append(p.Gateways, g)
	}
	for n, r := range i.Routes {
		route, err := parseRoute(r)
		if err != nil {
			return p, fmt.Errorf("routes[%d]: %w", n, err)
		}
		p.Routes = append(p.Routes, route)
	}
	return p, nil
}

func parseRoute(r v1alpha1.Route) (out plug.Route, err error) {
	if out.Destination, err = netip.ParsePrefix(r.Destination); err != nil {
		return out, fmt.Errorf("destination: %w", err)
	}
	if r.Gateway == "" {
		return out, nil
	}
	if out.Gateway, err = netip.ParseAddr(r.Gateway); err != nil {
		return out, fmt.Errorf("gateway: %w", err)
	}
	return out, nil
}

// RoutesOf returns the routes that the kernel must have for an interface: its own, then
// its default routes.
func RoutesOf(p plug.Interface) []plug.Route {
	return append(slices.Clone(p.Routes), p.DefaultRoutes()...)
}
