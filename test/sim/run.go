package sim

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/pod"
)

// restEvery is after how many pods the faults pause.
const restEvery = 150

// Run runs a simulation from its seed, in a synctest bubble. It returns a *Failure if an
// invariant is broken, or another error if the simulation cannot be created.
func Run(cfg Config) (Stats, error) {
	w, err := newSimulation(cfg)
	if err != nil {
		return Stats{}, err
	}
	defer w.shutdown()
	w.untilIdle()
	if cfg.Month {
		w.month()
	}
	for next := restEvery; w.stats.Lives < cfg.Lives && w.failed == nil; {
		if w.stats.Lives < next {
			w.step()
			continue
		}
		next += restEvery
		w.healAndRest()
		w.calm = false
	}
	if w.failed == nil {
		w.finish()
	}
	if w.failed != nil {
		return w.stats, w.failed
	}
	return w.stats, nil
}

// step does one random thing, and checks the invariants.
func (w *simulation) step() {
	w.stats.Steps++
	switch n := w.rng.IntN(1000); {
	case n < 300:
		if len(w.parked) > 0 {
			i := w.rng.IntN(len(w.parked))
			w.answer(i, w.outcome(w.parked[i]))
		}
	case n < 600:
		w.stepLeader()
	case n < 740:
		w.machines[w.rng.IntN(len(w.machines))].tick()
	case n < 820:
		w.createPod()
	case n < 880:
		w.deletePod()
	case n < 895:
		w.collect()
		w.markSilentNodes()
	case n < 903:
		w.changeClaims()
	case n < 915:
		w.deliverLate()
	case n < 992:
		w.tick()
		w.checkCounts()
		w.checkCooling()
	default:
		w.injectFault()
	}
	w.check()
}

// stepLeader lets a random leader handle events, reconcile, heal or collect.
func (w *simulation) stepLeader() {
	if len(w.leaders) == 0 {
		w.startLeader()
		return
	}
	l := w.leaders[w.rng.IntN(len(w.leaders))]
	if !l.leads() && w.rng.IntN(40) == 0 {
		w.leadAgain(l)
	}
	switch n := w.rng.IntN(100); {
	case n < 1:
		// The watch broke and lost events; a list replaces them.
		kind := watched[w.rng.IntN(len(watched))]
		w.note("leader %d lists %ss", l.id, kind)
		l.list(kind, len(w.api.log[kind]))
	case n < 60:
		for _, kind := range watched {
			for range min(l.behind(kind), w.rng.IntN(8)) {
				l.deliver(kind)
			}
		}
	}
	if !l.leads() {
		w.untilIdle() // it receives all events, and does nothing
		return
	}
	if l.mustCompare() && (!w.pools.parts() || len(l.running) == 0) {
		l.compare()
	} else if ready := l.ready(); len(ready) > 0 {
		l.reconcile(ready[w.rng.IntN(len(ready))])
	} else if !l.passing && !l.nextPass.After(w.now) {
		l.pass()
	}
	w.untilIdle()
}

// leadAgain begins the next term of a process that stands by.
func (w *simulation) leadAgain(l *leader) {
	w.note("leader %d leads again", l.id)
	w.stats.Terms++
	l.begin()
}

// startLeader starts a new leader.
func (w *simulation) startLeader() {
	if err := w.newLeader(); err != nil {
		w.fail("the model", "%v", err)
	}
	w.untilIdle()
}

// deliverLate applies the effect of a random call whose caller gave up.
func (w *simulation) deliverLate() {
	if len(w.late) == 0 {
		return
	}
	i := w.rng.IntN(len(w.late))
	c := w.late[i]
	w.late = append(w.late[:i], w.late[i+1:]...)
	w.note("%s: arrives late, %v", c, w.do(c))
}

// injectFault injects or ends a random fault.
func (w *simulation) injectFault() {
	m := w.machines[w.rng.IntN(len(w.machines))]
	switch w.rng.IntN(24) {
	case 0, 1:
		if len(w.leaders) > 0 {
			w.stats.Crashes++
			w.crash(w.leaders[w.rng.IntN(len(w.leaders))])
		}
	case 2, 3:
		if len(w.leaders) < 2 {
			w.note("another leader")
			w.startLeader()
		}
	case 4:
		if m.up {
			w.note("%s reboots", m.name)
			w.stats.Reboots++
			m.off()
			m.on()
		}
	case 5, 6:
		w.note("%s reachable: %v", m.name, !m.reachable)
		w.stats.Partitions++
		m.reachable = !m.reachable
	case 7:
		if m.up {
			w.loseMachine(m)
		}
	case 8, 9:
		if !m.up {
			w.note("%s is switched on", m.name)
			m.on()
		}
	case 10:
		w.snapshot, w.snapshotLosses = w.api.snapshot(), maps.Clone(w.lostByHand)
	case 11:
		if w.rng.IntN(4) == 0 {
			w.restore()
		}
	case 12, 13:
		w.deleteRecord()
	case 14, 15:
		if len(w.leaders) > 0 {
			if l := w.leaders[w.rng.IntN(len(w.leaders))]; l.leads() {
				l.stepDown()
			}
		}
	case 16, 17:
		w.editByHand()
	case 18, 19:
		n := w.rng.IntN(4)
		switch w.cfg.Break { // the clock that the broken part uses
		case NodesByAge:
			n = 0
		case RunByWallAhead, RunByWallBehind:
			n = 2
		default:
		}
		switch {
		case n == 0:
			w.jumpAPI()
		case n == 1:
			m.jump()
		case len(w.leaders) > 0:
			w.jump(w.leaders[w.rng.IntN(len(w.leaders))])
		}
	default:
		w.restartAPI()
	}
}

// deleteRecord deletes a random record by hand, whether or not its pod lives.
func (w *simulation) deleteRecord() {
	all := w.api.list(kindRecord)
	if len(all) == 0 {
		return
	}
	o := all[w.rng.IntN(len(all))]
	w.note("%s is deleted by hand", o.GetName())
	w.stats.Deleted++
	w.must(nil, w.api.remove(keyOf(o), nil))
}

// restartAPI kills the API server and starts it again. The callers of the calls in
// progress do not learn the outcome, and for a moment the server forbids everything,
// because it has not read its roles yet.
func (w *simulation) restartAPI() {
	w.note("the API server is killed and begins again")
	w.stats.APIRestarts++
	for range len(w.parked) {
		f := lostBefore
		if w.rng.IntN(2) == 0 {
			f = lostAfter
		}
		w.answer(0, f)
	}
	w.rolesKnownAt = w.stats.Steps + w.rng.IntN(50)
}

// loseMachine ends a machine. Its operator deletes the Node, taints it, or does nothing.
func (w *simulation) loseMachine(m *machine) {
	w.note("%s is lost", m.name)
	m.off()
	o, err := w.api.get(m.key())
	if err != nil {
		return
	}
	switch w.rng.IntN(3) {
	case 0:
		w.stats.NodesGone++
		w.must(nil, w.api.remove(m.key(), nil))
	case 1:
		n := o.(*corev1.Node).DeepCopy()
		n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}}
		w.must(w.api.update(n))
	}
}

// healAndRest ends all faults, lets the cluster come to rest, and checks it.
func (w *simulation) healAndRest() {
	w.heal()
	w.rest()
	w.checkServed()
	w.checkLosses()
	w.checkSettled()
}

// finish ends all faults, deletes all pods, and checks that nothing is left.
func (w *simulation) finish() {
	w.healAndRest()
	for _, o := range w.api.list(kindPod) {
		w.kill(o.(*corev1.Pod), false)
	}
	w.rest()
	w.checkEmpty()
	// Not with two leaders: see the package's comment on refused creates.
	for len(w.leaders) > 1 {
		w.crash(w.leaders[0])
	}
	for len(w.late) > 0 && w.failed == nil {
		w.deliverLate()
	}
	w.poison = ""
	w.rest()
	w.checkEmpty()
	w.checkSettled()
	w.deleteClaims()
	w.rest()
	w.checkNothingKept()
	if w.cfg.Month && w.failed == nil {
		w.checkPoolIsFree()
	}
}

func (w *simulation) heal() {
	w.note("all faults end")
	w.calm = true
	for len(w.late) > 0 && w.failed == nil {
		w.deliverLate()
		w.check()
	}
	for _, m := range w.machines {
		m.reachable = true
		if !m.up {
			m.on()
		}
	}
	if len(w.leaders) == 0 {
		w.stepLeader()
	}
}

// ensureLeader makes sure that a process leads.
func (w *simulation) ensureLeader() {
	if len(w.leaders) > 0 && !slices.ContainsFunc(w.leaders, (*leader).leads) {
		w.leadAgain(w.leaders[0])
	}
}

// rest goes on until nothing has happened for longer than any retry's or collector's
// pause, or for ten retries of the poisoned pod.
func (w *simulation) rest() {
	const longest = 40
	w.ensureLeader()
	seen, quiet := w.written(), 0
	for round := 0; quiet < longest && w.failed == nil; round++ {
		if w.poison != "" && round > 3*longest {
			return // the poisoned pod is tried for ever
		}
		if round > 40*longest {
			w.fail("I8", "the cluster does not come to rest")
		}
		w.round()
		w.tick()
		w.checkCounts()
		w.checkCooling()
		if quiet++; w.written() != seen {
			seen, quiet = w.written(), 0
		}
	}
}

// written counts the events of all kinds but Nodes, whose heartbeats never end.
func (w *simulation) written() int {
	n := 0
	for kind, log := range w.api.log {
		if kind != kindNode {
			n += len(log)
		}
	}
	return n
}

// round lets every part do all its pending work.
func (w *simulation) round() {
	w.collect()
	w.markSilentNodes()
	for _, m := range w.machines {
		m.tick()
	}
	for _, l := range w.leaders {
		for _, kind := range watched {
			for l.behind(kind) > 0 {
				l.deliver(kind)
			}
		}
		if !l.leads() {
			continue
		}
		if !l.passing && !l.nextPass.After(w.now) {
			l.pass()
			w.untilIdle()
		}
		if l.mustCompare() {
			l.compare()
			w.untilIdle()
		}
		for _, k := range l.ready() {
			l.reconcile(k)
			w.untilIdle()
		}
	}
	for len(w.parked) > 0 && w.failed == nil {
		w.answer(0, served)
		w.stats.Steps++
		w.check()
	}
}

// checkServed checks I8: without faults every pod that can be served is served, whatever
// happened to others.
func (w *simulation) checkServed() {
	room, counts := w.room()
	for _, o := range w.api.list(kindPod) {
		p := o.(*corev1.Pod)
		if w.mirrors[p.UID] == noUID {
			if len(w.records[p.UID]) > 0 {
				w.fail("I3", "pod %s has a record, and its annotation is no UID", p.Name)
			}
			continue
		}
		if pod.Wants(p) && len(w.records[p.UID]) == 0 && p.Name != w.poison && room && !w.waits(p) {
			w.fail("I8", "pod %s has no record, and there is room: %s", p.Name, counts)
		}
		if pod.Wants(p) && len(w.records[p.UID]) > 0 && w.machine(p.Spec.NodeName).plugged[identityOf(p)] == nil {
			w.fail("I8", "pod %s has a record and is not plugged", p.Name)
		}
	}
}

// checkEmpty checks I2 at the end: all pods are gone, so no address is taken, except
// those of the poisoned pod.
func (w *simulation) checkEmpty() {
	for a, s := range w.slots {
		if s.State == ipam.Taken && (w.poison == "" || s.Holder.Pod != w.poison) {
			w.fail("I2", "all pods are gone, and %s is still taken by %s", a, s.Holder)
		}
	}
	for _, list := range w.records {
		if r := list[0]; w.poison == "" || r.Spec.PodName != w.poison {
			w.fail("I2", "all pods are gone, and record %s is still there", r.Name)
		}
	}
	for _, l := range w.leaders {
		for _, p := range w.pools.all {
			if c := l.counts(p); w.poison == "" && c.Allocated != 0 {
				w.fail("I7", "leader %d still counts %s in pool %s", l.id, c, p.Name())
			}
		}
	}
}
