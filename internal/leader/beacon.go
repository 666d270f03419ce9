package leader

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A beacon's answer is one line: a digest of its identity, which reveals nothing, and
// whether the process leads. If it leads, the connection then stays open and silent
// until the term or the process ends.
const (
	answerLeads    = " leads\n"
	answerStandsBy = " stands by\n"
	// maxWatchers is the limit of a beacon's connections. Each replica needs one.
	maxWatchers = 32
	// answerTimeout limits the wait for a line.
	answerTimeout = 2 * time.Second
)

// addressSeparator separates the process's name from the address of its beacon in an
// identity.
const addressSeparator = "@"

// Beacon lets standbys see that the leader's process lives: when the process ends, in
// whatever way, the kernel closes its connections. The methods of a nil Beacon do
// nothing, but Identity needs one.
type Beacon struct {
	l        net.Listener
	identity string

	mu    sync.Mutex
	leads bool
	conns map[net.Conn]struct{}
}

// AddressTowards returns the address that this machine uses towards a server
// "host:port". Other machines reach this machine at the same address, unless the
// server's address is a virtual address of this machine. Nothing is sent.
func AddressTowards(ctx context.Context, server string) (string, error) {
	towards, err := (&net.Dialer{}).DialContext(ctx, "udp", server)
	if err != nil {
		return "", fmt.Errorf("find the own address towards %s: %w", server, err)
	}
	host, _, err := net.SplitHostPort(towards.LocalAddr().String())
	_ = towards.Close()
	if err != nil {
		return "", fmt.Errorf("find the own address towards %s: %w", server, err)
	}
	return host, nil
}

// Listen opens a beacon at a TCP port of an address of this machine. Port 0 means any
// free port, and any free port is also used if another process has the port. process is
// the unique name of this process.
func Listen(ctx context.Context, host string, port int, process string) (*Beacon, error) {
	listen := func(port int) (net.Listener, error) {
		return (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	}
	l, err := listen(port)
	if errors.Is(err, syscall.EADDRINUSE) {
		l, err = listen(0)
	}
	if err != nil {
		return nil, fmt.Errorf("listen for standbys: %w", err)
	}
	return &Beacon{l: l, identity: process + addressSeparator + l.Addr().String(), conns: map[net.Conn]struct{}{}}, nil
}

// Identity returns the process's name with the address of its beacon.
func (b *Beacon) Identity() string { return b.identity }

// addressOf returns the address of an identity's beacon; empty if it has none.
func addressOf(identity string) string {
	_, address, _ := strings.Cut(identity, addressSeparator)
	return address
}

// digest returns a short hash of an identity, for use on the network.
func digest(identity string) string {
	sum := sha256.Sum256([]byte(identity))
	return hex.EncodeToString(sum[:16])
}

// Run answers connections until ctx ends.
func (b *Beacon) Run(ctx context.Context) error {
	if b == nil {
		<-ctx.Done()
		return nil
	}
	stop := context.AfterFunc(ctx, func() { _ = b.l.Close() })
	defer stop()
	var serving sync.WaitGroup
	defer serving.Wait()
	defer b.setLeads(false)
	for {
		conn, err := b.l.Accept()
		if ctx.Err() != nil {
			if err == nil {
				_ = conn.Close()
			}
			return nil
		}
		if err != nil { // usually too many open files
			select {
			case <-time.After(answerTimeout):
			case <-ctx.Done():
			}
			continue
		}
		serving.Go(func() { b.serve(conn) })
	}
}

// serve answers one connection, and keeps it open while this process leads.
func (b *Beacon) serve(conn net.Conn) {
	defer conn.Close() //nolint:errcheck // the error has no consequence
	b.mu.Lock()
	leads, full := b.leads, len(b.conns) >= maxWatchers
	if !full {
		b.conns[conn] = struct{}{}
	}
	b.mu.Unlock()
	if full {
		return
	}
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.conns, conn)
	}()
	answer := answerStandsBy
	if leads {
		answer = answerLeads
	}
	_ = conn.SetWriteDeadline(time.Now().Add(answerTimeout))
	if _, err := io.WriteString(conn, digest(b.identity)+answer); err != nil || !leads {
		return
	}
	// The standby sends nothing, so the read ends with the connection.
	_, _ = conn.Read(make([]byte, 1))
}

// setLeads sets whether the process leads. It closes all connections, whose answers are
// outdated.
func (b *Beacon) setLeads(leads bool) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.leads = leads
	for conn := range b.conns {
		_ = conn.Close()
	}
}
