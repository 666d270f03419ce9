package cniproto

import (
	"strconv"
	"strings"
)

const (
	jsonSpace = " \t\r\n"
	jsonMarks = jsonSpace + `,:{}[]"`
)

// lookup returns the value of a key in a JSON object, as it is written there: way has
// the keys of the objects around it and its own. It is empty if there is none. Keys
// match as in encoding/json: in any case, and of two of the same the last one counts.
// Brackets that are open at the end are those of a text that was cut off. What else may
// be wrong with it is for the daemon to say, which reads all of it.
func lookup(text string, way ...string) (value string, open int) {
	depth, found := 0, 0 // brackets that are open, and how many keys of the way lead here
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
			if depth <= len(way) && strings.EqualFold(unquote(token), way[depth-1]) {
				found = depth
			}
		case !isKey && found == depth && depth == len(way) && token != "null":
			value = token
		}
	}
	return value, depth
}

// stringEnd is the position behind the string that begins at start.
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

// lookupString is lookup of a string: what it says, empty if the value is something else.
func lookupString(text string, way ...string) string {
	value, _ := lookup(text, way...)
	return unquote(value)
}

// unquote returns what a JSON string says, empty if the literal is none, or has a
// character beyond U+FFFF escaped as two. JSON's escapes are Go's, and one more.
func unquote(literal string) string {
	if strings.Contains(literal, `\/`) {
		literal = strings.NewReplacer(`\\`, `\\`, `\/`, `/`).Replace(literal)
	}
	s, _ := strconv.Unquote(literal)
	return s
}

// appendQuoted appends the JSON string that says s. Bytes that are not UTF-8 are
// each replaced by U+FFFD.
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
