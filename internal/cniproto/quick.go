package cniproto

import (
	"encoding/json"
	"errors"
	"iter"
	"strconv"
	"strings"
)

// What is here does for the usual case what encoding/json does for every case.
// The plugin is a new process for each call, and reflecting on types for the
// first time is a tenth of its life.

// encode returns the JSON of a request.
func (r Request) encode() ([]byte, error) {
	out := make([]byte, 0, len(r.Config)+1024)
	out = append(out, '{')
	for _, f := range []struct{ key, value string }{
		{"requestID", r.RequestID},
		{"verb", r.Verb},
		{"ipam", r.IPAM},
		{"containerID", r.ContainerID},
		{"netns", r.Netns},
		{"ifname", r.IfName},
		{"args", r.Args},
		{"path", r.Path},
		{"traceparent", r.Traceparent},
		{"tracestate", r.Tracestate},
		{"baggage", r.Baggage},
	} {
		if f.value == "" {
			continue
		}
		value, err := quote(f.value)
		if err != nil {
			return nil, err
		}
		out = append(out, `"`+f.key+`":`...)
		out = append(out, value...)
		out = append(out, ',')
	}
	if len(r.Config) > 0 {
		if !json.Valid(r.Config) {
			return nil, errors.New("config: not JSON")
		}
		out = append(out, `"config":`...)
		out = append(out, r.Config...)
		out = append(out, ',')
	}
	out = append(out, `"deadlineMS":`...)
	out = strconv.AppendInt(out, r.DeadlineMS, 10)
	return append(out, '}'), nil
}

// quote returns a JSON string.
func quote(s string) (string, error) {
	if plain(s) {
		return `"` + s + `"`, nil
	}
	raw, err := json.Marshal(s)
	return string(raw), err
}

// plain reports whether a string stands between quotation marks as it is.
func plain(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

// scanNetwork reads the configuration, which is a JSON object that is valid.
// It reports false when it takes more than looking for the keys as they are
// usually written: an escape, another case, a value that is no string.
func scanNetwork(config string) (n network, ok bool) {
	fields := map[string]*string{"cniVersion": &n.CNIVersion, "name": &n.Name, "socket": &n.Socket, "spool": &n.Spool}
	for key, value := range members(config) {
		into := fields[key]
		if into == nil {
			for name := range fields {
				if strings.EqualFold(name, key) { // encoding/json takes it
					return network{}, false
				}
			}
		} else if value[0] == '"' {
			*into, _ = stringAt(value, 0)
		}
		if !plain(key) || into != nil && (value[0] != '"' || !plain(*into)) {
			return network{}, false
		}
	}
	return n, true
}

// members yields the keys of a JSON object that is valid, as they are written,
// and the text from each one's value on.
func members(object string) iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		depth := 0
		for i := 0; i < len(object); i++ {
			switch object[i] {
			case '{', '[':
				depth++
			case '}', ']':
				depth--
			case '"':
				var text string
				text, i = stringAt(object, i)
				colon := skipSpace(object, i+1)
				if depth != 1 || object[colon] != ':' {
					continue
				}
				i = skipSpace(object, colon+1)
				if !yield(text, object[i:]) {
					return
				}
				i-- // to look at the value
			}
		}
	}
}

// stringAt returns what stands between the quotation mark at i and the one that
// ends the string, and where that is.
func stringAt(s string, i int) (text string, end int) {
	for end = i + 1; s[end] != '"'; end++ {
		if s[end] == '\\' {
			end++
		}
	}
	return s[i+1 : end], end
}

func skipSpace(s string, i int) int {
	for i < len(s) && (s[i] == ' ' || s[i] == '\t' || s[i] == '\n' || s[i] == '\r') {
		i++
	}
	return i
}
