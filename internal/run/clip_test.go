package run

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// Clip cuts between characters, within the limit of the API.
func TestClip(t *testing.T) {
	for _, text := range []string{"", "short", strings.Repeat("a", 1024), strings.Repeat("a", 1025)} {
		if got := Clip(text); len(text) <= 1024 && got != text || len(got) > 1024 {
			t.Errorf("%d bytes became %d", len(text), len(got))
		}
	}
	for shift := range 4 {
		text := strings.Repeat("x", shift) + strings.Repeat("\U0001F600", 300)
		got := Clip(text)
		if !utf8.ValidString(got) || len(got) > 1024 || len(got) < 1018 || !strings.HasSuffix(got, "...") {
			t.Errorf("shift %d: %d bytes, %q", shift, len(got), got[len(got)-8:])
		}
	}
	if got := Clip(strings.Repeat("\xff", 2000)); !utf8.ValidString(got) || len(got) > 1024 {
		t.Errorf("%d bytes", len(got))
	}
}
