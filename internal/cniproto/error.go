package cniproto

import (
	"errors"
	"strconv"
	"strings"
)

// Error codes of the CNI specification 1.1.0, and two of its Go library (8 and
// 999). 100 and above are a plugin's own.
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
	CodeInternal            = 999 // anything else
)

// Error is a CNI error object (CNI specification, section 5, "Error").
type Error struct {
	// CNIVersion is the version of the configuration; empty means the newest.
	CNIVersion string `json:"cniVersion"`
	// Code is one of the constants above, or 100 and above.
	Code int `json:"code"`
	// Msg says what was wrong, with which value, and what would be right.
	Msg string `json:"msg"`
	// Details are optional.
	Details string `json:"details,omitempty"`
}

// Error returns message and details.
func (e *Error) Error() string {
	if e.Details == "" {
		return e.Msg
	}
	return e.Msg + "; " + e.Details
}

// Encode returns the error object as a runtime may be given it. Runtimes take a
// text with "not found" for the statement that nothing is there and a failed DEL
// for a success, so those words are replaced, whoever wrote them.
func (e *Error) Encode() []byte {
	out := *e
	if out.CNIVersion == "" {
		out.CNIVersion = Versions[len(Versions)-1]
	}
	out.Msg, out.Details = defuse(out.Msg), defuse(out.Details)
	raw := appendQuoted([]byte(`{"cniVersion":`), out.CNIVersion)
	raw = strconv.AppendInt(append(raw, `,"code":`...), int64(out.Code), 10)
	raw = appendQuoted(append(raw, `,"msg":`...), out.Msg)
	if out.Details != "" {
		raw = appendQuoted(append(raw, `,"details":`...), out.Details)
	}
	return append(raw, '}')
}

// decodeError reads an error object; one without a code is none.
func decodeError(body string) (*Error, error) {
	code, _ := lookup(body, "code")
	n, err := strconv.Atoi(code)
	e := &Error{CNIVersion: lookupString(body, "cniVersion"), Code: n, Msg: lookupString(body, "msg"), Details: lookupString(body, "details")}
	return e, err
}

// AsError returns the CNI error in err's chain, or one of CodeInternal with
// err's text.
func AsError(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return &Error{Code: CodeInternal, Msg: err.Error()}
}

// because is an error and its cause, both for errors.Is, as fmt.Errorf makes them of
// two %w.
type because struct{ what, cause error }

// Error returns both texts.
func (b because) Error() string { return b.what.Error() + ": " + b.cause.Error() }

// Unwrap is what errors.Is looks for.
func (b because) Unwrap() []error { return []error{b.what, b.cause} }

// doing is err with what was being done.
func doing(what string, err error) error { return because{errors.New(what), err} }

// fused are the texts that runtimes act on, in lower case, each with one that
// means the same and holds none of them.
var fused = [][2]string{
	{"no such file", "missing file"},
	{"not found", "absent"},
}

func defuse(s string) string {
	for _, f := range fused {
		// Lower-casing may change the length of other than ASCII letters.
		for i := 0; i+len(f[0]) <= len(s); i++ {
			if strings.EqualFold(s[i:i+len(f[0])], f[0]) {
				s = s[:i] + f[1] + s[i+len(f[0]):]
			}
		}
	}
	return s
}
