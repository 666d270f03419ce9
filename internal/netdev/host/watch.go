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

// watchBuffer is the size of the socket's buffer, in bytes. It holds the events of a
// burst of pods while this process is not scheduled.
const watchBuffer = 4 << 20

// everyLink is the index in messages about a setting of all links (NETCONFA_IFINDEX_ALL).
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

// groups are the multicast groups that WatchHost joins. Those of settings report
// forwarding, which other programs often set back.
var groups = [...]int{
	unix.RTNLGRP_LINK,
	unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
	unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE,
	unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF,
	unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE,
}

// watched are the links that WatchHost watches, beside the routes.
type watched struct {
	uplink      string
	uplinkIndex int
	tunnels     tunnelLinks
}

func (w watched) has(index int, name string) bool {
	return index != 0 && index == w.uplinkIndex || w.tunnels.has(index) || name != "" && (name == w.uplink || isTunnelName(name))
}

// watch changes the links that WatchHost watches.
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

// WatchHost calls notify once it listens, and then for each change to:
//
//   - the uplink or the tunnel of the last ApplyHost or Uplink;
//   - their addresses or forwarding;
//   - the neighbours of the tunnel;
//   - a route of Fairlead, a default route or a routing rule.
//
// addresses is true for a change of addresses. Pods that come and go cause no call. ApplyHost causes some, after which it finds
// nothing to do. notify must not block. If the kernel dropped events because the buffer
// was full, WatchHost listens anew and calls notify with true. It returns nil when ctx ends.
func (k *Kernel) WatchHost(ctx context.Context, notify func(addresses bool)) error {
	for ctx.Err() == nil {
		err := k.watchOnce(ctx, watchBuffer, notify)
		if ctx.Err() == nil && !errors.Is(err, unix.ENOBUFS) {
			return fmt.Errorf("watching the host's network: %w", err)
		}
	}
	return nil
}

// watchOnce listens with a buffer of room bytes until ctx ends or an error occurs.
// Errors: ENOBUFS if events were dropped.
func (k *Kernel) watchOnce(ctx context.Context, room int, notify func(addresses bool)) error {
	e := &eventFilter{kernel: k, seen: map[int]linkState{}}
	return k.listen(ctx, hostEvents(room), func() { notify(true) }, func(m syscall.NetlinkMessage) {
		if e.matters(m) {
			notify(m.Header.Type == unix.RTM_NEWADDR || m.Header.Type == unix.RTM_DELADDR)
		}
	})
}

// source names the events that a socket receives.
type source struct {
	protocol int
	groups   []int
	room     int                // in bytes, for waiting events
	filter   func(fd int) error // set on the socket before its first event; nil takes all
}

// hostEvents returns the events for WatchHost.
func hostEvents(room int) source {
	return source{protocol: unix.NETLINK_ROUTE, groups: groups[:], room: room, filter: filterPods}
}

// listen calls ready once it listens, and handle for each message, until ctx ends or an
// error occurs. Errors: ENOBUFS if events were dropped.
func (k *Kernel) listen(ctx context.Context, from source, ready func(), handle func(syscall.NetlinkMessage)) error {
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
			handle(m)
		}
	}
}

// subscribe opens a socket for the events, in the thread's namespace.
func (from source) subscribe() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, from.protocol)
	if err != nil {
		return nil, err
	}
	sock := os.NewFile(uintptr(fd), "netlink")
	// A size above net.core.rmem_max needs a privilege; without it the buffer is smaller.
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

// linkState is the part of the state of the uplink or the tunnel that WatchHost compares.
type linkState struct {
	name, mac string
	mtu       uint32
	up        bool
}

// eventFilter selects the events that WatchHost reports.
type eventFilter struct {
	kernel *Kernel
	seen   map[int]linkState // the watched links, by index
}

func (e *eventFilter) matters(m syscall.NetlinkMessage) bool {
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

func (e *eventFilter) link(m syscall.NetlinkMessage) bool {
	if len(m.Data) < unix.SizeofIfInfomsg {
		return false
	}
	msg := nl.DeserializeIfInfomsg(m.Data)
	if msg.Family != unix.AF_UNSPEC { // the bridge's message about a port
		return false
	}
	attrs, err := nl.ParseRouteAttr(m.Data[unix.SizeofIfInfomsg:])
	if err != nil {
		return true // an unnecessary call does no harm
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

// route reports whether a message is about a route of Fairlead or a default route, after
// which the uplink may be another. The head of the message contains all that is needed.
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

// netconf reports whether forwarding changed on all links or on a watched one.
func (e *eventFilter) netconf(m syscall.NetlinkMessage) bool {
	index, forwarding, err := readNetconf(m.Data)
	return err != nil || forwarding != nil && (index == everyLink || e.kernel.watching().has(index, ""))
}

// readNetconf returns the link of a message about settings, and its forwarding; nil if the message does
// not have it.
func readNetconf(data []byte) (index int, forwarding []byte, err error) {
	if len(data) < sizeofNetconfmsg {
		return 0, nil, nil
	}
	attrs, err := nl.ParseRouteAttr(data[sizeofNetconfmsg:])
	for _, a := range attrs {
		switch {
		case a.Attr.Type == netconfIndex && len(a.Value) >= 4:
			index = int(int32(nl.NativeEndian().Uint32(a.Value)))
		case a.Attr.Type == netconfForwarding:
			forwarding = a.Value
		}
	}
	return index, forwarding, err
}
