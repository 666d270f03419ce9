package run

import "testing"

func TestFew(t *testing.T) {
	for want, texts := range map[string][]string{"": nil, "a": {"a"}, "a; b": {"a", "b"}, "a; b; and 2 more": {"a", "b", "c", "d"}} {
		if got := Few(texts, 2); got != want {
			t.Errorf("%q: %q, want %q", texts, got, want)
		}
	}
}
