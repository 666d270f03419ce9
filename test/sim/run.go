package sim

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/pod"
)

// restEvery is after how many lives nothing fails for a while.
const restEvery = 150

// Run lives a world from its seed. It must be called in a synctest bubble. The
// error is a *Failure, or says that the world could not be made.
func Run(cfg Config) (Stats, error) {
	w, err := newWorld(cfg)
	if err != nil {
		return Stats{}, err
	}
	defer w.shutdown()
	w.settle()
	if cfg.Month {
		w.month()
	}
	for next := restEvery; w.stats.Lives < cfg.Lives && w.failed == nil; {
		if w.stats.Lives < next {
			w.step()
			continue
		}
		next += restEvery
		w.mend()
		w.calm = false
	}
	if w.failed == nil {
		w.end()
	}
	if w.failed != nil {
		return w.stats, w.failed
	}
	return w.stats, nil
}

// step does one thing, and checks.
func (w *world) step() {
	w.stats.Steps++
	switch n := w.rng.IntN(1000); {
	case n < 300:
		if len(w.parked) > 0 {
			i := w.rng.IntN(len(w.parked))
			w.answer(i, w.fate(w.parked[i]))
		}
	case n < 600:
		w.lead()
	case n < 740:
		w.machines[w.rng.IntN(len(w.machines))].tick()
	case n < 820:
		w.birth()
	case n < 880:
		w.death()
	case n < 895:
		w.collect()
		w.judge()
	case n < 903:
		w.use()
	case n < 915:
		w.arrive()
	case n < 992:
		w.tick()
		w.checkCounts()
		w.checkCooling()
	default:
		w.chaos()
	}
	w.check()
}

// lead lets some leader do something: see an event, reconcile, collect.
func (w *world) lead() {
	if len(w.leaders) == 0 {
		w.begin()
		return
	}
	l := w.leaders[w.rng.IntN(len(w.leaders))]
	if !l.leads() && w.rng.IntN(40) == 0 {
		w.leadAgain(l)
	}
	switch n := w.rng.IntN(100); {
	case n < 1:
		// The watch broke: events were lost, a list makes up for them.
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
		w.settle() // it hears of everything, and does nothing
		return
	}
	if l.ailing() && (!w.pools.parts() || len(l.running) == 0) {
		l.heal()
	} else if ready := l.ready(); len(ready) > 0 {
		l.reconcile(ready[w.rng.IntN(len(ready))])
	} else if !l.passing && !l.nextPass.After(w.now) {
		l.pass()
	}
	w.settle()
}

// leadAgain begins the next term of a process that stands by.
func (w *world) leadAgain(l *leader) {
	w.note("leader %d leads again", l.id)
	w.stats.Terms++
	l.begin()
}

// begin starts a leader.
func (w *world) begin() {
	if err := w.newLeader(); err != nil {
		w.fail("the model", "%v", err)
	}
	w.settle()
}

// arrive brings the effect of a call whose caller gave up.
func (w *world) arrive() {
	if len(w.late) == 0 {
		return
	}
	i := w.rng.IntN(len(w.late))
	c := w.late[i]
	w.late = append(w.late[:i], w.late[i+1:]...)
	w.note("%s: arrives late, %v", c, w.do(c))
}

// chaos breaks something, or mends it.
func (w *world) chaos() {
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
			w.begin()
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
			w.lose(m)
		}
	case 8, 9:
		if !m.up {
			w.note("%s is switched on", m.name)
			m.on()
		}
	case 10:
		w.snapshot, w.scars = w.api.snapshot(), maps.Clone(w.wounds)
	case 11:
		if w.rng.IntN(4) == 0 {
			w.restore()
		}
	case 12, 13:
		w.loseRecord()
	case 14, 15:
		if len(w.leaders) > 0 {
			if l := w.leaders[w.rng.IntN(len(w.leaders))]; l.leads() {
				l.stepDown()
			}
		}
	case 16, 17:
		w.handEdit()
	case 18, 19:
		n := w.rng.IntN(4)
		switch w.cfg.Break { // the clock that is looked at
		case NodesByStamps:
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

// loseRecord is a record that somebody deletes, whether or not its pod lives.
func (w *world) loseRecord() {
	all := w.api.list(kindRecord)
	if len(all) == 0 {
		return
	}
	o := all[w.rng.IntN(len(all))]
	w.note("%s is deleted by hand", o.GetName())
	w.stats.Deleted++
	w.must(nil, w.api.remove(keyOf(o), nil))
}

// restartAPI kills the API server and starts it again: nobody learns what became of
// the calls that were under way, and for a moment it forbids everything, for it has
// read no roles yet.
func (w *world) restartAPI() {
	w.note("the API server is killed and begins again")
	w.stats.APIRestarts++
	for range len(w.parked) {
		f := lostBefore
		if w.rng.IntN(2) == 0 {
			f = lostAfter
		}
		w.answer(0, f)
	}
	w.ignorant = w.stats.Steps + w.rng.IntN(50)
}

// lose is a machine that is lost, which its operator says in one of two ways,
// or not at all.
func (w *world) lose(m *machine) {
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

// mend heals the world and lets it come to rest.
func (w *world) mend() {
	w.heal()
	w.rest()
	w.checkServed()
	w.checkWounds()
	w.checkSettled()
}

// end heals the world, lets it come to rest, and lets all pods go.
func (w *world) end() {
	w.mend()
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
		w.arrive()
	}
	w.poison = ""
	w.rest()
	w.checkEmpty()
	w.checkSettled()
	w.giveUp()
	w.rest()
	w.checkNothingKept()
	if w.cfg.Month && w.failed == nil {
		w.checkAsOnTheFirstDay()
	}
}

func (w *world) heal() {
	w.note("everything is mended")
	w.calm = true
	for len(w.late) > 0 && w.failed == nil {
		w.arrive()
		w.check()
	}
	for _, m := range w.machines {
		m.reachable = true
		if !m.up {
			m.on()
		}
	}
	if len(w.leaders) == 0 {
		w.lead()
	}
}

// led makes sure that somebody leads.
func (w *world) led() {
	if len(w.leaders) > 0 && !slices.ContainsFunc(w.leaders, (*leader).leads) {
		w.leadAgain(w.leaders[0])
	}
}

// rest goes on until nothing happens for longer than any retry waits and any
// collector rests, or for ten retries of the poisoned pod.
func (w *world) rest() {
	const longest = 40
	w.led()
	seen, quiet := w.written(), 0
	for round := 0; quiet < longest && w.failed == nil; round++ {
		if w.poison != "" && round > 3*longest {
			return // the poisoned pod is tried for ever
		}
		if round > 40*longest {
			w.fail("I8", "the world does not come to rest")
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

// written counts what happened to all but Nodes, whose hearts never rest.
func (w *world) written() int {
	n := 0
	for kind, log := range w.api.log {
		if kind != kindNode {
			n += len(log)
		}
	}
	return n
}

// round lets everybody do all that there is to do now.
func (w *world) round() {
	w.collect()
	w.judge()
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
			w.settle()
		}
		if l.ailing() {
			l.heal()
			w.settle()
		}
		for _, k := range l.ready() {
			l.reconcile(k)
			w.settle()
		}
	}
	for len(w.parked) > 0 && w.failed == nil {
		w.answer(0, served)
		w.stats.Steps++
		w.check()
	}
}

// checkServed is I8: in a world without faults every pod that can be served is,
// whatever became of others.
func (w *world) checkServed() {
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
		if pod.Wants(p) && len(w.records[p.UID]) > 0 && w.machine(p.Spec.NodeName).plugged[knownAs(p)] == nil {
			w.fail("I8", "pod %s has a record and is not plugged", p.Name)
		}
	}
}

// checkEmpty is I2 at the end: all pods are gone, so nothing is taken, but for
// what the poisoned pod has.
func (w *world) checkEmpty() {
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
