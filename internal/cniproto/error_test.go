package cniproto

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestErrorEncode(t *testing.T) {
	e := &Error{Code: CodeIO, Msg: fs.ErrNotExist.Error() + ": open /x: no such file or directory", Details: "Link Not Found, link not found"}
	want := `{"cniVersion":"1.1.0","code":5,"msg":"file does not exist: open /x: missing file or directory","details":"Link absent, link absent"}`
	if diff := cmp.Diff(want, string(e.Encode())); diff != "" {
		t.Errorf("error object (-want +got):\n%s", diff)
	}
	if e.CNIVersion != "" || !strings.Contains(e.Details, "Not Found") {
		t.Errorf("encoding changed the error: %+v", e)
	}
	if got, want := e.Error(), e.Msg+"; "+e.Details; got != want {
		t.Errorf("text %q, want %q", got, want)
	}
}

// An error contains text of a network's author, as a route of her configuration, which may be
// as large as a request. Each reserved word in it was a copy of the whole.
func TestLargeErrorIsEncodedAtOnce(t *testing.T) {
	const times = 1000
	e := &Error{Msg: strings.Repeat("no such file, not found. ", times)}
	if n := testing.AllocsPerRun(1, func() { e.Encode() }); n > 100 {
		t.Errorf("%.0f allocations for %d words", n, 2*times)
	}
	if got, want := e.forRuntime().Msg, strings.Repeat("missing file, absent. ", times); got != want {
		t.Errorf("message %.60q..., want %.60q...", got, want)
	}
}

func TestAsError(t *testing.T) {
	own := &Error{Code: CodeUnknownContainer, Msg: "gone"}
	if got := AsError(fmt.Errorf("add: %w", own)); got != own {
		t.Errorf("%#v, want the error of the chain", got)
	}
	if diff := cmp.Diff(&Error{Code: CodeInternal, Msg: "boom"}, AsError(errors.New("boom"))); diff != "" {
		t.Errorf("foreign error (-want +got):\n%s", diff)
	}
}

func FuzzErrorEncode(f *testing.F) {
	f.Add("not found", "No such file or directory")
	f.Add("nonot foundt found", "\xff no such file\xff")
	f.Fuzz(func(t *testing.T, msg, details string) {
		raw := (&Error{Code: 7, Msg: msg, Details: details}).Encode()
		var e Error
		if err := json.Unmarshal(raw, &e); err != nil {
			t.Fatal(err)
		}
		text := strings.ToLower(e.Error())
		for _, f := range reserved {
			if strings.Contains(strings.ToLower(e.Msg), f[0]) || strings.Contains(strings.ToLower(e.Details), f[0]) {
				t.Errorf("%q has %q", text, f[0])
			}
		}
	})
}
