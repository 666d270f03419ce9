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

// A beacon's answer is one line: who it is, in digits that tell nothing else, and
// whether it leads. After that the connection of a leader stays open, with nothing
// said on it, until its term or its process ends.
const (
	answerLeads    = " leads\n"
	answerStandsBy = " stands by\n"
	// maxWatchers is how many connections a beacon keeps. Replicas need one each.
	maxWatchers = 32
	// answerTimeout bounds the wait for a line.
	answerTimeout = 2 * time.Second
)

// addressMark lies between a process's own name and its beacon's address in an
// identity.
const addressMark = "@"

// Beacon lets standbys see that a leader's process lives: the kernel ends its
// connections when the process ends, however it does. A nil one does nothing.
type Beacon struct {
	l        net.Listener
	identity string

	mu    sync.Mutex
	leads bool
	conns map[net.Conn]struct{}
}

// AddressTowards returns the address that this machine has towards a server,
// "host:port", as which other machines reach it, too, unless the server's is a
// virtual address of this machine. Nothing is sent.
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

// Listen opens a beacon at a TCP port of an address of this machine. Port 0 is any
// that is free; any is taken, too, if another process has the port. process is what
// the process is called, unlike any other.
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
	return &Beacon{l: l, identity: process + addressMark + l.Addr().String(), conns: map[net.Conn]struct{}{}}, nil
}

// Identity is the process's name and where its beacon is.
func (b *Beacon) Identity() string { return b.identity }

// addressOf is where the beacon of an identity is; empty when it has none.
func addressOf(identity string) string {
	_, address, _ := strings.Cut(identity, addressMark)
	return address
}

// digest stands for an identity on the network.
func digest(identity string) string {
	sum := sha256.Sum256([]byte(identity))
	return hex.EncodeToString(sum[:16])
}

// Run answers until ctx ends.
func (b *Beacon) Run(ctx context.Context) error {
	if b == nil {
		<-ctx.Done()
		return nil
	}
	stop := context.AfterFunc(ctx, func() { _ = b.l.Close() })
	defer stop()
	var serving sync.WaitGroup
	defer serving.Wait()
	defer b.shine(false)
	for {
		conn, err := b.l.Accept()
		if ctx.Err() != nil {
			if err == nil {
				_ = conn.Close()
			}
			return nil
		}
		if err != nil { // too many files are open, as a rule
			select {
			case <-time.After(answerTimeout):
			case <-ctx.Done():
			}
			continue
		}
		serving.Go(func() { b.serve(conn) })
	}
}

// serve answers one connection, and keeps it for as long as both sides live.
func (b *Beacon) serve(conn net.Conn) {
	defer conn.Close() //nolint:errcheck // there is nobody to tell
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
	// Nothing is expected, so whatever comes ends it.
	_, _ = conn.Read(make([]byte, 1))
}

// shine says whether the process leads from now on; who has heard otherwise loses
// the connection.
func (b *Beacon) shine(leads bool) {
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
