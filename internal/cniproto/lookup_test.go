package cniproto

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

// ambiguousJSON are texts that JSON parsers are known to read differently.
var ambiguousJSON = []string{
	``, ` `, `{}`, `[]`, `null`, `7`, `"socket"`, `{"a"`, `{"a":`, `{"a":1,}`, `{,}`, `{} {}`, `}{"socket":"/a"}`, `"{"socket":"/a"}`, `{"socket`, `{"socket":"`, `{"socket":"\`,
	`{"socket":"/a","socket":"/b"}`, `{"socket":"/a","Socket":"/b"}`, `{"SOCKET":"/a","socket":null}`, "{\"\u017foc\u212aet\":\"/a\"}", `{"soc\u006bet":"\/s"}`,
	`{"socket":7}`, `{"socket":{}}`, `{"socket":["/a"],"name":"n"}`, `{"socket":{"socket":"/a"}}`, `{"x":{"socket":"/a"}}`, `{"x":[{"socket":"/a"}]}`, `[{"socket":"/a"}]`,
	`{"ipam":{"socket":"/a"},"ipam":{"type":"x"}}`, `{"ipam":null,"IPAM":{"Socket":"/a"}}`, `{"ipam":{"socket":"/a"},"ipam":null}`, `{"ipam":[{"socket":"/a"}]}`, `{"ipam":["socket","/a"]}`,
	`{"ipam":{"x":{"socket":"/a"}}}`, `{"ipam":{"x":[],"socket":"/a"},"x":{}}`, `{"x":{"ipam":{"socket":"/a"}}}`, `{"ipam":{"socket":"/a"},"socket":"/b"}`,
	`{"config":{"socket":"/wrong"},"x":[{"spool":"}"}],"spool":"a"}`, `{"a":"}]{","socket":"/s","b":"\"socket\":"}`, " {\n\t\"socket\" : \"/s\"\r\n}\n",
	`{"name":"socket","x":1,"socket":"/s"}`, `{"":"","\\":"","spool":"a"}`, `{"socket":"a\\/b\/c\\\/","name":"\u00e9\n\t\"\\"}`, `{"name":"\ud83d\ude00","socket":"/a"}`,
	`{"code":11,"msg":"later","details":null}`, `{"code": -1.5e3}`, `{"code":true}`, "{\"socket\":\"\x7f\"}",
	strings.Repeat(`{"a":[`, 20_000), strings.Repeat(`{"ipam":`, 20_000),
}

// lookup finds the same values as encoding/json in each text that encoding/json accepts,
// with no bracket left open. It ends without a panic in any other text.
func FuzzLookup(f *testing.F) {
	for _, text := range ambiguousJSON {
		f.Add(text)
	}
	f.Add(goodConfig)
	type all struct {
		CNIVersion string `json:"cniVersion"`
		Name       string `json:"name"`
		Socket     string `json:"socket"`
		Spool      string `json:"spool"`
		IPAM       struct {
			Socket string `json:"socket"`
		} `json:"ipam"`
		Code json.Number `json:"code"`
	}
	f.Fuzz(func(t *testing.T, text string) {
		var got, want all
		code, open := lookup(text, "code")
		got.CNIVersion, got.Name, got.Socket, got.Spool = lookupString(text, "cniVersion"), lookupString(text, "name"), lookupString(text, "socket"), lookupString(text, "spool")
		got.IPAM.Socket = lookupString(text, "ipam", "socket")
		if json.Valid([]byte(text)) && open != 0 {
			t.Fatalf("%d brackets are open at the end", open)
		}
		err := json.Unmarshal([]byte(text), &want)
		if err != nil || strings.TrimSpace(text) == "null" || !utf8.ValidString(text) || strings.Contains(strings.ToLower(text), `\ud`) {
			return // unquote does not read characters that are escaped as two
		}
		if want.Code != "" {
			got.Code = json.Number(strings.Trim(code, `"`))
		}
		if got != want {
			t.Errorf("%+v, encoding/json reads %+v", got, want)
		}
	})
}

func FuzzQuote(f *testing.F) {
	for _, text := range ambiguousJSON {
		f.Add(text)
	}
	f.Add("\xff\xfe\x00\x1f\u2028\U0001f600")
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
