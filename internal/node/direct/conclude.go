package direct

import (
	"slices"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/echo"
)

// maxDropped is the largest number of nodes that NodeNetworkStatus.Dropped names.
const maxDropped = 8

// fate is the outcome of the requests to a peer.
type fate int

const (
	// unknown: the peer does not answer the node itself either, or a rule of the host
	// translates the requests.
	unknown fate = iota
	passed
	dropped
)

// fates returns the outcome for each peer. answers has two entries for each target: for
// the request from the own address, and for that from a pod's. A peer is dropped if one of
// its families is.
func fates(all []target, answers []echo.Answer) map[string]fate {
	out := map[string]fate{}
	for i, t := range all {
		own, pod := answers[2*i], answers[2*i+1]
		is := unknown
		switch {
		case pod == echo.Answered:
			is = passed
		case own == echo.Answered && pod == echo.Unanswered:
			is = dropped
		}
		out[t.peer] = max(out[t.peer], is)
	}
	return out
}

// conclude returns the value of NodeNetworkStatus.Dropped that follows from the outcomes,
// given the value so far. routed are the nodes in other subnets. All nodes are dropped if at
// least two are, or one is after all were, and none passed: then the cause is at this node.
// A single node that lies can not bring that about. The same holds for all nodes in other
// subnets: then the cause is at the router. The value of a peer without an outcome remains.
func conclude(found map[string]fate, routed map[string]bool, before []string) []string {
	var everywhere, beyond tally
	for name, f := range found {
		everywhere.add(f)
		if routed[name] {
			beyond.add(f)
		}
	}
	all := slices.Contains(before, v1alpha1.DroppedToAll)
	if everywhere.blocked(all) {
		return []string{v1alpha1.DroppedToAll}
	}
	names := []string{}
	noRouter := beyond.blocked(all || slices.Contains(before, v1alpha1.DroppedToRouted))
	if noRouter {
		names = append(names, v1alpha1.DroppedToRouted)
	}
	for name, f := range found {
		if noRouter && routed[name] {
			continue
		}
		if f == dropped || f == unknown && slices.Contains(before, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names[:min(len(names), maxDropped)]
}

// tally counts outcomes.
type tally struct{ all, drops, passes int }

func (t *tally) add(f fate) {
	t.all++
	switch f {
	case dropped:
		t.drops++
	case passed:
		t.passes++
	case unknown:
	}
}

// blocked reports whether the cause is common to all. before is true if it was.
func (t *tally) blocked(before bool) bool {
	return t.all > 0 && t.passes == 0 && (t.drops >= 2 || before)
}

// agreed is a conclusion that is adopted when two rounds in a row agree on it: a single round
// may have met a link that was down for a moment.
type agreed struct {
	// value is the adopted value of NodeNetworkStatus.Dropped.
	value []string
	// other is the different value of the last round, if differs is true.
	other   []string
	differs bool
}

// add takes the conclusion of a round. adopted is true if it replaced the value; sure is true
// if it is the value now.
func (a *agreed) add(value []string) (adopted, sure bool) {
	switch {
	case slices.Equal(value, a.value):
		a.differs = false
		return false, true
	case a.differs && slices.Equal(value, a.other):
		a.value, a.differs = value, false
		return true, true
	}
	a.other, a.differs = value, true
	return false, false
}
