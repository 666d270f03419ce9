package cniproto

import (
	"errors"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// JSON (RFC 8259) is read and written here, in the ways of encoding/json. That
// package, and with it reflect, the plugin does without: it is a new process for
// each call, and pays for what it links each time.

// maxDepth is how deep arrays and objects may lie in each other, as in encoding/json.
const maxDepth = 10_000

// member of an object: its key, and its value as it is written.
type member struct{ key, value string }

// field is a key that is looked for and where its value goes: *string, *int64,
// []field for an object, or *[]byte for what is written there, whatever it is.
type field struct {
	key  string
	into any
}

// decode reads an object. Its rules are encoding/json's: keys match in any case,
// of two of the same the last one counts, and null changes nothing. An error says
// what is wrong with the text, or which field must be what.
func decode(text string, fields []field) error {
	members, kind, err := scan(text)
	if err != nil {
		return err
	}
	if kind != "object" {
		return notObject(kind)
	}
	return assign("", members, fields)
}

// notObject is the error of decode for a value that is valid and of another kind.
type notObject string

// Error is part of error.
func (kind notObject) Error() string { return "must be a JSON object, not " + string(kind) }

// assign gives members to the fields they are for; path is that of the object.
func assign(path string, members []member, fields []field) error {
	for _, m := range members {
		for _, f := range fields {
			if !strings.EqualFold(m.key, f.key) {
				continue
			}
			if err := f.set(path+f.key, m.value); err != nil {
				return err
			}
		}
	}
	return nil
}

// set takes a value that is valid.
func (f field) set(path, value string) error {
	kind := kindOf(value[0])
	if into, ok := f.into.(*[]byte); ok {
		*into = []byte(value)
		return nil
	}
	if kind == "null" {
		return nil
	}
	want := "string"
	switch into := f.into.(type) {
	case *string:
		if kind == want {
			// A piece of the text would keep the whole of it: the daemon remembers
			// the container IDs of requests for minutes.
			*into = strings.Clone(unquote(value))
			return nil
		}
	case *int64:
		n, err := strconv.ParseInt(value, 10, 64)
		if err == nil {
			*into = n
			return nil
		}
		if want = "integer"; kind == "number" {
			kind = clip(value)
		}
	case []field:
		if want = "object"; kind == want {
			members, _, err := scan(value)
			if err != nil {
				return err
			}
			return assign(path+".", members, into)
		}
	}
	return errors.New(path + ": must be " + want + ", not " + kind)
}

// kindOf names the kind of value that begins with c.
func kindOf(c byte) string {
	switch c {
	case '{':
		return "object"
	case '[':
		return "array"
	case '"':
		return "string"
	case 't', 'f':
		return "bool"
	case 'n':
		return "null"
	default:
		return "number"
	}
}

// scan checks that text is one JSON value and nothing else. It returns the value's
// kind and, of an object, its members. An error says at which byte the text is
// wrong, or that it ends too early.
func scan(text string) (members []member, kind string, err error) {
	s := scanner{text: text}
	s.space()
	kind = kindOf(s.next())
	for done := false; !done; {
		if err := s.begin(); err != nil {
			return nil, "", err
		}
		if done, err = s.end(); err != nil {
			return nil, "", err
		}
	}
	s.space()
	if s.at < len(text) {
		return nil, "", s.wrong("the end")
	}
	return s.members, kind, nil
}

// usualMembers is more than the objects have that are read here as a rule.
const usualMembers = 16

// scanner is somewhere in a JSON text.
type scanner struct {
	text string
	// at is the position of the next byte.
	at int
	// open are the brackets that will close what is open, the innermost last.
	open []byte
	// members of the outermost object so far; of the one whose value is being
	// read, key and where the value begins. No key is no such member.
	members []member
	key     string
	value   int
}

// next is the next byte, 0 at the end.
func (s *scanner) next() byte {
	if s.at == len(s.text) {
		return 0
	}
	return s.text[s.at]
}

// take passes the next byte if it is c.
func (s *scanner) take(c byte) bool {
	if s.at == len(s.text) || s.text[s.at] != c {
		return false
	}
	s.at++
	return true
}

func (s *scanner) space() {
	for s.take(' ') || s.take('\n') || s.take('\t') || s.take('\r') {
	}
}

// wrong is the error that the next byte is not what must be there.
func (s *scanner) wrong(want string) error {
	if s.at == len(s.text) {
		return errors.New("ends after " + strconv.Itoa(s.at) + " bytes, before its JSON is complete")
	}
	_, size := utf8.DecodeRuneInString(s.text[s.at:])
	return errors.New("wrong JSON at byte " + strconv.Itoa(s.at+1) + ": " + strconv.Quote(s.text[s.at:s.at+size]) + ": must be " + want)
}

// begin passes what begins a value: the whole of one that holds no others, or
// brackets as far as there are no values yet.
func (s *scanner) begin() error {
	for {
		s.space()
		switch c := s.next(); c {
		case '"':
			return s.string("a string")
		case 't':
			return s.word("true")
		case 'f':
			return s.word("false")
		case 'n':
			return s.word("null")
		case '{', '[':
			if len(s.open) == maxDepth {
				return s.wrong("in no more than " + strconv.Itoa(maxDepth) + " others")
			}
			s.at++
			s.open = append(s.open, c+2) // ASCII has } and ] there
			s.space()
			if s.next() == c+2 {
				return nil
			}
			if c == '{' {
				if err := s.readKey("a key in quotation marks or }"); err != nil {
					return err
				}
			}
		default:
			return s.number()
		}
	}
}

// end passes what follows a value, up to where the next one begins; done says that
// none does.
func (s *scanner) end() (done bool, err error) {
	for len(s.open) > 0 {
		if len(s.open) == 1 && s.key != "" {
			if s.members == nil {
				s.members = make([]member, 0, usualMembers)
			}
			s.members = append(s.members, member{unquote(s.key), s.text[s.value:s.at]})
			s.key = ""
		}
		s.space()
		bracket := s.open[len(s.open)-1]
		switch {
		case s.take(bracket):
			s.open = s.open[:len(s.open)-1]
		case !s.take(','):
			return false, s.wrong("a comma or " + string(bracket))
		case bracket == '}':
			s.space()
			return false, s.readKey("a key in quotation marks")
		default:
			return false, nil
		}
	}
	return true, nil
}

// readKey passes a key and its colon.
func (s *scanner) readKey(want string) error {
	start := s.at
	if err := s.string(want); err != nil {
		return err
	}
	key := s.text[start:s.at]
	s.space()
	if !s.take(':') {
		return s.wrong("a colon")
	}
	s.space()
	if len(s.open) == 1 {
		s.key, s.value = key, s.at
	}
	return nil
}

func (s *scanner) word(word string) error {
	for i := range len(word) {
		if !s.take(word[i]) {
			return s.wrong("as in " + word)
		}
	}
	return nil
}

func (s *scanner) string(want string) error {
	if !s.take('"') {
		return s.wrong(want)
	}
	for !s.take('"') {
		switch {
		case s.next() < ' ':
			return s.wrong("escaped, as in \\u0000")
		case !s.take('\\'):
			s.at++
		case s.take('u'):
			for range 4 {
				if s.at == len(s.text) || !isHex(s.text[s.at]) {
					return s.wrong("a hexadecimal digit")
				}
				s.at++
			}
		case s.at == len(s.text) || strings.IndexByte(`"\/bfnrt`, s.text[s.at]) < 0:
			return s.wrong(`one of "\/bfnrtu`)
		default:
			s.at++
		}
	}
	return nil
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

func (s *scanner) number() error {
	want := "a value"
	if s.take('-') {
		want = "a digit"
	}
	if !s.take('0') {
		if err := s.digits(want); err != nil {
			return err
		}
	}
	if s.take('.') {
		if err := s.digits("a digit"); err != nil {
			return err
		}
	}
	if s.take('e') || s.take('E') {
		_ = s.take('+') || s.take('-')
		return s.digits("a digit")
	}
	return nil
}

// digits passes one and all that follow.
func (s *scanner) digits(want string) error {
	start := s.at
	for '0' <= s.next() && s.next() <= '9' {
		s.at++
	}
	if s.at == start {
		return s.wrong(want)
	}
	return nil
}

// unquote returns what a string that is valid says. Bytes that are not UTF-8, and
// halves of surrogate pairs, are each replaced by U+FFFD.
func unquote(literal string) string {
	s := literal[1 : len(literal)-1]
	if strings.IndexByte(s, '\\') < 0 && utf8.ValidString(s) {
		return s
	}
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); {
		if s[i] != '\\' {
			r, size := utf8.DecodeRuneInString(s[i:])
			out = utf8.AppendRune(out, r)
			i += size
			continue
		}
		c := s[i+1]
		i += 2
		if c == 'u' {
			r, size := unescape(s[i:])
			out = utf8.AppendRune(out, r)
			i += size
			continue
		}
		if of := strings.IndexByte("bfnrt", c); of >= 0 {
			c = "\b\f\n\r\t"[of]
		}
		out = append(out, c)
	}
	return string(out)
}

// unescape returns the character whose four digits s begins with, and how long it
// is written: a second escape may belong to it.
func unescape(s string) (r rune, size int) {
	r = fourDigits(s)
	if !utf16.IsSurrogate(r) {
		return r, 4
	}
	if low, ok := strings.CutPrefix(s[4:], `\u`); ok {
		if pair := utf16.DecodeRune(r, fourDigits(low)); pair != utf8.RuneError {
			return pair, 10
		}
	}
	return utf8.RuneError, 4
}

func fourDigits(s string) rune {
	n, _ := strconv.ParseUint(s[:4], 16, 16) // they are hexadecimal digits
	return rune(n)
}

// appendQuoted appends the JSON string that says s. Bytes that are not UTF-8 are
// each replaced by U+FFFD.
func appendQuoted(out []byte, s string) []byte {
	out = append(out, '"')
	for i, r := range s {
		switch {
		case r == '"' || r == '\\':
			out = append(out, '\\', s[i])
		case r < ' ':
			out = append(out, `\u00`...)
			out = append(out, "01"[r>>4], "0123456789abcdef"[r&15])
		default:
			out = utf8.AppendRune(out, r)
		}
	}
	return append(out, '"')
}
