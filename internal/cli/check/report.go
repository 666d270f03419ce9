package check

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"io"
	"slices"
	"strings"

	"fairlead.dev/fairlead/internal/cli/output"
)

// maxShown is how many failed rows the table shows; JSON and JUnit have all.
const maxShown = 40

// buildView sorts the rows and adds the findings.
func buildView(rows []Row, places []place, served int) view {
	v := view{OK: true, Nodes: []string{}, Served: served, Rows: rows, Findings: diagnose(rows, places)}
	for _, p := range places {
		v.Nodes = append(v.Nodes, p.name)
	}
	slices.SortStableFunc(v.Rows, func(a, b Row) int {
		return cmp.Or(
			cmp.Compare(slices.Index(order, a.Test), slices.Index(order, b.Test)),
			strings.Compare(a.Network, b.Network), strings.Compare(a.Family, b.Family),
			strings.Compare(a.From, b.From), strings.Compare(a.To, b.To), strings.Compare(a.Via, b.Via),
		)
	})
	for _, r := range rows {
		v.OK = v.OK && r.Result != Failed
	}
	if v.Rows == nil {
		v.Rows = []Row{}
	}
	if v.Findings == nil {
		v.Findings = []Finding{}
	}
	return v
}

// summary is the results of a test on one network in one family.
type summary struct {
	test                     Test
	network, family, untried string
	passed, failed, notTried int
}

func summarize(rows []Row) (out []summary) {
	for _, r := range rows {
		last := len(out) - 1
		if last < 0 || out[last].test != r.Test || out[last].network != r.Network || out[last].family != r.Family {
			out = append(out, summary{test: r.Test, network: r.Network, family: r.Family})
			last++
		}
		switch r.Result {
		case Passed:
			out[last].passed++
		case Failed:
			out[last].failed++
		default:
			out[last].notTried++
			out[last].untried = r.Detail
		}
	}
	return out
}

// text returns a line for each test, each failure and each finding; the last line is the
// outcome.
func text(v view) string {
	rows := [][]string{{"TEST", "NETWORK", "FAMILY", "RESULT", "PASSED", "REMARK"}}
	passed, failed, notTried := 0, 0, 0
	for _, s := range summarize(v.Rows) {
		passed, failed = passed+s.passed, failed+s.failed
		count := fmt.Sprintf("%d/%d", s.passed, s.passed+s.failed)
		result := Passed
		switch {
		case s.failed > 0:
			result = Failed
		case s.passed == 0:
			result, count = NotTried, ""
			notTried++
		}
		rows = append(rows, []string{string(s.test), s.network, s.family, string(result), count, s.untried})
	}
	var b strings.Builder
	b.WriteString(output.Table(rows))
	writeFailed(&b, v.Rows, failed)
	for _, f := range v.Findings {
		fmt.Fprintf(&b, "\n%s\n  look at: %s\n", output.OneLine(f.Problem), output.OneLine(f.Look))
	}
	nodes := fmt.Sprintf("%d of %s", len(v.Nodes), output.Plural(v.Served, "node"))
	if v.OK {
		fmt.Fprintf(&b, "\nOK: %s passed on %s, %s not tried\n", output.Plural(passed, "test"), nodes, output.Plural(notTried, "kind"))
	} else {
		fmt.Fprintf(&b, "\nFAILED: %d of %s on %s, %s not tried\n", failed, output.Plural(passed+failed, "test"), nodes, output.Plural(notTried, "kind"))
	}
	return b.String()
}

func writeFailed(b *strings.Builder, all []Row, failed int) {
	if failed == 0 {
		return
	}
	rows := [][]string{{"FAILED", "FAMILY", "FROM", "TO", "VIA", "DETAIL"}}
	for _, r := range all {
		if r.Result == Failed && len(rows) <= maxShown {
			rows = append(rows, []string{string(r.Test), r.Family, r.From, r.To, r.Via, output.OneLine(r.Detail)})
		}
	}
	b.WriteString("\n" + output.Table(rows))
	if more := failed - maxShown; more > 0 {
		fmt.Fprintf(b, "and %d more: -o json has all\n", more)
	}
}

// The elements of a report in JUnit's form.
type (
	junitSuite struct {
		XMLName  xml.Name    `xml:"testsuite"`
		Name     string      `xml:"name,attr"`
		Tests    int         `xml:"tests,attr"`
		Failures int         `xml:"failures,attr"`
		Skipped  int         `xml:"skipped,attr"`
		Cases    []junitCase `xml:"testcase"`
	}
	junitCase struct {
		Class   string        `xml:"classname,attr"`
		Name    string        `xml:"name,attr"`
		Failure *junitMessage `xml:"failure,omitempty"`
		Skipped *junitMessage `xml:"skipped,omitempty"`
	}
	junitMessage struct {
		Message string `xml:"message,attr"`
		Text    string `xml:",chardata"`
	}
)

// writeJUnit writes the rows as test cases. A failure has the findings as its text.
func writeJUnit(w io.Writer, v view) error {
	suite := junitSuite{Name: "fairlead check", Tests: len(v.Rows)}
	var why strings.Builder
	for _, f := range v.Findings {
		fmt.Fprintf(&why, "%s\nlook at: %s\n", output.OneLine(f.Problem), output.OneLine(f.Look))
	}
	for _, r := range v.Rows {
		c := junitCase{Class: "fairlead.check." + string(r.Test), Name: r.name()}
		switch r.Result {
		case Failed:
			suite.Failures++
			c.Failure = &junitMessage{output.OneLine(r.Detail), why.String()}
		case NotTried:
			suite.Skipped++
			c.Skipped = &junitMessage{Message: output.OneLine(r.Detail)}
		case Passed:
		}
		suite.Cases = append(suite.Cases, c)
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	e := xml.NewEncoder(w)
	e.Indent("", "  ")
	if err := e.Encode(suite); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}

// name is the name of a test case.
func (r Row) name() string {
	parts := []string{string(r.Test)}
	for _, p := range [][2]string{{"on", r.Network}, {"by", r.Family}, {"from", r.From}, {"to", r.To}, {"via", r.Via}} {
		if p[1] != "" {
			parts = append(parts, p[0], p[1])
		}
	}
	return strings.Join(parts, " ")
}
