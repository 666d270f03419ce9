package probe

import (
	"context"
	"fmt"
	"net"
	"net/netip"
)

// rounds is how often a try sends both packets. Packets with different sources may have
// different queues on the way, so one round may miss a forged packet that is late.
const rounds = 3

// forge sends packets with the source Forged, each followed by one with Source. Only the
// latter is answered: the answer to a forged packet would go to the pod with this address. The
// answer has the source of a forged packet that has arrived.
func (p Probe) forge(ctx context.Context) error {
	own, err := p.from(ctx, p.Source)
	if err != nil {
		return err
	}
	defer own.Close() //nolint:errcheck // nothing is buffered
	forged, err := p.from(ctx, p.Forged)
	if err != nil {
		return err
	}
	defer forged.Close() //nolint:errcheck // nothing is buffered
	raw := make([]byte, maxAnswer)
	for range rounds {
		if _, err := forged.Write(marked(markForged, p.token)); err != nil {
			return &untriedError{fmt.Errorf("send from %s: %w", p.Forged, err)}
		}
		if _, err := own.Write(marked(markOwn, p.token)); err != nil {
			return err
		}
		n, err := own.Read(raw)
		if err != nil {
			return fmt.Errorf("%w (a packet with the pod's own address)", err)
		}
		// Masquerade may have changed the pod's own address: another test finds it.
		a, err := Probe{Name: p.Name}.check(raw[:n])
		switch {
		case err != nil:
			return err
		case a.Forged != "":
			return &forgedError{saw: a.Forged, sent: p.Forged}
		case a.Full:
			return &untriedError{fmt.Errorf("%s has records of %d packets with forged sources, and makes no more", p.Name, maxRecords)}
		}
	}
	return nil
}

// from connects a socket that sends from any address, by the interface of the pod's own
// address. Errors: untriedError.
func (p Probe) from(ctx context.Context, source string) (net.Conn, error) {
	own, err := netip.ParseAddr(p.Source)
	if err != nil {
		return nil, &untriedError{fmt.Errorf("the source: %w", err)}
	}
	addr, err := netip.ParseAddr(source)
	if err != nil {
		return nil, &untriedError{fmt.Errorf("the forged source: %w", err)}
	}
	link, err := linkWith(own)
	if err != nil {
		return nil, &untriedError{err}
	}
	dialer := net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)), Control: transparent(link.Name)}
	conn, err := dialer.DialContext(ctx, "udp", p.Address)
	if err != nil {
		return nil, &untriedError{fmt.Errorf("open a socket that sends from %s: %w", addr, err)}
	}
	if until, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(until); err != nil {
			_ = conn.Close() // the first error counts
			return nil, &untriedError{err}
		}
	}
	return conn, nil
}

// marked returns a datagram with a mark and a token.
func marked(mark byte, token string) []byte {
	out := make([]byte, smallest)
	copy(out, append(append([]byte(question), mark), token...))
	return out
}

// forgedError means that a packet with a forged source has arrived.
type forgedError struct{ saw, sent string }

func (e *forgedError) Error() string {
	return fmt.Sprintf("a packet that was sent with the source %s of another pod has arrived, as from %s", e.sent, e.saw)
}

// untriedError means that the pod cannot make the probe.
type untriedError struct{ err error }

func (e *untriedError) Error() string { return e.err.Error() }
func (e *untriedError) Unwrap() error { return e.err }
