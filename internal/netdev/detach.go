package netdev

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// dumpTries bounds how often a list is read again because links came and went
// while the kernel was writing it.
const dumpTries = 10

// HostLink is the host end of an interface of a sandbox.
type HostLink struct {
	Name        string
	Index       int
	ContainerID string // empty when the link carries no alias
	Interface   string // its name in the sandbox
	Master      int    // index of its bridge, 0 when it is in none
	Bridge      string // name of its bridge, as far as Links knows it
	Up          bool
}

// Detach removes the host end of that name, and with it the other end. It
// returns when the link is really gone from the kernel, which waits some 30 ms
// for that; many may run at once, and the kernel's waits overlap. It is nil
// when there is no such link. When ctx ends first the removal goes on.
func (k *Kernel) Detach(ctx context.Context, hostName string) error {
	if !isHostName(hostName) {
		return fmt.Errorf("%w: %q must be the name of a host end, %q and %d letters or digits", ErrInvalid, hostName, hostPrefix, hostDigits)
	}
	for {
		before, err := k.linkIndex(hostName)
		if err != nil {
			return err
		}
		if err := k.removeOnce(ctx, hostName); err != nil {
			return err
		}
		if err := k.removeShaper(shaperName(hostName)); err != nil {
			return err
		}
		// The removal that was shared may have been that of a predecessor with
		// the same name.
		after, err := k.linkIndex(hostName)
		if err != nil || after == 0 || after != before {
			return err
		}
	}
}

// removeOnce removes the link of that name. A second caller would see the link
// gone while the first still waits for its end, so both wait for one removal.
func (k *Kernel) removeOnce(ctx context.Context, name string) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("removing %s: %w", name, err)
	}
	done := k.removals.DoChan(name, func() (any, error) {
		c, err := k.conn()
		if err != nil {
			return nil, err
		}
		defer k.release(c)
		err = c.do(remove(name))
		if errors.Is(err, unix.ENODEV) {
			return nil, nil
		}
		return nil, err
	})
	select {
	case r := <-done:
		return r.Err
	case <-ctx.Done():
		return fmt.Errorf("removing %s: %w", name, ctx.Err())
	}
}

// linkIndex returns the index of the host's link of that name, 0 without one.
func (k *Kernel) linkIndex(name string) (int, error) {
	c, err := k.conn()
	if err != nil {
		return 0, err
	}
	defer k.release(c)
	return c.index(name)
}

// Links lists the host ends that are ours, and those of which only what limited
// them is left.
func (k *Kernel) Links(ctx context.Context) ([]HostLink, error) {
	h, err := k.handle()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	all, err := dump(ctx, "listing links", h.LinkList)
	if err != nil {
		return nil, err
	}
	names := make(map[int]string, len(all))
	for _, link := range all {
		names[link.Attrs().Index] = link.Attrs().Name
	}
	var ours []HostLink
	for _, link := range all {
		if l, ok := hostLink(link); ok {
			l.Bridge = names[l.Master]
			ours = append(ours, l)
		}
	}
	return append(ours, shapers(all)...), nil
}

// hostLink tells whether the link is a host end of ours: a veth with our kind
// of name and an alias that does not speak against it.
func hostLink(link netlink.Link) (HostLink, bool) {
	a := link.Attrs()
	if link.Type() != "veth" || !isHostName(a.Name) {
		return HostLink{}, false
	}
	l := HostLink{Name: a.Name, Index: a.Index, Master: a.MasterIndex, Up: a.Flags&net.FlagUp != 0}
	if a.Alias == "" {
		return l, true
	}
	id, ifname, ok := parseAlias(a.Alias)
	l.ContainerID, l.Interface = id, ifname
	return l, ok && HostName(id, ifname) == a.Name
}

// dump reads a list until the kernel says that it is complete.
func dump[T any](ctx context.Context, what string, list func() ([]T, error)) ([]T, error) {
	for range dumpTries {
		all, err := list()
		if err == nil {
			return all, nil
		}
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			return nil, fmt.Errorf("%s: %w", what, err)
		}
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("%s: %w", what, err)
		}
	}
	return nil, fmt.Errorf("%s: interrupted by changes %d times: %w", what, dumpTries, netlink.ErrDumpInterrupted)
}
