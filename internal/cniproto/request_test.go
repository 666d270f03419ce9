package cniproto

import (
	"errors"
	"io"
	"maps"
	"strings"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

const goodConfig = `{"cniVersion":"1.0.0","name":"fairlead","type":"fairlead","socket":"/run/fairlead/cni.sock"}`

// environ returns a valid environment with some variables changed. An empty value is a
// missing variable.
func environ(changes map[string]string) func(string) string {
	vars := map[string]string{
		"CNI_CONTAINERID": "0123456789abcdef", "CNI_NETNS": "/run/netns/a", "CNI_IFNAME": "eth0",
		"CNI_ARGS": "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=pod", "CNI_PATH": "/opt/cni/bin",
		"TRACEPARENT": "00-1-2-01", "TRACESTATE": "a=b", "BAGGAGE": "c=d", "HOME": "/root",
	}
	maps.Copy(vars, changes)
	return func(name string) string { return vars[name] }
}

// parse parses a call of the plugin under the name fairlead.
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

// The error for wrong input has a code and a message with the field, the value and the
// accepted values.
func TestParseRefuses(t *testing.T) {
	for _, tc := range []struct {
		name, verb string
		environ    map[string]string
		config     string
		code       int
		wantText   []string
	}{
		{name: "no verb", code: CodeInvalidEnvironment, wantText: []string{"CNI_COMMAND: missing", "ADD, CHECK, DEL, GC, STATUS or VERSION"}},
		{name: "unknown verb", verb: "FROB", code: CodeInvalidEnvironment, wantText: []string{`CNI_COMMAND: "FROB"`, "ADD, CHECK, DEL, GC, STATUS or VERSION"}},
		{
			name: "missing variables", verb: VerbAdd, environ: map[string]string{"CNI_CONTAINERID": "", "CNI_IFNAME": ""}, config: goodConfig,
			code: CodeInvalidEnvironment, wantText: []string{"CNI_CONTAINERID, CNI_IFNAME: missing", "ADD"},
		},
		{
			name: "CHECK without namespace", verb: VerbCheck, environ: map[string]string{"CNI_NETNS": ""}, config: goodConfig,
			code: CodeInvalidEnvironment, wantText: []string{"CNI_NETNS: missing", "CHECK"},
		},
		{
			name: "DEL without container ID", verb: VerbDel, environ: map[string]string{"CNI_CONTAINERID": ""}, config: goodConfig,
			code: CodeInvalidEnvironment, wantText: []string{"CNI_CONTAINERID: missing", "DEL"},
		},
		{
			name: "container ID with a slash", verb: VerbAdd, environ: map[string]string{"CNI_CONTAINERID": "../etc/passwd"}, config: goodConfig,
			code: CodeInvalidEnvironment, wantText: []string{`CNI_CONTAINERID: "../etc/passwd"`, "letter or a digit", "_ . -"},
		},
		{
			name: "container ID with a slash in DEL", verb: VerbDel, environ: map[string]string{"CNI_CONTAINERID": "a/b"}, config: goodConfig,
			code: CodeInvalidEnvironment, wantText: []string{`CNI_CONTAINERID: "a/b"`},
		},
		{
			name: "container ID that is too long", verb: VerbAdd, environ: map[string]string{"CNI_CONTAINERID": strings.Repeat("a", 201)}, config: goodConfig,
			code: CodeInvalidEnvironment, wantText: []string{"CNI_CONTAINERID", "at most 200"},
		},
		{
			name: "interface name too long", verb: VerbAdd, environ: map[string]string{"CNI_IFNAME": "sixteen-letters0"}, config: goodConfig,
			code: CodeInvalidEnvironment, wantText: []string{`CNI_IFNAME: "sixteen-letters0"`, "1 to 15"},
		},
		{
			name: "interface name with a slash", verb: VerbDel, environ: map[string]string{"CNI_IFNAME": "a/b"}, config: goodConfig,
			code: CodeInvalidEnvironment, wantText: []string{`CNI_IFNAME: "a/b"`, "neither / nor :"},
		},
		{
			name: "interface name with a space", verb: VerbAdd, environ: map[string]string{"CNI_IFNAME": "a\u00a0b"}, config: goodConfig,
			code: CodeInvalidEnvironment, wantText: []string{"CNI_IFNAME", "white space"},
		},
		{name: "no configuration", verb: VerbAdd, code: CodeDecode, wantText: []string{"network configuration: empty", "JSON object"}},
		{name: "truncated configuration", verb: VerbAdd, config: goodConfig[:40], code: CodeDecode, wantText: []string{"network configuration: ends after 40 bytes"}},
		{name: "not JSON", verb: VerbAdd, config: "socket: /run", code: CodeDecode, wantText: []string{`network configuration: "socket: /run": must be a JSON object`}},
		{name: "a list", verb: VerbAdd, config: "[1]", code: CodeDecode, wantText: []string{`network configuration: "[1]"`, "JSON object"}},
		{name: "null", verb: VerbAdd, config: "null", code: CodeDecode, wantText: []string{"must be a JSON object"}},
		{
			name: "1 MB", verb: VerbAdd, config: `{"cniVersion":"1.0.0","x":"` + strings.Repeat("y", 1_000_000) + `"}`,
			code: CodeDecode, wantText: []string{"network configuration: larger than the limit of 1000000 bytes"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, _, err := parse(tc.verb, environ(tc.environ), strings.NewReader(tc.config))
			expectError(t, err, tc.code, tc.wantText...)
		})
	}
}

// expectError demands an *Error with that code and a short message that contains each of
// the texts.
func expectError(t *testing.T, err error, code int, wantText ...string) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("error %v (%T): want a CNI error", err, err)
	}
	if e.Code != code {
		t.Errorf("code %d, want %d: %s", e.Code, code, e.Msg)
	}
	for _, part := range wantText {
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

// A DEL is accepted with any configuration, and with the variables that a runtime still
// has.
func TestDelIsLenient(t *testing.T) {
	defaults := Endpoint{Socket: DefaultSocket(), Spool: "/run/fairlead/del", Heartbeat: "/run/fairlead/heartbeat"}
	elsewhere := Endpoint{Socket: "/s/sock", Spool: "/s/del", Heartbeat: "/s/heartbeat"}
	for _, tc := range []struct {
		name, config string
		want         Endpoint
	}{
		{name: "nothing", want: defaults},
		{name: "truncated", config: goodConfig[:40], want: defaults},
		{name: "a list", config: `["socket"]`, want: defaults},
		{name: "too large", config: `{"socket":"/s/sock","x":"` + strings.Repeat("y", MaxRequest) + `"}`, want: defaults},
		{name: "no socket", config: `{"cniVersion":"1.0.0"}`, want: defaults},
		{name: "relative socket", config: `{"socket":"s/sock"}`, want: defaults},
		{name: "socket of another type", config: `{"socket":{}}`, want: defaults},
		{name: "unsupported version", config: `{"cniVersion":"9.9.9","socket":"/s/sock"}`, want: elsewhere},
		{name: "no version", config: `{"socket":"/s/sock"}`, want: elsewhere},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, got, err := parse(VerbDel, environ(map[string]string{"CNI_NETNS": "", "CNI_IFNAME": "", "CNI_ARGS": ""}), strings.NewReader(tc.config))
			if err != nil {
				t.Fatal(err)
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
		wantText     []string
	}{
		{name: "socket", config: goodConfig, want: Endpoint{Socket: "/run/fairlead/cni.sock", Spool: "/run/fairlead/del", Heartbeat: "/run/fairlead/heartbeat"}},
		{name: "elsewhere", config: named("/a/b") + `,"spool":"/a/del"}`, want: Endpoint{Socket: "/a/b", Spool: "/a/del", Heartbeat: "/a/heartbeat"}},
		{name: "spool elsewhere", config: named("/a/b") + `,"spool":"/c"}`, wantText: []string{`spool: "/c"`, `"/a/del"`}},
		{name: "no socket", config: `{"cniVersion":"1.0.0","name":"n"}`, wantText: []string{"socket: missing", `"socket": "/run/fairlead/cni.sock"`}},
		{name: "relative", config: named("cni.sock") + "}", wantText: []string{`socket: "cni.sock"`, "absolute"}},
		{name: "too long", config: named("/"+strings.Repeat("s", 107)) + "}", wantText: []string{"socket: ", "at most 107 bytes"}},
		{name: "relative spool", config: named("/s") + `,"spool":"del"}`, wantText: []string{`spool: "del"`, `"/del"`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, got, err := parse(VerbAdd, environ(nil), strings.NewReader(tc.config))
			if len(tc.wantText) > 0 {
				expectError(t, err, CodeInvalidConfig, tc.wantText...)
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
		wantText   []string
	}{
		{name: "empty", wantText: []string{"request: ends after 0 bytes"}},
		{name: "truncated in a variable", body: "CNI_COMMAND=ADD\x00CNI_CONTAI", wantText: []string{"request: ends after 26 bytes, before the end of its variables"}},
		{name: "truncated behind one", body: "CNI_COMMAND=ADD\x00", wantText: []string{"request: ends after 16 bytes"}},
		{name: "a deadline that is none", body: "FAIRLEAD_DEADLINE_MS=soon\x00\x00", wantText: []string{`request: FAIRLEAD_DEADLINE_MS: "soon"`, "milliseconds"}},
		{name: "too large", body: "CNI_ARGS=" + strings.Repeat("a", MaxRequest) + "\x00\x00", wantText: []string{"request: larger than the limit of 1000000 bytes"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := DecodeRequest([]byte(tc.body))
			expectError(t, err, CodeDecode, tc.wantText...)
		})
	}
}

// A newer plugin may send variables that an older daemon does not know.
func TestDecodeRequestUnknownVariable(t *testing.T) {
	r, err := DecodeRequest([]byte("CNI_COMMAND=DEL\x00CNI_CONTAINERID=a\x00CNI_SINCE=tomorrow\x00flag\x00\x00"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Request{Verb: VerbDel, ContainerID: "a"}, r, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
}

// The plugin takes only CNI's variables from the runtime's environment, not its own ones
// that begin with FAIRLEAD_.
func TestParseTakesNothingOfOurs(t *testing.T) {
	r, _, err := parse(VerbAdd, environ(map[string]string{"FAIRLEAD_IPAM": "whereabouts", "FAIRLEAD_REQUEST_ID": "1", "FAIRLEAD_DEADLINE_MS": "1"}), strings.NewReader(goodConfig))
	if err != nil || r.IPAM != "" || r.RequestID == "1" || r.DeadlineMS != 0 {
		t.Errorf("request %+v, %v", r, err)
	}
}

// The daemon once kept the text of some ten thousand served requests in memory, because it
// kept their container IDs.
func TestDecodedKeepsNoText(t *testing.T) {
	body := Request{ContainerID: "c1", Config: []byte(goodConfig)}.Encode()
	r, err := DecodeRequest(body)
	if err != nil {
		t.Fatal(err)
	}
	start := uintptr(unsafe.Pointer(unsafe.SliceData(body)))
	for what, p := range map[string]*byte{"container ID": unsafe.StringData(r.ContainerID), "configuration": unsafe.SliceData(r.Config)} {
		if at := uintptr(unsafe.Pointer(p)); at >= start && at < start+uintptr(len(body)) {
			t.Errorf("the %s is a piece of the request", what)
		}
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

// A decoded request is the same after another round trip. If it is valid, its container ID
// and interface are safe in file names.
func FuzzDecodeRequest(f *testing.F) {
	f.Add([]byte("CNI_COMMAND=ADD\x00CNI_CONTAINERID=a\x00CNI_NETNS=/n\x00CNI_IFNAME=eth0\x00\x00" + goodConfig))
	f.Add([]byte("CNI_COMMAND=DEL\x00CNI_CONTAINERID=a\x00CNI_IFNAME=a@b\x00\x00"))
	f.Add([]byte("CNI_COMMAND=STATUS\x00FAIRLEAD_DEADLINE_MS=-1\x00\x00{\"cniVersion\":\"1.1.0\"}"))
	f.Add([]byte("CNI_COMMAND\x00=\x00CNI_ARGS=\xff\xfe\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, body []byte) {
		r, err := DecodeRequest(body)
		if err != nil {
			expectError(t, err, CodeDecode)
			return
		}
		again, err := DecodeRequest(r.Encode())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(r, again); diff != "" {
			t.Errorf("after a round trip (-want +got):\n%s", diff)
		}
		if err := r.CheckEnvironment(); err != nil {
			expectError(t, err, CodeInvalidEnvironment)
			return
		}
		if strings.ContainsAny(r.ContainerID+r.IfName, "/\x00") {
			t.Errorf("container ID %q and interface %q are taken", r.ContainerID, r.IfName)
		}
	})
}

// A request is decoded as it was encoded, with all values in UTF-8. No value can become
// another variable.
func FuzzEncodeRequest(f *testing.F) {
	f.Add("ADD", "c0ffee", "K8S_POD_NAME=a;K8S_POD_NAMESPACE=b", "a\"b\\\x7fé\xff", `{"cniVersion":"1.0.0"}`)
	f.Add("DEL", "", "", "", "")
	f.Add("ADD", "", "x\x00CNI_CONTAINERID=of another", "", " {} ")
	f.Fuzz(func(t *testing.T, verb, containerID, args, baggage, config string) {
		r := Request{RequestID: "1f", Verb: verb, ContainerID: containerID, Args: args, Baggage: baggage, DeadlineMS: 7, Config: []byte(config)}
		raw := r.Encode()
		if len(raw) > MaxRequest {
			return
		}
		got, err := DecodeRequest(raw)
		if err != nil {
			t.Fatal(err)
		}
		want := r
		for _, s := range []*string{&want.Verb, &want.ContainerID, &want.Args, &want.Baggage} {
			*s, _, _ = strings.Cut(*s, "\x00") // a value ends at its first NUL
			*s = string([]rune(*s))            // U+FFFD replaces each byte that is not UTF-8
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("request (-want +got):\n%s", diff)
		}
	})
}
