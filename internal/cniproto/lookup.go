package cniproto

import (
	"strconv"
	"strings"
)

const (
	jsonSpace = " \t\r\n"
	jsonMarks = jsonSpace + `,:{}[]"`
)

// lookup returns a value of a JSON object as it is written there, or an empty string if
// there is none or it is null, an object or an array. keys leads to the value: the keys of
// the objects around it, then its own. Keys match as in encoding/json: regardless of case,
// and the last of several equal keys counts. open is the number of brackets that are not
// closed at the end; it is positive if the text was cut off. lookup reports no other
// defects: the daemon parses the whole text and reports them.
func lookup(text string, keys ...string) (value string, open int) {
	depth, found := 0, 0 // open brackets; leading elements of keys that match here
	for i := 0; i < len(text); {
		start := i
		switch c := text[i]; {
		case c == '{' || c == '[':
			depth++
			i++
			continue
		case c == '}' || c == ']':
			depth--
			i++
			continue
		case c == '"':
			i = stringEnd(text, i)
		case strings.IndexByte(jsonMarks, c) >= 0:
			i++
			continue
		default: // a number, true, false or null
			for i < len(text) && strings.IndexByte(jsonMarks, text[i]) < 0 {
				i++
			}
		}
		token := text[start:i]
		isKey := strings.HasPrefix(strings.TrimLeft(text[i:], jsonSpace), ":")
		switch {
		case isKey && depth > 0 && found >= depth-1:
			found = depth - 1
			if depth <= len(keys) && strings.EqualFold(unquote(token), keys[depth-1]) {
				found = depth
			}
		case !isKey && found == depth && depth == len(keys) && token != "null":
			value = token
		}
	}
	return value, depth
}

// stringEnd returns the position behind the string that begins at start.
func stringEnd(text string, start int) int {
	for i := start + 1; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(text)
}

// lookupString is lookup for a string. It returns the string without quotes and escapes,
// empty if the value is not a string.
func lookupString(text string, keys ...string) string {
	value, _ := lookup(text, keys...)
	return unquote(value)
}

// unquote returns the text of a JSON string. It is empty if the literal is not a string,
// or if it has a character above U+FFFF that is escaped as two. The escapes of JSON are
// those of Go and \/.
func unquote(literal string) string {
	if strings.Contains(literal, `\/`) {
		literal = strings.NewReplacer(`\\`, `\\`, `\/`, `/`).Replace(literal)
	}
	s, _ := strconv.Unquote(literal)
	return s
}

// appendQuoted appends s as a JSON string. U+FFFD replaces each byte that is not UTF-8.
func appendQuoted(out []byte, s string) []byte {
	out = append(out, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			out = append(out, '\\', byte(r))
		case r < ' ':
			out = append(out, `\u00`...)
			out = append(out, "01"[r>>4], "0123456789abcdef"[r&15])
		default:
			out = append(out, string(r)...)
		}
	}
	return append(out, '"')
}
