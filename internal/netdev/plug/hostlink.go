package plug

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/netdev/link"
)

// The name of a host end is hostPrefix and hostDigits letters or digits.
const (
	HostPrefix = "fl"
	HostDigits = link.MaxNameLength - len(HostPrefix)
)

// lowerBase32 keeps names in the characters that need quoting nowhere.
var lowerBase32 = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// removalsAtOnce bounds the threads that wait in the kernel.
const removalsAtOnce = 32

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

// HostName returns the name of the host end of an interface: "fl" and 65 bits
// of a hash in base 32, 15 bytes in all. The same arguments give the same name
// always, so a crash between create and record leaves nothing unknown.
func HostName(containerID, ifname string) string {
	sum := sha256.Sum256([]byte(containerID + "\x00" + ifname))
	return HostPrefix + lowerBase32.EncodeToString(sum[:])[:HostDigits]
}

func isHostName(name string) bool {
	digits, ok := strings.CutPrefix(name, HostPrefix)
	if !ok || len(digits) != HostDigits {
		return false
	}
	return strings.Trim(digits, "abcdefghijklmnopqrstuvwxyz234567") == ""
}

// hostAlias is what a host end carries, so that the kernel alone can tell
// whose it is.
func hostAlias(containerID, ifname string) string {
	return link.AliasPrefix + containerID + " " + ifname
}

func parseAlias(alias string) (containerID, ifname string, ok bool) {
	rest, ok := strings.CutPrefix(alias, link.AliasPrefix)
	if !ok {
		return "", "", false
	}
	return strings.Cut(rest, " ")
}

// Detach removes the host end of that name, and with it the other end. It
// returns when the link is really gone from the kernel, which waits some 30 ms
// for that; many may run at once, and the kernel's waits overlap. It is nil
// when there is no such link. When ctx ends first the removal goes on.
func (k *Kernel) Detach(ctx context.Context, hostName string) error {
	if !isHostName(hostName) {
		return fmt.Errorf("%w: %q must be the name of a host end, %q and %d letters or digits", link.ErrInvalid, hostName, HostPrefix, HostDigits)
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
		c, err := k.Conn()
		if err != nil {
			return nil, err
		}
		defer k.Release(c)
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

// linkIndex returns the index of the host's link of that name, 0 without one.
func (k *Kernel) linkIndex(name string) (int, error) {
	c, err := k.Conn()
	if err != nil {
		return 0, err
	}
	defer k.Release(c)
	return c.Index(name)
}

// DetachAll removes all host ends that are ours. It returns in words what it removed, and
// goes on after an error.
func (k *Kernel) DetachAll(ctx context.Context) ([]string, error) {
	ends, err := k.Links(ctx)
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
	for _, l := range ends {
		group.Go(func() error {
			err := k.Detach(ctx, l.Name)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, err)
				return nil
			}
			removed = append(removed, fmt.Sprintf("%s (%s of container %s)", l.Name, l.Interface, l.ContainerID))
			return nil
		})
	}
	_ = group.Wait() // errs has them all
	return removed, errors.Join(errs...)
}

// Links lists the host ends that are ours, and those of which only what limited
// them is left.
func (k *Kernel) Links(ctx context.Context) ([]HostLink, error) {
	h, err := k.Handle()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	all, err := link.Dump(ctx, "listing links", h.LinkList)
	if err != nil {
		return nil, err
	}
	return hostLinks(all), nil
}

// hostLinks returns those of all links of the host that are ours, and those of which only
// what limited them is left.
func hostLinks(all []netlink.Link) []HostLink {
	names := make(map[int]string, len(all))
	for _, link := range all {
		names[link.Attrs().Index] = link.Attrs().Name
	}
	var ours []HostLink
	for _, link := range all {
		if l, ok := ToHostLink(link); ok {
			l.Bridge = names[l.Master]
			ours = append(ours, l)
		}
	}
	return append(ours, shapers(all)...)
}

// ToHostLink tells whether the link is a host end of ours: a veth with our kind
// of name and an alias that does not speak against it.
func ToHostLink(link netlink.Link) (HostLink, bool) {
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
