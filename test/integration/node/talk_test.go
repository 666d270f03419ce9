package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"
)

// patience is the maximum time of a connection that is expected to succeed.
const patience = 20 * time.Second

// carry sends bytes from one pod to another, with the addresses of one family (the index in
// labPod.addresses). It returns the time until all bytes were read.
func carry(ctx context.Context, from, to *labPod, family, bytes int) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	source, address := from.address(family), to.address(family)
	listener, err := to.netns.Listen(ctx, netip.AddrPortFrom(address, 0).String())
	if err != nil {
		return 0, err
	}
	defer listener.Close()
	var conn net.Conn
	if err := from.netns.Do(func() (err error) {
		dialer := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(source, 0))}
		conn, err = dialer.DialContext(ctx, "tcp", listener.Addr().String())
		return err
	}); err != nil {
		return 0, err
	}
	defer conn.Close()
	accepted, err := listener.Accept()
	if err != nil {
		return 0, err
	}
	defer accepted.Close()
	end, _ := ctx.Deadline()
	if err := errors.Join(conn.SetDeadline(end), accepted.SetDeadline(end)); err != nil {
		return 0, err
	}
	began := time.Now()
	written := make(chan error, 1)
	go func() {
		_, err := conn.Write(make([]byte, bytes))
		written <- err
	}()
	_, err = io.CopyN(io.Discard, accepted, int64(bytes))
	if err = errors.Join(err, <-written); err != nil {
		return 0, fmt.Errorf("send %d bytes from %s to %s: %w", bytes, source, address, err)
	}
	return time.Since(began), nil
}

// address returns the first or the second address of a pod, without the prefix length.
func (p *labPod) address(family int) netip.Addr {
	return netip.MustParsePrefix(p.addresses[family]).Addr()
}
