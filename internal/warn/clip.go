package warn

import (
	"strings"
	"unicode/utf8"
)

// Clip keeps a message within what a condition or an event may hold, 1024 bytes, and
// whole in its characters.
func Clip(s string) string {
	const longest, more = 1024, "..."
	s = strings.ToValidUTF8(s, "?")
	if len(s) <= longest {
		return s
	}
	cut := longest - len(more)
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + more
}
