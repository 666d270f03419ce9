package node

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// A message that is too long is cut between two characters: the API server refuses
// what is no UTF-8.
func TestNoteIsCutBetweenCharacters(t *testing.T) {
	for name, note := range map[string]string{
		"two bytes each":   strings.Repeat("ü", maxNote),
		"odd":              "x" + strings.Repeat("ü", maxNote),
		"not UTF-8 at all": strings.Repeat("\xff", 3) + "pod",
	} {
		got := newReporter(nil, "n1").event(report{note: note}).Note
		if !utf8.ValidString(got) || len(got) > maxNote || len(got) < min(len(note), maxNote)-3 {
			t.Errorf("%s: a note of %d bytes, valid %v", name, len(got), utf8.ValidString(got))
		}
	}
}
