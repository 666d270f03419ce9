package hostrules

import (
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

const (
	// maxDepth is how deep the kernel lets chains jump, NFT_JUMP_STACK_SIZE.
	maxDepth = 16
	// maxSteps bounds how many rules are looked at for one packet.
	maxSteps = 100_000
)

// end is how a walk through a chain ends.
type end int

const (
	none     end = iota // nothing was decided: it returns
	accepted            // by this base chain
	dropped
)

// answer is whether a rule matches a packet.
type answer int

const (
	no answer = iota
	yes
	maybe
)

func is(b bool) answer {
	if b {
		return yes
	}
	return no
}

// but turns an answer round, if it is to be.
func (a answer) but(inverted bool) answer {
	if !inverted || a == maybe {
		return a
	}
	return yes - a
}

// walk is one packet on its way through a base chain.
type walk struct {
	rules  *rules
	packet Packet
	steps  int
	// mayAccept says that a rule of which it is not known whether it matches lets the
	// packet through. One that drops it then is not believed to.
	mayAccept bool
	by        string // what dropped it
}

// chain follows the packet through a chain.
func (w *walk) chain(ref chainRef, depth int) (end, error) {
	all, err := w.rules.of(ref)
	if err != nil {
		return none, err
	}
	for _, r := range all {
		if w.steps++; w.steps > maxSteps || depth > maxDepth {
			w.mayAccept = true
			return none, nil
		}
		matches, verdict := w.rule(r)
		if matches == no || verdict == nil {
			continue
		}
		end, stop, err := w.obey(ref, verdict, matches == yes, depth)
		if err != nil || stop {
			return end, err
		}
	}
	return none, nil
}

// obey does what a verdict says; surely when it is known that its rule matches. stop
// is true when the rest of the chain does not matter.
func (w *walk) obey(at chainRef, v *expr.Verdict, surely bool, depth int) (e end, stop bool, err error) {
	switch v.Kind {
	case expr.VerdictAccept, expr.VerdictQueue, expr.VerdictStolen:
		w.mayAccept = w.mayAccept || !surely || v.Kind != expr.VerdictAccept
		return accepted, surely, nil
	case expr.VerdictDrop:
		if surely {
			w.by = "a rule in " + at.String()
		}
		return dropped, surely, nil
	case expr.VerdictReturn:
		return none, surely, nil
	case expr.VerdictJump, expr.VerdictGoto:
		to := at
		to.name = v.Chain
		e, err := w.chain(to, depth+1)
		if err != nil {
			return none, true, err
		}
		if !surely {
			w.mayAccept = w.mayAccept || e == accepted
			return none, false, nil
		}
		return e, e != none || v.Kind == expr.VerdictGoto, nil
	default:
		return none, false, nil
	}
}

// rule tells whether a rule matches, and what is done then; nil is nothing.
func (w *walk) rule(r *nftables.Rule) (answer, *expr.Verdict) {
	m := machine{walk: w, table: r.Table, registers: map[uint32][]byte{}}
	all := yes
	for _, e := range r.Exprs {
		switch e := e.(type) {
		case *expr.Verdict:
			return all, e
		case *expr.Reject:
			return all, &expr.Verdict{Kind: expr.VerdictDrop}
		case *expr.Target:
			return all, target(e)
		case *expr.Lookup:
			a, verdict := m.lookup(e)
			if a == no {
				return no, nil
			}
			if verdict != nil {
				return both(all, a), verdict // a map of verdicts
			}
			all = both(all, a)
		default:
			all = both(all, m.step(e))
		}
		if all == no {
			return no, nil
		}
	}
	return all, nil
}

// both is the answer to two questions at once.
func both(a, b answer) answer {
	if a == no || b == no {
		return no
	}
	return max(a, b) // maybe, when one is
}

// target is what an extension of iptables does with a packet. Most change or tell
// something and go on.
func target(t *expr.Target) *expr.Verdict {
	switch t.Name {
	case "REJECT":
		return &expr.Verdict{Kind: expr.VerdictDrop}
	case "NFQUEUE":
		return &expr.Verdict{Kind: expr.VerdictQueue}
	}
	return nil
}
