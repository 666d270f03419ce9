// Package child makes interfaces of sandboxes on a parent, which is a link of the host: macvlan,
// ipvlan and VLAN.
package child

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
)

// child is a kind of interfaces that are made on a parent, which is a link of the host.
// The interface itself is in the sandbox alone, and ends with the namespace.
type child struct {
	*link.Sockets
	childType
}

// childType describes one kind of child.
type childType struct {
	// kind is its name, linkType the kernel's name.
	kind, linkType string
	// parent returns the parent, false if the binding is of another kind.
	parent func(v1alpha1.Binding) (parentLink, bool)
	// check returns all errors of an interface that only this kind has.
	check func(plug.Interface) error
	// data adds the kind's attributes to those of a new link.
	data func(*nl.RtAttr, v1alpha1.Binding)
	// borrows reports whether the interface has the MAC of its parent.
	borrows func(v1alpha1.Binding) bool
	// free removes the remains of a dead sandbox that keep the kernel from making an
	// interface, and reports whether there were any; nil for a kind without such remains.
	free func(ctx context.Context, s *link.Sockets, parent int, i plug.Interface) (bool, error)
}

// createTries bounds how often an interface is created. After each attempt an obstacle is
// removed: a link of an earlier attempt, or of a dead sandbox.
const createTries = 3

func (c *child) Validate(i plug.Interface) error {
	err := i.ValidateUnlimited()
	parent, ok := c.parent(i.Binding)
	if !ok {
		return errors.Join(err, link.Invalid("binding", fmt.Errorf("must be %s, with the name of a parent", c.kind)))
	}
	return errors.Join(err, parent.check(i.Name), c.check(i))
}

func (c *child) Plan(at link.Place, i plug.Interface) plug.Made {
	parent, _ := c.parent(i.Binding)
	return plug.Made{Kind: c.kind, ContainerID: i.ContainerID, Name: i.Name, Namespace: at, Parent: parent.name}
}

func (c *child) BorrowsMAC(b v1alpha1.Binding) bool { return c.borrows(b) }

// Make creates the interface in the namespace under its last name: a later move would take
// some 17 ms, in which the kernel changes no other link.
func (c *child) Make(ctx context.Context, ns *link.Namespace, i plug.Interface) (err error) {
	if err := c.Validate(i); err != nil {
		return err
	}
	if err := c.RefuseHost(ns); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("plugging %s: %w", i.Name, err)
	}
	host, err := c.Conn()
	if err != nil {
		return err
	}
	defer c.Release(host)
	named, _ := c.parent(i.Binding)
	name, err := named.find(ctx, c.Sockets, i.Name)
	if err != nil {
		return err
	}
	parent, err := findParent(host, name, &i)
	if err != nil {
		return err
	}
	created := false
	defer func() {
		if err != nil && (created || host.Broken()) {
			_, removal := c.removeIn(context.WithoutCancel(ctx), ns, c.Plan(ns.Place(), i))
			err = errors.Join(err, removal)
		}
	}()
	if err := c.create(ctx, host, ns, parent, i); err != nil {
		return err
	}
	created = true
	err = ns.With(func(conn *link.Conn) error {
		alias := link.LongAlias(i.ContainerID, i.Name, ns.Path()) // the path is the evidence that a sandbox lives
		return conn.Do(link.SetLink(i.Name, "alias", nl.NewRtAttr(unix.IFLA_IFALIAS, []byte(alias))))
	})
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("plugging %s: %w", i.Name, err)
	}
	return plug.Configure(ns, i)
}

// Remove removes the interface also from a namespace that is held by a process after its
// path is gone.
func (c *child) Remove(ctx context.Context, m plug.Made) error {
	ns, err := m.Namespace.Open()
	if err == nil {
		defer ns.Close() //nolint:errcheck // it does not affect the removal
		_, err = c.removeIn(ctx, ns, m)
		return err
	}
	if !errors.Is(err, link.ErrNotNamespace) {
		return err
	}
	if m.Namespace.Path == "" {
		return nil // the interface ends with its namespace
	}
	return c.removeOutside(ctx, m)
}

func (c *child) Gone(_ context.Context, m plug.Made) (bool, error) { return m.Namespace.Gone(), nil }

func (c *child) Differences(_ context.Context, m plug.Made, inside plug.Inspected) ([]string, error) {
	if m.Parent == "" {
		return nil, nil
	}
	parent, err := c.LinkState(m.Parent)
	switch {
	case errors.Is(err, link.ErrNoLink):
		return []string{fmt.Sprintf("parent %s of %s is missing", m.Parent, m.Name)}, nil
	case err != nil:
		return nil, err
	case inside.Peer != parent.Index:
		return []string{fmt.Sprintf("interface %s is not on its parent %s", m.Name, m.Parent)}, nil
	case !parent.Up:
		return []string{fmt.Sprintf("parent %s of %s is down", m.Parent, m.Name)}, nil
	}
	return nil, nil
}

// findParent returns the index of the parent, and sets an MTU of 0 to that of the parent.
// Errors: link.ErrNoParent, link.ErrInvalid if the MTU does not fit, otherwise the
// kernel's.
func findParent(host *link.Conn, name string, i *plug.Interface) (int, error) {
	index, err := host.Index(name)
	if err != nil {
		return 0, err
	}
	mtu, err := host.MTU(name)
	if err != nil {
		return 0, err
	}
	up, err := host.Up(name)
	if err != nil {
		return 0, err
	}
	if index == 0 || mtu == 0 || !up {
		return 0, fmt.Errorf("%w: %s, the parent of interface %s", link.ErrNoParent, name, i.Name)
	}
	return index, i.FitMTU(mtu, "parent "+name)
}

// create creates the link. Errors: link.ErrExists if a link of others has the name or the
// place on the parent, otherwise the kernel's.
func (c *child) create(ctx context.Context, host *link.Conn, ns *link.Namespace, parent int, i plug.Interface) error {
	for range createTries {
		err := host.Do(link.AssignID(ns.FD()), c.created(ns, parent, i))
		switch {
		case errors.Is(err, unix.EOPNOTSUPP):
			return link.Invalid("binding "+c.kind, fmt.Errorf("must not be used on this node: its kernel has no links of the type %s", c.linkType))
		case !errors.Is(err, unix.EEXIST):
			return err
		}
		cleared, err := c.removeIn(ctx, ns, c.Plan(ns.Place(), i))
		if err == nil && !cleared {
			err = ns.NameIsFree(i.Name)
		}
		if err == nil && !cleared && c.free != nil {
			cleared, err = c.free(ctx, c.Sockets, parent, i)
		}
		if err != nil {
			return err
		}
		if !cleared {
			break
		}
	}
	return fmt.Errorf("%w: %s in the namespace at %q", link.ErrExists, i.Name, ns.Path())
}

// created returns the step that creates the link. Its group marks it as Fairlead's until
// it has its alias, which the creation cannot set.
func (c *child) created(ns *link.Namespace, parent int, i plug.Interface) link.Step {
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(i.Name)))
	req.AddData(nl.NewRtAttr(unix.IFLA_LINK, nl.Uint32Attr(uint32(parent))))
	req.AddData(nl.NewRtAttr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(ns.FD()))))
	req.AddData(nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(i.MTU))))
	req.AddData(nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(link.GroupPort)))
	if i.MAC != nil {
		req.AddData(nl.NewRtAttr(unix.IFLA_ADDRESS, i.MAC))
	}
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated(c.linkType))
	c.data(info.AddRtAttr(nl.IFLA_INFO_DATA, nil), i.Binding)
	req.AddData(info)
	return link.Step{What: fmt.Sprintf("creating %s %s", c.linkType, i.Name), Req: req}
}

// removeIn removes the interface from a namespace, and reports whether it was there.
func (c *child) removeIn(ctx context.Context, ns *link.Namespace, m plug.Made) (bool, error) {
	h, err := ns.Handle()
	if err != nil {
		return false, err
	}
	defer h.Close()
	all, err := link.Dump(ctx, "listing links", h.LinkList)
	if err != nil {
		return false, err
	}
	n := slices.IndexFunc(all, func(l netlink.Link) bool { return c.owns(l, m) })
	if n < 0 {
		return false, nil
	}
	if err := h.LinkDel(all[n]); err != nil && !errors.Is(err, unix.ENODEV) {
		return false, fmt.Errorf("removing %s: %w", m.Name, err)
	}
	return true, nil
}

// removeOutside removes the interface from a namespace that no path leads to.
func (c *child) removeOutside(ctx context.Context, m plug.Made) error {
	all, err := c.OutsideLinks(ctx)
	if err != nil {
		return err
	}
	conn, err := c.Conn()
	if err != nil {
		return err
	}
	defer c.Release(conn)
	for _, l := range all {
		if l.Attrs().Alias == "" || !c.owns(l.Link, m) {
			continue
		}
		err := conn.Do(link.RemoveOutside(l))
		if err != nil && !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.EINVAL) { // EINVAL: the namespace has ended
			return err
		}
	}
	return nil
}

// owns reports whether a link is the interface. Its alias names the interface, or is not
// set yet. A sandbox may have changed it.
func (c *child) owns(l netlink.Link, m plug.Made) bool {
	a := l.Attrs()
	if l.Type() != c.linkType {
		return false
	}
	if a.Alias == "" {
		return a.Name == m.Name && a.Group == link.GroupPort
	}
	containerID, name, _, ok := link.ParseAlias(a.Alias)
	return ok && containerID == m.ContainerID && name == m.Name
}
