package run

import (
	"strings"
	"unicode/utf8"
)

// Clip shortens a message to the 1024 bytes that a condition or an event may hold. It
// cuts between characters and replaces invalid UTF-8.
func Clip(s string) string { return ClipTo(s, 1024) }

// MaxMessage is the longest message of a condition that the API server accepts. It counts
// characters, which are no more than bytes.
const MaxMessage = 32768

// ClipTo shortens a text to a number of bytes, which is at least 3. It cuts between
// characters and replaces invalid UTF-8.
func ClipTo(s string, longest int) string {
	const more = "..."
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
