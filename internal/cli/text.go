package cli

import (
	"strings"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/duration"
)

// gap is the least space between two columns.
const gap = 3

// tableText formats rows as columns; the first row is the header. Empty cells become "-",
// so every line has the same number of words.
func tableText(rows [][]string) string {
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 1)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	for _, row := range rows {
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

// notesText formats remarks below a table, one line each.
func notesText(notes []string) string {
	if len(notes) == 0 {
		return ""
	}
	var b strings.Builder
	for _, note := range notes {
		b.WriteString("\n")
		b.WriteString(oneLine(note))
	}
	b.WriteString("\n")
	return b.String()
}

// oneLine joins the lines of a message: joined errors have several.
func oneLine(s string) string {
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}

// age formats the time from since to now as kubectl does; "-" if since is nil.
func age(since *time.Time, now time.Time) string {
	if since == nil {
		return "-"
	}
	return duration.HumanDuration(max(0, now.Sub(*since)))
}
