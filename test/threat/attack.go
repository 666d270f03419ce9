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

// attack is one attempt of an attacker.
type attack struct {
	id string // unique, for --only
	// by is the attacker: a tenant, an author of networks, a node, a runtime, an operator.
	by    string
	tries string // the attempt, as the table shows it
	// node is the name of the attacker's own node, if any: harm to that node's pods is
	// the attacker's own.
	node string
	// heals is true if the victim may notice it, and must have everything back when do
	// returns: a mistake of an operator, which nothing can prevent.
	heals bool
	// do tries it and returns its effect. An error means that the attack could not be
	// tried.
	do func(ctx context.Context, w *testbed) (effect, error)
}

// effect is the effect of an attack.
type effect struct {
	succeeded bool
	got       string
}

// row is a line of the table.
type row struct {
	attack
	effect
	noticed string // the harm that the victim noticed; empty for none
	took    time.Duration
}

func (r row) succeededAtAll() bool { return r.succeeded || r.noticed != "" }

func attacks() []attack { return append(attacksWithoutOperator(), operatorAttacks()...) }

// attacksWithoutOperator returns the attacks that do not change the running programs.
func attacksWithoutOperator() []attack {
	var all []attack
	for _, some := range [][]attack{
		addressAttacks(), claimAttacks(), readAttacks(), writeAttacks(), portAttacks(), packetAttacks(), neighbourAttacks(), tunnelAttacks(),
		authorAttacks(), reachAttacks(), selectionAttacks(), pathAttacks(), trunkAttacks(), nodeAttacks(), underlayAttacks(), fabricAttacks(), runtimeAttacks(),
	} {
		all = append(all, some...)
	}
	return all
}

// tryAll tries all attacks that --only selects, one after the other.
func (w *testbed) tryAll(ctx context.Context) ([]row, error) {
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

func (w *testbed) tryOne(ctx context.Context, a attack) (r row, err error) {
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

// trafficFlows waits, for as long as healing may take, until all of the victim's traffic
// has answers. Traffic that is still missing then counts as noticed.
func (w *testbed) trafficFlows(ctx context.Context) error {
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

// pause lets the victim send for a while, because an attack may take no time at all.
func (w *testbed) pause(ctx context.Context) error {
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

// printTable prints all attacks with their effects.
func (w *testbed) printTable(rows []row) {
	_, _ = fmt.Fprintf(w.Out, "\n%-24s %-9s %s\n%-34s -> %s | %s\n\n", "ATTACK", "BY", "ATTEMPT", "", "EFFECT", "NOTICED BY THE VICTIM")
	for _, r := range rows {
		noticed := "nothing"
		if r.noticed != "" {
			noticed = oneLine(r.noticed)
		}
		_, _ = fmt.Fprintf(w.Out, "%-24s %-9s %s\n%-34s -> %s | %s\n", r.id, r.by, r.tries, "", oneLine(r.got), noticed)
	}
	_, _ = fmt.Fprintln(w.Out)
}

// verdictOf returns the verdict, and an error unless there are attacks, every one failed, and every
// attack with an open lock succeeded.
func verdictOf(rows []row, opened []opening) (verdict, error) {
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
			errs = append(errs, fmt.Errorf("  %s did not succeed although %s: the suite would not notice a broken lock", o.id, o.how))
		}
	}
	if len(rows) == 0 {
		return result, errors.New("no attack was tried: --only selects none")
	}
	if len(errs) > 0 {
		return result, fmt.Errorf("attacks=%d succeeded=%d:\n%w", result.Attacks, result.Succeeded, errors.Join(errs...))
	}
	return result, nil
}

// asUser returns an attack by a user with rights in her namespace.
func asUser(user string, do func(ctx context.Context, w *testbed, api client.Client) (effect, error)) func(ctx context.Context, w *testbed) (effect, error) {
	return func(ctx context.Context, w *testbed) (effect, error) {
		api, err := w.user(user)
		if err != nil {
			return effect{}, err
		}
		return do(ctx, w, api)
	}
}

// podTries returns an attack in which the tenant creates a pod. got reports whether it succeeded.
// The pod is removed again.
func podTries(pod func(w *testbed) *corev1.Pod, got func(w *testbed, f podResult) bool) func(ctx context.Context, w *testbed) (effect, error) {
	return asUser(tenant, func(ctx context.Context, w *testbed, api client.Client) (effect, error) {
		p := pod(w)
		f, err := w.try(ctx, api, p)
		if err != nil {
			return effect{}, err
		}
		return effect{got(w, f), f.String()}, w.remove(ctx, p)
	})
}

// mustBeRefused returns the effect of a request that the API server has to refuse.
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
