package cloud

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"unicode"

	"github.com/gophercloud/gophercloud/v2"
)

func neutronError(kind, message string) []byte {
	body, err := json.Marshal(map[string]any{"NeutronError": map[string]string{"type": kind, "message": message, "detail": ""}})
	if err != nil {
		panic(err) // texts always encode
	}
	return body
}

func TestTranslate(t *testing.T) {
	for name, test := range map[string]struct {
		status int
		body   []byte
		want   error
		text   string
	}{
		"quota":                   {409, neutronError("OverQuota", "Quota exceeded for resources: ['port']."), ErrQuota, "create port: over quota: Quota exceeded for resources: ['port']. (HTTP 409 OverQuota, request req-1)"},
		"quota of a pool":         {409, neutronError("SubnetPoolQuotaExceeded", "m"), ErrQuota, ""},
		"full subnet":             {409, neutronError("IpAddressGenerationFailure", "m"), ErrFull, ""},
		"empty subnet pool":       {500, neutronError("SubnetAllocationError", "m"), ErrFull, ""},
		"address taken":           {409, neutronError("IpAddressAlreadyAllocated", "m"), ErrTaken, ""},
		"address taken by client": {409, neutronError("IpAddressAlreadyAllocatedClient", "m"), ErrTaken, ""},
		"address in use":          {409, neutronError("IpAddressInUse", "m"), ErrTaken, ""},
		"MAC in use":              {409, neutronError("MacAddressInUse", "m"), ErrTaken, ""},
		"VLAN in use":             {409, neutronError("DuplicateSubPort", "m"), ErrTaken, ""},
		"subport":                 {409, neutronError("PortInUseAsSubPort", "m"), ErrInUse, ""},
		"trunk parent":            {409, neutronError("PortInUseAsTrunkParent", "m"), ErrInUse, ""},
		"subport of another":      {409, neutronError("TrunkPortInUse", "m"), ErrInUse, ""},
		"group in use":            {409, neutronError("SecurityGroupInUse", "m"), ErrInUse, ""},
		"subnet in use":           {409, neutronError("SubnetInUse", "m"), ErrInUse, ""},
		"network in use":          {409, neutronError("NetworkInUse", "m"), ErrInUse, ""},
		"next hop in a subnet":    {409, neutronError("RouterInterfaceInUseByRoute", "m"), ErrInUse, ""},
		"pairs":                   {400, neutronError("AllowedAddressPairExhausted", "m"), ErrLimit, ""},
		"routes":                  {400, neutronError("RoutesExhausted", "m"), ErrLimit, ""},
		"revision":                {412, neutronError("RevisionNumberConstraintFailed", "m"), ErrChanged, ""},
		"port security":           {409, neutronError("PortSecurityPortHasSecurityGroup", "m"), ErrInvalid, ""},
		"bad request":             {400, neutronError("HTTPBadRequest", "m"), ErrInvalid, ""},
		"unknown conflict":        {409, neutronError("Conflict", "m"), ErrUnavailable, ""},
		"policy":                  {403, neutronError("PolicyNotAuthorized", "m"), ErrForbidden, ""},
		"bad token":               {401, []byte(`{"error": {"code": 401, "title": "Unauthorized", "message": "no"}}`), ErrForbidden, "create port: forbidden: no (HTTP 401, request req-1)"},
		"no such port":            {404, neutronError("PortNotFound", "m"), ErrNotFound, ""},
		"no such API":             {404, neutronError("HTTPNotFound", "m"), ErrForbidden, ""},
		"404 of a proxy":          {404, []byte("<html>404</html>"), ErrUnavailable, "create port: unavailable: Not Found (HTTP 404, request req-1)"},
		"404 of another API":      {404, []byte(`{"message": "no", "code": "404 Not Found"}`), ErrUnavailable, ""},
		"busy":                    {429, nil, ErrUnavailable, ""},
		"broken":                  {500, neutronError("HTTPInternalServerError", "m"), ErrUnavailable, ""},
		"away":                    {503, []byte("<html>"), ErrUnavailable, ""},
		"old form":                {400, []byte(`{"NeutronError": "words"}`), ErrInvalid, "create port: invalid request: words (HTTP 400, request req-1)"},
		"control characters":      {400, neutronError("HTTPBadRequest", "a\nb\x1b[31mc"), ErrInvalid, "create port: invalid request: a b [31mc (HTTP 400 HTTPBadRequest, request req-1)"},
	} {
		t.Run(name, func(t *testing.T) {
			header := http.Header{"X-Openstack-Request-Id": {"req-1"}}
			raw := gophercloud.ErrUnexpectedResponseCode{Actual: test.status, Body: test.body, ResponseHeader: header}
			err := fmt.Errorf("wrapped: %w", translate("create port", raw))
			for _, kind := range []error{ErrNotFound, ErrInvalid, ErrForbidden, ErrQuota, ErrFull, ErrTaken, ErrInUse, ErrChanged, ErrLimit, ErrUnavailable} {
				if is := errors.Is(err, kind); is != errors.Is(test.want, kind) {
					t.Errorf("%v: is %q: %v", err, kind, is)
				}
			}
			if RequestID(err) != "req-1" {
				t.Errorf("request %q of %v, want req-1", RequestID(err), err)
			}
			if got := errors.Unwrap(err).Error(); test.text != "" && got != test.text {
				t.Errorf("text\n%s, want\n%s", got, test.text)
			}
		})
	}
}

// A login that fails is no answer about the object of the call that needed it: a port is
// not gone because Keystone is.
func TestTranslateLogin(t *testing.T) {
	for status, want := range map[int]error{401: ErrForbidden, 403: ErrForbidden, 404: ErrUnavailable, 400: ErrUnavailable, 503: ErrUnavailable} {
		reason := gophercloud.ErrUnexpectedResponseCode{Actual: status, Body: neutronError("PortNotFound", "m")}
		if status == 401 || status == 403 {
			reason.Body = nil
		}
		login := as(ErrUnavailable, translate(loginCall, reason), ErrNotFound, ErrInvalid)
		err := translate("delete port", &gophercloud.ErrUnableToReauthenticate{
			ErrOriginal: gophercloud.ErrUnexpectedResponseCode{Actual: 401}, ErrReauth: login,
		})
		if !errors.Is(err, want) || errors.Is(err, ErrNotFound) {
			t.Errorf("login with status %d: %v, want %v", status, err, want)
		}
	}
}

func TestTranslateTransport(t *testing.T) {
	for _, cause := range []error{context.Canceled, context.DeadlineExceeded, errors.New("connection refused")} {
		err := translate("read port", cause)
		if !errors.Is(err, ErrUnavailable) || !errors.Is(err, cause) || RequestID(err) != "" {
			t.Errorf("%v: want %v and %v without a request", err, ErrUnavailable, cause)
		}
	}
	if err := translate("read port", nil); err != nil {
		t.Errorf("no error became %v", err)
	}
}

func FuzzExplain(f *testing.F) {
	for _, seed := range []string{
		`{"NeutronError": {"type": "OverQuota", "message": "m", "detail": ""}}`, `{"NeutronError": "words"}`,
		`{"error": {"code": 401, "message": "no"}}`, `<html>`, `null`, `[]`, `{"NeutronError": [1]}`, `{"NeutronError": {"type": 7}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		name, text := explain(body)
		for _, s := range []string{name, text} {
			if len(s) > longest+len("...") || strings.ContainsFunc(s, func(r rune) bool { return unicode.IsControl(r) || !unicode.IsPrint(r) }) {
				t.Errorf("%q of %q goes into an event", s, body)
			}
		}
	})
}
