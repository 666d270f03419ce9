package hostrules

import (
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

const (
	// maxDepth is the kernel's limit of nested jumps, NFT_JUMP_STACK_SIZE.
	maxDepth = 16
	// maxSteps bounds the number of rules that are evaluated for one packet.
	maxSteps = 100_000
)

// end is the result of a chain.
type end int

const (
	none     end = iota // no decision: the chain returns
	accepted            // by this base chain
	dropped
)

// answer is the result of matching a packet against a rule.
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

// invertIf inverts an answer if inverted is true. The inverse of maybe is maybe.
func (a answer) invertIf(inverted bool) answer {
	if !inverted || a == maybe {
		return a
	}
	return yes - a
}

// walk evaluates a base chain for one packet.
type walk struct {
	rules  *rules
	packet Packet
	steps  int
	// mayAccept is true if a rule that may match accepts the packet. A later drop then
	// counts as MayDrop.
	mayAccept bool
	by        string // the rule that dropped the packet
}

// chain evaluates a chain.
func (w *walk) chain(ref chainRef, depth int) (end, error) {
	all, err := w.rules.rulesOf(ref)
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
		end, stop, err := w.execute(ref, verdict, matches == yes, depth)
		if err != nil || stop {
			return end, err
		}
	}
	return none, nil
}

// execute executes the verdict of a rule; surely is true if the rule certainly matches.
// stop is true if the rest of the chain does not matter.
func (w *walk) execute(at chainRef, v *expr.Verdict, surely bool, depth int) (e end, stop bool, err error) {
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

// rule returns whether a rule matches, and its verdict; nil if it has none.
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

// both returns the conjunction of two answers.
func both(a, b answer) answer {
	if a == no || b == no {
		return no
	}
	return max(a, b) // maybe if either is
}

// target returns the verdict of a target extension of iptables. Most change the packet or
// log it and continue; their verdict is nil.
func target(t *expr.Target) *expr.Verdict {
	switch t.Name {
	case "REJECT":
		return &expr.Verdict{Kind: expr.VerdictDrop}
	case "NFQUEUE":
		return &expr.Verdict{Kind: expr.VerdictQueue}
	}
	return nil
}
