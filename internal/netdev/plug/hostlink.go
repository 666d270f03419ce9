package plug

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/netdev/link"
)

// The name of a host end is HostPrefix and HostDigits letters or digits.
const (
	HostPrefix = "fl"
	HostDigits = link.MaxNameLength - len(HostPrefix)
)

// lowerBase32 has only characters that need no quoting anywhere.
var lowerBase32 = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// HostName returns the name of the host end of an interface: "fl" and 65 bits of a hash
// in base 32, 15 bytes in all. The same arguments always give the same name, so the links
// of a crash between creation and record are known.
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

// detach removes the host end with this name, and with it the other end. It returns when
// the kernel has removed the link, for which the kernel waits some 30 ms; the waits of
// several removals overlap. It returns nil if there is no such link. If ctx ends first,
// the removal goes on. Errors: link.ErrInvalid if the name is not that of a host end,
// otherwise the kernel's.
func (b *bridge) detach(ctx context.Context, hostName string) error {
	if !isHostName(hostName) {
		return fmt.Errorf("%w: %q must be the name of a host end, %q and %d letters or digits", link.ErrInvalid, hostName, HostPrefix, HostDigits)
	}
	for {
		before, err := b.linkIndex(hostName)
		if err != nil {
			return err
		}
		if err := b.removeOnce(ctx, hostName); err != nil {
			return err
		}
		if err := b.removeShaper(shaperName(hostName)); err != nil {
			return err
		}
		// The shared removal may have been that of an earlier link of the same name.
		after, err := b.linkIndex(hostName)
		if err != nil || after == 0 || after != before {
			return err
		}
	}
}

// removeOnce removes the link with this name. Concurrent callers wait for one removal: a
// second removal would find the link gone while the first still waits for its end.
func (b *bridge) removeOnce(ctx context.Context, name string) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("removing %s: %w", name, err)
	}
	done := b.removals.DoChan(name, func() (any, error) {
		c, err := b.Conn()
		if err != nil {
			return nil, err
		}
		defer b.Release(c)
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
func (b *bridge) linkIndex(name string) (int, error) {
	c, err := b.Conn()
	if err != nil {
		return 0, err
	}
	defer b.Release(c)
	return c.Index(name)
}

// FoundEnd returns the interface of a host end, false if the link is no host end of
// Fairlead on a Linux bridge. A host end is a veth with a name of the right form. Its alias is set after
// its creation, so it may be empty, but must not contradict the name. Bridge is that of the
// alias, "" if the alias names none.
func FoundEnd(l netlink.Link) (Found, bool) {
	a := l.Attrs()
	if l.Type() != "veth" || !isHostName(a.Name) {
		return Found{}, false
	}
	f := Found{Made: Made{Kind: KindBridge, HostLink: a.Name}, Index: a.Index, Up: a.Flags&net.FlagUp != 0}
	if a.Alias == "" {
		return f, true
	}
	containerID, name, bridge, ok := link.ParseAlias(a.Alias)
	f.ContainerID, f.Name, f.Bridge = containerID, name, bridge
	return f, ok && HostName(containerID, name) == a.Name && !strings.HasPrefix(bridge, ovsWord)
}

// endDifferences returns the differences between the host end of a pair and its record. ok is
// false if the end is missing, and nothing else can be compared.
func (b *bridge) endDifferences(m Made, inside Inspected) (end link.State, diffs []string, ok bool, err error) {
	end, err = b.LinkState(m.HostLink)
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
	return end, diffs, true, nil
}
