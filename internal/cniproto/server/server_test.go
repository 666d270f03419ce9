package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"fairlead.dev/fairlead/internal/cniproto"
)

const config = `{"cniVersion":"1.0.0","name":"fairlead","type":"fairlead","socket":"/run/fairlead/cni.sock"}`

// handlerFunc implements Handler.
type handlerFunc func(ctx context.Context, r cniproto.Request) ([]byte, error)

func (f handlerFunc) Handle(ctx context.Context, r cniproto.Request) ([]byte, error) {
	return f(ctx, r)
}

func refuseAll(t *testing.T) handlerFunc {
	t.Helper()
	return func(_ context.Context, r cniproto.Request) ([]byte, error) {
		t.Errorf("the handler was given %+v", r)
		return nil, nil
	}
}

// running is a server that runs in a test.
type running struct {
	socket string
	stop   context.CancelFunc
	// ended receives the error that run returned.
	ended chan error
}

// start serves h on a new socket until the test ends. It serves the user that runs the
// test.
func start(t *testing.T, h Handler, change func(*server)) running {
	t.Helper()
	return startAt(t, filepath.Join(t.TempDir(), "cni.sock"), h, change)
}

func startAt(t *testing.T, socket string, h Handler, change func(*server)) running {
	t.Helper()
	m, err := newMetrics(nil)
	if err != nil {
		t.Fatal(err)
	}
	s := &server{handler: h, uid: uint32(os.Getuid()), metrics: m, ioTimeout: ioTimeout, leaveAfter: leaveAfter, stopTimeout: stopTimeout}
	if change != nil {
		change(s)
	}
	l, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	r := running{socket: socket, stop: stop, ended: make(chan error, 1)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.ended <- s.run(ctx, l)
	}()
	t.Cleanup(func() {
		stop()
		<-done
	})
	return r
}

func (r running) do(request cniproto.Request) ([]byte, error) {
	return (&cniproto.Client{Socket: r.socket}).Do(time.Now().Add(20*time.Second), &request)
}

func add(id string) cniproto.Request {
	return cniproto.Request{
		RequestID: "r" + id, Verb: cniproto.VerbAdd, ContainerID: id, Netns: "/run/netns/a", IfName: "eth0",
		Config: []byte(config),
	}
}

func TestServe(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	l, err := Listen(filepath.Join(t.TempDir(), "cni.sock"))
	if err != nil {
		t.Fatal(err)
	}
	socket := strings.TrimSuffix(l.Addr().String(), ".new")
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	h := handlerFunc(func(ctx context.Context, r cniproto.Request) ([]byte, error) {
		if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) > 20*time.Second {
			t.Errorf("deadline %v, %v: want the request's", deadline, ok)
		}
		switch r.ContainerID {
		case "gone":
			return nil, fmt.Errorf("add: %w", &cniproto.Error{Code: cniproto.CodeUnknownContainer, Msg: "pod is gone"})
		case "odd":
			return nil, errors.New("interface not found")
		case "panic":
			panic("boom")
		}
		if diff := cmp.Diff(add("good"), r, cmp.FilterPath(func(p cmp.Path) bool { return p.String() == "DeadlineMS" }, cmp.Ignore())); diff != "" {
			t.Errorf("request (-want +got):\n%s", diff)
		}
		return []byte(`{"ips": []}`), nil
	})
	go func() { ended <- Serve(ctx, l, h, Config{Metrics: registry, UID: uint32(os.Getuid())}) }()
	client := running{socket: socket}

	if body, err := client.do(add("good")); err != nil || string(body) != `{"ips": []}` {
		t.Errorf("answer %q, %v: want the handler's bytes", body, err)
	}
	for id, want := range map[string]cniproto.Error{
		"gone":  {CNIVersion: "1.0.0", Code: cniproto.CodeUnknownContainer, Msg: "pod is gone"},
		"odd":   {CNIVersion: "1.0.0", Code: cniproto.CodeInternal, Msg: "interface absent"},
		"panic": {CNIVersion: "1.0.0", Code: cniproto.CodeInternal, Msg: "ADD failed inside the daemon: panic: boom"},
	} {
		_, err := client.do(add(id))
		var got *cniproto.Error
		if !errors.As(err, &got) {
			t.Errorf("%s: error %v, want a CNI error", id, err)
			continue
		}
		if diff := cmp.Diff(want, *got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", id, diff)
		}
	}
	if _, err := client.do(cniproto.Request{Verb: "FROB"}); err == nil {
		t.Error("an unknown verb is served")
	}
	want := `
# HELP fairlead_cni_requests_total Answered requests of the CNI plugin. By verb: ADD, DEL, CHECK, STATUS, GC, unknown. By code: the CNI error code, 0 for success.
# TYPE fairlead_cni_requests_total counter
fairlead_cni_requests_total{code="0",verb="ADD"} 1
fairlead_cni_requests_total{code="3",verb="ADD"} 1
fairlead_cni_requests_total{code="4",verb="unknown"} 1
fairlead_cni_requests_total{code="999",verb="ADD"} 2
# HELP fairlead_cni_inflight Valid requests of the CNI plugin that are being served. By verb: ADD, DEL, CHECK, STATUS, GC.
# TYPE fairlead_cni_inflight gauge
fairlead_cni_inflight{verb="ADD"} 0
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "fairlead_cni_requests_total", "fairlead_cni_inflight"); err != nil {
		t.Error(err)
	}
	if n, err := testutil.GatherAndCount(registry, "fairlead_cni_request_duration_seconds"); err != nil || n != 1 {
		t.Errorf("%d histograms of duration, %v: want that of ADD", n, err)
	}
	if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) > 0 {
		t.Errorf("metrics: %v, %v", problems, err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("stopped with %v", err)
	}
	if _, err := client.do(add("good")); !errors.Is(err, cniproto.ErrAway) {
		t.Errorf("after the stop: error %v, want %v", err, cniproto.ErrAway)
	}
}

func TestMetricsTwice(t *testing.T) {
	registry := prometheus.NewRegistry()
	if _, err := newMetrics(registry); err != nil {
		t.Fatal(err)
	}
	l, err := Listen(filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	if err := Serve(t.Context(), l, refuseAll(t), Config{Metrics: registry}); err == nil || !strings.Contains(err.Error(), "register metrics") {
		t.Errorf("error %v, want one of registration", err)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the listener is still open: %v", err)
	}
}

// raw sends a message, closes the sending side, and returns the error in the answer.
func raw(t *testing.T, socket, message string) *cniproto.Error {
	t.Helper()
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// The server may answer and close before it has read everything.
	_, _ = io.WriteString(conn, message)
	_ = conn.(*net.UnixConn).CloseWrite()
	_, err = cniproto.DecodeAnswer(conn)
	e, ok := errors.AsType[*cniproto.Error](err)
	if !ok {
		t.Fatalf("answer: %v", err)
	}
	return e
}

// encoded returns the frame of a request.
func encoded(t *testing.T, r cniproto.Request) string {
	t.Helper()
	out, err := r.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// The answer to a wrong request has a code, and a message with the field, the value and the
// accepted values. No handler gets the request.
func TestServerRefuses(t *testing.T) {
	s := start(t, refuseAll(t), nil)
	changed := func(change func(*cniproto.Request)) string {
		r := add("a")
		change(&r)
		return encoded(t, r)
	}
	good := encoded(t, add("a"))
	with := func(verb, config string) string {
		return changed(func(r *cniproto.Request) { r.Verb, r.Config = verb, []byte(config) })
	}
	for _, tc := range []struct {
		name, body string
		code       int
		version    string
		wantText   []string
	}{
		{name: "truncated request", body: good[:50], code: cniproto.CodeDecode, wantText: []string{"request: ends after 31 of " + fmt.Sprint(len(good)-19) + " bytes"}},
		{name: "truncated at the start", body: good[:15], code: cniproto.CodeDecode, wantText: []string{"request: ends after 15 bytes"}},
		{name: "another type", body: strings.Replace(good, `"a"`, `177`, 1), code: cniproto.CodeDecode, wantText: []string{"request: header: containerID: must be string, not number"}},
		{name: "not JSON", body: strings.Replace(good, `{"requestID"`, `{ requestID"`, 1), code: cniproto.CodeDecode, wantText: []string{"request: header: wrong JSON at byte 3"}},
		{name: "1 MB announced", body: "fairlead/1\n\x00\x00\x00\x02\x00\x10\x00\x00{}", code: cniproto.CodeDecode, wantText: []string{"request: larger than the limit of 1000000 bytes"}},
		{name: "another version", body: "fairlead/2\n and more", code: cniproto.CodeTryAgainLater, wantText: []string{"different versions", `"fairlead/2\n"`}},
		{name: "another protocol", body: "POST /v1/cni HTTP/1.1\r\n\r\n", code: cniproto.CodeTryAgainLater, wantText: []string{"different versions", `"POST /v1/cn"`}},
		{
			name: "unknown verb", body: changed(func(r *cniproto.Request) { r.Verb = "FROB" }), code: cniproto.CodeInvalidEnvironment, version: "1.0.0",
			wantText: []string{`CNI_COMMAND: "FROB"`, "ADD, CHECK, DEL, GC, STATUS"},
		},
		{
			name: "VERSION", body: changed(func(r *cniproto.Request) { r.Verb = "VERSION" }), code: cniproto.CodeInvalidEnvironment, version: "1.0.0",
			wantText: []string{`CNI_COMMAND: "VERSION"`},
		},
		{
			name: "container ID with a slash", body: changed(func(r *cniproto.Request) { r.ContainerID = "a/../b" }), code: cniproto.CodeInvalidEnvironment, version: "1.0.0",
			wantText: []string{`CNI_CONTAINERID: "a/../b"`, "letter or a digit"},
		},
		{
			name: "missing namespace", body: changed(func(r *cniproto.Request) { r.Netns = "" }), code: cniproto.CodeInvalidEnvironment, version: "1.0.0",
			wantText: []string{"CNI_NETNS: missing"},
		},
		{
			name: "no configuration", body: changed(func(r *cniproto.Request) { r.Config = nil }), code: cniproto.CodeDecode,
			wantText: []string{"network configuration: empty"},
		},
		{name: "truncated configuration", body: with("ADD", config[:40]), code: cniproto.CodeDecode, wantText: []string{"network configuration: ends after 40 bytes, before its JSON is complete"}},
		{name: "a configuration that is not JSON", body: with("ADD", "socket: /run"), code: cniproto.CodeDecode, wantText: []string{`network configuration: "socket: /run": must be a JSON object`}},
		{name: "a list", body: with("ADD", "[1]"), code: cniproto.CodeDecode, wantText: []string{`network configuration: "[1]": must be a JSON object`}},
		{name: "null", body: with("ADD", "null"), code: cniproto.CodeDecode, wantText: []string{`network configuration: "null": must be a JSON object`}},
		{name: "a field of another type", body: with("ADD", `{"cniVersion":1}`), code: cniproto.CodeDecode, wantText: []string{"cniVersion: must be string, not number"}},
		{name: "no version", body: with("ADD", `{"socket":"/s"}`), code: cniproto.CodeIncompatibleVersion, wantText: []string{`cniVersion: ""`, "0.3.1, 0.4.0, 1.0.0, 1.1.0"}},
		{name: "a version before the verb", body: with("STATUS", `{"cniVersion":"1.0.0","name":"n"}`), code: cniproto.CodeIncompatibleVersion, version: "1.0.0", wantText: []string{`cniVersion: "1.0.0"`, "STATUS", "1.1.0"}},
		{name: "no name of the network", body: with("ADD", `{"cniVersion":"1.1.0","socket":"/s"}`), code: cniproto.CodeInvalidConfig, wantText: []string{`name: ""`, "required"}},
		{name: "a name that is a path", body: with("CHECK", `{"cniVersion":"1.1.0","name":"../n"}`), code: cniproto.CodeInvalidConfig, wantText: []string{`name: "../n"`}},
		{name: "GC without a name", body: with("GC", `{"cniVersion":"1.1.0"}`), code: cniproto.CodeInvalidConfig, wantText: []string{`name: ""`}},
		{name: "STATUS without a name", body: with("STATUS", `{"cniVersion":"1.1.0"}`), code: cniproto.CodeInvalidConfig, wantText: []string{`name: ""`}},
		{
			name: "unsupported version", body: changed(func(r *cniproto.Request) { r.Config = []byte(`{"cniVersion":"0.2.0"}`) }), code: cniproto.CodeIncompatibleVersion,
			wantText: []string{`cniVersion: "0.2.0"`},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := raw(t, s.socket, tc.body)
			if tc.version == "" {
				tc.version = "1.1.0"
			}
			if e.Code != tc.code || e.CNIVersion != tc.version {
				t.Errorf("code %d, version %s: want %d, %s: %s", e.Code, e.CNIVersion, tc.code, tc.version, e.Msg)
			}
			for _, part := range tc.wantText {
				if !strings.Contains(e.Msg, part) {
					t.Errorf("message %q lacks %q", e.Msg, part)
				}
			}
		})
	}
}

// The server ends a connection on which no request, or only half a request, arrives.
func TestServerSlowRequest(t *testing.T) {
	s := start(t, refuseAll(t), func(s *server) { s.ioTimeout = 50 * time.Millisecond })
	whole := encoded(t, add("a"))
	for name, message := range map[string]string{"nothing": "", "half a start": whole[:7], "half a header": whole[:29]} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("unix", s.socket)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := io.WriteString(conn, message); err != nil {
				t.Fatal(err)
			}
			answer, err := io.ReadAll(conn)
			if err != nil {
				t.Errorf("read: %v", err)
			}
			if len(answer) > 0 { // no verdict: the plugin tries again
				t.Errorf("answer %q", answer)
			}
		})
	}
}

// A plugin that does not read its answer does not keep the server from its end.
func TestServerUnreadAnswer(t *testing.T) {
	s := start(t, handlerFunc(func(context.Context, cniproto.Request) ([]byte, error) {
		return make([]byte, cniproto.MaxAnswer-100), nil
	}), func(s *server) { s.ioTimeout = 50 * time.Millisecond })
	conn, err := net.Dial("unix", s.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, encoded(t, add("a"))); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	s.stop()
	if err := <-s.ended; err != nil {
		t.Errorf("stopped with %v", err)
	}
}

// A peer that sends rubbish, or goes away, does not affect the requests of others.
func TestServerKeepsPeersApart(t *testing.T) {
	gone := make(chan error, 1)
	s := start(t, handlerFunc(func(ctx context.Context, r cniproto.Request) ([]byte, error) {
		if r.ContainerID == "waits" {
			<-ctx.Done()
			gone <- ctx.Err()
		}
		return []byte(`{"id":"` + r.ContainerID + `"}`), ctx.Err()
	}), nil)
	half, err := net.Dial("unix", s.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer half.Close()
	if _, err := io.WriteString(half, encoded(t, add("half"))[:40]); err != nil {
		t.Fatal(err)
	}
	for n := range 20 {
		if e := raw(t, s.socket, "rubbish and more"); e.Code != cniproto.CodeTryAgainLater {
			t.Fatalf("round %d: rubbish: %+v", n, e)
		}
		conn, err := net.Dial("unix", s.socket)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, encoded(t, add("waits"))); err != nil {
			t.Fatal(err)
		}
		_ = conn.Close() // the plugin is gone
		if err := <-gone; !errors.Is(err, context.Canceled) {
			t.Fatalf("round %d: the handler's context: %v", n, err)
		}
		id := fmt.Sprintf("c%d", n)
		if got, err := s.do(add(id)); err != nil || string(got) != `{"id":"`+id+`"}` {
			t.Fatalf("round %d: %s, %v", n, got, err)
		}
	}
}

// The limit for the arrival of a request does not limit the handler.
func TestServerSlowHandler(t *testing.T) {
	const arrival = 20 * time.Millisecond
	s := start(t, handlerFunc(func(ctx context.Context, _ cniproto.Request) ([]byte, error) {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(5 * arrival):
			return []byte("done"), nil
		}
	}), func(s *server) { s.ioTimeout = arrival })
	if body, err := s.do(add("a")); err != nil || string(body) != "done" {
		t.Errorf("answer %q, %v", body, err)
	}
}

func TestServerRefusesPeer(t *testing.T) {
	s := start(t, refuseAll(t), func(s *server) { s.uid++ })
	_, err := s.do(add("a"))
	var e *cniproto.Error
	want := fmt.Sprintf("user ID %d, must have %d", os.Getuid(), os.Getuid()+1)
	if !errors.As(err, &e) || e.Code != cniproto.CodeInternal || !strings.Contains(e.Msg, want) {
		t.Errorf("error %v, want one with %q", err, want)
	}
}

// The request's context ends when the plugin is killed, and at its deadline.
func TestServerCancel(t *testing.T) {
	begun, ended := make(chan struct{}, 1), make(chan error, 1)
	s := start(t, handlerFunc(func(ctx context.Context, _ cniproto.Request) ([]byte, error) {
		begun <- struct{}{}
		<-ctx.Done()
		ended <- ctx.Err()
		return nil, ctx.Err()
	}), nil)

	t.Run("killed", func(t *testing.T) {
		conn, err := net.Dial("unix", s.socket)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, encoded(t, add("a"))); err != nil {
			t.Fatal(err)
		}
		<-begun
		_ = conn.Close()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("context ended with %v, want %v", err, context.Canceled)
		}
	})
	t.Run("deadline", func(t *testing.T) {
		body := add("a")
		body.DeadlineMS = 30
		conn, err := net.Dial("unix", s.socket)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, encoded(t, body)); err != nil {
			t.Fatal(err)
		}
		<-begun
		if err := <-ended; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("context ended with %v, want %v", err, context.DeadlineExceeded)
		}
		if answer, err := io.ReadAll(conn); err != nil || !strings.Contains(string(answer), "deadline exceeded") {
			t.Errorf("answer %q, %v", answer, err)
		}
	})
}

func TestTimeLeft(t *testing.T) {
	for _, tc := range []struct {
		name string
		r    cniproto.Request
		want time.Duration
	}{
		{"the plugin's", cniproto.Request{Verb: cniproto.VerbAdd, DeadlineMS: 1500}, 1500 * time.Millisecond},
		{"none", cniproto.Request{Verb: cniproto.VerbAdd}, 210 * time.Second},
		{"negative", cniproto.Request{Verb: cniproto.VerbDel, DeadlineMS: -1}, 20 * time.Second},
		{"beyond the verb's", cniproto.Request{Verb: cniproto.VerbGC, DeadlineMS: 1 << 62}, 25 * time.Second},
		{"STATUS", cniproto.Request{Verb: cniproto.VerbStatus}, time.Second},
		{"CHECK", cniproto.Request{Verb: cniproto.VerbCheck}, 5 * time.Second},
	} {
		if got := timeLeft(tc.r); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}
