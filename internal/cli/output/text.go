package output

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
)

// gap is the least space between two columns.
const gap = 3

// Table formats rows as columns; the first row is the header. Empty cells become "-",
// so every line has the same number of words. Cells are made printable.
func Table(rows [][]string) string {
	var widths []int
	clean := make([][]string, len(rows))
	for n, row := range rows {
		clean[n] = make([]string, len(row))
		for i, cell := range row {
			cell = printable(cell)
			clean[n][i] = cell
			if i == len(widths) {
				widths = append(widths, 1)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	for _, row := range clean {
		for i, cell := range row {
			if cell == "" {
				cell = "-"
			}
			b.WriteString(cell)
			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", widths[i]+gap-utf8.RuneCountInString(cell)))
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// Notes formats remarks below a table, one line each.
func Notes(notes []string) string {
	if len(notes) == 0 {
		return ""
	}
	var b strings.Builder
	for _, note := range notes {
		b.WriteString("\n")
		b.WriteString(OneLine(note))
	}
	b.WriteString("\n")
	return b.String()
}

// OneLine joins the lines of a message, and makes it printable: joined errors have several.
func OneLine(s string) string {
	return printable(strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' }), "; "))
}

// printable returns a text with "?" for each character that would steer the terminal: a text
// may be the tenant's.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, s)
}

// Age formats the time from since to now as kubectl does; "-" if since is nil.
func Age(since *time.Time, now time.Time) string {
	if since == nil {
		return "-"
	}
	return duration.HumanDuration(max(0, now.Sub(*since)))
}

// Plural returns a number with a noun, which has a plural s unless the number is 1.
func Plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	if strings.HasSuffix(noun, "s") {
		noun += "e"
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// YesNo formats a bool as a condition's status.
func YesNo(b bool) string {
	if b {
		return string(metav1.ConditionTrue)
	}
	return string(metav1.ConditionFalse)
}
