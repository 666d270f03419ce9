package plug

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/link"
)

// Names of kinds, which are the names of the members of v1alpha1.Binding.
const (
	KindBridge      = "bridge"
	KindOVS         = "ovs"
	KindMacvlan     = "macvlan"
	KindIPVLAN      = "ipvlan"
	KindVLAN        = "vlan"
	KindHostDevice  = "hostDevice"
	KindAddressOnly = "addressOnly"
	KindDelegate    = "delegate"
)

// removalsAtOnce bounds the threads that wait in the kernel.
const removalsAtOnce = 32

// Kinds are kinds of binding by name. Its methods call the methods of the same names of
// the kind.
type Kinds struct {
	sockets *link.Sockets
	byName  map[string]Kind
	nameOf  func(v1alpha1.Binding) string
	// plugins executes the plugins of interfaces; nil executes none.
	plugins Executor
}

// OpenVSwitch returns kinds whose KindOVS uses the socket of an ovsdb-server. shutter shuts
// host ends on a userspace datapath.
func (k *Kinds) OpenVSwitch(socket string, shutter Shutter) *Kinds {
	with := *k
	with.byName = maps.Clone(k.byName)
	with.byName[KindOVS] = OVS(k.sockets, socket, shutter)
	return &with
}

// NewKinds returns kinds by name, over sockets on the host. nameOf returns the name of the
// kind of a binding, as MemberOf does.
func NewKinds(s *link.Sockets, nameOf func(v1alpha1.Binding) string, byName map[string]Kind) *Kinds {
	return &Kinds{sockets: s, byName: byName, nameOf: nameOf}
}

// MemberOf returns the name of the member that is set, empty for none.
func MemberOf(b v1alpha1.Binding) string {
	switch {
	case b.Bridge != nil:
		return KindBridge
	case b.OVS != nil:
		return KindOVS
	case b.Macvlan != nil:
		return KindMacvlan
	case b.IPVLAN != nil:
		return KindIPVLAN
	case b.VLAN != nil:
		return KindVLAN
	case b.HostDevice != nil:
		return KindHostDevice
	case b.AddressOnly != nil:
		return KindAddressOnly
	case b.Delegate != nil:
		return KindDelegate
	}
	return ""
}

// Names returns the names of the kinds, in order.
func (k *Kinds) Names() []string { return slices.Sorted(maps.Keys(k.byName)) }

// kind returns a kind by its name. Errors: link.ErrInvalid, with the known names.
func (k *Kinds) kind(field, name string) (Kind, error) {
	if kind, ok := k.byName[name]; ok {
		return kind, nil
	}
	names := strings.Join(k.Names(), ", ")
	return nil, link.Invalid(fmt.Sprintf("%s %q", field, name), fmt.Errorf("must be one of %s", names))
}

// Plan validates an interface and returns its Made, to be recorded before Make is called.
// Errors: link.ErrInvalid, for a Resolver also the kernel's.
func (k *Kinds) Plan(at link.Place, i Interface) (Made, error) {
	kind, err := k.kind("binding", k.nameOf(i.Binding))
	if err != nil {
		return Made{}, err
	}
	if err := errors.Join(kind.Validate(i), k.validatePlugins(i)); err != nil {
		return Made{}, err
	}
	m := kind.Plan(at, i)
	m.Plugins = pluginsOf(i)
	if r, ok := kind.(Resolver); ok {
		err = r.Resolve(i, &m)
	}
	return m, err
}

// RandomMAC reports whether an interface of a binding has a random MAC if none is
// requested. It is false for a kind that is a Borrower or that is not known.
func (k *Kinds) RandomMAC(b v1alpha1.Binding) bool {
	kind, ok := k.byName[k.nameOf(b)]
	if borrower, is := kind.(Borrower); is {
		return !borrower.BorrowsMAC(b)
	}
	return ok
}

// Make makes an interface in an open namespace; on an error it changes nothing. Execute
// executes its plugins afterwards.
func (k *Kinds) Make(ctx context.Context, ns *link.Namespace, i Interface) error {
	kind, err := k.kind("binding", k.nameOf(i.Binding))
	if err != nil {
		return err
	}
	return kind.Make(ctx, ns, i)
}

// Remove removes an interface, and returns nil if there is none. The DEL of its plugins
// comes first; an error of theirs does not keep the interface.
func (k *Kinds) Remove(ctx context.Context, m Made) error {
	kind, err := k.of(m)
	if err != nil {
		return err
	}
	return errors.Join(k.deleted(ctx, m), kind.Remove(ctx, m))
}

// of returns the kind of an interface.
func (k *Kinds) of(m Made) (Kind, error) {
	return k.kind(fmt.Sprintf("kind of interface %s of container %s", m.Name, m.ContainerID), m.Kind)
}

// RemoveUnknown removes the rest of an interface whose kind and record are unknown. at
// has no path if the namespace is unknown.
func (k *Kinds) RemoveUnknown(ctx context.Context, at link.Place, containerID, name string) error {
	var errs []error
	for _, kind := range k.Names() {
		kind := k.byName[kind]
		errs = append(errs, kind.Remove(ctx, kind.Plan(at, Interface{ContainerID: containerID, Name: name})))
	}
	return errors.Join(errs...)
}

// Gone reports whether there is evidence that no part of an interface can be used any
// more.
func (k *Kinds) Gone(ctx context.Context, m Made) (bool, error) {
	kind, err := k.of(m)
	if err != nil {
		return false, err
	}
	return kind.Gone(ctx, m)
}

// Differences describes how the host's side of an interface differs from Made, and how
// its plugins find it different.
func (k *Kinds) Differences(ctx context.Context, m Made, inside Inspected) ([]string, error) {
	kind, err := k.of(m)
	if err != nil {
		return nil, err
	}
	diffs, err := kind.Differences(ctx, m, inside)
	if err != nil {
		return nil, err
	}
	return append(diffs, k.checked(ctx, m)...), nil
}

// Repair repairs the host's side of an interface, and reports whether that was necessary.
// It returns false if the kind is no Repairer.
func (k *Kinds) Repair(ctx context.Context, m Made) (bool, error) {
	kind, err := k.of(m)
	if err != nil {
		return false, err
	}
	if repairer, ok := kind.(Repairer); ok {
		return repairer.Repair(ctx, m)
	}
	return false, nil
}

// Finds reports whether Found lists every interface of a binding: it has a link on the
// host.
func (k *Kinds) Finds(b v1alpha1.Binding) bool {
	kind, ok := k.byName[k.nameOf(b)]
	return ok && kind.Plan(link.Place{}, Interface{Binding: b}).HostLink != ""
}

// Found lists the interfaces of all kinds that have links on the host. It reads the links
// once.
func (k *Kinds) Found(ctx context.Context) ([]Found, error) {
	all, err := k.sockets.Links(ctx)
	if err != nil {
		return nil, err
	}
	var found []Found
	for _, name := range k.Names() {
		if finder, ok := k.byName[name].(Finder); ok {
			found = append(found, finder.Find(ctx, all)...)
		}
	}
	return found, nil
}

// RemoveAll removes the interfaces of all kinds that have links on the host. It returns
// descriptions of the removed interfaces, and continues after an error.
func (k *Kinds) RemoveAll(ctx context.Context) ([]string, error) {
	found, err := k.Found(ctx)
	if err != nil {
		return nil, err
	}
	var (
		mu      sync.Mutex
		removed []string
		errs    []error
		group   errgroup.Group
	)
	group.SetLimit(removalsAtOnce)
	for _, f := range found {
		group.Go(func() error {
			err := k.Remove(ctx, f.Made)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, err)
				return nil
			}
			removed = append(removed, fmt.Sprintf("%s (%s of container %s)", f.HostLink, f.Name, f.ContainerID))
			return nil
		})
	}
	_ = group.Wait() // errs has them all
	return removed, errors.Join(errs...)
}
