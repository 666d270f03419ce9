package cniproto

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"strings"
	"testing"
	"testing/iotest"

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
		Release: "unreleased", Verb: VerbAdd, ContainerID: "0123456789abcdef", Netns: "/run/netns/a", IfName: "eth0",
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

// framed returns a frame with this header and body.
func framed(header, body string) string {
	out := []byte(preamble)
	out = binary.BigEndian.AppendUint32(out, uint32(len(header)))
	out = binary.BigEndian.AppendUint32(out, uint32(len(body)))
	return string(out) + header + body
}

func TestDecodeRequestRefuses(t *testing.T) {
	for _, tc := range []struct {
		name, sent string
		code       int
		wantText   []string
	}{
		{name: "truncated at the start", sent: framed("{}", "")[:12], wantText: []string{"request: ends after 12 bytes"}},
		{name: "no header", sent: framed("{}", "")[:19], wantText: []string{"request: ends after 0 of 2 bytes"}},
		{name: "truncated header", sent: framed(`{"verb":"ADD"}`, "")[:26], wantText: []string{"request: ends after 7 of 14 bytes"}},
		{name: "truncated body", sent: framed(`{"verb":"ADD"}`, "12345")[:36], wantText: []string{"request: ends after 17 of 19 bytes"}},
		{name: "a deadline that is none", sent: framed(`{"deadlineMS":"soon"}`, ""), wantText: []string{"request: header: deadlineMS: must be int64, not string"}},
		{name: "a header that is no object", sent: framed(`["ADD"]`, ""), wantText: []string{`request: header: "[\"ADD\"]": must be a JSON object`}},
		{name: "a header that is cut off", sent: framed(`{"verb"`, ":1}"), wantText: []string{"request: header: ends after 7 bytes"}},
		{name: "no bytes of header", sent: framed("", "{}"), wantText: []string{"request: header: empty"}},
		{name: "too large", sent: framed(`{"args":"`+strings.Repeat("a", MaxRequest)+`"}`, ""), wantText: []string{"request: larger than the limit of 1000000 bytes"}},
		{name: "large lengths", sent: preamble + "\xff\xff\xff\xff\xff\xff\xff\xff", wantText: []string{"request: larger than the limit of 1000000 bytes"}},
		{name: "another version", sent: "fairlead/2\n", code: CodeTryAgainLater, wantText: []string{"different versions", `"fairlead/2\n"`, `"fairlead/1\n"`}},
		{name: "another protocol", sent: "POST / HTTP/1.1\r\n\r\n", code: CodeTryAgainLater, wantText: []string{"different versions", `"POST / HTTP"`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.code == 0 {
				tc.code = CodeDecode
			}
			_, err := DecodeRequest(iotest.OneByteReader(strings.NewReader(tc.sent)))
			expectError(t, err, tc.code, tc.wantText...)
		})
	}
	if _, err := DecodeRequest(strings.NewReader("")); !errors.Is(err, io.EOF) {
		t.Errorf("nothing: error %v, want %v", err, io.EOF)
	}
}

// The memory for a frame is limited before it is allocated.
func TestDecodeAllocatesLittle(t *testing.T) {
	huge := preamble + "\x00\x00\x00\x02\x40\x00\x00\x00{}"
	read := testing.Benchmark(func(b *testing.B) {
		b.Helper()
		for b.Loop() {
			if _, err := DecodeRequest(strings.NewReader(huge)); err == nil {
				b.Fatal("1 GB is accepted")
			}
		}
	})
	if n := read.AllocedBytesPerOp(); n > 4<<10 {
		t.Errorf("%d bytes allocated", n)
	}
}

// A newer plugin may send variables that an older daemon does not know.
func TestDecodeRequestUnknownVariable(t *testing.T) {
	r, err := DecodeRequest(strings.NewReader(framed(`{"verb":"DEL","containerID":"a","since":"tomorrow"}`, "")))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Request{Verb: VerbDel, ContainerID: "a"}, r, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
}

// mustEncode returns the frame of a request.
func mustEncode(t *testing.T, r Request) []byte {
	t.Helper()
	raw, err := r.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// A DEL must not fail because of its configuration: a configuration that leaves no room for the
// variables is not sent.
func TestDelOfALargeConfiguration(t *testing.T) {
	config := `{"cniVersion":"1.0.0","socket":"/s/sock","x":"`
	config += strings.Repeat("y", MaxRequest-len(config)-2) + `"}`
	r, at, err := parse(VerbDel, environ(nil), strings.NewReader(config))
	if err != nil || at.Socket != "/s/sock" {
		t.Fatalf("%+v, %v", at, err)
	}
	got, err := DecodeRequest(bytes.NewReader(mustEncode(t, r)))
	if err != nil || got.ContainerID != r.ContainerID || got.Args != r.Args || got.Config != nil {
		t.Errorf("request %+v, %v: want one without configuration", got, err)
	}
	r.Verb = VerbAdd
	_, err = r.Encode()
	expectError(t, err, CodeDecode, "request: larger than the limit of 1000000 bytes")
}

// The plugin takes only CNI's variables from the runtime's environment, not its own ones
// that begin with FAIRLEAD_.
func TestParseTakesNothingOfOurs(t *testing.T) {
	r, _, err := parse(VerbAdd, environ(map[string]string{"FAIRLEAD_IPAM": "whereabouts", "FAIRLEAD_REQUEST_ID": "1", "FAIRLEAD_DEADLINE_MS": "1"}), strings.NewReader(goodConfig))
	if err != nil || r.IPAM != "" || r.RequestID == "1" || r.DeadlineMS != 0 {
		t.Errorf("request %+v, %v", r, err)
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
// and interface are safe in file names, and its configuration is valid JSON or missing. Each
// other text yields a CNI error with code and message.
func FuzzDecodeRequest(f *testing.F) {
	f.Add([]byte(framed(`{"verb":"ADD","containerID":"a","netns":"/n","ifName":"eth0"}`, goodConfig)))
	f.Add([]byte(framed(`{"verb":"DEL","containerID":"a","ifName":"a@b"}`, "[1]")))
	f.Add([]byte(framed(`{"VERB":"STATUS","deadlineMS":-1}`, `{"cniVersion":"1.1.0"}`)))
	f.Add([]byte(framed(`{"verb":"GC"}`, `{"cniVersion":"1.1.0","name":"n"}`)))
	f.Add([]byte(framed("{\"args\":\"\xff\xfe\"}", "\x00")))
	f.Add([]byte("fairlead/2\n"))
	f.Fuzz(func(t *testing.T, sent []byte) {
		r, err := DecodeRequest(bytes.NewReader(sent))
		if err != nil {
			if e, ok := errors.AsType[*Error](err); !errors.Is(err, io.EOF) && (!ok || e.Code == 0 || e.Msg == "" || !json.Valid(e.Encode())) {
				t.Errorf("error %#v: want a CNI error", err)
			}
			return
		}
		raw, err := r.Encode()
		if err != nil {
			return // shorter JSON of the same values was within the limit
		}
		again, err := DecodeRequest(bytes.NewReader(raw))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(r, again); diff != "" {
			t.Errorf("after a round trip (-want +got):\n%s", diff)
		}
		if err := r.Validate(); err != nil {
			if e, ok := errors.AsType[*Error](err); !ok || e.Code == 0 || e.Msg == "" || !json.Valid(e.Encode()) {
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

// A request is decoded as it was encoded, with all values in UTF-8. No value can become
// another variable.
func FuzzEncodeRequest(f *testing.F) {
	f.Add("ADD", "c0ffee", "K8S_POD_NAME=a;K8S_POD_NAMESPACE=b", "a\"b\\\x7fé\xff", `{"cniVersion":"1.0.0"}`)
	f.Add("DEL", "", "", "", "")
	f.Add("ADD", "", "x\",\"containerID\":\"of another", "\x00", " {} ")
	f.Fuzz(func(t *testing.T, verb, containerID, args, baggage, config string) {
		r := Request{RequestID: "1f", Verb: verb, ContainerID: containerID, Args: args, Baggage: baggage, DeadlineMS: 7, Config: []byte(config)}
		raw, err := r.Encode()
		if err != nil {
			expectError(t, err, CodeDecode)
			return
		}
		got, err := DecodeRequest(bytes.NewReader(raw))
		if err != nil {
			t.Fatal(err)
		}
		want := r
		for _, s := range []*string{&want.Verb, &want.ContainerID, &want.Args, &want.Baggage} {
			*s = string([]rune(*s)) // U+FFFD replaces each byte that is not UTF-8
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("request (-want +got):\n%s", diff)
		}
	})
}

// A DEL is valid with any configuration. A configuration that is not a JSON object is
// dropped.
func TestValidateDel(t *testing.T) {
	for _, tc := range []struct {
		name, config string
		kept         bool
	}{
		{name: "nothing"},
		{name: "truncated", config: goodConfig[:40]},
		{name: "a list", config: `["socket"]`},
		{name: "null", config: `null`},
		{name: "no socket", config: `{"cniVersion":"1.0.0"}`, kept: true},
		{name: "socket of another type", config: `{"socket":{}}`, kept: true},
		{name: "unsupported version", config: `{"cniVersion":"9.9.9","socket":"/s/sock"}`, kept: true},
		{name: "no version", config: ` {"socket":"/s/sock"}`, kept: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := Request{Verb: VerbDel, ContainerID: "a", Config: []byte(tc.config)}
			if err := r.Validate(); err != nil {
				t.Errorf("the daemon refuses it: %v", err)
			}
			if kept := r.Config != nil; kept != tc.kept {
				t.Errorf("configuration kept %v, want %v", kept, tc.kept)
			}
		})
	}
}

// Fields that the daemon's checks do not read may have any type.
func TestValidateIgnoresOtherFields(t *testing.T) {
	r := Request{Verb: VerbGC, Config: []byte(`{"cniVersion":"1.1.0","name":"n","socket":7,"ipam":[],"spool":{}}`)}
	if err := r.Validate(); err != nil {
		t.Errorf("the daemon refuses fields that it does not read: %v", err)
	}
}
