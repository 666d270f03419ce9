package cniproto

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestScanNetwork(t *testing.T) {
	usual := network{CNIVersion: "1.0.0", Name: "n", Socket: "/run/fairlead/cni.sock", Spool: "/run/spool"}
	for _, c := range []struct {
		name, config string
		want         network
		ok           bool
	}{
		{"usual", `{"cniVersion":"1.0.0","name":"n","socket":"/run/fairlead/cni.sock","spool":"/run/spool"}`, usual, true},
		{"white space", " {\n\t\"socket\" : \"/s\"\r\n}\n", network{Socket: "/s"}, true},
		{"nested namesakes", `{"runtimeConfig":{"socket":"/wrong"},"prevResult":[{"spool":"/wrong"}],"socket":"/s"}`, network{Socket: "/s"}, true},
		{"brackets in strings", `{"a":"}]{","socket":"/s","b":"\"socket\":"}`, network{Socket: "/s"}, true},
		{"key as value", `{"name":"socket","x":1,"socket":"/s"}`, network{Name: "socket", Socket: "/s"}, true},
		{"last of two", `{"socket":"/a","socket":"/b"}`, network{Socket: "/b"}, true},
		{"empty", `{}`, network{}, true},
		{"other case", `{"Socket":"/s"}`, network{}, false},
		{"escaped key", `{"soc\u006bet":"/s"}`, network{}, false},
		{"escaped value", `{"socket":"\/s"}`, network{}, false},
		{"no string", `{"socket":7}`, network{}, false},
		{"null", `{"socket":null}`, network{}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, ok := scanNetwork(c.config)
			if diff := cmp.Diff(c.want, got); ok != c.ok || diff != "" {
				t.Errorf("scanned: %v, difference (-want +got):\n%s", ok, diff)
			}
		})
	}
}

// What is scanned is what encoding/json would have read.
func FuzzScanNetwork(f *testing.F) {
	f.Add(`{"cniVersion":"1.0.0","socket":"/s","spool":"","x":[{"socket":"\""}]}`)
	f.Add(`{"socket":"/a","Socket":"/b"}`)
	f.Add(`{"\\":"","spool":"a"}`)
	f.Fuzz(func(t *testing.T, config string) {
		if !isObject([]byte(config)) {
			return
		}
		got, ok := scanNetwork(config)
		if !ok {
			return
		}
		var want network
		if err := json.Unmarshal([]byte(config), &want); err != nil {
			t.Fatalf("scanned %+v, encoding/json says: %v", got, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("difference (-encoding/json +scanned):\n%s", diff)
		}
	})
}

// A request arrives as it was sent.
func FuzzEncodeRequest(f *testing.F) {
	f.Add("ADD", "c0ffee", "K8S_POD_NAME=a;K8S_POD_NAMESPACE=b", "a\"b\\\x00\x7fé\xff", `{"cniVersion":"1.0.0"}`)
	f.Add("DEL", "", "", "", "")
	f.Fuzz(func(t *testing.T, verb, containerID, args, baggage, config string) {
		r := Request{RequestID: "1f", Verb: verb, ContainerID: containerID, Args: args, Baggage: baggage, DeadlineMS: 7}
		if config != "" {
			r.Config = json.RawMessage(config)
		}
		got, err := r.encode()
		want, wantErr := json.Marshal(r)
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("error %v, encoding/json's %v", err, wantErr)
		}
		if err != nil {
			return
		}
		var g, w any
		if err := json.Unmarshal(got, &g); err != nil {
			t.Fatalf("%s: %v", got, err)
		}
		if err := json.Unmarshal(want, &w); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(w, g); diff != "" {
			t.Errorf("difference (-encoding/json +ours):\n%s", diff)
		}
	})
}
