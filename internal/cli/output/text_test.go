package output

import "testing"

// A text of a tenant's does not steer the terminal of an operator, in a table or a line.
func TestPrintable(t *testing.T) {
	hostile := "a\x1b[2Jb\tc\u202ed\u009be"
	if got, want := OneLine(hostile+"\nnext"), "a?[2Jb?c?d?e; next"; got != want {
		t.Errorf("line %q, want %q", got, want)
	}
	if got, want := Table([][]string{{"A", "B"}, {hostile, "\n"}, {"é", ""}}), "A              B\na?[2Jb?c?d?e   ?\né              -\n"; got != want {
		t.Errorf("table %q, want %q", got, want)
	}
}
