package cniproto

import (
	"errors"
	"io"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

const goodConfig = `{"cniVersion":"1.0.0","name":"fairlead","type":"fairlead","socket":"/run/fairlead/cni.sock"}`

// environ is a good environment of a call with some variables changed; an empty
// value is a missing variable.
func environ(changes map[string]string) func(string) string {
	vars := map[string]string{
		"CNI_CONTAINERID": "0123456789abcdef", "CNI_NETNS": "/run/netns/a", "CNI_IFNAME": "eth0",
		"CNI_ARGS": "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=pod", "CNI_PATH": "/opt/cni/bin",
		"TRACEPARENT": "00-1-2-01", "TRACESTATE": "a=b", "BAGGAGE": "c=d", "HOME": "/root",
	}
	maps.Copy(vars, changes)
	return func(name string) string { return vars[name] }
}

// parse makes a request of a call of the plugin under its own name.
func parse(verb string, getenv func(string) string, stdin io.Reader) (r Request, at Endpoint, err error) {
	at, err = r.Parse(Call{Program: "fairlead", Stdin: stdin, Getenv: func(name string) string {
		if name == "CNI_COMMAND" {
			return verb
		}
		return getenv(name)
	}})
	return r, at, err
}

func TestParse(t *testing.T) {
	got, _, err := parse(VerbAdd, environ(nil), strings.NewReader(goodConfig))
	if err != nil {
		t.Fatal(err)
	}
	want := Request{
		Verb: VerbAdd, ContainerID: "0123456789abcdef", Netns: "/run/netns/a", IfName: "eth0",
		Args: "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=pod", Path: "/opt/cni/bin",
		Traceparent: "00-1-2-01", Tracestate: "a=b", Baggage: "c=d", Config: []byte(goodConfig),
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(Request{}, "RequestID")); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
	other, _, err := parse(VerbAdd, environ(nil), strings.NewReader(goodConfig))
	if err != nil || got.RequestID == "" || got.RequestID == other.RequestID {
		t.Errorf("request IDs %q and %q, %v: want two different ones", got.RequestID, other.RequestID, err)
	}
}

// Each bad input has a code and a message that names the field, the value and
// what would be right.
func TestParseRefuses(t *testing.T) {
	for _, tc := range []struct {
		name, verb string
		environ    map[string]string
		config     string
		code       int
		says       []string
	}{
		{name: "no verb", code: CodeInvalidEnvironment, says: []string{"CNI_COMMAND: missing", "ADD, CHECK, DEL, GC, STATUS or VERSION"}},
		{name: "unknown verb", verb: "FROB", code: CodeInvalidEnvironment, says: []string{`CNI_COMMAND: "FROB"`, "ADD, CHECK, DEL, GC, STATUS or VERSION"}},
		{
			name: "missing variables", verb: VerbAdd, environ: map[string]string{"CNI_CONTAINERID": "", "CNI_IFNAME": ""}, config: goodConfig,
			code: CodeInvalidEnvironment, says: []string{"CNI_CONTAINERID, CNI_IFNAME: missing", "ADD"},
		},
		{
			name: "CHECK without namespace", verb: VerbCheck, environ: map[string]string{"CNI_NETNS": ""}, config: goodConfig,
			code: CodeInvalidEnvironment, says: []string{"CNI_NETNS: missing", "CHECK"},
		},
		{
			name: "DEL without container ID", verb: VerbDel, environ: map[string]string{"CNI_CONTAINERID": ""}, config: goodConfig,
			code: CodeInvalidEnvironment, says: []string{"CNI_CONTAINERID: missing", "DEL"},
		},
		{
			name: "container ID with a slash", verb: VerbAdd, environ: map[string]string{"CNI_CONTAINERID": "../etc/passwd"}, config: goodConfig,
			code: CodeInvalidEnvironment, says: []string{`CNI_CONTAINERID: "../etc/passwd"`, "letter or a digit", "_ . -"},
		},
		{
			name: "container ID with a slash in DEL", verb: VerbDel, environ: map[string]string{"CNI_CONTAINERID": "a/b"}, config: goodConfig,
			code: CodeInvalidEnvironment, says: []string{`CNI_CONTAINERID: "a/b"`},
		},
		{
			name: "container ID that is too long", verb: VerbAdd, environ: map[string]string{"CNI_CONTAINERID": strings.Repeat("a", 201)}, config: goodConfig,
			code: CodeInvalidEnvironment, says: []string{"CNI_CONTAINERID", "at most 200"},
		},
		{
			name: "interface name too long", verb: VerbAdd, environ: map[string]string{"CNI_IFNAME": "sixteen-letters0"}, config: goodConfig,
			code: CodeInvalidEnvironment, says: []string{`CNI_IFNAME: "sixteen-letters0"`, "1 to 15"},
		},
		{
			name: "interface name with a slash", verb: VerbDel, environ: map[string]string{"CNI_IFNAME": "a/b"}, config: goodConfig,
			code: CodeInvalidEnvironment, says: []string{`CNI_IFNAME: "a/b"`, "neither / nor :"},
		},
		{
			name: "interface name with a space", verb: VerbAdd, environ: map[string]string{"CNI_IFNAME": "a\u00a0b"}, config: goodConfig,
			code: CodeInvalidEnvironment, says: []string{"CNI_IFNAME", "white space"},
		},
		{name: "no configuration", verb: VerbAdd, code: CodeDecode, says: []string{"network configuration: empty", "JSON object"}},
		{name: "truncated configuration", verb: VerbAdd, config: goodConfig[:40], code: CodeDecode, says: []string{"network configuration: ends after 40 bytes"}},
		{name: "not JSON", verb: VerbAdd, config: "socket: /run", code: CodeDecode, says: []string{"network configuration: wrong JSON at byte 1"}},
		{name: "a list", verb: VerbAdd, config: "[1]", code: CodeDecode, says: []string{`network configuration: "[1]"`, "JSON object"}},
		{name: "null", verb: VerbAdd, config: "null", code: CodeDecode, says: []string{"must be a JSON object"}},
		{name: "a field of another type", verb: VerbAdd, config: `{"cniVersion":1}`, code: CodeDecode, says: []string{"cniVersion: must be string, not number"}},
		{name: "no version", verb: VerbAdd, config: `{"socket":"/s"}`, code: CodeIncompatibleVersion, says: []string{`cniVersion: ""`, "0.3.1, 0.4.0, 1.0.0, 1.1.0"}},
		{name: "unsupported version", verb: VerbStatus, config: `{"cniVersion":"0.2.0"}`, code: CodeIncompatibleVersion, says: []string{`cniVersion: "0.2.0"`, "1.1.0"}},
		{name: "no name of the network", verb: VerbAdd, config: `{"cniVersion":"1.1.0","socket":"/s"}`, code: CodeInvalidConfig, says: []string{`name: ""`, "required"}},
		{name: "a name that is a path", verb: VerbCheck, config: `{"cniVersion":"1.1.0","name":"../n"}`, code: CodeInvalidConfig, says: []string{`name: "../n"`}},
		{name: "GC without a name", verb: VerbGC, config: `{"cniVersion":"1.1.0"}`, code: CodeInvalidConfig, says: []string{`name: ""`}},
		{name: "STATUS without a name", verb: VerbStatus, config: `{"cniVersion":"1.1.0"}`, code: CodeInvalidConfig, says: []string{`name: ""`}},
		{
			name: "1 MB", verb: VerbAdd, config: `{"cniVersion":"1.0.0","x":"` + strings.Repeat("y", 1_000_000) + `"}`,
			code: CodeDecode, says: []string{"network configuration: larger than the limit of 1000000 bytes"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, _, err := parse(tc.verb, environ(tc.environ), strings.NewReader(tc.config))
			expectError(t, err, tc.code, tc.says...)
		})
	}
}

// expectError demands a *Error with that code and a message with those parts,
// which is short and fit to be given to a runtime.
func expectError(t *testing.T, err error, code int, says ...string) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("error %v (%T): want a CNI error", err, err)
	}
	if e.Code != code {
		t.Errorf("code %d, want %d: %s", e.Code, code, e.Msg)
	}
	for _, part := range says {
		if !strings.Contains(e.Msg, part) {
			t.Errorf("message %q lacks %q", e.Msg, part)
		}
	}
	if len(e.Msg) > 1000 {
		t.Errorf("message has %d bytes", len(e.Msg))
	}
}

func TestParseReadError(t *testing.T) {
	_, _, err := parse(VerbAdd, environ(nil), io.MultiReader(strings.NewReader("{"), brokenReader{}))
	expectError(t, err, CodeIO, "standard input cannot be read: broken")
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, errors.New("broken") }

// A DEL is taken with whatever a runtime still has.
func TestDelIsLenient(t *testing.T) {
	defaults := Endpoint{Socket: DefaultSocket(), Spool: "/run/fairlead/del", Heartbeat: "/run/fairlead/heartbeat"}
	elsewhere := Endpoint{Socket: "/s/sock", Spool: "/s/del", Heartbeat: "/s/heartbeat"}
	for _, tc := range []struct {
		name, config string
		kept         bool
		want         Endpoint
	}{
		{name: "nothing", want: defaults},
		{name: "truncated", config: goodConfig[:40], want: defaults},
		{name: "a list", config: `["socket"]`, want: defaults},
		{name: "too large", config: `{"socket":"/s/sock","x":"` + strings.Repeat("y", MaxRequest) + `"}`, want: defaults},
		{name: "no socket", config: `{"cniVersion":"1.0.0"}`, kept: true, want: defaults},
		{name: "relative socket", config: `{"socket":"s/sock"}`, kept: true, want: defaults},
		{name: "socket of another type", config: `{"socket":{}}`, kept: true, want: defaults},
		{name: "unsupported version", config: `{"cniVersion":"9.9.9","socket":"/s/sock"}`, kept: true, want: elsewhere},
		{name: "no version", config: `{"socket":"/s/sock"}`, kept: true, want: elsewhere},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, got, err := parse(VerbDel, environ(map[string]string{"CNI_NETNS": "", "CNI_IFNAME": "", "CNI_ARGS": ""}), strings.NewReader(tc.config))
			if err != nil {
				t.Fatal(err)
			}
			if err := r.Validate(); err != nil {
				t.Errorf("the daemon refuses it: %v", err)
			}
			if kept := r.Config != nil; kept != tc.kept {
				t.Errorf("configuration kept %v, want %v", kept, tc.kept)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("endpoint (-want +got):\n%s", diff)
			}
		})
	}
	r, _, err := parse(VerbDel, environ(nil), brokenReader{})
	if err != nil || r.ContainerID == "" {
		t.Errorf("request %+v, %v: want one without configuration", r, err)
	}
}

func TestEndpoint(t *testing.T) {
	named := func(socket string) string { return `{"cniVersion":"1.0.0","name":"n","socket":"` + socket + `"` }
	for _, tc := range []struct {
		name, config string
		want         Endpoint
		says         []string
	}{
		{name: "socket", config: goodConfig, want: Endpoint{Socket: "/run/fairlead/cni.sock", Spool: "/run/fairlead/del", Heartbeat: "/run/fairlead/heartbeat"}},
		{name: "elsewhere", config: named("/a/b") + `,"spool":"/a/del"}`, want: Endpoint{Socket: "/a/b", Spool: "/a/del", Heartbeat: "/a/heartbeat"}},
		{name: "spool elsewhere", config: named("/a/b") + `,"spool":"/c"}`, says: []string{`spool: "/c"`, `"/a/del"`}},
		{name: "no socket", config: `{"cniVersion":"1.0.0","name":"n"}`, says: []string{"socket: missing", `"socket": "/run/fairlead/cni.sock"`}},
		{name: "relative", config: named("cni.sock") + "}", says: []string{`socket: "cni.sock"`, "absolute"}},
		{name: "too long", config: named("/"+strings.Repeat("s", 107)) + "}", says: []string{"socket: ", "at most 107 bytes"}},
		{name: "relative spool", config: named("/s") + `,"spool":"del"}`, says: []string{`spool: "del"`, `"/del"`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, got, err := parse(VerbAdd, environ(nil), strings.NewReader(tc.config))
			if len(tc.says) > 0 {
				expectError(t, err, CodeInvalidConfig, tc.says...)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("endpoint (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDecodeRequestRefuses(t *testing.T) {
	for _, tc := range []struct {
		name, body string
		says       []string
	}{
		{name: "empty", says: []string{"request: ends after 0 bytes"}},
		{name: "truncated", body: `{"verb":"ADD","contai`, says: []string{"request: ends after 21 bytes"}},
		{name: "not JSON", body: `verb=ADD`, says: []string{"request: wrong JSON at byte 1"}},
		{name: "two values", body: `{} {}`, says: []string{"request: wrong JSON"}},
		{name: "a number", body: `4`, says: []string{"request: must be a JSON object, not number"}},
		{name: "another type", body: `{"containerID":7}`, says: []string{"request: containerID: must be string, not number"}},
		{name: "too large", body: `{"args":"` + strings.Repeat("a", MaxRequest) + `"}`, says: []string{"request: larger than the limit of 1000000 bytes"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := DecodeRequest([]byte(tc.body))
			expectError(t, err, CodeDecode, tc.says...)
		})
	}
}

// A newer plugin may say more than an older daemon knows.
func TestDecodeRequestUnknownField(t *testing.T) {
	r, err := DecodeRequest([]byte(`{"verb":"DEL","containerID":"a","since":"tomorrow"}`))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Request{Verb: VerbDel, ContainerID: "a"}, r); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
}

func TestAnswerVersion(t *testing.T) {
	for config, version := range map[string]string{"": "1.1.0", " \n": "1.1.0", "{}": "1.1.0", `{"cniVersion":"0.4.0"}`: "0.4.0", `{"cniVersion":"0.1.0"}`: "0.1.0", `{"cniVersion":"\""}`: `\"`} {
		want := `{"cniVersion":"` + version + `","supportedVersions":["0.3.1","0.4.0","1.0.0","1.1.0"]}`
		if got, err := AnswerVersion(strings.NewReader(config)); err != nil || string(got) != want {
			t.Errorf("answer to %q: %s, %v: want %s", config, got, err, want)
		}
	}
	_, err := AnswerVersion(strings.NewReader(`{"cniVersion"`))
	expectError(t, err, CodeDecode, "network configuration: ends after 13 bytes")
}

// What is decoded and valid is the same after it was sent, and safe to name
// files after.
func FuzzDecodeRequest(f *testing.F) {
	f.Add([]byte(`{"verb":"ADD","containerID":"a","netns":"/n","ifname":"eth0","config":` + goodConfig + `}`))
	f.Add([]byte(`{"verb":"DEL","containerID":"a","ifname":"a@b"}`))
	f.Add([]byte(`{"verb":"STATUS","config":{"cniVersion":"1.1.0"},"deadlineMS":-1}`))
	f.Add([]byte(`{"VERB":"del","containerid":".","config":null}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		r, err := DecodeRequest(body)
		if err != nil {
			expectError(t, err, CodeDecode)
			return
		}
		if err := r.Validate(); err != nil {
			var e *Error
			if !errors.As(err, &e) || e.Code == 0 || e.Msg == "" {
				t.Errorf("error %#v: want a CNI error", err)
			}
			return
		}
		if strings.ContainsAny(r.ContainerID+r.IfName, "/\x00") {
			t.Errorf("container ID %q and interface %q are taken", r.ContainerID, r.IfName)
		}
		again, err := DecodeRequest(r.Encode())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(r, again); diff != "" {
			t.Errorf("after a round trip (-want +got):\n%s", diff)
		}
	})
}
