package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// attack is something that somebody tries.
type attack struct {
	id string // unique, for --only
	// by is who tries it: a tenant, an author of networks, a node, a runtime, an operator.
	by    string
	tries string // what, in words of the table
	// node is the name of the node that is the attacker's own, if one is: what
	// happens to that node's pods is hers.
	node string
	// heals says that the victim may notice it, and must have everything back when do
	// returns: a slip that nobody can keep an operator from.
	heals bool
	// do tries it and says what it had for an effect. An error says that it could
	// not be tried.
	do func(ctx context.Context, w *world) (effect, error)
}

// effect is what an attack led to.
type effect struct {
	succeeded bool
	got       string
}

// row is a line of the table.
type row struct {
	attack
	effect
	noticed string // by the victim; empty is nothing
	took    time.Duration
}

func (r row) succeededAtAll() bool { return r.succeeded || r.noticed != "" }

func attacks() []attack { return append(attacksWithoutOperator(), operatorAttacks()...) }

// attacksWithoutOperator are those that change nothing of what runs.
func attacksWithoutOperator() []attack {
	var all []attack
	for _, some := range [][]attack{
		addressAttacks(), claimAttacks(), lookAttacks(), writeAttacks(), portAttacks(), packetAttacks(), tunnelAttacks(),
		authorAttacks(), pathAttacks(), nodeAttacks(), underlayAttacks(), runtimeAttacks(),
	} {
		all = append(all, some...)
	}
	return all
}

// tryAll tries all that the user wants, one after the other.
func (w *world) tryAll(ctx context.Context) ([]row, error) {
	wanted, err := regexp.Compile(w.Only)
	if err != nil {
		return nil, err
	}
	var rows []row
	for _, a := range attacks() {
		if !wanted.MatchString(a.id) {
			continue
		}
		r, err := w.tryOne(ctx, a)
		if err != nil {
			return nil, err
		}
		rows = append(rows, r)
	}
	return rows, nil
}

func (w *world) tryOne(ctx context.Context, a attack) (r row, err error) {
	r = row{attack: a}
	start := time.Now()
	if r.effect, err = a.do(ctx, w); err != nil {
		return r, fmt.Errorf("attack %s could not be tried: %w", a.id, err)
	}
	since := start
	if a.heals {
		if err := w.trafficFlows(ctx); err != nil {
			return r, fmt.Errorf("after attack %s: %w", a.id, err)
		}
		since = time.Now()
	}
	if err := w.pause(ctx); err != nil {
		return r, err
	}
	if r.noticed, err = w.noticed(ctx, since, a.node); err != nil {
		return r, fmt.Errorf("after attack %s: %w", a.id, err)
	}
	r.took = time.Since(start)
	outcome := "defended"
	if r.succeededAtAll() {
		outcome = "SUCCEEDED"
	}
	w.Say("%-9s %-24s %s", outcome, a.id, oneLine(r.got+noticedWords(r.noticed)))
	if r.noticed != "" {
		err = w.repair(ctx)
	}
	return r, err
}

// trafficFlows waits, for as long as healing may take, until all of the victim's
// traffic has answers. What does not come back by then is noticed.
func (w *world) trafficFlows(ctx context.Context) error {
	_, err := within(ctx, healTime, func(ctx context.Context) (bool, error) {
		for _, f := range w.victims.flows {
			if wrong, err := f.probe(ctx); wrong != "" || err != nil {
				return false, err
			}
		}
		return true, nil
	})
	return err
}

// pause lets the victim send for a while: an attack may take no time at all.
func (w *world) pause(ctx context.Context) error {
	start := time.Now()
	return await(ctx, "the victim's packets", func(context.Context) (string, error) {
		for _, f := range w.victims.flows {
			if sent, _, _ := f.count(start, time.Now()); sent < 3 {
				return f.name, nil
			}
		}
		return "", nil
	})
}

func noticedWords(noticed string) string {
	if noticed == "" {
		return ""
	}
	return "; the victim: " + noticed
}

// printTable prints what was tried.
func (w *world) printTable(rows []row) {
	_, _ = fmt.Fprintf(w.Out, "\n%-24s %-9s %s\n%-34s -> %s | %s\n\n", "ATTACK", "BY", "WHAT WAS TRIED", "", "WHAT CAME OF IT", "WHAT THE VICTIM NOTICED")
	for _, r := range rows {
		noticed := "nothing"
		if r.noticed != "" {
			noticed = oneLine(r.noticed)
		}
		_, _ = fmt.Fprintf(w.Out, "%-24s %-9s %s\n%-34s -> %s | %s\n", r.id, r.by, r.tries, "", oneLine(r.got), noticed)
	}
	_, _ = fmt.Fprintln(w.Out)
}

// judge is the verdict: an error unless every attack failed, and every one whose
// lock was open succeeded.
func judge(rows []row, opened []opening) (verdict, error) {
	result := verdict{Attacks: len(rows)}
	var errs []error
	for _, r := range rows {
		if r.succeededAtAll() {
			result.Succeeded++
			errs = append(errs, fmt.Errorf("  %s (%s): %s%s", r.id, r.tries, oneLine(r.got), noticedWords(oneLine(r.noticed))))
		}
	}
	for _, o := range opened {
		if !o.succeededAtAll() {
			errs = append(errs, fmt.Errorf("  %s did not succeed although %s: it would not notice a lock that fails", o.id, o.how))
		}
	}
	if len(errs) > 0 {
		return result, fmt.Errorf("attacks=%d succeeded=%d:\n%w", result.Attacks, result.Succeeded, errors.Join(errs...))
	}
	return result, nil
}

// asUser is an attack by somebody with rights in her namespace.
func asUser(user string, do func(ctx context.Context, w *world, api client.Client) (effect, error)) func(ctx context.Context, w *world) (effect, error) {
	return func(ctx context.Context, w *world) (effect, error) {
		api, err := w.user(user)
		if err != nil {
			return effect{}, err
		}
		return do(ctx, w, api)
	}
}

// podTries has the tenant create a pod and judges by what became of it. It removes it again.
func podTries(pod func(w *world) *corev1.Pod, got func(w *world, f fate) bool) func(ctx context.Context, w *world) (effect, error) {
	return asUser(tenant, func(ctx context.Context, w *world, api client.Client) (effect, error) {
		p := pod(w)
		f, err := w.try(ctx, api, p)
		if err != nil {
			return effect{}, err
		}
		return effect{got(w, f), f.String()}, w.remove(ctx, p)
	})
}

// mustBeRefused is an attack by a request that the API server has to refuse.
func mustBeRefused(err error) (effect, error) {
	switch {
	case err == nil:
		return effect{true, "the API server did it"}, nil
	case refused(err):
		return effect{false, err.Error()}, nil
	default:
		return effect{}, fmt.Errorf("the API server neither did nor refused it: %w", err)
	}
}

func jsonOf(value any) string {
	raw, err := json.Marshal(value)
	if err != nil {
		return err.Error()
	}
	return string(raw)
}

func contains(text string, any ...string) bool {
	for _, part := range any {
		if strings.Contains(text, part) {
			return true
		}
	}
	return false
}
