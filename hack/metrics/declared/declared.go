// Package declared reads the metrics that the programs declare, from their source. A metric
// is known with its type, its labels and its help before any program runs.
package declared

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Metric is a metric of a program.
type Metric struct {
	// Name has the namespace and the subsystem.
	Name string
	// Type is counter, gauge or histogram.
	Type string
	// Help is the help without the clauses of the labels.
	Help string
	// Labels are in the order of their declaration.
	Labels []Label
	// Programs are the names of the programs that link the metric, sorted.
	Programs []string
	// Package is the import path of the package that declares the metric.
	Package string
}

// Label is a label of a metric.
type Label struct {
	Name string
	// Text describes the values.
	Text string
	// Values are the allowed values; none if they are not known in advance.
	Values []string
}

// clause is the beginning of the clause of a label in a help text.
var clause = regexp.MustCompile(`(?:^|\. )By ([a-z_]+): `)

// describe splits a help text into its first sentences and the clauses of the labels, as in
// "Addresses of a pool. By pool: the pool. By state: free, held (by a claim)." A clause
// that begins with "the" describes the values, and any other lists them. Errors: a label
// has no clause, or a clause has no label.
func describe(help string, names []string) (string, []Label, error) {
	starts := clause.FindAllStringSubmatchIndex(help, -1)
	text, clauses := help, map[string]string{}
	for i, at := range starts {
		if i == 0 {
			text = help[:at[0]]
		}
		end := len(help)
		if i+1 < len(starts) {
			end = starts[i+1][0]
		}
		clauses[help[at[2]:at[3]]] = strings.TrimSuffix(help[at[1]:end], ".")
	}
	labels := make([]Label, 0, len(names))
	for _, name := range names {
		c, ok := clauses[name]
		if !ok {
			return "", nil, fmt.Errorf("the help lacks a clause %q with the values of the label", "By "+name+": ")
		}
		delete(clauses, name)
		values, err := valuesOf(c)
		if err != nil {
			return "", nil, fmt.Errorf("label %s: %w", name, err)
		}
		labels = append(labels, Label{Name: name, Text: c, Values: values})
	}
	for name := range clauses {
		return "", nil, fmt.Errorf("the help has a clause for the label %q, and the labels are %q", name, names)
	}
	return strings.TrimSuffix(text, ".") + ".", labels, nil
}

// remark is an explanation of a value, in parentheses.
var remark = regexp.MustCompile(` \([^()]*\)`)

// value is a value in a list.
var value = regexp.MustCompile(`^[A-Za-z0-9_]+$`)

// valuesOf returns the values that a clause lists, nil if it describes them.
func valuesOf(c string) ([]string, error) {
	if strings.HasPrefix(c, "the ") {
		return nil, nil
	}
	values := strings.Split(remark.ReplaceAllString(c, ""), ", ")
	for _, v := range values {
		if !value.MatchString(v) {
			return nil, fmt.Errorf("%q is no value: a clause is a list as \"ok, failed (the last one)\", or begins with \"the\"", v)
		}
	}
	return values, nil
}

// programs are those that serve metrics.
var programs = []string{"./cmd/fairlead-controller", "./cmd/fairlead-node"}

// Of returns the metrics of the programs that serve metrics, sorted by name. root is the
// folder of the module. Errors: a metric cannot be read from its declaration.
func Of(root string) ([]Metric, error) { return of(root, programs) }

func of(root string, programs []string) ([]Metric, error) {
	all, err := list(root, programs)
	if err != nil {
		return nil, err
	}
	var (
		out  []Metric
		errs []error
	)
	for _, p := range all.packages {
		if p.Standard || p.Module == nil || !p.Module.Main || !slices.Contains(p.Imports, library) {
			continue
		}
		found, err := all.read(p)
		errs = append(errs, err)
		for _, m := range found {
			m.Programs = all.programsWith(p.ImportPath)
			m.Package = p.ImportPath
			out = append(out, m)
		}
	}
	slices.SortFunc(out, func(a, b Metric) int { return strings.Compare(a.Name, b.Name) })
	for i := 1; i < len(out); i++ {
		if out[i-1].Name == out[i].Name {
			errs = append(errs, fmt.Errorf("%s is declared in %s and in %s", out[i].Name, out[i-1].Package, out[i].Package))
		}
	}
	return out, errors.Join(errs...)
}
