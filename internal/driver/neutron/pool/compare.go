package pool

import (
	"context"
	"maps"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"
)

// checkAfter is the time after which the network and the groups of a pool are read again.
const checkAfter = 5 * time.Minute

// forgetReleased is the time after which the record of a pod whose port was taken back is
// gone from the cache.
const forgetReleased = 10 * time.Minute

// records are the holders of ports that PodAttachments name. A record may outlive the release
// of its port for a while: a pod whose port this process took back is left out.
type records struct {
	cluster Cluster

	mu sync.Mutex
	// released has when this process took the ports of holders back.
	released map[identity]time.Time
}

// of returns the holders of the ports on a node, by the port's ID; of all nodes if it is empty.
func (r *records) of(ctx context.Context, node string) (map[string]Holder, error) {
	all, err := r.cluster.Recorded(ctx, node)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(all, func(_ string, h Holder) bool { return !r.released[identityOf(h)].IsZero() })
	return all, nil
}

// release notes that the port of a holder is taken back, and take that it has one again.
func (r *records) release(h Holder) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.released[identityOf(h)] = time.Now()
}

func (r *records) take(h Holder) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.released, identityOf(h))
}

// forget forgets old releases, and begin all.
func (r *records) forget(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.released, func(_ identity, at time.Time) bool { return now.Sub(at) >= forgetReleased })
}

func (r *records) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.released)
}

// compare is the step that compares PortPools with the records of pods in the beginning of a
// term, then with the cloud, and with their networks.
func (p *Pools) compare(ctx context.Context) (pause time.Duration) {
	if err := p.compareWithRecords(ctx); err != nil {
		log.FromContext(ctx).V(1).Info("pools of ports are not compared with the records of pods yet", "reason", err.Error())
		return firstPause
	}
	return min(p.correct(ctx), p.strays.find(ctx), p.checkNetworks(ctx))
}

// compareWithRecords finds the ports that are of other pods than their records have it, if etcd
// was restored or a PortPool was deleted since the records were written.
func (p *Pools) compareWithRecords(ctx context.Context) error {
	deleted := p.store.wasDeleted()
	p.mu.Lock()
	p.compared = p.compared && !deleted
	compared := p.compared
	p.mu.Unlock()
	if compared {
		return nil
	}
	p.strays.expect()
	recorded, err := p.records.of(ctx, "")
	if err != nil {
		return err
	}
	p.store.expect(recorded)
	p.mu.Lock()
	p.compared = true
	p.mu.Unlock()
	p.bell.ring()
	p.cfg.Wake()
	return nil
}

// correct writes the PortPools that differ from the records of pods, as these are now. A
// PortPool that cannot be written holds up no other. It returns the time until the next is due.
func (p *Pools) correct(ctx context.Context) (pause time.Duration) {
	for _, g := range p.store.report() {
		p.cfg.Cluster.ReportRecorded(ctx, g.object, g.port, g.to)
	}
	due, pause := p.store.uncorrected(time.Now())
	if len(due) == 0 {
		return pause
	}
	recorded, err := p.records.of(ctx, "")
	if err != nil {
		log.FromContext(ctx).V(1).Info("PortPools are not corrected yet", "reason", err.Error())
		return firstPause
	}
	p.store.expect(recorded)
	for _, e := range due {
		p.store.correct(ctx, e)
	}
	return 0
}

// checkNetworks reads the networks of the pools that were not compared with them for a while.
// It returns the time until the next is due.
func (p *Pools) checkNetworks(ctx context.Context) (pause time.Duration) {
	pause = checkAfter
	var due []Key
	now := time.Now()
	p.mu.Lock()
	for _, k := range p.store.keys() {
		n := p.need(k)
		if n.checked.IsZero() {
			n.checked = now.Add(-checkAfter)
		}
		if left := checkAfter - now.Sub(n.checked); left > 0 {
			pause = min(pause, left)
		} else {
			due = append(due, k)
		}
	}
	p.mu.Unlock()
	for _, k := range due {
		network, err := p.cfg.Maker.Network(ctx, k)
		if err == nil {
			err = p.compareNetwork(ctx, k, network)
		}
		if err != nil {
			p.mu.Lock()
			p.need(k).checked = time.Now().Add(lastPause - checkAfter)
			p.mu.Unlock()
			pause = min(pause, lastPause)
		}
	}
	return pause
}
