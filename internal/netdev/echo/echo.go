// Package echo sends ICMP echo requests from this host, with any source address.
package echo

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/netdev/link"
)

// Request is an ICMP echo request of this host. From may be an address that the host does not
// have, as that of a pod.
type Request struct{ From, To netip.Addr }

// Answer is the outcome of a Request.
type Answer int

// The outcomes of a Request.
const (
	// Unanswered means that no reply came in time, or that the request could not be sent.
	Unanswered Answer = iota
	// Answered means that a reply to the address in From came.
	Answered
	// Translated means that a reply came, but to another address: a rule of the host
	// changed the source of the request.
	Translated
)

const (
	maxRequests = 64 // of one call
	echoTries   = 3
	markBytes   = 4
	nonceBytes  = 16 // with the mark
	// Types of messages (RFC 792, RFC 4443).
	echoRequest4, echoReply4 = 8, 0
	echoRequest6, echoReply6 = 128, 129
	// icmpHeader is the size of the header of an echo message.
	icmpHeader = 8
)

// Prober sends requests.
type Prober struct{ sockets *link.Sockets }

// New returns a Prober over sockets on the host.
func New(s *link.Sockets) *Prober { return &Prober{sockets: s} }

// Probe sends each request three times within a period, waits for the replies until its
// end or until all came, and returns the answers in the order of the requests. Replies are
// read from all links before the host routes them: a reply to the address of a pod is
// passed on to the bridge, where it has no effect.
func (p *Prober) Probe(ctx context.Context, all []Request, within time.Duration) ([]Answer, error) {
	if len(all) > maxRequests {
		return nil, fmt.Errorf("%w: %d echo requests at once, at most %d", link.ErrInvalid, len(all), maxRequests)
	}
	e := newEchoes(all)
	defer e.close()
	if err := p.sockets.In(e.open); err != nil {
		return nil, fmt.Errorf("opening sockets for echo requests: %w", err)
	}
	replies, ended := make(chan reply), make(chan struct{})
	defer close(ended)
	for _, l := range e.listeners {
		go l.read(replies, ended)
	}
	again, end := time.NewTicker(within/(echoTries+1)), time.NewTimer(within)
	defer again.Stop()
	defer end.Stop()
	e.send()
	for sent := 1; ; {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-end.C:
			return e.answers, nil
		case r := <-replies:
			if e.note(r) {
				return e.answers, nil
			}
		case <-again.C:
			if sent < echoTries {
				e.send()
				sent++
			}
		}
	}
}

// echoes are the requests of one call, with their sockets.
type echoes struct {
	requests []Request
	answers  []Answer
	// nonces are the secrets in the requests: only a machine that got one can reply to it.
	// They begin with a common mark. A pod gets the reply to a request from its address:
	// with a common secret it could reply to other requests in the name of a node.
	nonces    [][]byte
	senders   map[netip.Addr]int // file descriptors by source
	listeners []listener
}

func newEchoes(all []Request) *echoes {
	e := &echoes{requests: all, answers: make([]Answer, len(all))}
	mark := make([]byte, markBytes)
	_, _ = rand.Read(mark) // it never fails
	for range all {
		nonce := make([]byte, nonceBytes)
		_, _ = rand.Read(nonce)
		copy(nonce, mark)
		e.nonces = append(e.nonces, nonce)
	}
	return e
}

// open opens a socket for each source, and one for the replies of each family. It has to
// run on a thread in the host namespace.
func (e *echoes) open() error {
	e.senders = map[netip.Addr]int{}
	families := map[bool]bool{}
	for _, r := range e.requests {
		if r.From.Is4() != r.To.Is4() || !r.From.IsValid() || r.From.Is4In6() || r.To.Is4In6() || r.From.Zone() != "" || r.To.Zone() != "" {
			return fmt.Errorf("%w: echo request from %v to %v: both must be plain addresses of one family", link.ErrInvalid, r.From, r.To)
		}
		if is4 := r.From.Is4(); !families[is4] {
			families[is4] = true
			l, err := listen(is4, e.mark())
			if err != nil {
				return err
			}
			e.listeners = append(e.listeners, l)
		}
		if _, has := e.senders[r.From]; has {
			continue
		}
		fd, err := openSender(r.From)
		if err != nil {
			return fmt.Errorf("for the source %v: %w", r.From, err)
		}
		e.senders[r.From] = fd
	}
	return nil
}

func (e *echoes) close() {
	for _, fd := range e.senders {
		_ = unix.Close(fd)
	}
	for _, l := range e.listeners {
		_ = l.Close()
	}
}

// mark is the part of the nonces that the kernel compares. It does not compare the
// identifier, which a rule that translates addresses may change.
func (e *echoes) mark() uint32 { return binary.BigEndian.Uint32(e.nonces[0]) }

// openSender opens a raw ICMP socket that sends from any address, and receives nothing.
func openSender(from netip.Addr) (fd int, err error) {
	if from.Is4() {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_ICMP)
	} else {
		fd, err = unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_ICMPV6)
	}
	if err != nil {
		return 0, err
	}
	if from.Is4() {
		err = unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1)
	} else {
		err = unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_TRANSPARENT, 1)
	}
	err = errors.Join(err, link.Attach(fd, []link.Instruction{link.End(0)}), unix.Bind(fd, sockaddr(from)))
	if err != nil {
		return 0, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

func sockaddr(a netip.Addr) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Addr: a.As4()}
	}
	return &unix.SockaddrInet6{Addr: a.As16()}
}

// send sends all requests that are unanswered. A request that cannot be sent stays
// unanswered: the reason may be a rule of the host, or a missing route.
func (e *echoes) send() {
	for i, r := range e.requests {
		if e.answers[i] == Unanswered {
			_ = unix.Sendto(e.senders[r.From], e.message(i), 0, sockaddr(r.To))
		}
	}
}

// message returns a request. The kernel computes the checksum of ICMPv6 itself.
func (e *echoes) message(i int) []byte {
	m := make([]byte, 4, icmpHeader+nonceBytes)
	m[0] = echoRequest6
	m = append(m, e.nonces[i][:2]...)               // identifier
	m = binary.BigEndian.AppendUint16(m, uint16(i)) //nolint:gosec // at most maxRequests
	m = append(m, e.nonces[i]...)
	if e.requests[i].From.Is4() {
		m[0] = echoRequest4
		binary.BigEndian.PutUint16(m[2:], checksum(m))
	}
	return m
}

// checksum returns the Internet checksum (RFC 1071) of a message of even length.
func checksum(m []byte) uint16 {
	var sum uint32
	for ; len(m) > 1; m = m[2:] {
		sum += uint32(binary.BigEndian.Uint16(m))
	}
	for sum>>16 != 0 {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// note enters a reply, and reports whether all requests are answered.
func (e *echoes) note(r reply) bool {
	if int(r.sequence) >= len(e.requests) || !bytes.Equal(r.nonce, e.nonces[r.sequence]) || e.requests[r.sequence].To != r.from {
		return false
	}
	e.answers[r.sequence] = Answered
	if e.requests[r.sequence].From != r.to {
		e.answers[r.sequence] = Translated
	}
	return !slices.Contains(e.answers, Unanswered)
}

// reply is an echo reply as it arrived.
type reply struct {
	from, to netip.Addr
	sequence uint16
	nonce    []byte
}

// listener reads replies of one family from all links.
type listener struct {
	*os.File
	is4 bool
}

// listen opens a packet socket for the replies with a mark.
func listen(is4 bool, mark uint32) (listener, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return listener{}, err
	}
	filter, protocol := repliesOf6(mark), uint16(unix.ETH_P_IPV6)
	if is4 {
		filter, protocol = repliesOf4(mark), unix.ETH_P_IP
	}
	// The filter comes before the protocol: without one the socket gets nothing.
	err = errors.Join(link.Attach(fd, filter), unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: uint16(link.Host16(protocol))}))
	if err != nil {
		return listener{}, errors.Join(err, unix.Close(fd))
	}
	return listener{os.NewFile(uintptr(fd), "echo replies"), is4}, nil
}

const (
	// replyBytes is how much of a packet is read: an IPv4 header with options, and an
	// echo message.
	replyBytes    = 60 + icmpHeader + nonceBytes
	ipv4Header    = 20
	ipv6Header    = 40
	fragmentBits  = 0x3fff // more fragments, and the offset
	wrong, accept = "wrong", "accept"
)

// repliesOf4 and repliesOf6 keep unfragmented echo replies with a mark.
func repliesOf4(mark uint32) []link.Instruction {
	return []link.Instruction{
		link.Load(unix.BPF_B, 9), link.IfEqual(unix.IPPROTO_ICMP, "", wrong),
		link.Load(unix.BPF_H, 6), link.IfAny(fragmentBits, wrong, ""),
		link.HeaderToX(),
		link.LoadX(unix.BPF_B, 0), link.IfEqual(echoReply4, "", wrong),
		link.LoadX(unix.BPF_W, icmpHeader), link.IfEqual(mark, accept, wrong),
		link.End(replyBytes).At(accept),
		link.End(0).At(wrong),
	}
}

func repliesOf6(mark uint32) []link.Instruction {
	return []link.Instruction{
		link.Load(unix.BPF_B, 6), link.IfEqual(unix.IPPROTO_ICMPV6, "", wrong),
		link.Load(unix.BPF_B, ipv6Header), link.IfEqual(echoReply6, "", wrong),
		link.Load(unix.BPF_W, ipv6Header+icmpHeader), link.IfEqual(mark, accept, wrong),
		link.End(replyBytes).At(accept),
		link.End(0).At(wrong),
	}
}

// read passes replies on until the file is closed.
func (l listener) read(to chan<- reply, ended <-chan struct{}) {
	buffer := make([]byte, replyBytes)
	for {
		n, err := l.Read(buffer)
		if err != nil {
			return
		}
		r, ok := parseReply(buffer[:n], l.is4)
		if !ok {
			continue
		}
		select {
		case to <- r:
		case <-ended:
			return
		}
	}
}

// parseReply parses a packet from its IP header on. It returns false if the packet is no
// reply to a request of this package.
func parseReply(p []byte, is4 bool) (reply, bool) {
	var r reply
	var body []byte
	switch {
	case is4 && len(p) >= ipv4Header && p[0]>>4 == 4 && int(p[0]&0xf)*4 >= ipv4Header && len(p) >= int(p[0]&0xf)*4:
		r.from, r.to = netip.AddrFrom4([4]byte(p[12:16])), netip.AddrFrom4([4]byte(p[16:20]))
		body = p[int(p[0]&0xf)*4:]
	case !is4 && len(p) >= ipv6Header && p[0]>>4 == 6:
		r.from, r.to = netip.AddrFrom16([16]byte(p[8:24])), netip.AddrFrom16([16]byte(p[24:40]))
		body = p[ipv6Header:]
	default:
		return reply{}, false
	}
	if len(body) < icmpHeader+nonceBytes {
		return reply{}, false
	}
	r.sequence = binary.BigEndian.Uint16(body[6:])
	r.nonce = bytes.Clone(body[icmpHeader : icmpHeader+nonceBytes])
	return r, true
}
