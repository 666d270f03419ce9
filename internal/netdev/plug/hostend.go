package plug

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/netdev/link"
)

// Remove removes both ends, and their shaper.
func (v *Veths) Remove(ctx context.Context, m Made) error { return v.detach(ctx, m.HostLink) }

// Gone is true if the namespace has ended, or if neither end exists any more: the kernel
// removes both together. A host end under another name, or an interface in the namespace,
// proves that the pair still exists.
func (v *Veths) Gone(ctx context.Context, m Made) (bool, error) {
	if m.Namespace.Gone() {
		return true, nil
	}
	index, err := v.linkIndex(m.HostLink)
	if err != nil || index != 0 {
		return false, err
	}
	if renamed, err := v.renamed(ctx, m); err != nil || renamed {
		return false, err
	}
	ns, err := m.Namespace.Open()
	if err != nil { // it cannot be read, and the missing host end suffices as proof
		return true, nil
	}
	defer ns.Close() //nolint:errcheck // it was only read
	err = ns.With(func(c *link.Conn) error {
		index, err = c.Index(m.Name)
		return err
	})
	return err == nil && index == 0, err
}

// renamed reports whether the host end exists under another name.
func (v *Veths) renamed(ctx context.Context, m Made) (bool, error) {
	h, err := v.Handle()
	if err != nil {
		return false, err
	}
	defer h.Close()
	all, err := link.Dump(ctx, "listing links", h.LinkList)
	return slices.ContainsFunc(all, func(l netlink.Link) bool {
		containerID, name, _, ok := link.ParseAlias(l.Attrs().Alias)
		return ok && l.Type() == "veth" && containerID == m.ContainerID && name == m.Name
	}), err
}

// createPair makes the veth. It first removes a link of Fairlead that has its name: an
// earlier attempt left it and was never recorded. Errors: link.ErrExists if a link of
// others has the name, otherwise the kernel's.
func (v *Veths) createPair(ctx context.Context, host *link.Conn, ns *link.Namespace, plan Pair) error {
	err := host.Do(create(plan))
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	cleared, lookErr := v.clearLeftover(ctx, ns, plan.Host)
	if lookErr != nil {
		return lookErr
	}
	if !cleared {
		return fmt.Errorf("%w: %s in the namespace at %q", link.ErrExists, plan.Peer, ns.Path())
	}
	if err := host.Do(create(plan)); err != nil {
		if errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("%w: %s in the namespace at %q", link.ErrExists, plan.Peer, ns.Path())
		}
		return err
	}
	return nil
}

// clearLeftover removes the host end with this name, and returns false if there is none.
// Errors: link.ErrExists if it is not Fairlead's or belongs to another sandbox, otherwise
// the kernel's.
func (v *Veths) clearLeftover(ctx context.Context, ns *link.Namespace, name string) (bool, error) {
	h, err := v.Handle()
	if err != nil {
		return false, err
	}
	defer h.Close()
	dev, err := h.LinkByName(name)
	if link.IsNoLink(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("looking at %s: %w", name, err)
	}
	a := dev.Attrs()
	// The alias is set right after the creation, in a second step.
	if dev.Type() != "veth" || (a.Alias != "" && !strings.HasPrefix(a.Alias, link.AliasPrefix)) {
		return false, fmt.Errorf("%w: host end %s is taken by a %s that is not ours (alias %q)", link.ErrExists, name, dev.Type(), a.Alias)
	}
	if a.NetNsID >= 0 {
		id, err := h.GetNetNsIdByFd(ns.FD())
		if err != nil {
			return false, fmt.Errorf("looking for the other end of %s: %w", name, err)
		}
		if id != a.NetNsID {
			return false, fmt.Errorf("%w: host end %s has its other end in another namespace than the one at %q", link.ErrExists, name, ns.Path())
		}
	}
	return true, v.detach(ctx, name)
}

// The name of a host end is HostPrefix and HostDigits letters or digits.
const (
	HostPrefix = "fl"
	// RoutedPrefix begins the names of the host ends of routed interfaces.
	RoutedPrefix = "flp"
	HostDigits   = link.MaxNameLength - len(HostPrefix)
)

// lowerBase32 has only characters that need no quoting anywhere.
var lowerBase32 = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// HostName returns the name of the host end of an interface: "fl" and 65 bits of a hash
// in base 32, 15 bytes in all. The same arguments always give the same name, so the links
// of a crash between creation and record are known.
func HostName(containerID, ifname string) string {
	digits := hostDigits(containerID, ifname)
	if strings.HasPrefix(HostPrefix+digits, RoutedPrefix) {
		digits = "q" + digits[1:]
	}
	return HostPrefix + digits
}

// RoutedName returns the name of the host end of a routed interface: RoutedPrefix and 60 bits of
// the hash. No other name begins so, nor do those of other programs: rules of a firewall may name
// all such links.
func RoutedName(containerID, ifname string) string {
	return RoutedPrefix + hostDigits(containerID, ifname)[:HostDigits-1]
}

func hostDigits(containerID, ifname string) string {
	sum := sha256.Sum256([]byte(containerID + "\x00" + ifname))
	return lowerBase32.EncodeToString(sum[:])[:HostDigits]
}

// IsHostName reports whether a name has the form of that of a host end.
func IsHostName(name string) bool {
	digits, ok := strings.CutPrefix(name, HostPrefix)
	if !ok || len(digits) != HostDigits {
		return false
	}
	return strings.Trim(digits, "abcdefghijklmnopqrstuvwxyz234567") == ""
}

// detach removes the host end with this name, and with it the other end. It returns when
// the kernel has removed the link, for which the kernel waits some 30 ms; the waits of
// several removals overlap. It returns nil if there is no such link. If ctx ends first,
// the removal goes on. Errors: link.ErrInvalid if the name is not that of a host end,
// otherwise the kernel's.
func (v *Veths) detach(ctx context.Context, hostName string) error {
	if !IsHostName(hostName) {
		return fmt.Errorf("%w: %q must be the name of a host end, %q and %d letters or digits", link.ErrInvalid, hostName, HostPrefix, HostDigits)
	}
	for {
		before, err := v.linkIndex(hostName)
		if err != nil {
			return err
		}
		if err := v.removeOnce(ctx, hostName); err != nil {
			return err
		}
		if err := v.removeShaper(shaperName(hostName)); err != nil {
			return err
		}
		// The shared removal may have been that of an earlier link of the same name.
		after, err := v.linkIndex(hostName)
		if err != nil || after == 0 || after != before {
			return err
		}
	}
}

// removeOnce removes the link with this name. Concurrent callers wait for one removal: a
// second removal would find the link gone while the first still waits for its end.
func (v *Veths) removeOnce(ctx context.Context, name string) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("removing %s: %w", name, err)
	}
	done := v.removals.DoChan(name, func() (any, error) {
		c, err := v.Conn()
		if err != nil {
			return nil, err
		}
		defer v.Release(c)
		err = c.Do(link.Remove(name))
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

// linkIndex returns the index of the host's link with this name, 0 if there is none.
func (v *Veths) linkIndex(name string) (int, error) {
	c, err := v.Conn()
	if err != nil {
		return 0, err
	}
	defer v.Release(c)
	return c.Index(name)
}

// EndDifferences returns the differences between the host end of a pair and its record. ok is
// false if the end is missing, and nothing else can be compared.
func (v *Veths) EndDifferences(m Made, inside Inspected) (end link.State, diffs []string, ok bool, err error) {
	end, err = v.LinkState(m.HostLink)
	switch {
	case errors.Is(err, link.ErrNoLink):
		return end, []string{fmt.Sprintf("host end %s of %s is missing", m.HostLink, m.Name)}, false, nil
	case err != nil:
		return end, nil, false, err
	case inside.Peer != end.Index:
		diffs = append(diffs, fmt.Sprintf("interface %s does not lead to its host end %s", m.Name, m.HostLink))
	}
	if !end.Up {
		diffs = append(diffs, fmt.Sprintf("host end %s of %s is down", m.HostLink, m.Name))
	}
	if group := m.EndGroup(); end.Group != group && m.Kind != KindOVS { // Neutron checks those
		diffs = append(diffs, fmt.Sprintf("host end %s of %s is in group %d, not %d, and so its sources are not checked", m.HostLink, m.Name, end.Group, group))
	}
	return end, diffs, true, nil
}

// EndOf returns the interface of a host end of a kind, and the last word of its alias; false if the
// link is none. A host end is a veth with a name of the right form, as nameOf returns it. Its alias is
// set after its creation, so it may be empty, but must not contradict the name.
func EndOf(l netlink.Link, kind string, nameOf func(containerID, ifname string) string) (f Found, word string, ok bool) {
	a := l.Attrs()
	if l.Type() != "veth" || !IsHostName(a.Name) || strings.HasPrefix(a.Name, RoutedPrefix) != (kind == KindRouted) {
		return Found{}, "", false
	}
	f = Found{Made: Made{Kind: kind, HostLink: a.Name}, Index: a.Index, Up: a.Flags&net.FlagUp != 0}
	f.Unchecked = a.Group != f.EndGroup() && (kind != KindRouted || a.Group != link.GroupLeg)
	if a.Alias == "" {
		return f, "", true
	}
	f.ContainerID, f.Name, word, ok = link.ParseAlias(a.Alias)
	return f, word, ok && nameOf(f.ContainerID, f.Name) == a.Name
}
