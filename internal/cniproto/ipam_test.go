package cniproto

import (
	"bytes"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestEndpointOfAnIPAMPlugin(t *testing.T) {
	parse := func(config string) (r Request, at Endpoint, err error) {
		at, err = r.Parse(Call{
			Program: "fairlead-ipam", Stdin: strings.NewReader(config),
			Getenv: environ(map[string]string{"CNI_COMMAND": VerbAdd}),
		})
		return r, at, err
	}
	cases := []struct{ name, config, socket string }{
		{"the default", `{"cniVersion":"1.0.0","name":"n","type":"bridge","ipam":{"type":"fairlead-ipam"}}`, DefaultSocket()},
		{"its own", `{"cniVersion":"1.0.0","name":"n","type":"bridge","socket":"/other","ipam":{"type":"fairlead-ipam","socket":"/run/x/cni.sock"}}`, "/run/x/cni.sock"},
		{"fields of another plugin", `{"cniVersion":"1.0.0","name":"n","type":"bridge","socket":7,"spool":[],"ipam":{"type":"fairlead-ipam"}}`, DefaultSocket()},
		{"no section", `{"cniVersion":"1.0.0","name":"n","type":"bridge"}`, DefaultSocket()},
	}
	for _, tc := range cases {
		if r, at, err := parse(tc.config); err != nil || at.Socket != tc.socket || r.IPAM != "fairlead-ipam" {
			t.Errorf("%s: %+v, %+v, %v", tc.name, r, at, err)
		}
	}
	_, _, err := parse(`{"cniVersion":"1.0.0","name":"n","ipam":{"socket":"x"}}`)
	expectError(t, err, CodeInvalidConfig, `socket: "x"`, "absolute")
}

// A field that is not sent changes the daemon's behaviour: requests of fairlead-ipam were
// once served like those of the runtime.
func TestEveryFieldOfARequestIsSent(t *testing.T) {
	want := Request{DeadlineMS: 7, Config: []byte(`{"cniVersion":"1.0.0"}`)}
	fields := reflect.ValueOf(&want).Elem()
	for i := range fields.NumField() {
		if f := fields.Field(i); f.Kind() == reflect.String {
			f.SetString(fields.Type().Field(i).Name)
		}
	}
	got, err := DecodeRequest(bytes.NewReader(mustEncode(t, want)))
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("error %v, -want +got:\n%s", err, diff)
	}
}
