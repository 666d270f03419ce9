package cniproto

import (
	"encoding/json"
	"errors"
	"strings"
)

// Error codes of the CNI specification 1.1.0, and two of its Go library (8 and 999).
// Codes of 100 and above are specific to a plugin.
const (
	CodeIncompatibleVersion = 1   // incompatible CNI version
	CodeUnsupportedField    = 2   // unsupported field in the configuration
	CodeUnknownContainer    = 3   // container unknown or gone: nothing to clean up
	CodeInvalidEnvironment  = 4   // missing or invalid environment variable
	CodeIO                  = 5   // I/O failure
	CodeDecode              = 6   // content cannot be decoded
	CodeInvalidConfig       = 7   // invalid network configuration
	CodeInvalidNetns        = 8   // not a network namespace that can be used
	CodeTryAgainLater       = 11  // transient; the runtime should try again
	CodeUnavailable         = 50  // STATUS: ADD cannot be served
	CodeLimited             = 51  // STATUS: the same, and existing pods are impaired
	CodeInternal            = 999 // any other error
)

// Error is a CNI error object (CNI specification, section 5, "Error").
type Error struct {
	// CNIVersion is the version of the configuration; empty means the newest.
	CNIVersion string `json:"cniVersion"`
	// Code is one of the constants above, or at least 100.
	Code int `json:"code"`
	// Msg names the wrong field, its value, and the accepted values.
	Msg string `json:"msg"`
	// Details are optional.
	Details string `json:"details,omitempty"`
}

// Error returns the message and, if there are any, the details.
func (e *Error) Error() string {
	if e.Details == "" {
		return e.Msg
	}
	return e.Msg + "; " + e.Details
}

// Encode returns the error object as JSON for a runtime. If a text contains "not found",
// a runtime concludes that nothing is there and treats a failed DEL as a success. Encode
// therefore replaces such words in every message, whatever its origin.
func (e *Error) Encode() []byte {
	raw, _ := json.Marshal(e.forRuntime()) //nolint:errchkjson // strings and a number
	return raw
}

// forRuntime returns a copy with a CNI version and without reserved words.
func (e *Error) forRuntime() *Error {
	out := *e
	if out.CNIVersion == "" {
		out.CNIVersion = Versions[len(Versions)-1]
	}
	out.Msg, out.Details = replaceReserved(out.Msg), replaceReserved(out.Details)
	return &out
}

// AsError returns the CNI error in err's chain, or an Error with CodeInternal and err's
// text.
func AsError(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return &Error{Code: CodeInternal, Msg: err.Error()}
}

// reserved are the texts that runtimes act on, in lower case. Each has a substitute of the
// same meaning that contains none of them.
var reserved = [][2]string{
	{"no such file", "missing file"},
	{"not found", "absent"},
}

// replaceReserved takes time in proportion to the text: an author of a network can put words
// of it into an error.
func replaceReserved(s string) string {
	for _, f := range reserved {
		var out strings.Builder
		from := 0
		// Lower-casing may change the length of other than ASCII letters.
		for i := 0; i+len(f[0]) <= len(s); {
			if !strings.EqualFold(s[i:i+len(f[0])], f[0]) {
				i++
				continue
			}
			out.WriteString(s[from:i])
			out.WriteString(f[1])
			i += len(f[0])
			from = i
		}
		if from > 0 {
			s = out.String() + s[from:]
		}
	}
	return s
}
