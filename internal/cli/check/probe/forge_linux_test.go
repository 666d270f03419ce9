package probe

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/test/netlab"
)

// asProbe is the argument with which the program of these tests is `fairlead probe`.
const asProbe = "probe"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == asProbe {
		cmd := Command()
		cmd.SetArgs(os.Args[2:])
		if err := cmd.Execute(); err != nil {
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// runIn makes a probe in a namespace, as a user without rights but for some capabilities.
func runIn(t *testing.T, in *netlab.Namespace, p Probe, capabilities ...uintptr) Outcome {
	t.Helper()
	plan, err := json.Marshal(Plan{Patience: 3000, Probes: []Probe{p}})
	if err != nil {
		t.Fatal(err)
	}
	var out, problem bytes.Buffer
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", asProbe, "run")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(plan), &out, &problem
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential:  &syscall.Credential{Uid: 65532, Gid: 65532},
		AmbientCaps: capabilities,
	}
	if err := in.Start(cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("probe run: %v: %s", err, problem.String())
	}
	var outcomes []Outcome
	if err := json.Unmarshal(out.Bytes(), &outcomes); err != nil || len(outcomes) != 1 {
		t.Fatalf("outcomes %s: %v", out.String(), err)
	}
	return outcomes[0]
}

// A pod with the capability NET_RAW alone sends packets from the address of another. They
// arrive unless something on the way drops them.
func TestForged(t *testing.T) {
	from, to := twoNodes(t)
	for _, f := range []struct {
		name          string
		own, there    netip.Addr
		forged, match string
	}{
		{"IPv4", from.V4.Addr(), to.V4.Addr(), "192.168.77.99", "ip saddr"},
		{"IPv6", from.V6.Addr(), to.V6.Addr(), "fd00:77::99", "ip6 saddr"},
	} {
		if !f.own.IsValid() {
			continue
		}
		var at string
		if err := to.Do(func() error {
			at = serving(t, f.there.String(), "web")
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		for name, tc := range map[string]struct {
			drop         []string // sources
			capabilities []uintptr
			want         Outcome
		}{
			"nothing drops them": {
				capabilities: []uintptr{unix.CAP_NET_RAW},
				want:         Outcome{Problem: "a packet that was sent with the source " + f.forged, Source: f.forged},
			},
			"the forged ones are dropped": {drop: []string{f.forged}, capabilities: []uintptr{unix.CAP_NET_RAW}, want: Outcome{Passed: true}},
			"all are dropped": {
				drop: []string{f.forged, f.own.String()}, capabilities: []uintptr{unix.CAP_NET_RAW},
				want: Outcome{Problem: "no answer: "},
			},
			"without the capability": {want: Outcome{Untried: true, Problem: "open a socket that sends from " + f.own.String()}},
		} {
			rules := []string{"flush ruleset"}
			if len(tc.drop) > 0 {
				rules = append(rules, "table inet test { chain in { type filter hook input priority 0; "+f.match+" { "+strings.Join(tc.drop, ", ")+" } drop; }; }")
			}
			do(t, to.Namespace, strings.Join(rules, "\n"), "nft", "-f", "-")
			got := runIn(t, from.Namespace, Probe{Kind: Forged, Address: at, Name: "web", Source: f.own.String(), Forged: f.forged}, tc.capabilities...)
			if tc.want.Problem != "" && strings.HasPrefix(got.Problem, tc.want.Problem) {
				got.Problem = tc.want.Problem
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s, %s (-want +got):\n%s", f.name, name, diff)
			}
		}
	}
}

// Forged packets leave by the interface of the pod's own address even if a rule leads only that
// address there, as the reference plugin sbr does. Otherwise they would get lost elsewhere, and
// the probe would pass.
func TestForgedWithSourceRouting(t *testing.T) {
	from, to := twoNodes(t)
	own, there := from.V4.Addr().String(), to.V4.Addr().String()
	var at string
	if err := to.Do(func() error {
		at = serving(t, there, "web")
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{
		"link add other type veth peer name peer",
		"link set peer up",
		"link set other up",
		"route add " + from.V4.Masked().String() + " dev " + netlab.Uplink + " table 100",
		"rule add from " + own + " table 100",
		"route add " + there + "/32 dev other",
	} {
		do(t, from.Namespace, "", "ip", strings.Fields(args)...)
	}
	got := runIn(t, from.Namespace, Probe{Kind: Forged, Address: at, Name: "web", Source: own, Forged: "192.168.77.99"}, unix.CAP_NET_RAW)
	if got.Passed || got.Source != "192.168.77.99" {
		t.Errorf("%+v; want a forged packet that arrives", got)
	}
}

// twoNodes returns two nodes on a link.
func twoNodes(t *testing.T) (a, b *netlab.Machine) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root for network namespaces")
	}
	lab, err := netlab.New(t.Context(), netlab.Config{Nodes: 2, IPv4Only: !netlab.HasIPv6()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := lab.Close(); err != nil {
			t.Error(err)
		}
	})
	return lab.Nodes[0], lab.Nodes[1]
}

// do runs a program in a namespace.
func do(t *testing.T, in *netlab.Namespace, stdin, program string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &out
	if err := in.Start(cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%s %v: %v: %s", program, args, err, out.String())
	}
}

// tell sends a marked datagram to a server, and returns its answer.
func tell(t *testing.T, conn net.Conn, token string) answer {
	t.Helper()
	if _, err := conn.Write(marked(markOwn, token)); err != nil {
		t.Fatal(err)
	}
	a, err := Probe{}.check(readAnswer(t, conn))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// Any program that reaches a server can have it record tokens. The records are bounded, and
// the first of a token counts. A full server would miss a forged packet, so it says that it is
// full, and a probe of it cannot be made.
func TestRecordsAreBounded(t *testing.T) {
	name := strings.Repeat("n", maxName)
	at := serving(t, "127.0.0.1", name)
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "udp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	token := func(i int) string { return fmt.Sprintf("%0*d", tokenSize, i) }
	for i := range maxRecords + 10 {
		if _, err := conn.Write(marked(markForged, token(i))); err != nil {
			t.Fatal(err)
		}
		// The answer shows that the server has read it.
		want := answer{Name: name, Source: "127.0.0.1", Forged: "127.0.0.1", Full: i >= maxRecords-1}
		if i >= maxRecords {
			want.Forged = ""
		}
		if got := tell(t, conn, token(i)); got != want {
			t.Fatalf("after %d tokens: %+v; want %+v", i+1, got, want)
		}
	}
	if got := tell(t, conn, token(0)); got.Forged == "" {
		t.Errorf("the record of the first token is gone: %+v", got)
	}
	if os.Geteuid() != 0 {
		t.Skip("the rest needs root to send from another address")
	}
	got := Run(t.Context(), Plan{Patience: 1, Probes: []Probe{{Kind: Forged, Address: at, Name: name, Source: "127.0.0.1", Forged: "127.0.0.2"}}})
	want := []Outcome{{Untried: true, Problem: fmt.Sprintf("%s has records of %d packets with forged sources, and makes no more", name, maxRecords)}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("a probe of a full server (-want +got):\n%s", diff)
	}
}

// The longest answer is not larger than the question.
func TestLongestAnswer(t *testing.T) {
	longest := netip.MustParseAddr("2001:db8:1111:2222:3333:4444:5555:6666").String()
	a := answer{Name: strings.Repeat("n", maxName), Source: longest, Forged: longest, Full: true}
	if n := len(a.raw()); n > smallest {
		t.Errorf("an answer of %d bytes to a question of %d", n, smallest)
	}
}

// A probe of wrong addresses cannot be made.
func TestForgedOfNoAddress(t *testing.T) {
	for own, problem := range map[string]string{
		"web":       "the source: ",
		"192.0.2.1": "no interface has the address 192.0.2.1",
	} {
		got := Run(t.Context(), Plan{Patience: 1, Probes: []Probe{{Kind: Forged, Address: "127.0.0.1:9", Source: own, Forged: "192.0.2.2"}}})[0]
		if !got.Untried || !strings.HasPrefix(got.Problem, problem) {
			t.Errorf("from %q: %+v; want %q", own, got, problem)
		}
	}
}
