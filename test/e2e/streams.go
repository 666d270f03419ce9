package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/fairlead/test/netlab"
)

const (
	// streamInterval is the time between two packets of a stream.
	streamInterval = 20 * time.Millisecond
	// lastAnswer is how long the last packets of a stream have to come back, on a machine
	// that has much to do.
	lastAnswer = 10 * time.Second
)

// stream sends packets from one pod to another, which returns them.
type stream struct {
	name string
	conn net.Conn
	done sync.WaitGroup
	// back has a value for each packet that was sent: true if it came back.
	lock sync.Mutex
	back []bool
}

// newStreams starts streams between pods that stay: on each node from its first pod to its
// last and to the first of the other node, with each family. They end with ctx.
func (w *testbed) newStreams(ctx context.Context) ([]*stream, error) {
	pods, err := w.pods(ctx)
	if err != nil {
		return nil, err
	}
	first, last := map[string]corev1.Pod{}, map[string]corev1.Pod{}
	for _, pod := range pods {
		if _, known := first[pod.Spec.NodeName]; !known {
			first[pod.Spec.NodeName] = pod
		}
		last[pod.Spec.NodeName] = pod
	}
	var out []*stream
	for i, n := range w.nodes {
		from := first[n.name]
		for _, to := range []corev1.Pod{last[n.name], first[w.nodes[(i+1)%len(w.nodes)].name]} {
			for _, ip := range to.Status.PodIPs {
				s, err := n.newStream(ctx, from, to, ip.IP)
				if err != nil {
					return nil, fmt.Errorf("packets from pod %s to pod %s: %w", from.Name, to.Name, err)
				}
				out = append(out, s)
			}
		}
	}
	return out, nil
}

// newStream starts a stream from a pod of the node.
func (n *node) newStream(ctx context.Context, from, to corev1.Pod, ip string) (*stream, error) {
	var sandbox *netlab.Namespace
	sandbox, err := n.sandboxOf(string(from.UID))
	if err != nil {
		return nil, err
	}
	defer sandbox.Close()
	s := &stream{name: fmt.Sprintf("from %s on %s to %s on %s at %s", from.Name, n.name, to.Name, to.Spec.NodeName, ip)}
	err = sandbox.Do(func() error {
		s.conn, err = (&net.Dialer{}).DialContext(ctx, "udp", net.JoinHostPort(ip, strconv.Itoa(port)))
		return err
	})
	if err != nil {
		return nil, err
	}
	s.done.Go(func() { s.send(ctx) })
	s.done.Go(s.receive)
	return s, nil
}

// send sends numbered packets until ctx ends, and then waits for those that are not back. A
// packet that cannot be sent is lost.
func (s *stream) send(ctx context.Context) {
	tick := time.NewTicker(streamInterval)
	defer tick.Stop()
	for range tick.C {
		if ctx.Err() != nil {
			break
		}
		s.lock.Lock()
		number := len(s.back)
		s.back = append(s.back, false)
		s.lock.Unlock()
		_, _ = s.conn.Write(binary.BigEndian.AppendUint64(nil, uint64(number)))
	}
	for end := time.Now().Add(lastAnswer); !s.complete() && time.Now().Before(end); {
		<-tick.C
	}
	_ = s.conn.SetReadDeadline(time.Now())
}

// receive notes the packets that come back, until the deadline that send sets.
func (s *stream) receive() {
	var packet [16]byte
	for {
		n, err := s.conn.Read(packet[:])
		switch {
		case errors.Is(err, net.ErrClosed) || isTimeout(err):
			return
		case err != nil || n != 8: // as the error of a refused connection
			continue
		}
		number := binary.BigEndian.Uint64(packet[:])
		s.lock.Lock()
		if number < uint64(len(s.back)) {
			s.back[number] = true
		}
		s.lock.Unlock()
	}
}

// complete reports whether all packets are back.
func (s *stream) complete() bool {
	s.lock.Lock()
	defer s.lock.Unlock()
	return !slices.Contains(s.back, false)
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// mostLost is how many packets of a hundred a stream may lose.
const mostLost = 1

// end waits for the last packets after the end of ctx. It returns how many were sent and lost,
// and the error of tooMany.
func (s *stream) end() (sent, lost int, err error) {
	s.done.Wait()
	_ = s.conn.Close()
	lost, _, _ = losses(s.back)
	return len(s.back), lost, s.tooMany()
}

// tooMany returns an error if the stream sent nothing, if packets in a row were lost, or if more
// than mostLost of a hundred were.
func (s *stream) tooMany() error {
	lost, row, from := losses(s.back)
	switch sent := len(s.back); {
	case sent == 0:
		return fmt.Errorf("no packet was sent %s", s.name)
	case row > 1:
		return fmt.Errorf("%d packets in a row were lost %s, from number %d of %d", row, s.name, from, sent)
	case lost*100 > sent*mostLost:
		return fmt.Errorf("%d of %d packets were lost %s; %d of a hundred may be", lost, sent, s.name, mostLost)
	}
	return nil
}

// losses returns how many packets did not come back, and the length and the first number of
// the longest row of them.
func losses(back []bool) (lost, row, from int) {
	now := 0
	for i, came := range back {
		if came {
			now = 0
			continue
		}
		lost, now = lost+1, now+1
		if now > row {
			row, from = now, i+1-now
		}
	}
	return lost, row, from
}
