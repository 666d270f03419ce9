// Package kinds has the table of all kinds of binding, and executes the plugins of interfaces.
package kinds

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/netdev/plug/child"
	"fairlead.dev/fairlead/internal/netdev/plug/hostdevice"
	"fairlead.dev/fairlead/internal/netdev/plug/routed"
)

// removalsAtOnce bounds the threads that wait in the kernel.
const removalsAtOnce = 32

// Executor executes CNI plugins.
type Executor interface {
	// Validate returns all errors of a list of plugins, without executing any.
	Validate(l v1alpha1.PluginList) error
	// Add executes ADD of the plugins for an interface, in order, and returns the last
	// result, of CNI version 1.1.0. After an error Del removes what they have made.
	Add(ctx context.Context, i plug.Interface, m plug.Made) (json.RawMessage, error)
	// Del executes DEL of the plugins, the last one first. It executes all of them, and
	// returns all errors.
	Del(ctx context.Context, m plug.Made) error
	// Check executes CHECK of the plugins. The error describes the difference.
	Check(ctx context.Context, m plug.Made) error
}

// Links lists the links of the host.
type Links interface {
	Links(ctx context.Context) ([]netlink.Link, error)
}

// Table has kinds of binding by name. Its methods call the methods of the same names of
// the kind.
type Table struct {
	host   Links
	byName map[string]plug.Kind
	nameOf func(v1alpha1.Binding) string
	// plugins executes the plugins of interfaces; nil executes none.
	plugins Executor
}

// OpenVSwitch returns kinds whose KindOVS uses the socket of an ovsdb-server, over sockets on
// the host. shutter shuts host ends on a userspace datapath.
func (k *Table) OpenVSwitch(s *link.Sockets, socket string, shutter plug.Shutter) *Table {
	return k.with(plug.KindOVS, plug.OVS(s, socket, shutter))
}

// Sending returns kinds whose KindRouted has the host send to pods from the address of a family that
// source returns, over sockets on the host.
func (k *Table) Sending(s *link.Sockets, source func(is4 bool) netip.Addr) *Table {
	return k.with(plug.KindRouted, routed.New(s, source))
}

// with returns kinds that have one in place of an earlier one of its name.
func (k *Table) with(name string, kind plug.Kind) *Table {
	with := *k
	with.byName = maps.Clone(k.byName)
	with.byName[name] = kind
	return &with
}

// New returns kinds by name, over the links of the host. nameOf returns the name of the kind
// of a binding, as MemberOf does.
func New(host Links, nameOf func(v1alpha1.Binding) string, byName map[string]plug.Kind) *Table {
	return &Table{host: host, byName: byName, nameOf: nameOf}
}

// All returns all kinds of this build, over sockets on the host. Without OpenVSwitch they make
// no interface of plug.KindOVS, and without Executing none of plug.KindDelegate.
func All(s *link.Sockets) *Table {
	return New(s, MemberOf, map[string]plug.Kind{
		plug.KindBridge:      plug.Bridge(s),
		plug.KindRouted:      routed.New(s, nil),
		plug.KindOVS:         plug.OVS(s, "", nil),
		plug.KindMacvlan:     child.Macvlan(s),
		plug.KindIPVLAN:      child.IPVLAN(s),
		plug.KindVLAN:        child.VLAN(s),
		plug.KindHostDevice:  hostdevice.New(s),
		plug.KindAddressOnly: plug.AddressOnly(),
	})
}

// MemberOf returns the name of the member that is set, empty for none.
func MemberOf(b v1alpha1.Binding) string {
	switch {
	case b.Bridge != nil:
		return plug.KindBridge
	case b.Routed != nil:
		return plug.KindRouted
	case b.OVS != nil:
		return plug.KindOVS
	case b.Macvlan != nil:
		return plug.KindMacvlan
	case b.IPVLAN != nil:
		return plug.KindIPVLAN
	case b.VLAN != nil:
		return plug.KindVLAN
	case b.HostDevice != nil:
		return plug.KindHostDevice
	case b.AddressOnly != nil:
		return plug.KindAddressOnly
	case b.Delegate != nil:
		return plug.KindDelegate
	}
	return ""
}

// Names returns the names of the kinds, in order.
func (k *Table) Names() []string { return slices.Sorted(maps.Keys(k.byName)) }

// kind returns a kind by its name. Errors: link.ErrInvalid, with the known names.
func (k *Table) kind(field, name string) (plug.Kind, error) {
	if kind, ok := k.byName[name]; ok {
		return kind, nil
	}
	names := strings.Join(k.Names(), ", ")
	return nil, link.Invalid(fmt.Sprintf("%s %q", field, name), fmt.Errorf("must be one of %s", names))
}

// Plan validates an interface and returns its plug.Made, to be recorded before Make is called.
// Errors: link.ErrInvalid, for a plug.Resolver also the kernel's.
func (k *Table) Plan(at link.Place, i plug.Interface) (plug.Made, error) {
	kind, err := k.kind("binding", k.nameOf(i.Binding))
	if err != nil {
		return plug.Made{}, err
	}
	if err := errors.Join(kind.Validate(i), k.validatePlugins(i)); err != nil {
		return plug.Made{}, err
	}
	m := kind.Plan(at, i)
	m.Plugins = pluginsOf(i)
	if r, ok := kind.(plug.Resolver); ok {
		err = r.Resolve(i, &m)
	}
	return m, err
}

// RandomMAC reports whether an interface of a binding has a random MAC if none is
// requested. It is false for a kind that is a plug.Borrower or that is not known.
func (k *Table) RandomMAC(b v1alpha1.Binding) bool {
	kind, ok := k.byName[k.nameOf(b)]
	if borrower, is := kind.(plug.Borrower); is {
		return !borrower.BorrowsMAC(b)
	}
	return ok
}

// Make makes an interface in an open namespace; on an error it changes nothing. Execute
// executes its plugins afterwards.
func (k *Table) Make(ctx context.Context, ns *link.Namespace, i plug.Interface) error {
	kind, err := k.kind("binding", k.nameOf(i.Binding))
	if err != nil {
		return err
	}
	return kind.Make(ctx, ns, i)
}

// Remove removes an interface, and returns nil if there is none. The DEL of its plugins
// comes first; an error of theirs does not keep the interface.
func (k *Table) Remove(ctx context.Context, m plug.Made) error {
	kind, err := k.of(m)
	if err != nil {
		return err
	}
	return errors.Join(k.deleted(ctx, m), kind.Remove(ctx, m))
}

// of returns the kind of an interface.
func (k *Table) of(m plug.Made) (plug.Kind, error) {
	return k.kind(fmt.Sprintf("kind of interface %s of container %s", m.Name, m.ContainerID), m.Kind)
}

// RemoveUnknown removes the rest of an interface whose kind and record are unknown. at
// has no path if the namespace is unknown.
func (k *Table) RemoveUnknown(ctx context.Context, at link.Place, containerID, name string) error {
	var errs []error
	for _, kind := range k.Names() {
		kind := k.byName[kind]
		errs = append(errs, kind.Remove(ctx, kind.Plan(at, plug.Interface{ContainerID: containerID, Name: name})))
	}
	return errors.Join(errs...)
}

// Gone reports whether there is evidence that no part of an interface can be used any
// more.
func (k *Table) Gone(ctx context.Context, m plug.Made) (bool, error) {
	kind, err := k.of(m)
	if err != nil {
		return false, err
	}
	return kind.Gone(ctx, m)
}

// Differences describes how the host's side of an interface differs from plug.Made, and how
// its plugins find it different.
func (k *Table) Differences(ctx context.Context, m plug.Made, inside plug.Inspected) ([]string, error) {
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
func (k *Table) Repair(ctx context.Context, m plug.Made) (bool, error) {
	kind, err := k.of(m)
	if err != nil {
		return false, err
	}
	if repairer, ok := kind.(plug.Repairer); ok {
		return repairer.Repair(ctx, m)
	}
	return false, nil
}

// Finds reports whether Found lists every interface of a binding: it has a link on the
// host.
func (k *Table) Finds(b v1alpha1.Binding) bool {
	kind, ok := k.byName[k.nameOf(b)]
	return ok && kind.Plan(link.Place{}, plug.Interface{Binding: b}).HostLink != ""
}

// Found lists the interfaces of all kinds that have links on the host. It reads the links
// once.
func (k *Table) Found(ctx context.Context) ([]plug.Found, error) {
	all, err := k.host.Links(ctx)
	if err != nil {
		return nil, err
	}
	var found []plug.Found
	for _, name := range k.Names() {
		if finder, ok := k.byName[name].(plug.Finder); ok {
			found = append(found, finder.Find(ctx, all)...)
		}
	}
	return found, nil
}

// FoundOf lists the interfaces of a sandbox that have links on the host, in the order in which
// they were made.
func (k *Table) FoundOf(ctx context.Context, containerID string) ([]plug.Found, error) {
	found, err := k.Found(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the links of sandbox %s: %w", containerID, err)
	}
	found = slices.DeleteFunc(found, func(f plug.Found) bool { return f.ContainerID != containerID })
	slices.SortFunc(found, func(a, b plug.Found) int { return cmp.Compare(a.Index, b.Index) })
	return found, nil
}

// RemoveAll removes the interfaces of all kinds that have links on the host. It returns
// descriptions of the removed interfaces, and continues after an error.
func (k *Table) RemoveAll(ctx context.Context) ([]string, error) {
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

// pluginsOf returns the plugins of an interface, nil if it has none.
func pluginsOf(i plug.Interface) *plug.Plugins {
	list := i.Chain
	if i.Binding.Delegate != nil {
		list = i.Binding.Delegate
	}
	if list == nil {
		return nil
	}
	return &plug.Plugins{List: *list, Args: i.Args}
}

// Executing returns kinds whose interfaces may have plugins, and which have the kind
// KindDelegate.
func (k *Table) Executing(x Executor) *Table {
	with := k.with(plug.KindDelegate, plug.Delegate())
	with.plugins = x
	return with
}

// validatePlugins returns all errors of the plugins of an interface. Errors:
// link.ErrInvalid.
func (k *Table) validatePlugins(i plug.Interface) error {
	p := pluginsOf(i)
	switch {
	case p == nil:
		return nil
	case k.plugins == nil:
		return link.Invalid("plugins of "+i.Name, errors.New("must be empty: no plugins are executed here"))
	case i.Chain != nil && i.Binding.AddressOnly != nil:
		return link.Invalid("chain of "+i.Name, errors.New("must be empty: another plugin makes the interface"))
	case i.Chain != nil && i.Binding.Delegate != nil:
		return link.Invalid("chain of "+i.Name, errors.New("must be empty: binding.delegate has the whole list"))
	}
	return link.Invalid("plugins of "+i.Name, k.plugins.Validate(p.List))
}

// Execute executes the plugins of an interface after Make, and returns their result, nil
// if the interface has none. After an error the interface has to be removed: a DEL may
// take as long as the ADD.
func (k *Table) Execute(ctx context.Context, i plug.Interface, m plug.Made) (json.RawMessage, error) {
	if m.Plugins == nil {
		return nil, nil
	}
	if k.plugins == nil {
		return nil, k.validatePlugins(i)
	}
	return k.plugins.Add(ctx, i, m)
}

// deleted executes the DEL of the plugins of an interface. It is an error if this build
// executes none: the interface may still exist.
func (k *Table) deleted(ctx context.Context, m plug.Made) error {
	switch {
	case m.Plugins == nil:
		return nil
	case k.plugins == nil:
		return fmt.Errorf("removing %s of container %s: no plugins are executed here, and plugins have made it", m.Name, m.ContainerID)
	}
	return k.plugins.Del(ctx, m)
}

// checked executes the CHECK of the plugins of an interface and returns the differences.
func (k *Table) checked(ctx context.Context, m plug.Made) []string {
	if m.Plugins == nil || k.plugins == nil {
		return nil
	}
	if err := k.plugins.Check(ctx, m); err != nil {
		return []string{fmt.Sprintf("interface %s: %v", m.Name, err)}
	}
	return nil
}
