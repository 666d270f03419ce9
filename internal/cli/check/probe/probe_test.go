package probe

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// serving returns the address of a server of the loopback interface.
func serving(t *testing.T, host, name string) string {
	t.Helper()
	s, err := listen(t.Context(), host, 0, name)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.serve(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the server ends with %v", err)
		}
	})
	return s.stream.Addr().String()
}

// closed returns an address at which nothing answers.
func closed(t *testing.T) string {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

func TestProbes(t *testing.T) {
	at, nothing := serving(t, "127.0.0.1", "web"), closed(t)
	for name, tc := range map[string]struct {
		probe   Probe
		problem string // empty for a probe that passes
		size    int
		source  string
		untried bool
	}{
		"tcp":                       {probe: Probe{Kind: TCP, Address: at, Name: "web", Source: "127.0.0.1"}},
		"tcp, another server":       {probe: Probe{Kind: TCP, Address: at, Name: "db"}, problem: `"web" answered; must be db`},
		"tcp, another source":       {probe: Probe{Kind: TCP, Address: at, Source: "10.0.0.1"}, problem: `the server saw the source "127.0.0.1"; must be 10.0.0.1`, source: "127.0.0.1"},
		"tcp, nothing":              {probe: Probe{Kind: TCP, Address: nothing}, problem: "refused: "},
		"udp":                       {probe: Probe{Kind: UDP, Address: at, Name: "web", Source: "127.0.0.1"}},
		"udp, nothing":              {probe: Probe{Kind: UDP, Address: nothing}, problem: "refused: "},
		"a size":                    {probe: Probe{Kind: Size, Address: at, Size: 1430, Name: "web"}, size: 1430},
		"connect":                   {probe: Probe{Kind: Connect, Address: at}},
		"connect, nothing":          {probe: Probe{Kind: Connect, Address: nothing}, problem: "refused: "},
		"denied":                    {probe: Probe{Kind: Denied, Address: nothing}},
		"denied, but it is open":    {probe: Probe{Kind: Denied, Address: at}, problem: "the connection was accepted"},
		"a name":                    {probe: Probe{Kind: DNS, Address: "localhost"}},
		"a kind of a later version": {probe: Probe{Kind: "sctp", Address: at}, problem: `kind "sctp": must be tcp, udp, size, connect, dns, denied or forged`, untried: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := Run(t.Context(), Plan{Patience: 1, Probes: []Probe{tc.probe}})[0]
			if got.Passed != (tc.problem == "") || !strings.HasPrefix(got.Problem, tc.problem) || got.Size != tc.size || got.Source != tc.source || got.Untried != tc.untried {
				t.Errorf("outcome %+v; want problem %q, size %d, source %q, untried %t", got, tc.problem, tc.size, tc.source, tc.untried)
			}
		})
	}
}

// A packet larger than the interface is not fragmented, and its problem is named.
func TestSizeIsNotFragmented(t *testing.T) {
	at := serving(t, "127.0.0.1", "web")
	own, err := mtu(&net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	got := Run(t.Context(), Plan{Patience: 1, Probes: []Probe{{Kind: Size, Address: at, Size: own + 1}}})[0]
	want := Outcome{Problem: "the packet is larger than a link on the way carries", Size: own + 1}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("a packet larger than the link (-want +got):\n%s", diff)
	}
}

// A server answers no datagram that is smaller than its answer, and no other server's
// answer.
func TestServerIsNoAmplifier(t *testing.T) {
	at := serving(t, "127.0.0.1", strings.Repeat("n", maxName))
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "udp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	whole := append([]byte(question), make([]byte, smallest-len(question))...)
	for _, content := range [][]byte{whole[:smallest-1], bytes.Repeat([]byte("{"), smallest), whole} {
		if _, err := conn.Write(content); err != nil {
			t.Fatal(err)
		}
	}
	readAnswer(t, conn)
	// A single answer: a second one would be read by the next probe of this socket.
	if err := conn.SetReadDeadline(time.Now().Add(pause)); err != nil {
		t.Fatal(err)
	}
	raw := make([]byte, maxDatagram)
	if n, err := conn.Read(raw); err == nil {
		t.Errorf("a second answer: %q", raw[:n])
	}
}

// readAnswer returns the next datagram of a server, which must not be larger than a question.
func readAnswer(t *testing.T, conn net.Conn) []byte {
	t.Helper()
	raw := make([]byte, maxDatagram)
	n, err := conn.Read(raw)
	if err != nil {
		t.Fatal(err)
	}
	if n > smallest {
		t.Errorf("an answer of %d bytes to a question of %d", n, smallest)
	}
	return raw[:n]
}

// The command reads a plan and writes the outcomes in the order of the probes.
func TestRunCommand(t *testing.T) {
	at, nothing := serving(t, "::1", "web"), closed(t)
	plan, err := json.Marshal(Plan{Patience: 1, Probes: []Probe{{Kind: TCP, Address: nothing}, {Kind: Size, Address: at, Size: 1280}}})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	cmd := Command()
	cmd.SetArgs([]string{"run"})
	cmd.SetIn(bytes.NewReader(plan))
	cmd.SetOut(&out)
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	var got []Outcome
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || got[0].Passed || !got[1].Passed || got[1].Size != 1280 {
		t.Errorf("outcomes %+v; want one that failed, and one of 1280 bytes that passed", got)
	}
	cmd.SetIn(strings.NewReader("plan"))
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "read the plan") {
		t.Errorf("a plan that is no JSON: %v", err)
	}
}
