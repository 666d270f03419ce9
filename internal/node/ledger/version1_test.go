package ledger

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
)

// The files are of a node that ran version 0.1.0 under Multus.
const (
	plugV1 = `{"version":1,"containerID":"c1","bootID":"boot-1","state":"attached","netns":"/run/netns/c1","netnsID":{"device":4,"inode":7},"ifName":"eth0",` +
		`"pod":{"namespace":"ns","name":"web","uid":"u1"},"attachment":{"name":"web-u1","uid":"a1"},` +
		`"interfaces":[{"name":"eth0","network":"default","driver":"native","default":true,"addresses":["10.244.1.5/32"],"binding":{"bridge":{"name":"fairlead0"}},"hostName":"fl1"}],` +
		`"hostPorts":null,"result":{"cniVersion":"1.1.0"},"startedAt":"2026-11-20T10:00:00Z","attachedAt":"2026-11-20T10:00:01Z"}`
	addressesOfNet1 = `{"version":1,"containerID":"c1","ifName":"net1","bootID":"boot-1","netns":"/run/netns/c1","netnsID":{"device":4,"inode":7},"config":"lan",` +
		`"pod":{"namespace":"ns","name":"web","uid":"u1"},"attachment":{"name":"web-u1","uid":"a1"},"interface":"net1","addresses":["10.9.0.5","fd09::5"],` +
		`"result":{"cniVersion":"1.0.0"},"attachedAt":"2026-11-20T10:00:02Z"}`
)

// upgraded writes files of version 1 and reads them twice, as two starts of the daemon
// do: the second reads the files that the first wrote. It returns the record of c1 and
// the names of the files.
func upgraded(t *testing.T, files map[string]string) (*Record, []string) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var first *Record
	for range 2 {
		l := New(filepath.Join(dir, RecordsDir), "boot-1", nil, func(*Record) {})
		if _, err := l.Read(); err != nil {
			t.Fatal(err)
		}
		r := l.Get("c1")
		if first == nil {
			first = r
		}
		if diff := cmp.Diff(first, r); diff != "" {
			t.Errorf("read again: -first +second:\n%s", diff)
		}
	}
	var left []string
	for _, sub := range []string{RecordsDir, AddressesDir} {
		entries, _ := os.ReadDir(filepath.Join(dir, sub))
		for _, e := range entries {
			left = append(left, sub+"/"+e.Name())
		}
	}
	return first, left
}

// An upgrade of the node keeps the records of version 1.
func TestRecordsOfVersion1(t *testing.T) {
	netns := link.Place{Path: "/run/netns/c1", ID: link.NamespaceID{Device: 4, Inode: 7}}
	plugged := Add{
		IfName: "eth0", State: Attached, Result: []byte(`{"cniVersion":"1.1.0"}`),
		Interfaces: []Interface{{Made: plug.Made{Kind: plug.KindBridge, ContainerID: "c1", Name: "eth0", Namespace: netns, HostLink: "fl1", Bridge: "fairlead0"}, Interface: v1alpha1.Interface{
			Name: "eth0", Network: "default", Driver: "native", Default: true, Addresses: []string{"10.244.1.5/32"},
			Binding: v1alpha1.Binding{Bridge: &v1alpha1.BridgeBinding{Name: "fairlead0"}},
		}}},
		StartedAt: time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC), AttachedAt: time.Date(2026, 11, 20, 10, 0, 1, 0, time.UTC),
	}
	net1 := Add{
		IfName: "net1", State: Attached, Result: []byte(`{"cniVersion":"1.0.0"}`),
		Interfaces: []Interface{{Made: plug.Made{Kind: plug.KindAddressOnly, ContainerID: "c1", Name: "net1", Namespace: netns}, Interface: v1alpha1.Interface{
			Name: "net1", Addresses: []string{"10.9.0.5/32", "fd09::5/128"}, Binding: v1alpha1.Binding{AddressOnly: &v1alpha1.AddressOnlyBinding{}},
		}}},
		AttachedAt: time.Date(2026, 11, 20, 10, 0, 2, 0, time.UTC),
	}
	sandbox := Record{
		Version: Version, ContainerID: "c1", BootID: "boot-1", Netns: "/run/netns/c1", NetnsID: link.NamespaceID{Device: 4, Inode: 7},
		Pod: Pod{Namespace: "ns", Name: "web", UID: "u1"}, Attachment: Attachment{Name: "web-u1", UID: "a1"},
	}
	for _, tc := range []struct {
		name       string
		files      map[string]string
		adds       []Add
		incomplete bool
		unknown    bool // the pod is
		left       []string
	}{
		{name: "one interface", files: map[string]string{"attachments/c1.json": plugV1}, adds: []Add{plugged}},
		{
			name: "one interface, being deleted", files: map[string]string{"attachments/c1.json": `{"version":1,"containerID":"c1","bootID":"boot-1","state":"deleting","netnsID":{"device":0,"inode":0},"interfaces":[]}`},
			adds: []Add{{State: Deleting, Interfaces: []Interface{}}}, unknown: true,
		},
		{name: "addresses of another plugin", files: map[string]string{"addresses/c1@net1.json": addressesOfNet1}, adds: []Add{net1}},
		{name: "both", files: map[string]string{"attachments/c1.json": plugV1, "addresses/c1@net1.json": addressesOfNet1}, adds: []Add{plugged, net1}},
		{
			name:  "damaged addresses",
			files: map[string]string{"attachments/c1.json": plugV1, "addresses/c1@net1.json": "{"}, adds: []Add{plugged}, incomplete: true,
			left: []string{"attachments/c1@net1.json.bad"},
		},
		{
			name:  "damaged addresses beside others, set aside before, and half-written",
			files: map[string]string{"addresses/c1@net1.json": addressesOfNet1, "addresses/c1@net2.json.bad": "{", "addresses/.new-c1@net3": "{"}, adds: []Add{net1}, incomplete: true,
			left: []string{"attachments/c1@net2.json.bad"},
		},
		{
			name: "damaged addresses alone", files: map[string]string{"addresses/c1@net1.json": `{"version":1,"containerID":"c2"}`}, incomplete: true, unknown: true,
			left: []string{"attachments/c1@net1.json.bad"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			want := sandbox
			if want.Adds, want.Incomplete = tc.adds, tc.incomplete; tc.unknown {
				want.Netns, want.NetnsID, want.Pod, want.Attachment = "", link.NamespaceID{}, Pod{}, Attachment{}
			}
			got, left := upgraded(t, tc.files)
			if diff := cmp.Diff(&want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if diff := cmp.Diff(append([]string{"attachments/c1.json"}, tc.left...), left); diff != "" {
				t.Errorf("files: -want +got:\n%s", diff)
			}
		})
	}
}
