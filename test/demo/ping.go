package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/test/netlab"
)

const (
	pingTimeout = 5 * time.Second        // for all pings of one pod in one family
	pingAgain   = 500 * time.Millisecond // until unanswered pings are sent again
	pingersMost = 16                     // pods that ping at once
)

// Types of ICMP messages: RFC 792 and RFC 4443.
const (
	echoRequestV4, echoReplyV4 = 8, 0
	echoRequestV6, echoReplyV6 = 128, 129
)

// pingAll lets every pod ping every pod, including itself. A pair counts if the first pod
// had an answer from each address of the second.
func (w *testbed) pingAll(ctx context.Context, pods []podRow) (outcome, error) {
	families := "IPv4 and IPv6"
	if w.IPv4Only {
		families = "IPv4"
	}
	w.Say("every pod pings every pod, %s", families)
	results := make([]pingResult, len(pods))
	var pinging sync.WaitGroup
	turn := make(chan struct{}, pingersMost)
	for i, from := range pods {
		pinging.Go(func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			results[i] = pingFrom(ctx, from, pods)
		})
	}
	pinging.Wait()
	out := outcome{Pairs: len(pods) * len(pods)}
	var failures []string
	for i, result := range results {
		out.Pings += result.answered
		for _, failure := range result.failures {
			failures = append(failures, pods[i].name+" -> "+failure)
		}
	}
	w.Say("pings: %d of %d answered", out.Pings, out.Pairs)
	if err := ctx.Err(); err != nil {
		return out, context.Cause(ctx)
	}
	if len(failures) > 0 {
		shown := failures[:min(len(failures), maxWarnings)]
		return out, fmt.Errorf("%d of %d pings had no answer, such as:\n  %s", len(failures), out.Pairs, strings.Join(shown, "\n  "))
	}
	return out, nil
}

type pingResult struct {
	answered int
	failures []string
}

// pingFrom pings all pods from one pod, each family on a socket in the pod's network
// namespace.
func pingFrom(ctx context.Context, from podRow, pods []podRow) pingResult {
	var v4, v6 []netip.Addr
	for _, to := range pods {
		for _, addr := range to.addresses {
			if addr.Is4() {
				v4 = append(v4, addr)
			} else {
				v6 = append(v6, addr)
			}
		}
	}
	reached := map[netip.Addr]bool{}
	reasons := map[bool]string{} // by whether the family is IPv4
	for _, addrs := range [][]netip.Addr{v4, v6} {
		if len(addrs) == 0 {
			continue
		}
		answers, err := ping(ctx, from.netns, addrs, pingTimeout)
		if err != nil {
			reasons[addrs[0].Is4()] = ": " + err.Error()
		}
		for addr := range answers {
			reached[addr] = true
		}
	}
	var result pingResult
	for _, to := range pods {
		failed := false
		for _, addr := range to.addresses {
			if !reached[addr] {
				failed = true
				result.failures = append(result.failures, fmt.Sprintf("%s (%v)%s", to.name, addr, reasons[addr.Is4()]))
				break
			}
		}
		if !failed {
			result.answered++
		}
	}
	return result
}

// ping sends echo requests to addresses of one family from a network namespace
// until all have answered or the time is up, and returns those that have.
func ping(ctx context.Context, netns string, addrs []netip.Addr, limit time.Duration) (map[netip.Addr]bool, error) {
	conn, err := icmpSocket(netns, addrs[0].Is4())
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	answered := map[netip.Addr]bool{}
	deadline := time.Now().Add(limit)
	buffer := make([]byte, 1500)
	var sendErr error
	for len(answered) < len(addrs) && time.Now().Before(deadline) && ctx.Err() == nil {
		for i, addr := range addrs {
			if answered[addr] {
				continue
			}
			if _, err := conn.WriteTo(echoRequest(addr.Is4(), uint16(i)), &net.IPAddr{IP: addr.AsSlice()}); err != nil {
				sendErr = fmt.Errorf("send to %v: %w", addr, err)
			}
		}
		if err := conn.SetReadDeadline(time.Now().Add(pingAgain)); err != nil {
			return answered, err
		}
		for len(answered) < len(addrs) {
			n, from, err := conn.ReadFrom(buffer)
			if err != nil {
				if !errors.Is(err, os.ErrDeadlineExceeded) {
					return answered, err
				}
				break
			}
			i, ok := echoReply(buffer[:n], addrs[0].Is4())
			// The answer must come from the pinged address: nothing may translate it.
			if ok && i < len(addrs) && from.String() == addrs[i].String() {
				answered[addrs[i]] = true
			}
		}
	}
	return answered, sendErr
}

// icmpSocket opens a raw ICMP socket inside a network namespace.
func icmpSocket(netns string, v4 bool) (net.PacketConn, error) {
	ns, err := netlab.OpenNamespace(netns)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	family, protocol := unix.AF_INET6, unix.IPPROTO_ICMPV6
	if v4 {
		family, protocol = unix.AF_INET, unix.IPPROTO_ICMP
	}
	var conn net.PacketConn
	err = ns.Do(func() error {
		fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
		if err != nil {
			return fmt.Errorf("open an ICMP socket: %w", err)
		}
		file := os.NewFile(uintptr(fd), "icmp")
		defer file.Close() // FilePacketConn has a copy
		conn, err = net.FilePacketConn(file)
		return err
	})
	return conn, err
}

// echoID identifies our echoes. A raw socket sees only those of its own namespace, and no
// other program pings there.
const echoID = 0xfa1d

func echoRequest(v4 bool, sequence uint16) []byte {
	message := make([]byte, 16)
	message[0] = echoRequestV6
	if v4 {
		message[0] = echoRequestV4
	}
	binary.BigEndian.PutUint16(message[4:], echoID)
	binary.BigEndian.PutUint16(message[6:], sequence)
	if v4 { // the kernel computes the checksum of ICMPv6
		binary.BigEndian.PutUint16(message[2:], checksum(message))
	}
	return message
}

// echoReply returns the sequence number of an answer to our echo.
func echoReply(message []byte, v4 bool) (int, bool) {
	kind := byte(echoReplyV6)
	if v4 {
		kind = echoReplyV4
	}
	if len(message) < 8 || message[0] != kind || binary.BigEndian.Uint16(message[4:]) != echoID {
		return 0, false
	}
	return int(binary.BigEndian.Uint16(message[6:])), true
}

// checksum returns the checksum of RFC 1071 of an even number of bytes.
func checksum(message []byte) uint16 {
	var sum uint32
	for i := 0; i < len(message); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(message[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
