package server

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/fairlead/internal/cniproto"
)

// old is a request in the JSON form of older plugins.
const old = `{"requestID":"1","verb":"ADD","ipam":"whereabouts","containerID":"a","netns":"/n","ifname":"eth0","args":"K=v","path":"/opt/cni/bin",` +
	`"traceparent":"t","tracestate":"s","baggage":"b","deadlineMS":7,"config":{"cniVersion":"1.0.0","name":"n"}}`

// An older plugin may wait for the daemon while both are upgraded.
func TestDecodeOld(t *testing.T) {
	got, err := decode([]byte(old))
	if err != nil {
		t.Fatal(err)
	}
	want := cniproto.Request{
		RequestID: "1", Verb: "ADD", IPAM: "whereabouts", ContainerID: "a", Netns: "/n", IfName: "eth0", Args: "K=v", Path: "/opt/cni/bin",
		Traceparent: "t", Tracestate: "s", Baggage: "b", DeadlineMS: 7, Config: []byte(`{"cniVersion":"1.0.0","name":"n"}`),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
	// Unknown fields come from another version and are ignored.
	if r, err := decode([]byte(`{"verb":"DEL","containerID":"a","since":"tomorrow"}`)); err != nil || r.ContainerID != "a" {
		t.Errorf("request %+v, %v", r, err)
	}
	if _, err := decode([]byte(`{"args":"` + strings.Repeat("a", cniproto.MaxRequest) + `"}`)); cniproto.AsError(err).Code != cniproto.CodeDecode {
		t.Errorf("too large: error %v", err)
	}
}

// A DEL is valid with any configuration. A configuration that is not a JSON object is
// dropped.
func TestDelIsLenient(t *testing.T) {
	for _, tc := range []struct {
		name, config string
		kept         bool
	}{
		{name: "nothing"},
		{name: "truncated", config: config[:40]},
		{name: "a list", config: `["socket"]`},
		{name: "null", config: `null`},
		{name: "no socket", config: `{"cniVersion":"1.0.0"}`, kept: true},
		{name: "socket of another type", config: `{"socket":{}}`, kept: true},
		{name: "unsupported version", config: `{"cniVersion":"9.9.9","socket":"/s/sock"}`, kept: true},
		{name: "no version", config: ` {"socket":"/s/sock"}`, kept: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := cniproto.Request{Verb: cniproto.VerbDel, ContainerID: "a", Config: []byte(tc.config)}
			if err := validate(&r); err != nil {
				t.Errorf("the daemon refuses it: %v", err)
			}
			if kept := r.Config != nil; kept != tc.kept {
				t.Errorf("configuration kept %v, want %v", kept, tc.kept)
			}
		})
	}
}

// A valid request has a container ID and an interface that are safe in file names, and a
// configuration that is valid JSON or missing. Each other text yields a CNI error with
// code and message.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(old))
	f.Add([]byte(`{"verb":"DEL","containerID":"a","ifname":"a@b","config":[1]}`))
	f.Add([]byte(`{"VERB":"del","containerid":".","config":null}`))
	f.Add(add("a").Encode())
	f.Add(del("a", "eth0").Encode())
	f.Add([]byte("CNI_COMMAND=GC\x00\x00{\"cniVersion\":\"1.1.0\",\"name\":\"n\"}"))
	f.Fuzz(func(t *testing.T, body []byte) {
		r, err := decode(body)
		if err == nil {
			err = validate(&r)
		}
		if err != nil {
			if e, ok := errors.AsType[*cniproto.Error](err); !ok || e.Code == 0 || e.Msg == "" || !json.Valid(e.Encode()) {
				t.Errorf("error %#v: want a CNI error", err)
			}
			return
		}
		if strings.ContainsAny(r.ContainerID+r.IfName, "/\x00") {
			t.Errorf("container ID %q and interface %q are taken", r.ContainerID, r.IfName)
		}
		if r.Config != nil && !json.Valid(r.Config) {
			t.Errorf("configuration %q is taken", r.Config)
		}
	})
}

// The daemon serves the requests and the spooled DELs of older plugins.
func TestOldPluginIsServed(t *testing.T) {
	s := start(t, handlerFunc(func(_ context.Context, r cniproto.Request) ([]byte, error) {
		return []byte(r.IPAM + " " + r.ContainerID + " " + string(r.Config)), nil
	}), nil)
	conn, err := net.Dial("unix", s.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, post(len(old), old)); err != nil {
		t.Fatal(err)
	}
	if answer, err := io.ReadAll(conn); err != nil || !strings.HasSuffix(string(answer), `whereabouts a {"cniVersion":"1.0.0","name":"n"}`) {
		t.Errorf("answer %q, %v", answer, err)
	}

	dir := newSpool(t)
	spooled := `{"requestID":"1","verb":"DEL","containerID":"a","ifname":"eth0","config":{"cniVersion":"1.0.0"}}`
	if err := os.WriteFile(filepath.Join(dir, "a@eth0.json"), []byte(spooled), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := ReadSpool(dir)
	if err != nil || len(got) != 1 || got[0].Damaged != nil {
		t.Fatalf("%+v, %v", got, err)
	}
	if diff := cmp.Diff(del("a", "eth0"), got[0].Request); diff != "" {
		t.Errorf("spooled DEL (-want +got):\n%s", diff)
	}
}
