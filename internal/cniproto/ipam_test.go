package cniproto

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestEndpointOfAnIPAMPlugin(t *testing.T) {
	cases := []struct{ name, config, socket string }{
		{"the default", `{"cniVersion":"1.0.0","type":"bridge","ipam":{"type":"fairlead-ipam"}}`, DefaultSocket},
		{"its own", `{"cniVersion":"1.0.0","type":"bridge","socket":"/other","ipam":{"type":"fairlead-ipam","socket":"/run/x/cni.sock"}}`, "/run/x/cni.sock"},
		{"no section", `{"cniVersion":"1.0.0","type":"bridge"}`, DefaultSocket},
	}
	for _, tc := range cases {
		r := Request{Verb: VerbAdd, IPAM: "fairlead-ipam", Config: []byte(tc.config)}
		if at, err := r.Endpoint(); err != nil || at.Socket != tc.socket {
			t.Errorf("%s: %+v, %v", tc.name, at, err)
		}
	}
	r := Request{Verb: VerbAdd, IPAM: "fairlead-ipam", Config: []byte(`{"cniVersion":"1.0.0","ipam":{"socket":"x"}}`)}
	if _, err := r.Endpoint(); AsError(err).Code != CodeInvalidConfig {
		t.Errorf("error %v", err)
	}
}

// A DEL for addresses and one for the pod itself are apart in the spool, also
// when their files are damaged: the one must not become the other.
func TestSpoolKeepsIPAMApart(t *testing.T) {
	dir := t.TempDir()
	for _, ipam := range []string{"", "whereabouts"} {
		if err := SpoolDel(dir, Request{Verb: VerbDel, ContainerID: "c1", IfName: "eth0", IPAM: ipam}); err != nil {
			t.Fatal(err)
		}
	}
	read := func() (got []string) {
		spooled, err := ReadSpool(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range spooled {
			got = append(got, s.Request.ContainerID+" "+s.Request.IfName+" "+s.Request.IPAM)
		}
		return got
	}
	if diff := cmp.Diff([]string{"c1 eth0 whereabouts", "c1 eth0 "}, read()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if err := os.WriteFile(filepath.Join(dir, e.Name()), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]string{"c1 eth0 fairlead-ipam", "c1 eth0 "}, read()); diff != "" {
		t.Errorf("damaged, -want +got:\n%s", diff)
	}
}

// A field that is not sent changes what the daemon does: fairlead-ipam was once
// taken for the runtime.
func TestEveryFieldOfARequestIsSent(t *testing.T) {
	want := Request{DeadlineMS: 7, Config: []byte(`{"cniVersion":"1.0.0"}`)}
	fields := reflect.ValueOf(&want).Elem()
	for i := range fields.NumField() {
		if f := fields.Field(i); f.Kind() == reflect.String {
			f.SetString(fields.Type().Field(i).Name)
		}
	}
	raw, err := want.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := DecodeRequest(raw)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("error %v, -want +got:\n%s", err, diff)
	}
}
