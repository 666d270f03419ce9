// Package scrape reads the metrics of a program that runs.
package scrape

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"fairlead.dev/fairlead/hack/metrics/declared"
	"fairlead.dev/fairlead/test/harness"
)

// Declared checks that docs/operator/metrics.md describes the metrics of a program on a unix
// socket: each metric of ours with its labels and the values of the labels. root is the
// folder of the module.
func Declared(t *testing.T, root, program, socket string) {
	t.Helper()
	text, err := get(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	metrics, err := declared.Of(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range undeclared(metrics, program, text) {
		t.Error(problem)
	}
}

// get reads the metrics that a program serves on a unix socket.
func get(ctx context.Context, socket string) ([]byte, error) {
	client := harness.AtSocket(socket)
	defer client.CloseIdleConnections()
	text, err := harness.Get(ctx, client, "http://program/metrics")
	return []byte(text), err
}

var (
	sample = regexp.MustCompile(`^((?:fairlead|kubelet)_[a-z0-9_]+)(?:\{(.*)\})? `)
	pair   = regexp.MustCompile(`([a-z_]+)="([^"]*)"`)
	parts  = regexp.MustCompile(`_(bucket|sum|count)$`)
)

// undeclared returns the problems of the samples of a program.
func undeclared(metrics []declared.Metric, program string, text []byte) (problems []string) {
	found := false
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		s := sample.FindStringSubmatch(lines.Text())
		if s == nil {
			continue
		}
		found = true
		i := slices.IndexFunc(metrics, func(m declared.Metric) bool {
			return slices.Contains(m.Programs, program) && (m.Name == s[1] || m.Type == "histogram" && m.Name == parts.ReplaceAllString(s[1], ""))
		})
		if i < 0 {
			problems = append(problems, fmt.Sprintf("%s is not declared as a metric of %s", s[1], program))
			continue
		}
		problems = append(problems, undeclaredLabels(metrics[i], s[2])...)
	}
	if !found {
		problems = append(problems, program+" serves no metric of ours")
	}
	return problems
}

func undeclaredLabels(m declared.Metric, text string) (problems []string) {
	for _, p := range pair.FindAllStringSubmatch(text, -1) {
		if m.Type == "histogram" && p[1] == "le" {
			continue
		}
		i := slices.IndexFunc(m.Labels, func(l declared.Label) bool { return l.Name == p[1] })
		if i < 0 {
			problems = append(problems, fmt.Sprintf("%s has the label %s, which is not declared", m.Name, p[1]))
		} else if l := m.Labels[i]; len(l.Values) > 0 && !slices.Contains(l.Values, p[2]) {
			problems = append(problems, fmt.Sprintf("%s: the label %s is %q, its help lists %s", m.Name, p[1], p[2], strings.Join(l.Values, ", ")))
		}
	}
	return problems
}
