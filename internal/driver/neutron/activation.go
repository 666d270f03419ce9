package neutron

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/internal/driver"
)

const (
	// askFirst and askLast are the pauses between two questions about a port that waits. The
	// pause grows with the time that it waits.
	askFirst = 200 * time.Millisecond
	askLast  = 5 * time.Second
	// downFor is how long a port is DOWN until the reason is given.
	downFor = time.Minute
	// active is the status of a port that carries traffic.
	active = "ACTIVE"
)

// portKey is the identity of a port's owner: the owner without its node.
type portKey struct {
	namespace, pod, iface string
	uid                   types.UID
}

func keyOf(o driver.Owner) portKey { return portKey{o.Namespace, o.PodName, o.Interface, o.PodUID} }

// port is a port that a pod has, as far as it is remembered.
type port struct {
	owner driver.Owner
	id    string
	// ref is the interface until it is known to be recorded; nil after that.
	ref *driver.Ref
	// since is when the port was first seen here, and asked when its status was read.
	since, asked time.Time
	active       bool
	// late is true if no ADD waits for the port: its status is read to attach it again.
	late bool
	// why is the reason for a port that is not active.
	why string
	// vlan of a subport, 0 for other ports; again is when it was attached again.
	vlan  int
	again time.Time
}

// pause is the time until the status of a port is read again.
func (p *port) pause(now time.Time) time.Duration {
	if p.late {
		return downFor
	}
	return min(max(now.Sub(p.since)/2, askFirst), askLast)
}

// ports remember the ports that this process obtained, or that were recorded and wait to
// become ACTIVE. One loop reads the status of all that wait, with one list.
type ports struct {
	// statuses returns the status of those ports that exist, by ID.
	statuses func(ctx context.Context, ids []string) (map[string]string, error)
	// again attaches a subport again.
	again func(ctx context.Context, id string, vlan int)

	mu sync.Mutex
	m  map[portKey]*port
	// news is signalled when a port begins to wait.
	news chan struct{}
}

func newPorts(statuses func(context.Context, []string) (map[string]string, error), again func(context.Context, string, int)) *ports {
	return &ports{statuses: statuses, again: again, m: map[portKey]*port{}, news: make(chan struct{}, 1)}
}

// obtained remembers an interface that an owner has obtained.
func (p *ports) obtained(ref driver.Ref, isActive bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.add(ref, isActive).ref = &ref
}

// watched remembers a subport that an owner has obtained, and for which no ADD waits. It is
// attached again if it stays DOWN.
func (p *ports) watched(ref driver.Ref) {
	p.mu.Lock()
	defer p.mu.Unlock()
	have := p.add(ref, false)
	if have.ref = &ref; !have.late {
		have.late, have.asked = true, time.Now()
	}
}

// add returns the entry of a port, which it makes if there is none. p.mu is held.
func (p *ports) add(ref driver.Ref, isActive bool) *port {
	key, id := keyOf(ref.Owner), ref.Interface.Binding.Port()
	have := p.m[key]
	if have == nil || have.id != id {
		have = &port{owner: ref.Owner, id: id, since: time.Now(), why: "port " + id + " is not ACTIVE yet"}
		if v := ref.Interface.Binding.VLAN; v != nil {
			have.vlan = int(v.ID)
		}
		p.m[key] = have
	}
	have.active = have.active || isActive
	if !have.active {
		select {
		case p.news <- struct{}{}:
		default:
		}
	}
	return have
}

// isActive is driver.Parts.Active. An interface that is asked about is recorded.
func (p *ports) isActive(ref driver.Ref) (active bool, why string) {
	if ref.Interface.Binding.Port() == "" {
		return false, "its record has no port of Neutron"
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	have := p.add(ref, false)
	have.ref = nil
	return have.active, have.why
}

// held is driver.Parts.Held: the interface of an owner that has no record yet, as far as
// this process knows.
func (p *ports) held(o driver.Owner) []driver.Ref {
	p.mu.Lock()
	defer p.mu.Unlock()
	if have := p.m[keyOf(o)]; have != nil && have.ref != nil {
		return []driver.Ref{*have.ref}
	}
	return nil
}

// released forgets the port of an owner.
func (p *ports) released(o driver.Owner) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.m, keyOf(o))
}

// activations is driver.Parts.Activations. It begins with nothing, since another leader may
// have released ports in between: the controller asks again for those that have a record.
func (p *ports) activations(ctx context.Context, changed func(driver.Owner)) {
	for _, o := range p.recall() {
		changed(o)
	}
	var attaching sync.WaitGroup
	defer attaching.Wait()
	for ctx.Err() == nil {
		due, next := p.due(time.Now())
		if len(due) == 0 {
			p.await(ctx, next)
			continue
		}
		statuses, err := p.statuses(ctx, due)
		for _, o := range p.learn(due, statuses, err) {
			changed(o)
		}
		for id, vlan := range p.stuck(due, statuses) {
			attaching.Go(func() { p.again(ctx, id, vlan) })
		}
	}
}

// stuck returns the VLANs of those subports that have been DOWN for too long, since they
// began to wait or were attached again. A cloud may lose an event.
func (p *ports) stuck(asked []string, statuses map[string]string) map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	out := map[string]int{}
	for _, have := range p.m {
		_, found := slices.BinarySearch(asked, have.id)
		status, exists := statuses[have.id]
		if !found || !exists || have.vlan == 0 || status == active || now.Sub(have.since) < downFor || now.Sub(have.again) < downFor {
			continue
		}
		have.again = now
		out[have.id] = have.vlan
	}
	return out
}

// recall forgets all ports and returns their owners.
func (p *ports) recall() []driver.Owner {
	p.mu.Lock()
	defer p.mu.Unlock()
	var owners []driver.Owner
	for _, have := range p.m {
		owners = append(owners, have.owner)
	}
	clear(p.m)
	return owners
}

// await waits for a port that begins to wait, or for next; without a next, for the former.
func (p *ports) await(ctx context.Context, next time.Duration) {
	var later <-chan time.Time
	if next > 0 {
		timer := time.NewTimer(next)
		defer timer.Stop()
		later = timer.C
	}
	select {
	case <-p.news:
	case <-later:
	case <-ctx.Done():
	}
}

// due returns the ports whose status has to be read now, in order. If there are none, next is the time
// until there are, 0 if none waits.
func (p *ports) due(now time.Time) (ids []string, next time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var late []string
	lateDue := false
	for _, have := range p.m {
		if have.active {
			continue
		}
		left := have.pause(now) - now.Sub(have.asked)
		isDue := left <= askFirst/2 // one list for all that are due about now
		switch {
		case have.late:
			late = append(late, have.id)
			lateDue = lateDue || isDue
		case isDue:
			ids = append(ids, have.id)
		}
		if !isDue && (next == 0 || left < next) {
			next = left
		}
	}
	if lateDue {
		ids = append(ids, late...) // one list a minute for all of these
	}
	slices.Sort(ids)
	return ids, next
}

// learn stores statuses of ports, and returns the owners for which the answer of
// isActive has changed.
func (p *ports) learn(asked []string, statuses map[string]string, err error) []driver.Owner {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	var changed []driver.Owner
	for _, have := range p.m {
		if _, found := slices.BinarySearch(asked, have.id); !found || have.active {
			continue
		}
		have.asked = now
		status, exists := statuses[have.id]
		why := have.why
		switch {
		case err != nil:
			continue // the pause grows; the error is in the metrics of calls
		case status == active:
			have.active, why = true, ""
		case !exists:
			why = fmt.Sprintf("port %s does not exist any more: delete the pod, so that its successor gets another", have.id)
		case now.Sub(have.since) >= downFor:
			why = fmt.Sprintf("port %s is %s for more than %s: see that the node plugged it, and that the OVN controller or OVS agent of node %s works", have.id, status, downFor, have.owner.NodeName)
		}
		if why != have.why {
			have.why = why
			changed = append(changed, have.owner)
		}
	}
	return changed
}
