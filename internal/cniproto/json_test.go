package cniproto

import (
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
)

// odd are texts that readers of JSON are known to differ on.
var odd = []string{
	``, ` `, `{}`, `[]`, `null`, `tru`, `truex`, `nulll`, `{"a"`, `{"a":`, `{"a":1,}`, `{,}`, `[1,]`, `[,1]`, `{} {}`, `{}x`, `{a:1}`, `{'a':1}`,
	"\ufeff{}", "\v{}", "{}\u00a0", "{}\x00", "[\"\x00\"]", "[\"\x1f\"]", "\"\x7f\"", "\"\xff\xfe\"", "\"\xed\xa0\x80\"",
	`"\u0000"`, `"\ud800"`, `"\udc00\ud800"`, `"\ud83d\ude00"`, `"\ud83d\u0041"`, `"\ud83d\n"`, `"\uD83d\uDE0"`, `"\uzzzz"`, `"\x41"`, `"\/\b\f\n\r\t\"\\"`, `"\`, `"\u00`, `"`,
	`0`, `-`, `-0`, `00`, `01`, `1.`, `.1`, `1.0e`, `1e+`, `1E-2`, `+1`, `0x1`, `1e5`, `-1.5e+10x`, `NaN`,
	`{"socket":"/a","socket":"/b"}`, `{"socket":"/a","Socket":"/b"}`, `{"SOCKET":"/a","socket":null}`, "{\"\u017foc\u212aet\":\"/a\"}", `{"soc\u006bet":"\/s"}`,
	`{"socket":7}`, `{"socket":{}}`, `{"socket":["/a"],"name":"n"}`, `{"socket":true}`, `{"name":7,"socket":"/a"}`,
	`{"ipam":{"socket":"/a"},"ipam":{"type":"x"}}`, `{"ipam":null,"IPAM":{"Socket":"/a"}}`, `{"ipam":"x"}`, `{"ipam":{"socket":1}}`, `{"ipam":[]}`,
	`{"deadlineMS":-1}`, `{"deadlineMS":1.5}`, `{"deadlineMS":1e3}`, `{"deadlineMS":9223372036854775808}`, `{"deadlineMS":"1"}`, `{"deadlineMS":-0,"config":null}`,
	`{"config":{"socket":"/wrong"},"x":[{"spool":"}"}],"spool":"a"}`, `{"a":"}]{","socket":"/s","b":"\"socket\":"}`, " {\n\t\"socket\" : \"/s\"\r\n}\n",
	`{"name":"socket","x":1,"socket":"/s"}`, `{"":"","\\":"","spool":"a"}`, `{"verb":"DEL","config":  [1, 2] }`,
	`{"code":11,"msg":"later","details":null}`,
	strings.Repeat("[", maxDepth) + strings.Repeat("]", maxDepth),
	strings.Repeat("[", maxDepth+1) + strings.Repeat("]", maxDepth+1),
	strings.Repeat(`{"a":`, maxDepth) + "1" + strings.Repeat("}", maxDepth),
	strings.Repeat(`{"a":[`, maxDepth/2+1) + "1",
}

func seed(f *testing.F) {
	f.Helper()
	for _, text := range odd {
		f.Add(text)
	}
}

// What encoding/json takes is taken, and nothing else; what is wrong is so at the
// byte where it is for encoding/json.
func FuzzScan(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, text string) {
		_, kind, err := scan(text)
		var v any
		wantErr := json.Unmarshal([]byte(text), &v)
		if _, ok := errors.AsType[*json.SyntaxError](wantErr); ok {
			if want := syntaxError(text); err == nil || !strings.HasPrefix(err.Error(), want) {
				t.Errorf("error %v, want %s", err, want)
			}
			return
		}
		if err != nil {
			t.Fatalf("error %v, encoding/json's %v", err, wantErr)
		}
		want := "number" // of any size, also where encoding/json has none to put it into
		switch v.(type) {
		case map[string]any:
			want = "object"
		case []any:
			want = "array"
		case string:
			want = "string"
		case bool:
			want = "bool"
		case nil:
			want = "null"
		}
		if wantErr == nil && kind != want {
			t.Errorf("kind %s, want %s", kind, want)
		}
	})
}

// syntaxError is how the error of a text begins that encoding/json does not take. At
// the end of a text it is not exact, so it is given one byte more, which is wrong
// everywhere.
func syntaxError(text string) string {
	syntax, ok := errors.AsType[*json.SyntaxError](json.Unmarshal([]byte(text+"\x00"), new(any)))
	if !ok || syntax.Offset > int64(len(text)) {
		return "ends after " + strconv.Itoa(len(text)) + " bytes, "
	}
	return "wrong JSON at byte " + strconv.FormatInt(syntax.Offset, 10) + ": "
}

func FuzzUnquote(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, text string) {
		text = strings.TrimSpace(text)
		var want string
		if !strings.HasPrefix(text, `"`) || json.Unmarshal([]byte(text), &want) != nil {
			return
		}
		if got := unquote(text); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	})
}

func FuzzQuote(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, s string) {
		raw, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		var want, got string
		if err := json.Unmarshal(raw, &want); err != nil {
			t.Fatal(err)
		}
		quoted := appendQuoted(nil, s)
		if err := json.Unmarshal(quoted, &got); err != nil || got != want {
			t.Errorf("%s is %q, %v: want %q", quoted, got, err, want)
		}
		if back := unquote(string(quoted)); back != want {
			t.Errorf("unquoted %q, want %q", back, want)
		}
	})
}

// Each thing that is read is what encoding/json reads: the configuration, its ipam
// section, a request, an error.
func FuzzDecode(f *testing.F) {
	seed(f)
	f.Add(`{"cniVersion":"1.0.0","name":"n","socket":"/run/fairlead/cni.sock","spool":"/run/spool","ipam":{"type":"x","socket":"/s"}}`)
	type all struct {
		CNIVersion string `json:"cniVersion"`
		Name       string `json:"name"`
		Socket     string `json:"socket"`
		Spool      string `json:"spool"`
		IPAM       struct {
			Socket string `json:"socket"`
		} `json:"ipam"`
		DeadlineMS int64           `json:"deadlineMS"`
		Config     json.RawMessage `json:"config"`
	}
	f.Fuzz(func(t *testing.T, text string) {
		if strings.TrimSpace(text) == "null" {
			return // encoding/json leaves the struct as it is
		}
		var got, want all
		config := []byte(nil)
		err := decode(text, []field{
			{"cniVersion", &got.CNIVersion},
			{"name", &got.Name},
			{"socket", &got.Socket},
			{"spool", &got.Spool},
			{"ipam", []field{{"socket", &got.IPAM.Socket}}},
			{"deadlineMS", &got.DeadlineMS},
			{"config", &config},
		})
		got.Config = config
		wantErr := json.Unmarshal([]byte(text), &want)
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("error %v, encoding/json's %v", err, wantErr)
		}
		if err != nil {
			return
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("difference (-encoding/json +ours):\n%s", diff)
		}
	})
}

// A daemon that had served some ten thousand requests kept the text of each,
// for its container ID.
func TestDecodedKeepsNoText(t *testing.T) {
	text := `{"containerID":"c1","config":{"name":"n"}}`
	var r Request
	var fields requestFields
	r.fields(&fields)
	if err := decode(text, fields[:]); err != nil {
		t.Fatal(err)
	}
	start := uintptr(unsafe.Pointer(unsafe.StringData(text)))
	for what, p := range map[string]*byte{"container ID": unsafe.StringData(r.ContainerID), "configuration": unsafe.SliceData(r.Config)} {
		if at := uintptr(unsafe.Pointer(p)); at >= start && at < start+uintptr(len(text)) {
			t.Errorf("the %s is a piece of the request", what)
		}
	}
}

func TestDecodeSays(t *testing.T) {
	for _, tc := range []struct{ text, says string }{
		{``, "ends after 0 bytes, before its JSON is complete"},
		{`{"socket":tru`, "ends after 13 bytes, before its JSON is complete"},
		{`{"socket":"\u00`, "ends after 15 bytes, before its JSON is complete"},
		{`{socket}`, `wrong JSON at byte 2: "s": must be a key in quotation marks or }`},
		{`{"a":1,}`, `wrong JSON at byte 8: "}": must be a key in quotation marks`},
		{`{"a" 1}`, `wrong JSON at byte 6: "1": must be a colon`},
		{`{"a":}`, `wrong JSON at byte 6: "}": must be a value`},
		{`{"a":1 "b"}`, `wrong JSON at byte 8: "\"": must be a comma or }`},
		{`{"a":[1}`, `wrong JSON at byte 8: "}": must be a comma or ]`},
		{`{"a":nul}`, `wrong JSON at byte 9: "}": must be as in null`},
		{`{"a":-}`, `wrong JSON at byte 7: "}": must be a digit`},
		{`{"a":"\x"}`, `wrong JSON at byte 8: "x": must be one of "\/bfnrtu`},
		{`{"a":"\u00g0"}`, `wrong JSON at byte 11: "g": must be a hexadecimal digit`},
		{"{\"a\":\"\n\"}", `wrong JSON at byte 7: "\n": must be escaped, as in \u0000`},
		{"\ufeff{}", `wrong JSON at byte 1: "\ufeff": must be a value`},
		{"\xff", `wrong JSON at byte 1: "\xff": must be a value`},
		{`{} {}`, `wrong JSON at byte 4: "{": must be the end`},
		{strings.Repeat("[", maxDepth+1), `wrong JSON at byte 10001: "[": must be in no more than 10000 others`},
		{`[1]`, "must be a JSON object, not array"},
		{`{"socket":7}`, "socket: must be string, not number"},
		{`{"Socket":[]}`, "socket: must be string, not array"},
		{`{"ipam":true}`, "ipam: must be object, not bool"},
		{`{"ipam":{"socket":{}}}`, "ipam.socket: must be string, not object"},
		{`{"deadlineMS":1.5}`, "deadlineMS: must be integer, not 1.5"},
		{`{"deadlineMS":"1"}`, "deadlineMS: must be integer, not string"},
	} {
		var s string
		var n int64
		err := decode(tc.text, []field{{"socket", &s}, {"ipam", []field{{"socket", &s}}}, {"deadlineMS", &n}})
		if err == nil || err.Error() != tc.says {
			t.Errorf("%.40q: error %v, want %s", tc.text, err, tc.says)
		}
	}
}

// A request arrives as it was sent, as UTF-8.
func FuzzEncodeRequest(f *testing.F) {
	f.Add("ADD", "c0ffee", "K8S_POD_NAME=a;K8S_POD_NAMESPACE=b", "a\"b\\\x00\x7fé\xff", `{"cniVersion":"1.0.0"}`)
	f.Add("DEL", "", "", "", "")
	f.Add("", "", "", "", " {} ")
	f.Fuzz(func(t *testing.T, verb, containerID, args, baggage, config string) {
		r := Request{RequestID: "1f", Verb: verb, ContainerID: containerID, Args: args, Baggage: baggage, DeadlineMS: 7}
		if config != "" {
			r.Config = []byte(config)
			if !json.Valid(r.Config) {
				return // Parse and DecodeRequest take no such configuration
			}
		}
		raw := r.Encode()
		if !json.Valid(raw) {
			t.Fatalf("%s is not JSON", raw)
		}
		got, err := decodeRequest(raw)
		if err != nil {
			t.Fatal(err)
		}
		want := r
		for _, s := range []*string{&want.Verb, &want.ContainerID, &want.Args, &want.Baggage} {
			*s = string([]rune(*s)) // each byte that is not UTF-8 is U+FFFD
		}
		if config != "" {
			want.Config = []byte(strings.Trim(config, " \t\r\n"))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("request (-want +got):\n%s", diff)
		}
	})
}

// decodeRequest is DecodeRequest without a limit of size.
func decodeRequest(raw []byte) (r Request, err error) {
	var fields requestFields
	r.fields(&fields)
	err = decode(string(raw), fields[:])
	return r, err
}
