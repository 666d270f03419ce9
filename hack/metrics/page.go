package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"fairlead.dev/fairlead/hack/metrics/declared"
)

// table is a generated table between two comments. The first comment has the program and
// the prefix of the names.
var table = regexp.MustCompile(`(?s)<!-- metrics of ([a-z-]+): ([a-z_]+) -->\n.*?<!-- end of metrics -->\n`)

// fill returns a page with its tables filled. Errors: a metric is in no table.
func fill(text string, metrics []declared.Metric) (string, error) {
	written := map[string]bool{}
	text = table.ReplaceAllStringFunc(text, func(old string) string {
		of := table.FindStringSubmatch(old)
		var b strings.Builder
		fmt.Fprintf(&b, "<!-- metrics of %s: %s -->\n\n| metric | type | labels | meaning |\n|---|---|---|---|\n", of[1], of[2])
		for _, m := range metrics {
			if slices.Contains(m.Programs, of[1]) && strings.HasPrefix(m.Name, of[2]) {
				written[of[1]+m.Name] = true
				fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", m.Name, m.Type, labels(m.Labels), cell(m.Help))
			}
		}
		return b.String() + "\n<!-- end of metrics -->\n"
	})
	for _, m := range metrics {
		for _, p := range m.Programs {
			if !written[p+m.Name] {
				return "", fmt.Errorf("no table has %s of %s: add the comments <!-- metrics of %s: PREFIX --> and <!-- end of metrics -->", m.Name, p, p)
			}
		}
	}
	return text, nil
}

// labels returns the cell of the labels of a metric.
func labels(all []declared.Label) string {
	out := make([]string, 0, len(all))
	for _, l := range all {
		text := l.Text
		for _, v := range l.Values {
			text = regexp.MustCompile(`(^|, )`+v+`($|,| \()`).ReplaceAllString(text, "$1`"+v+"`$2")
		}
		out = append(out, "`"+l.Name+"`: "+cell(text))
	}
	return strings.Join(out, "; ")
}

// cell returns a text that may stand in a table.
func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }
