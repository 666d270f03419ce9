package main

import (
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/test/harness"
	"fairlead.dev/fairlead/test/netlab"
)

func TestPing(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("making network namespaces needs root")
	}
	if !netlab.HasIPv6() {
		t.Skip("needs a kernel with IPv6: it pings both families")
	}
	lab, err := netlab.New(t.Context(), netlab.Config{Nodes: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer lab.Close()
	one, two := lab.Nodes[0], lab.Nodes[1]
	absent := netip.MustParseAddr("192.168.77.99")
	tests := []struct {
		name  string
		addrs []netip.Addr
		limit time.Duration
		want  map[netip.Addr]bool
	}{
		{
			name:  "IPv4, itself too",
			addrs: []netip.Addr{one.V4.Addr(), two.V4.Addr()},
			limit: time.Minute,
			want:  map[netip.Addr]bool{one.V4.Addr(): true, two.V4.Addr(): true},
		},
		{
			name:  "IPv6, itself too",
			addrs: []netip.Addr{one.V6.Addr(), two.V6.Addr()},
			limit: time.Minute,
			want:  map[netip.Addr]bool{one.V6.Addr(): true, two.V6.Addr(): true},
		},
		{
			name:  "one that is not there does not hide the others",
			addrs: []netip.Addr{absent, two.V4.Addr()},
			limit: 5 * time.Second, // it takes all of it
			want:  map[netip.Addr]bool{two.V4.Addr(): true},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ping(t.Context(), one.Path(), tt.addrs, tt.limit)
			if diff := cmp.Diff(tt.want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Errorf("answers (error %v, -want +got):\n%s", err, diff)
			}
		})
	}
}

func TestEchoReply(t *testing.T) {
	// An IPv4 request as it is on the wire: its checksum makes the sum of all
	// words 0xffff (RFC 1071).
	if sum := checksum(echoRequest(true, 7)); sum != 0 {
		t.Errorf("checksum of a message with its checksum is %#x; want 0", sum)
	}
	reply := echoRequest(true, 7)
	reply[0] = echoReplyV4
	foreign := append([]byte(nil), reply...)
	foreign[4]++
	tests := []struct {
		name    string
		message []byte
		v4      bool
		want    int
		wantOK  bool
	}{
		{"a reply", reply, true, 7, true},
		{"our own request", echoRequest(true, 7), true, 0, false},
		{"of the other family", reply, false, 0, false},
		{"another's", foreign, true, 0, false},
		{"too short", reply[:7], true, 0, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got, ok := echoReply(tt.message, tt.v4); got != tt.want || ok != tt.wantOK {
				t.Errorf("sequence %d, %v; want %d, %v", got, ok, tt.want, tt.wantOK)
			}
		})
	}
}

func TestSlotState(t *testing.T) {
	holder := ipam.Holder{Namespace: "default", Pod: "web", PodUID: "u", Node: "node-1", Interface: "eth0"}
	pool, err := ipam.ParsePool(ipam.PoolSpec{Name: "p", Domain: "default", Ranges: []string{"10.0.0.0/24"}})
	if err != nil {
		t.Fatal(err)
	}
	now := ipam.Moment{Wall: time.Now()}
	block := ipam.NewBlock(netip.MustParsePrefix("10.0.0.0/26"), "")
	taken, err := block.Take(pool, holder, false, now)
	if err != nil {
		t.Fatal(err)
	}
	other, err := block.Take(pool, ipam.Holder{Namespace: "default", Pod: "web2", PodUID: "v", Node: "node-1", Interface: "eth0"}, false, now)
	if err != nil {
		t.Fatal(err)
	}
	if !block.Free(holder, taken, now) {
		t.Fatal("the address cannot be freed")
	}
	for addr, want := range map[netip.Addr]string{taken: "cooling", other: inUse, netip.MustParseAddr("10.0.0.60"): "free", netip.MustParseAddr("10.9.9.9"): "free"} {
		if got := slotState([]*ipam.Block{block}, addr); got != want {
			t.Errorf("slotState(%v) = %q; want %q", addr, got, want)
		}
	}
}

func TestParseFlags(t *testing.T) {
	for args, want := range map[string]string{
		"--nodes 0":   "--nodes is 0",
		"--nodes 51":  "--nodes is 51",
		"--pods 0":    "--pods is 0",
		"--pods 501":  "--pods is 501",
		"more":        `"more"`,
		"--nodes two": "two",
	} {
		if _, err := parseFlags(strings.Fields(args), io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("parseFlags(%s): %v; want an error with %q", args, err, want)
		}
	}
}

func TestPreflightNamesWhatIsMissing(t *testing.T) {
	s := settings{Nodes: 1, Pods: 1, Flags: harness.Flags{Bin: t.TempDir()}, Kubeconfig: filepath.Join(t.TempDir(), "kubeconfig")}
	lacks := strings.Join(preflight(t.Context(), s, true), "\n")
	for _, want := range []string{"fairlead-controller", "fairlead-node", "fairlead-cni", "podrunner", s.Kubeconfig} {
		if !strings.Contains(lacks, want) {
			t.Errorf("the missing things do not include %s:\n%s", want, lacks)
		}
	}
	if strings.Contains(lacks, "kubelab") {
		t.Errorf("with a cluster of the user's no kubelab is needed:\n%s", lacks)
	}
	s.Check = true
	if lacks := strings.Join(preflight(t.Context(), s, true), "\n"); strings.Contains(lacks, "podrunner") || !strings.Contains(lacks, s.Kubeconfig) {
		t.Errorf("before anything is built only the rest is named:\n%s", lacks)
	}
	if got := programLacks(settings{Flags: s.Flags}); !strings.Contains(strings.Join(got, "\n"), "make bin/kubelab") {
		t.Errorf("without one it is: %v", got)
	}
}
