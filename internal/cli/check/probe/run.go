package probe

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// tryTimeout bounds one try of a probe.
	tryTimeout = time.Second
	// pause is the time between two tries of a probe.
	pause = 200 * time.Millisecond
	// parallel is the number of probes that run at the same time.
	parallel = 32
	// maxAnswer is the most that is read of an answer.
	maxAnswer = 1 << 10
)

// Run makes all probes of a plan, and returns their outcomes in the same order.
func Run(ctx context.Context, plan Plan) []Outcome {
	out := make([]Outcome, len(plan.Probes))
	turn := make(chan struct{}, parallel)
	var all sync.WaitGroup
	for i, p := range plan.Probes {
		all.Go(func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			out[i] = p.repeat(ctx, time.Duration(plan.Patience)*time.Millisecond)
		})
	}
	all.Wait()
	return out
}

// repeat tries until the probe passes or cannot pass any more, at most for the given time.
// Rules for a new Service or a policy take a moment.
func (p Probe) repeat(ctx context.Context, patience time.Duration) Outcome {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	p.token = rand.Text()
	for {
		size, err := p.try(ctx)
		var forged *forgedError
		var untried *untriedError
		if err == nil || errors.As(err, &forged) || errors.As(err, &untried) {
			return outcome(size, err)
		}
		again := time.NewTimer(pause)
		select {
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
			return outcome(size, err)
		}
	}
}

// outcome is the outcome of a probe by its last try.
func outcome(size int, err error) Outcome {
	if err == nil {
		return Outcome{Passed: true, Size: size}
	}
	out := Outcome{Problem: explain(err), Size: size}
	var other *sourceError
	var forged *forgedError
	var untried *untriedError
	switch {
	case errors.As(err, &other):
		out.Source = other.saw
	case errors.As(err, &forged):
		out.Source = forged.saw
	case errors.As(err, &untried):
		out.Untried = true
	}
	return out
}

// try makes one try. size is the size of the packet of the kind Size.
func (p Probe) try(ctx context.Context) (size int, err error) {
	// A try that begins late may still end.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tryTimeout)
	defer cancel()
	switch p.Kind {
	case TCP:
		return 0, p.stream(ctx)
	case Connect:
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", p.Address)
		if err != nil {
			return 0, err
		}
		return 0, conn.Close()
	case UDP, Size:
		return p.datagram(ctx)
	case DNS:
		// The system's resolver is not in the image.
		_, err := (&net.Resolver{PreferGo: true}).LookupHost(ctx, p.Address)
		return 0, err
	case Denied:
		if err := p.stream(ctx); err == nil {
			return 0, errors.New("the connection was accepted")
		}
		return 0, nil
	case Forged:
		return 0, p.forge(ctx)
	default:
		return 0, &untriedError{fmt.Errorf("kind %q: must be %s, %s, %s, %s, %s, %s or %s; the image must be of the version of the command", p.Kind, TCP, UDP, Size, Connect, DNS, Denied, Forged)}
	}
}

func (p Probe) stream(ctx context.Context) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", p.Address)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // it is only read
	if until, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(until); err != nil {
			return err
		}
	}
	raw, err := io.ReadAll(io.LimitReader(conn, maxAnswer))
	if err != nil {
		return err
	}
	_, err = p.check(raw)
	return err
}

// datagram sends one packet and waits for its answer.
func (p Probe) datagram(ctx context.Context) (size int, err error) {
	dialer := net.Dialer{}
	if p.Kind == Size {
		dialer.Control = dontFragment
	}
	conn, err := dialer.DialContext(ctx, "udp", p.Address)
	if err != nil {
		return 0, err
	}
	defer conn.Close() //nolint:errcheck // nothing is buffered
	content := make([]byte, smallest)
	if p.Kind == Size {
		if size = p.Size; size == 0 {
			if size, err = mtu(conn.LocalAddr()); err != nil {
				return 0, err
			}
		}
		content = make([]byte, max(smallest, size-headers(conn.LocalAddr())))
	}
	copy(content, question)
	if until, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(until); err != nil {
			return size, err
		}
	}
	if _, err := conn.Write(content); err != nil {
		return size, err
	}
	raw := make([]byte, maxAnswer)
	n, err := conn.Read(raw)
	if err != nil {
		return size, err
	}
	_, err = p.check(raw[:n])
	return size, err
}

// check returns an answer, or an error if it is another server's or if the server saw another
// source.
func (p Probe) check(raw []byte) (answer, error) {
	var a answer
	if err := json.Unmarshal(raw, &a); err != nil {
		return a, fmt.Errorf("the answer %.40q: must be that of a server of this check", raw)
	}
	if p.Name != "" && a.Name != p.Name {
		return a, fmt.Errorf("%q answered; must be %s", a.Name, p.Name)
	}
	if p.Source != "" && a.Source != p.Source {
		return a, &sourceError{a.Source, p.Source}
	}
	return a, nil
}

// sourceError means that a packet arrived with another source.
type sourceError struct{ saw, want string }

func (e *sourceError) Error() string {
	return fmt.Sprintf("the server saw the source %q; must be %s", e.saw, e.want)
}

// headers returns the size of the headers of a datagram.
func headers(local net.Addr) int {
	const udp, ipv4, ipv6 = 8, 20, 40
	if at, err := netip.ParseAddrPort(local.String()); err == nil && at.Addr().Is4() {
		return udp + ipv4
	}
	return udp + ipv6
}

// mtu returns the MTU of the interface that has an address.
func mtu(local net.Addr) (int, error) {
	at, err := netip.ParseAddrPort(local.String())
	if err != nil {
		return 0, err
	}
	link, err := linkWith(at.Addr().Unmap().WithZone(""))
	return link.MTU, err
}

// linkWith returns the interface that has an address.
func linkWith(addr netip.Addr) (net.Interface, error) {
	links, err := net.Interfaces()
	if err != nil {
		return net.Interface{}, err
	}
	for _, link := range links {
		addrs, err := link.Addrs()
		if err != nil {
			return net.Interface{}, err
		}
		for _, a := range addrs {
			if own, err := netip.ParsePrefix(a.String()); err == nil && own.Addr() == addr {
				return link, nil
			}
		}
	}
	return net.Interface{}, fmt.Errorf("no interface has the address %s", addr)
}

// explain returns an error in the words of the network.
func explain(err error) string {
	var wait net.Error
	switch {
	case errors.Is(err, syscall.EMSGSIZE):
		return "the packet is larger than a link on the way carries"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused: " + err.Error()
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &wait) && wait.Timeout():
		return "no answer: " + err.Error()
	}
	return strings.TrimSpace(err.Error())
}
