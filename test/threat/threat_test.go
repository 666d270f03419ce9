package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestTables checks the tables of the suite: an attack that is left out by accident, or a
// lock with the ID of another attack, fails here.
func TestTables(t *testing.T) {
	const fewest = 120
	all := attacks()
	if len(all) < fewest {
		t.Errorf("%d attacks, must be %d at least", len(all), fewest)
	}
	seen := map[string]bool{}
	for _, a := range all {
		if a.id == "" || a.by == "" || a.tries == "" || a.do == nil {
			t.Errorf("attack %+v lacks something: it must have an ID, an attacker, a description and a function", a)
		}
		if seen[a.id] {
			t.Errorf("two attacks have the ID %s", a.id)
		}
		seen[a.id] = true
		if a.heals != (a.by == byOperator) {
			t.Errorf("attack %s by %s has heals %v; only an operator's mistake may be noticed before it heals", a.id, a.by, a.heals)
		}
	}
	// Of an operator's mistakes, a lock protects only against writing what the controller writes.
	lockable := map[string]bool{"objects-by-hand": true}
	for _, a := range attacksWithoutOperator() {
		lockable[a.id] = true
	}
	opened := map[string]bool{}
	for _, l := range locks() {
		if !lockable[l.attack] {
			t.Errorf("the lock that opens when %s names the attack %q, which is none", l.how, l.attack)
		}
		if l.how == "" || l.open == nil || l.close == nil {
			t.Errorf("the lock of %s lacks something: it must have a description, and functions that open and close it", l.attack)
		}
		if opened[l.attack] {
			t.Errorf("attack %s has two locks", l.attack)
		}
		opened[l.attack] = true
	}
}

// TestSecurityPage compares the counts on the page of the security model with the tables.
func TestSecurityPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/operator/security.md")
	if err != nil {
		t.Fatal(err)
	}
	tries, opened := map[string]int{}, map[string]int{}
	locked := map[string]bool{}
	for _, l := range locks() {
		locked[l.attack] = true
	}
	for _, a := range attacks() {
		tries[a.by]++
		if locked[a.id] {
			opened[a.by]++
		}
	}
	var want []string
	for _, by := range slices.Sorted(maps.Keys(tries)) {
		want = append(want, fmt.Sprintf("| %s | %d | %d |", by, tries[by], opened[by]))
	}
	_, rest, _ := strings.Cut(string(page), "| attacker | attacks | of these with an opened lock |\n|---|---|---|\n")
	table, _, _ := strings.Cut(rest, "\n\n")
	if diff := cmp.Diff(want, strings.Split(table, "\n")); diff != "" {
		t.Errorf("the table of attacks on the page (-tables +page):\n%s", diff)
	}
}

// TestVerdict checks which runs are a success.
func TestVerdict(t *testing.T) {
	defended, succeeded := row{attack: attack{id: "a"}}, row{attack: attack{id: "b"}, effect: effect{succeeded: true}}
	noticed := row{attack: attack{id: "c"}, noticed: "lost packets"}
	for _, tt := range []struct {
		name   string
		rows   []row
		opened []opening
		want   string // in the error; empty for none
	}{
		{"no attack", nil, nil, "no attack was tried"},
		{"defended", []row{defended}, []opening{{row: succeeded}}, ""},
		{"an attack that succeeds", []row{defended, succeeded}, nil, "attacks=2 succeeded=1"},
		{"an attack that the victim notices", []row{noticed}, nil, "lost packets"},
		{"an open lock without an effect", []row{defended}, []opening{{row: defended, how: "all is open"}}, "a did not succeed although all is open"},
	} {
		_, err := verdictOf(tt.rows, tt.opened)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want %q", tt.name, err, tt.want)
		}
	}
}
