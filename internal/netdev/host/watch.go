package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/netdev/link"
)

// watchBuffer holds the events of a burst of pods while we are not scheduled,
// in bytes.
const watchBuffer = 4 << 20

// everyLink is the index in messages about a setting of all links
// (NETCONFA_IFINDEX_ALL).
const everyLink = -1

const (
	sizeofNdmsg      = 12 // struct ndmsg of linux/neighbour.h
	sizeofNetconfmsg = 4  // struct netconfmsg of linux/netconf.h, padded
)

// Attributes of messages about settings, of linux/netconf.h.
const (
	netconfIndex      = 1
	netconfForwarding = 2
)

// groups are what WatchHost listens to. Those of settings tell of forwarding,
// which other programs like to set back.
var groups = [...]int{
	unix.RTNLGRP_LINK,
	unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
	unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE,
	unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF,
	unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE,
}

// watched are the links that matter to WatchHost beside the routes.
type watched struct {
	bridge, uplink           string
	bridgeIndex, uplinkIndex int
	tunnels                  tunnelLinks
}

func (w watched) has(index int, name string) bool {
	return index != 0 && (index == w.bridgeIndex || index == w.uplinkIndex) || w.tunnels.has(index) ||
		name != "" && (name == w.bridge || name == w.uplink || isTunnelName(name))
}

// watch changes the links that WatchHost takes for the bridge and the uplink.
func (k *Kernel) watch(change func(*watched)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change(&k.watched)
}

func (k *Kernel) watching() watched {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.watched
}

// WatchHost calls notify once it listens, and then whenever the kernel tells of a
// change: to the bridge, the uplink or the tunnel that the last ApplyHost or Uplink
// named, to their addresses or forwarding, to the tunnel's neighbours, to a route of
// ours, a default route or a routing rule. Pods that come and go cause no call.
// ApplyHost causes some, after which it finds nothing to do. notify must not block. If
// the kernel dropped events for want of room, WatchHost listens anew and calls notify.
// It returns nil when ctx ends.
func (k *Kernel) WatchHost(ctx context.Context, notify func()) error {
	for ctx.Err() == nil {
		err := k.watchOnce(ctx, watchBuffer, notify)
		if ctx.Err() == nil && !errors.Is(err, unix.ENOBUFS) {
			return fmt.Errorf("watching the host's network: %w", err)
		}
	}
	return nil
}

// watchOnce listens with so many bytes of room, until ctx ends or something
// fails: ENOBUFS when events were dropped.
func (k *Kernel) watchOnce(ctx context.Context, room int, notify func()) error {
	e := &eye{kernel: k, seen: map[int]linkState{}}
	return k.listen(ctx, hostEvents(room), notify, func(m syscall.NetlinkMessage) {
		if e.matters(m) {
			notify()
		}
	})
}

// source names the events that the kernel is to tell of.
type source struct {
	protocol int
	groups   []int
	room     int                // in bytes, for events that wait
	filter   func(fd int) error // on the socket before it gets any; nil takes all
}

// hostEvents are the events for WatchHost.
func hostEvents(room int) source {
	return source{protocol: unix.NETLINK_ROUTE, groups: groups[:], room: room, filter: filterPods}
}

// listen calls ready once it listens, and see for each message, until ctx ends or
// something fails: ENOBUFS when events were dropped.
func (k *Kernel) listen(ctx context.Context, from source, ready func(), see func(syscall.NetlinkMessage)) error {
	var sock *os.File
	err := k.In(func() (err error) {
		sock, err = from.subscribe()
		return err
	})
	if err != nil {
		return err
	}
	defer func() { _ = sock.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = sock.Close() })
	defer stop()
	raw, err := sock.SyscallConn()
	if err != nil {
		return err
	}
	ready()
	buf := make([]byte, 64<<10)
	for {
		n, err := receiveEvent(raw, buf)
		if err != nil {
			return err
		}
		msgs, err := syscall.ParseNetlinkMessage(buf[:n])
		if err != nil {
			return err
		}
		for _, m := range msgs {
			see(m)
		}
	}
}

// subscribe opens a socket that gets events, in the thread's namespace.
func (from source) subscribe() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, from.protocol)
	if err != nil {
		return nil, err
	}
	sock := os.NewFile(uintptr(fd), "netlink")
	// More than net.core.rmem_max needs the right to; less is only less room.
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, from.room) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, from.room)
	}
	if from.filter != nil {
		err = from.filter(fd)
	}
	err = errors.Join(err, unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}))
	for _, g := range from.groups {
		if err == nil {
			err = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, g)
		}
	}
	if err != nil {
		_ = sock.Close()
		return nil, err
	}
	return sock, nil
}

func receiveEvent(raw syscall.RawConn, buf []byte) (int, error) {
	var n int
	var err error
	readErr := raw.Read(func(fd uintptr) bool {
		n, _, err = unix.Recvfrom(int(fd), buf, 0)
		return !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR)
	})
	return n, errors.Join(readErr, err)
}

// linkState is the state of the bridge or the uplink, as far as it matters. The kernel
// also tells of the bridge when ports come and go, with nothing of this changed.
type linkState struct {
	name, mac string
	mtu       uint32
	up        bool
}

// eye tells the events that matter from the others.
type eye struct {
	kernel *Kernel
	seen   map[int]linkState // the watched links, by index
}

func (e *eye) matters(m syscall.NetlinkMessage) bool {
	switch m.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		return e.link(m)
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		return len(m.Data) >= unix.SizeofIfAddrmsg && e.kernel.watching().has(int(nl.DeserializeIfAddrmsg(m.Data).Index), "")
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		return route(m)
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		return len(m.Data) >= sizeofNdmsg && e.kernel.watching().tunnels.has(int(nl.NativeEndian().Uint32(m.Data[4:])))
	case unix.RTM_NEWRULE, unix.RTM_DELRULE:
		return true
	case unix.RTM_NEWNETCONF:
		return e.netconf(m)
	}
	return false
}

func (e *eye) link(m syscall.NetlinkMessage) bool {
	if len(m.Data) < unix.SizeofIfInfomsg {
		return false
	}
	msg := nl.DeserializeIfInfomsg(m.Data)
	if msg.Family != unix.AF_UNSPEC { // news of a port, from the bridge
		return false
	}
	attrs, err := nl.ParseRouteAttr(m.Data[unix.SizeofIfInfomsg:])
	if err != nil {
		return true // better once too often
	}
	is := linkState{up: msg.Flags&unix.IFF_UP != 0}
	for _, a := range attrs {
		switch {
		case a.Attr.Type == unix.IFLA_IFNAME:
			is.name = unix.ByteSliceToString(a.Value)
		case a.Attr.Type == unix.IFLA_ADDRESS:
			is.mac = string(a.Value)
		case a.Attr.Type == unix.IFLA_MTU && len(a.Value) >= 4:
			is.mtu = nl.NativeEndian().Uint32(a.Value)
		}
	}
	index := int(msg.Index)
	was, known := e.seen[index]
	if !known && !e.kernel.watching().has(index, is.name) {
		return false
	}
	if m.Header.Type == unix.RTM_DELLINK {
		delete(e.seen, index)
		return true
	}
	e.seen[index] = is
	return was != is
}

// route tells whether it is one of ours, or a default route: the uplink may
// have changed. The message need not be looked into: both stand in its head.
func route(m syscall.NetlinkMessage) bool {
	if len(m.Data) < unix.SizeofRtMsg {
		return false
	}
	msg := nl.DeserializeRtMsg(m.Data)
	if msg.Table != unix.RT_TABLE_MAIN && msg.Table != tunnelTable || msg.Flags&unix.RTM_F_CLONED != 0 {
		return false
	}
	return msg.Protocol == link.RouteProtocol || msg.Dst_len == 0 && msg.Table == unix.RT_TABLE_MAIN
}

// netconf tells whether forwarding changed on all links or on a watched one.
func (e *eye) netconf(m syscall.NetlinkMessage) bool {
	if len(m.Data) < sizeofNetconfmsg {
		return false
	}
	attrs, err := nl.ParseRouteAttr(m.Data[sizeofNetconfmsg:])
	if err != nil {
		return true
	}
	index, forwarding := 0, false
	for _, a := range attrs {
		switch {
		case a.Attr.Type == netconfIndex && len(a.Value) >= 4:
			index = int(int32(nl.NativeEndian().Uint32(a.Value)))
		case a.Attr.Type == netconfForwarding:
			forwarding = true
		}
	}
	return forwarding && (index == everyLink || e.kernel.watching().has(index, ""))
}
