package cloud

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"unicode"

	"github.com/gophercloud/gophercloud/v2"

	"fairlead.dev/fairlead/internal/run"
)

// The errors of the cloud. Each has the request ID of the cloud in its text (RequestID
// returns it), and is wrapped with %w. Any other failure is ErrUnavailable.
var (
	// ErrNotFound: 404 of Neutron about an object. The 404 of a proxy is ErrUnavailable, and
	// that for an API or an object that these credentials do not see is ErrForbidden: neither
	// is evidence that an object is gone.
	ErrNotFound = errors.New("not found")
	// ErrInvalid: 400; the request cannot succeed as it is.
	ErrInvalid = errors.New("invalid request")
	// ErrForbidden: 401 with fresh credentials, 403.
	ErrForbidden = errors.New("forbidden")
	// ErrQuota: OverQuota of a project.
	ErrQuota = errors.New("over quota")
	// ErrFull: no address is left in the subnet (IpAddressGenerationFailure).
	ErrFull = errors.New("no address left")
	// ErrTaken: the requested address, MAC, segmentation ID or name is in use.
	ErrTaken = errors.New("in use by another")
	// ErrInUse: the object cannot be deleted or changed while others use it.
	ErrInUse = errors.New("still in use")
	// ErrChanged: 412; the object has another revision. Read it again.
	ErrChanged = errors.New("changed by another")
	// ErrLimit: a limit of the cloud: allowed address pairs of a port, routes of a router.
	ErrLimit = errors.New("limit of the cloud")
	// ErrUnavailable: no answer, 5xx, 429, or an answer that is unknown.
	ErrUnavailable = errors.New("unavailable")
)

// RequestID returns the cloud's ID of the request that failed; empty if there is none.
func RequestID(err error) string {
	if f, ok := errors.AsType[*failure](err); ok {
		return f.request
	}
	return ""
}

// failure is a call that failed: an answer of the cloud, or none.
type failure struct {
	call    string
	kind    error // one of the errors above
	status  int   // of the answer; 0 without one
	name    string
	text    string
	request string
	cause   error // without an answer
}

func (f *failure) Error() string {
	var b strings.Builder
	b.WriteString(f.call + ": " + f.kind.Error())
	if f.text != "" {
		b.WriteString(": " + f.text)
	}
	if f.cause != nil {
		b.WriteString(": " + f.cause.Error())
	}
	if f.status == 0 {
		return b.String()
	}
	fmt.Fprintf(&b, " (HTTP %d", f.status)
	if f.name != "" {
		b.WriteString(" " + f.name)
	}
	if f.request != "" {
		b.WriteString(", request " + f.request)
	}
	return b.String() + ")"
}

func (f *failure) Unwrap() []error {
	if f.cause == nil {
		return []error{f.kind}
	}
	return []error{f.kind, f.cause}
}

// as returns a failure of one of the old kinds as one of another kind.
func as(kind, err error, old ...error) error {
	f, ok := errors.AsType[*failure](err)
	if !ok || !slices.ContainsFunc(old, func(k error) bool { return errors.Is(f.kind, k) }) {
		return err
	}
	other := *f
	other.kind = kind
	return &other
}

// translate returns the error of a call as one of this package; nil if err is nil.
func translate(call string, err error) error {
	if err == nil {
		return nil
	}
	if _, done := errors.AsType[*failure](err); done {
		return err
	}
	if login, ok := errors.AsType[*gophercloud.ErrUnableToReauthenticate](err); ok {
		return translate(call, login.ErrReauth)
	}
	var answer gophercloud.ErrUnexpectedResponseCode
	if _, ok := errors.AsType[gophercloud.ErrMissingInput](err); ok {
		return &failure{call: call, kind: ErrInvalid, cause: err} // it was not sent
	}
	if !errors.As(err, &answer) {
		return &failure{call: call, kind: ErrUnavailable, cause: transport(err)}
	}
	name, text := explain(answer.Body)
	if name == "" && text == "" {
		text = http.StatusText(answer.Actual)
	}
	return &failure{
		call: call, kind: kindOf(answer.Actual, name), status: answer.Actual, name: name, text: text,
		request: clean(answer.ResponseHeader.Get("X-Openstack-Request-Id")),
	}
}

// transport returns the error of a call that was not answered. The end of the call's own
// time is no end of the caller's context.
func transport(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("no answer in time: %w", err)
	}
	return err
}

// kindOf returns the error for a status and the name of Neutron's exception.
func kindOf(status int, name string) error {
	if kind, ok := exceptions[name]; ok {
		return kind
	}
	switch status {
	case http.StatusBadRequest:
		return ErrInvalid
	case http.StatusUnauthorized, http.StatusForbidden:
		return ErrForbidden
	case http.StatusNotFound:
		if name != "" {
			return ErrNotFound
		}
	case http.StatusPreconditionFailed:
		return ErrChanged
	case http.StatusConflict:
		if strings.HasSuffix(name, "InUse") {
			return ErrInUse
		}
	}
	return ErrUnavailable
}

// exceptions are those of Neutron whose status alone does not give the kind.
var exceptions = map[string]error{
	"OverQuota":               ErrQuota,
	"SubnetPoolQuotaExceeded": ErrQuota,

	"IpAddressGenerationFailure":                 ErrFull,
	"IpAddressGenerationFailureAllSubnets":       ErrFull,
	"IpAddressGenerationFailureNoMatchingSubnet": ErrFull,
	"ExternalIpAddressExhausted":                 ErrFull,
	"SubnetAllocationError":                      ErrFull,

	"IpAddressAlreadyAllocated":       ErrTaken,
	"IpAddressAlreadyAllocatedClient": ErrTaken,
	"IpAddressInUse":                  ErrTaken,
	"MacAddressInUse":                 ErrTaken,
	"DuplicateSubPort":                ErrTaken,
	"ParentPortInUse":                 ErrTaken,
	"SecurityGroupRuleExists":         ErrTaken,

	"PortInUseAsSubPort":          ErrInUse,
	"PortInUseAsTrunkParent":      ErrInUse,
	"RouterInterfaceInUseByRoute": ErrInUse,
	"SecurityGroupInUse":          ErrInUse,
	"ServicePortInUse":            ErrInUse,

	"AllowedAddressPairExhausted": ErrLimit,
	"RoutesExhausted":             ErrLimit,

	"RevisionNumberConstraintFailed": ErrChanged,

	"HTTPNotFound": ErrForbidden,

	"AddressPairAndPortSecurityRequired":         ErrInvalid,
	"PortSecurityPortHasSecurityGroup":           ErrInvalid,
	"PortSecurityAndIPRequiredForSecurityGroups": ErrInvalid,
	"SubPortMtuGreaterThanTrunkPortMtu":          ErrInvalid,
	"UnsupportedPortDeviceOwner":                 ErrInvalid,
}

// explain returns the exception's name and the message of an error's body. The body comes
// from any machine between here and the cloud: it may be anything.
func explain(body []byte) (name, message string) {
	type fault struct {
		Type    string `json:"type"`
		Message string `json:"message"`
	}
	var whole map[string]json.RawMessage
	if json.Unmarshal(body, &whole) != nil {
		return "", ""
	}
	for _, key := range []string{"NeutronError", "error"} {
		raw, ok := whole[key]
		if !ok {
			continue
		}
		var f fault
		if json.Unmarshal(raw, &f) == nil {
			return clean(f.Type), clean(f.Message)
		}
		var text string
		if json.Unmarshal(raw, &text) == nil {
			return "", clean(text)
		}
	}
	return "", ""
}

// longest is the length of a text of the cloud in an error.
const longest = 300

// clean returns a text of the cloud without control characters, cut at some length: it goes
// into events and logs.
func clean(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || !unicode.IsPrint(r) || r == unicode.ReplacementChar {
			return ' '
		}
		return r
	}, s)
	return run.ClipTo(strings.Join(strings.Fields(s), " "), longest)
}
