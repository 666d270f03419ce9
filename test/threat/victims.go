package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/test/netlab"
)

const (
	echoPort = 7000
	pace     = 50 * time.Millisecond // between two packets of a flow
	// lostAfter is when a packet without an answer counts as lost: long, because machines
	// may be slow.
	lostAfter = 3 * time.Second
)

// victimPod is an attacked pod.
type victimPod struct {
	*corev1.Pod
	node      *node
	ns        *netlab.Namespace
	addresses []netip.Addr // IPv4, IPv6
}

// victims are three pods with traffic between them and to the outside.
type victims struct {
	// db and cache are on the first node, as is the attacker's pod; web on the second.
	db, cache, web *victimPod
	flows          []*flow
	cancel         context.CancelFunc
	running        sync.WaitGroup
}

func (v *victims) String() string {
	var out []string
	for _, p := range v.all() {
		out = append(out, fmt.Sprintf("%s on %s with %v", p.Name, p.node.Name, p.addresses))
	}
	return strings.Join(out, ", ")
}

func (v *victims) all() []*victimPod { return []*victimPod{v.db, v.cache, v.web} }

// startVictims creates the pods and starts their traffic.
func (w *testbed) startVictims(ctx context.Context) error {
	v := &victims{}
	for _, p := range []struct {
		into **victimPod
		name string
		node *node
	}{{&v.db, "db", w.nodes[0]}, {&v.cache, "cache", w.nodes[0]}, {&v.web, "web", w.nodes[1]}} {
		pod := newPod(victim, p.name, p.node.Name, nil)
		if err := w.Create(ctx, pod); err != nil {
			return fmt.Errorf("pod %s: %w", p.name, err)
		}
		*p.into = &victimPod{Pod: pod, node: p.node}
	}
	for _, p := range v.all() {
		var err error
		if p.ns, err = w.running(ctx, p.Pod, p.node); err != nil {
			return err
		}
		record, err := w.recordOf(ctx, p.Pod)
		if err != nil || record == nil {
			return fmt.Errorf("the record of pod %s: %v, %w", p.Name, record, err)
		}
		for text := range strings.SplitSeq(record.Spec.Summary.Addresses, ",") {
			addr, err := netip.ParseAddr(strings.TrimSpace(text))
			if err != nil {
				return fmt.Errorf("address of pod %s: %w", p.Name, err)
			}
			p.addresses = append(p.addresses, addr)
		}
	}
	w.victims = v
	return v.startTraffic(ctx, w)
}

// startTraffic starts the traffic and returns when every flow has had an answer.
func (v *victims) startTraffic(ctx context.Context, w *testbed) error {
	outside := w.Net.Switch
	first, both := []string{w.nodes[0].Name}, []string{w.nodes[0].Name, w.nodes[1].Name}
	for i, family := range []string{"IPv4", "IPv6"} {
		own := outside.Addresses()[i].Addr()
		v.flows = append(v.flows,
			&flow{name: "db to web, " + family, nodes: both, from: v.db.ns, to: v.web.ns, source: v.db.addresses[i], target: v.web.addresses[i]},
			&flow{name: "web to cache, " + family, nodes: both, from: v.web.ns, to: v.cache.ns, source: v.web.addresses[i], target: v.cache.addresses[i]},
			&flow{name: "cache to db, " + family, nodes: first, from: v.cache.ns, to: v.db.ns, source: v.cache.addresses[i], target: v.db.addresses[i]},
			// The outside sees the address of the pod's node.
			&flow{name: "db to the outside, " + family, nodes: first, from: v.db.ns, to: outside.Namespace, source: w.nodes[0].Addresses()[i].Addr(), target: own},
		)
	}
	ctx, v.cancel = context.WithCancel(ctx)
	for i, f := range v.flows {
		f.port = uint16(echoPort + i)
		if err := f.start(ctx, &v.running); err != nil {
			return fmt.Errorf("traffic of %s: %w", f.name, err)
		}
	}
	return await(ctx, "the victim's traffic", func(context.Context) (string, error) {
		for _, f := range v.flows {
			if f.answers() == 0 {
				return f.name + " has no answer", nil
			}
		}
		return "", nil
	})
}

// stop ends the traffic.
func (v *victims) stop() {
	v.cancel()
	v.running.Wait()
	for _, p := range v.all() {
		p.ns.Close()
	}
}

// flow is a stream of packets that are answered.
type flow struct {
	name           string
	nodes          []string // that it passes
	from, to       *netlab.Namespace
	source, target netip.Addr // source is the address that the other side has to see
	port           uint16

	mu       sync.Mutex
	sent     []time.Time
	answered []bool
	wrong    string // a wrong source address that was seen
}

// start starts the server, waits until it sees the right source address, and then sends
// all the time. A flow that began before the nodes knew each other's blocks would have
// its node's address for a moment.
func (f *flow) start(ctx context.Context, running *sync.WaitGroup) error {
	var server net.PacketConn
	err := f.to.Do(func() (err error) {
		server, err = net.ListenPacket("udp", f.address())
		return err
	})
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { server.Close() })
	running.Go(func() { serve(server) })
	if err := await(ctx, "traffic of "+f.name, f.probe); err != nil {
		return err
	}
	conn, err := f.dial()
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { conn.Close() })
	running.Go(func() { f.send(ctx, conn) })
	running.Go(func() { f.receive(conn) })
	return nil
}

func (f *flow) address() string { return netip.AddrPortFrom(f.target, f.port).String() }

func (f *flow) dial() (conn net.Conn, err error) {
	err = f.from.Do(func() (err error) {
		conn, err = net.Dial("udp", f.address())
		return err
	})
	return conn, err
}

// probe sends one packet from a new socket, and returns the error in its answer; empty
// for none.
func (f *flow) probe(context.Context) (string, error) {
	conn, err := f.dial()
	if err != nil {
		return err.Error(), nil // there may be no route yet
	}
	defer conn.Close()
	_, _ = conn.Write(make([]byte, 8))
	if err := conn.SetReadDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
		return "", err
	}
	answer := make([]byte, 100)
	n, err := conn.Read(answer)
	if err != nil {
		return "no answer", nil // it is tried again
	}
	return f.check(answer[:n]), nil
}

// check returns the error in the source address that the other side saw; empty for none.
func (f *flow) check(answer []byte) string {
	seen, err := netip.ParseAddrPort(string(answer[8:]))
	if err != nil || seen.Addr().Unmap() != f.source {
		return fmt.Sprintf("%s was seen as %s", f.name, answer[8:])
	}
	return ""
}

// serve answers each packet with its first 8 bytes and its source address.
func serve(server net.PacketConn) {
	buffer := make([]byte, 100)
	for {
		n, from, err := server.ReadFrom(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil || n < 8 {
			continue // as an ICMP error
		}
		_, _ = server.WriteTo(append(buffer[:8:8], from.String()...), from) // the sender counts lost answers
	}
}

func (f *flow) send(ctx context.Context, conn net.Conn) {
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for {
		f.mu.Lock()
		n := len(f.sent)
		f.sent, f.answered = append(f.sent, time.Now()), append(f.answered, false)
		f.mu.Unlock()
		_, _ = conn.Write(binary.BigEndian.AppendUint64(nil, uint64(n)))
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (f *flow) receive(conn net.Conn) {
	buffer := make([]byte, 100)
	for {
		n, err := conn.Read(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil || n < 8 {
			continue
		}
		f.mu.Lock()
		if i := binary.BigEndian.Uint64(buffer); i < uint64(len(f.answered)) {
			f.answered[i] = true
		}
		if wrong := f.check(buffer[:n]); wrong != "" {
			f.wrong = wrong
		}
		f.mu.Unlock()
	}
}

func (f *flow) answers() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(slices.DeleteFunc(slices.Clone(f.answered), func(yes bool) bool { return !yes }))
}

// count returns how many packets were sent between two times, how many of these are lost,
// and whether some may still be answered.
func (f *flow) count(from, until time.Time) (sent, lost int, open bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, at := range f.sent {
		if at.Before(from) || at.After(until) {
			continue
		}
		sent++
		switch {
		case f.answered[i]:
		case time.Since(at) > lostAfter:
			lost++
		default:
			open = true
		}
	}
	return sent, lost, open
}

// noticed describes the harm to the victim since a time, except to flows that pass the
// attacker's own node. Empty means none.
func (w *testbed) noticed(ctx context.Context, since time.Time, attackers string) (string, error) {
	until := time.Now()
	var out []string
	sent := 0
	err := await(ctx, "answers to the victim's packets", func(context.Context) (string, error) {
		out, sent = nil, 0
		for _, f := range w.victims.flows {
			if slices.Contains(f.nodes, attackers) {
				continue
			}
			n, lost, open := f.count(since, until)
			if sent += n; open {
				return f.name, nil
			}
			if lost > 0 {
				out = append(out, fmt.Sprintf("%s lost %d of %d packets", f.name, lost, n))
			}
			if f.wrong != "" {
				out = append(out, f.wrong)
			}
		}
		return "", nil
	})
	if err != nil {
		return "", err
	}
	if sent == 0 {
		return "", errors.New("the victim sent nothing while it was attacked: nothing could be noticed")
	}
	objects, err := w.victimsObjects(ctx, attackers)
	return strings.Join(append(out, objects...), "; "), err
}

// victimsObjects describes the errors in the victims' records and addresses.
func (w *testbed) victimsObjects(ctx context.Context, attackers string) (out []string, err error) {
	slots, err := w.slots(ctx, "default")
	if err != nil {
		return nil, err
	}
	for _, p := range w.victims.all() {
		if p.node.Name == attackers {
			continue
		}
		record, err := w.recordOf(ctx, p.Pod)
		if err != nil {
			return nil, err
		}
		if record == nil || record.DeletionTimestamp != nil && w.byHand != p.UID {
			out = append(out, p.Name+" lost its record")
			continue
		}
		if s := record.Status.Sandbox; s == nil || s.State != v1alpha1.SandboxAttached {
			out = append(out, p.Name+" is reported as unplugged")
		}
		for _, addr := range p.addresses {
			if !hasAddress(record, addr) {
				out = append(out, fmt.Sprintf("the record of %s lost %v", p.Name, addr))
			}
			mine := func(s ipam.Slot) bool {
				return s.Addr == addr && s.State == ipam.Taken && s.Holder.Namespace == victim && s.Holder.Pod == p.Name
			}
			if !slices.ContainsFunc(slots, mine) {
				out = append(out, fmt.Sprintf("%v of %s was freed", addr, p.Name))
			}
		}
	}
	twice, err := w.twice(ctx)
	return append(out, twice...), err
}

// twice returns the addresses that two pods have.
func (w *testbed) twice(ctx context.Context) (out []string, err error) {
	var list v1alpha1.PodAttachmentList
	if err := w.List(ctx, &list); err != nil {
		return nil, err
	}
	holders := map[string]string{}
	for _, record := range list.Items {
		for _, i := range record.Spec.Interfaces {
			for _, addr := range i.Addresses {
				key, _, _ := strings.Cut(addr, "/")
				key = i.Domain + " " + key
				if before := holders[key]; before != "" {
					out = append(out, fmt.Sprintf("%s has two holders: %s and %s/%s", key, before, record.Namespace, record.Spec.PodName))
				}
				holders[key] = record.Namespace + "/" + record.Spec.PodName
			}
		}
	}
	return out, nil
}

// repair gives the victim new pods after an attack that harmed the old ones.
func (w *testbed) repair(ctx context.Context) error {
	w.victims.stop()
	var pods []*corev1.Pod
	for _, p := range w.victims.all() {
		pods = append(pods, p.Pod)
	}
	if err := w.remove(ctx, pods...); err != nil {
		return fmt.Errorf("after an attack that succeeded: %w", err)
	}
	return w.startVictims(ctx)
}

// fresh reads an object again.
func (w *testbed) fresh(ctx context.Context, object client.Object) error {
	return w.Get(ctx, client.ObjectKeyFromObject(object), object)
}
