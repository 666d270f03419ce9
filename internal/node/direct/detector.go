package direct

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/echo"
)

const (
	// RoundDelay is the delay between a change of the probed nodes and the round about it. It
	// gathers changes, and lets all sides set their routes.
	RoundDelay = 3 * time.Second
	// Confirm is the time until a round that found something new is repeated.
	Confirm = 5 * time.Second
	// RetryFirst is the first pause between two rounds while packets are dropped. It doubles
	// with each round up to RetryLast. Both double each time packets are dropped again soon
	// after they passed, up to RetryMost.
	RetryFirst = 10 * time.Second
	// RetryLast bounds the pauses: see RetryFirst.
	RetryLast = 2 * time.Minute
	// RetryMost bounds RetryLast: see RetryFirst.
	RetryMost = time.Hour
	// Seldom is the time between two rounds while packets pass.
	Seldom = 10 * time.Minute
	// steady is the number of rounds without a loss after which the first bounds hold again.
	steady = 6
	// patience is how long a round waits for answers.
	patience = 2 * time.Second
)

// Reasons of the condition Direct.
const (
	reasonPassed    = "Passed"
	reasonDropped   = "Dropped"
	reasonNoAnswer  = "NoAnswer"
	reasonNotProbed = "NotProbed"
)

// Prober sends echo requests.
type Prober interface {
	// Probe sends requests and returns the answers in their order (echo.Prober).
	Probe(ctx context.Context, all []echo.Request, within time.Duration) ([]echo.Answer, error)
}

// Detector probes the peers of a node.
type Detector struct {
	node   string
	prober Prober
	// tunnelled is true if nodes use the tunnel where packets are dropped.
	tunnelled bool
	// found is called when Dropped or Condition has a new value.
	found   func()
	changed chan struct{}

	mu        sync.Mutex
	links     Links
	targets   []target
	agreed    agreed
	restored  bool
	condition *metav1.Condition
}

// New returns the detector of a node. tunnelled says whether nodes use the tunnel where
// packets are dropped. found is called when Dropped or Condition has a new value.
func New(node string, prober Prober, tunnelled bool, found func()) *Detector {
	return &Detector{node: node, prober: prober, tunnelled: tunnelled, found: found, changed: make(chan struct{}, 1)}
}

// Restore sets the value of Dropped that a previous daemon of this node found. Only the
// first call has an effect.
func (d *Detector) Restore(dropped []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.restored {
		d.restored, d.agreed.value = true, slices.Sorted(slices.Values(dropped))
	}
}

// Dropped returns the value of NodeNetworkStatus.Dropped.
func (d *Detector) Dropped() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.agreed.value)
}

// Condition returns the condition Direct, nil if the node has no peers. known is false
// until the first finding: what a previous daemon wrote still holds.
func (d *Detector) Condition() (c *metav1.Condition, known bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.condition, d.condition != nil || len(d.links.Peers) == 0
}

// SetLinks sets the addresses of this node and its peers. A round follows if it changes
// the probed nodes.
func (d *Detector) SetLinks(l Links) {
	d.mu.Lock()
	d.links = l
	if len(l.Peers) == 0 {
		d.agreed, d.condition = agreed{}, nil
	}
	change := d.choose()
	d.mu.Unlock()
	if change {
		select {
		case d.changed <- struct{}{}:
		default:
		}
	}
}

// choose sets the targets, and reports whether they changed.
func (d *Detector) choose() bool {
	now := targets(d.links, sample(d.node, d.links.Peers, d.agreed.value))
	same := slices.Equal(now, d.targets)
	d.targets = now
	return !same
}

// Run probes until ctx ends.
func (d *Detector) Run(ctx context.Context) error {
	timer := time.NewTimer(Seldom)
	timer.Stop()
	defer timer.Stop()
	var p pace
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.changed:
			timer.Reset(RoundDelay)
		case <-timer.C:
			if next := d.round(ctx, &p); next > 0 {
				timer.Reset(next)
			}
		}
	}
}

// round probes all targets once and returns the time until the next round, 0 if there is
// nothing to probe.
func (d *Detector) round(ctx context.Context, p *pace) time.Duration {
	d.mu.Lock()
	all := slices.Clone(d.targets)
	d.mu.Unlock()
	if len(all) == 0 {
		return 0
	}
	requests := make([]echo.Request, 0, 2*len(all))
	for _, t := range all {
		requests = append(requests, echo.Request{From: t.own, To: t.to}, echo.Request{From: t.pod, To: t.to})
	}
	answers, err := d.prober.Probe(ctx, requests, patience)
	if err != nil {
		if ctx.Err() == nil {
			d.failed(err)
			logr.FromContextOrDiscard(ctx).Error(err, "cannot find out whether packets of pods reach other nodes, will be tried again", "after", Seldom)
		}
		return Seldom
	}
	found := fates(all, answers)
	d.mu.Lock()
	adopted, sure := d.agreed.add(conclude(found, beyond(all), d.agreed.value))
	stands, before := d.agreed.value, d.condition
	if sure {
		c := d.describe(found, stands)
		d.condition = &c
	}
	news := adopted || sure && (before == nil || *before != *d.condition)
	d.choose()
	d.mu.Unlock()
	if adopted {
		logr.FromContextOrDiscard(ctx).Info("delivery of pods' packets between nodes changed", "dropped", stands)
	}
	if news {
		d.found()
	}
	return p.next(adopted, sure, len(stands) > 0)
}

// failed notes that echo requests cannot be sent. An earlier finding remains.
func (d *Detector) failed(err error) {
	d.mu.Lock()
	known := d.condition != nil || len(d.agreed.value) > 0
	if !known {
		d.condition = &metav1.Condition{
			Type: v1alpha1.ConditionDirect, Status: metav1.ConditionUnknown, Reason: reasonNotProbed,
			Message: "not known, because no echo requests are sent (the container of fairlead-node needs the capability NET_RAW): " + err.Error(),
		}
	}
	d.mu.Unlock()
	if !known {
		d.found()
	}
}

// describe returns the condition Direct.
func (d *Detector) describe(found map[string]fate, stands []string) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionDirect}
	by := map[fate][]string{}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		by[found[name]] = append(by[found[name]], name)
	}
	switch {
	case len(stands) > 0:
		c.Status, c.Reason = metav1.ConditionFalse, reasonDropped
		c.Message = "packets of pods here are dropped on the way to " + nodes(stands, by[dropped]) + ", packets of the node itself are not: the network must allow the addresses of pods, as by allowed address pairs and security groups"
		if d.tunnelled {
			c.Message += "; the tunnel is used instead"
		} else {
			c.Message += `; with encapsulation "auto" the tunnel would be used instead`
		}
	case len(by[passed]) > 0:
		c.Status, c.Reason = metav1.ConditionTrue, reasonPassed
		c.Message = "packets of pods here reach " + nodes(by[passed], nil)
	default:
		c.Status, c.Reason = metav1.ConditionUnknown, reasonNoAnswer
		c.Message = "not known: there is no answer to echo requests (ICMP) from " + nodes(by[unknown], nil) + " that would show it"
	}
	return c
}

// nodes lists names for a message; seen are those that stand for all.
func nodes(names, seen []string) string {
	var which string
	switch {
	case slices.Contains(names, v1alpha1.DroppedToAll):
		which = "all nodes"
	case slices.Contains(names, v1alpha1.DroppedToRouted):
		which = "all nodes in other subnets"
	default:
		return fmt.Sprintf("node %s", strings.Join(names, ", "))
	}
	if len(seen) == 0 {
		return which
	}
	return which + ", as seen with " + strings.Join(seen, ", ")
}

// pace decides when the next round is due.
type pace struct {
	losses int           // times that packets were dropped anew, 0 after some time without one
	calm   int           // rounds since packets passed again
	wait   time.Duration // the last pause while packets are dropped, 0 for none
}

func (p *pace) next(adopted, sure, lost bool) time.Duration {
	if adopted && lost {
		p.losses++
		p.wait, p.calm = 0, 0
	}
	switch {
	case !sure:
		return Confirm
	case lost:
		grown := min(max(p.losses-1, 0), 8)
		p.wait = min(max(2*p.wait, RetryFirst<<grown), RetryLast<<grown, RetryMost)
		return p.wait
	case adopted:
		return RoundDelay // the replies may take another way now
	}
	if p.calm++; p.calm >= steady {
		p.losses = 0
	}
	return Seldom
}
