package ovsdb

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
	"time"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/fairlead/test/nettest"
)

// server serves one connection after the other on a socket, and returns its path.
func server(t *testing.T, serve func(c net.Conn, request map[string]json.RawMessage)) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "ovsdb") //nolint:usetesting // that of a test is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "db.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			var request map[string]json.RawMessage
			if err := json.NewDecoder(c).Decode(&request); err == nil {
				serve(c, request)
			}
			_ = c.Close()
		}
	}()
	return socket
}

// says returns a server that answers each request with a text.
func says(answer string) func(net.Conn, map[string]json.RawMessage) {
	return func(c net.Conn, _ map[string]json.RawMessage) { _, _ = io.WriteString(c, answer) }
}

func TestTransact(t *testing.T) {
	ops := []Operation{
		Unless("Interface", "name", nil, Includes("external_ids", Map(map[string]string{"iface-id": "p1"}))),
		Select("Bridge", []string{"name", "ports"}),
		Insert("Port", "port", map[string]any{"name": "fl1", "interfaces": Named("interface")}),
		Mutate("Bridge", "ports", "delete", Set(UUID("u1")), Is("name", "br-int")),
		Await("Open_vSwitch", "cur_cfg", "70000000"),
		Comment("test"),
	}
	var got map[string]json.RawMessage
	socket := server(t, func(c net.Conn, request map[string]json.RawMessage) {
		got = request
		_, _ = io.WriteString(c, `{"id":"echo","method":"echo","params":["are you there"]}`)
		var echo message
		if err := json.NewDecoder(c).Decode(&echo); err != nil || string(echo.Result) != `["are you there"]` || string(echo.ID) != `"echo"` || string(echo.Error) != "null" {
			t.Errorf("echo is answered with %+v, %v", echo, err)
		}
		_, _ = io.WriteString(c, `{"id":null,"method":"update","params":[]}{"id":7,"result":[],"error":null}`+
			`{"id":1,"error":null,"result":[{},{"rows":[{"name":"br-int","ports":["set",[["uuid","u1"],["uuid","u2"]]]},{"name":"b2","ports":["uuid","u3"],"on":true,"n":70000000}]},`+
			`{"uuid":["uuid","u4"]},{"count":1},{},{}]}`)
	})
	results, err := New(socket).Transact(t.Context(), ops...)
	if err != nil {
		t.Fatal(err)
	}
	want := []Result{{}, {Rows: []Row{
		{"name": {Elements: []string{"br-int"}}, "ports": {Elements: []string{"u1", "u2"}}},
		{"name": {Elements: []string{"b2"}}, "ports": {Elements: []string{"u3"}}, "on": {Elements: []string{"true"}}, "n": {Elements: []string{"70000000"}}},
	}}, {}, {Count: 1}, {}, {}}
	if diff := cmp.Diff(want, results); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}
	const params = `["Open_vSwitch",` +
		`{"op":"wait","table":"Interface","where":[["external_ids","includes",["map",[["iface-id","p1"]]]]],"columns":["name"],"rows":[],"until":"==","timeout":0},` +
		`{"op":"select","table":"Bridge","where":[],"columns":["name","ports"]},` +
		`{"op":"insert","table":"Port","row":{"interfaces":["named-uuid","interface"],"name":"fl1"},"uuid-name":"port"},` +
		`{"op":"mutate","table":"Bridge","where":[["name","==","br-int"]],"mutations":[["ports","delete",["set",[["uuid","u1"]]]]]},` +
		`{"op":"wait","table":"Open_vSwitch","where":[["cur_cfg","\u003e=",70000000]],"columns":["cur_cfg"],"rows":[],"until":"!=","timeout":4000},` +
		`{"op":"comment","comment":"test"}]`
	if diff := cmp.Diff(params, string(got["params"])); diff != "" || string(got["method"]) != `"transact"` {
		t.Errorf("request %s (-want +got):\n%s", got["method"], diff)
	}
}

// Each failure has its error, and a text with the socket or the operation.
func TestTransactFails(t *testing.T) {
	dir := t.TempDir()
	gone := server(t, nil)
	if err := os.Remove(gone); err != nil {
		t.Fatal(err)
	}
	deaf, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	deaf.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := deaf.Close(); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, socket, answer string
		want                 error
		says                 string
	}{
		{name: "no socket", socket: gone, want: ErrUnavailable, says: gone + `": no socket is there`},
		{name: "not configured", socket: "-", want: ErrUnavailable, says: "no socket is configured"},
		{name: "nobody listens", socket: filepath.Join(dir, "s"), want: ErrUnavailable, says: "no process listens"},
		{name: "closed", answer: "", want: ErrUnavailable, says: "closed before the answer"},
		{name: "half an answer", answer: `{"id":1,"res`, want: ErrUnavailable, says: "closed before the answer"},
		{name: "no JSON", answer: "HTTP/1.1 400", want: ErrUnavailable, says: "invalid character"},
		{name: "an error", answer: `{"id":1,"result":null,"error":{"error":"unknown database"}}`, want: ErrUnavailable, says: "unknown database"},
		{name: "no list", answer: `{"id":1,"result":{},"error":null}`, want: ErrUnavailable, says: "as RFC 7047 asks"},
		{name: "a result too few", answer: `{"id":1,"result":[{}],"error":null}`, want: ErrUnavailable, says: "2 operations have 1 results"},
		{name: "a value", answer: `{"id":1,"result":[{"rows":[{"a":{}}]},{}],"error":null}`, want: ErrUnavailable, says: "must be a string"},
		{name: "an operation", answer: `{"id":1,"result":[{"error":"unknown table","details":"no table Bridge"},null],"error":null}`, want: ErrRefused, says: "select of Bridge: unknown table: no table Bridge"},
		{name: "a second operation", answer: `{"id":1,"result":[{},{"error":"timed out"}],"error":null}`, want: ErrRefused, says: "wait of Interface: timed out"},
		{name: "the commit", answer: `{"id":1,"result":[{},{},{"error":"constraint violation","details":"two rows"}],"error":null}`, want: ErrRefused, says: "the commit: constraint violation: two rows"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			socket := tt.socket
			switch socket {
			case "":
				socket = server(t, says(tt.answer))
			case "-":
				socket = ""
			}
			_, err := New(socket).Transact(t.Context(), Select("Bridge", nil), Unless("Interface", "name", []string{"a"}))
			if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.says) {
				t.Fatalf("%v, want %v with %q", err, tt.want, tt.says)
			}
			nettest.Fits(t, err)
		})
	}
}

// A server that does not answer is given up: with ctx, or in any case after a while.
func TestTransactWaits(t *testing.T) {
	asked, end := make(chan struct{}, 1), make(chan struct{})
	socket := server(t, func(net.Conn, map[string]json.RawMessage) {
		asked <- struct{}{}
		<-end
	})
	defer close(end)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-asked
		cancel()
	}()
	if _, err := New(socket).Transact(ctx); !errors.Is(err, context.Canceled) || errors.Is(err, ErrUnavailable) {
		t.Errorf("%v, want Canceled", err)
	}
	impatient := New(socket)
	impatient.timeout = time.Millisecond
	if _, err := impatient.Transact(t.Context()); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "no answer within 1ms") {
		t.Errorf("%v, want ErrUnavailable with the time", err)
	}
}

func FuzzResults(f *testing.F) {
	for _, s := range []string{
		`[{"rows":[{"a":["set",[]],"b":["map",[["k","v"]]],"c":["uuid","u"],"d":1.5}]},{"count":1}]`,
		`[{"error":"e","details":"d"},null]`, `[null,null]`, `[{"rows":[{"a":["map",[["k"]]]}]},{}]`, `[{"rows":[{"a":["set",["uuid","u"]]}]},{}]`, `{}`,
	} {
		f.Add([]byte(s))
	}
	ops := []Operation{Select("Bridge", nil), Comment("c")}
	f.Fuzz(func(t *testing.T, answer []byte) {
		results, err := results(answer, ops)
		if (err == nil) != (len(results) == len(ops)) {
			t.Errorf("%d results, %v", len(results), err)
		}
		if err != nil && !errors.Is(err, ErrRefused) && !errors.Is(err, ErrUnavailable) {
			t.Errorf("%v is neither ErrRefused nor ErrUnavailable", err)
		}
	})
}
