package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/cniproto/server"
)

// TestMain places the spools of the tests in a directory that tests may write to.
func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "run")
	if err == nil {
		err = os.Setenv("TMPDIR", dir)
	}
	if err != nil {
		panic(err)
	}
	cniproto.RunDir = dir
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// newSpool creates the spool beside the socket in dir, as the daemon does.
func newSpool(t *testing.T, dir string) {
	t.Helper()
	if err := server.MakeSpool(filepath.Join(dir, cniproto.SpoolDir)); err != nil {
		t.Fatal(err)
	}
}

// call is one call of the plugin, in memory.
type call struct {
	// name is the program name under which the plugin is executed.
	name  string
	env   map[string]string
	stdin string
	// onWait is called before each wait for the daemon, with the number of previous
	// waits. The waits take no time.
	onWait func(n int)

	status         int
	stdout, stderr bytes.Buffer
	waits          int
	waited         time.Duration
}

func (c *call) run() *call {
	p := plugin{
		name: c.name, getenv: func(name string) string { return c.env[name] }, stdin: strings.NewReader(c.stdin),
		stdout: &c.stdout, stderr: &c.stderr,
		wait: func(d time.Duration) {
			if c.onWait != nil {
				c.onWait(c.waits)
			}
			c.waits++
			c.waited += d
		},
	}
	c.status = p.run()
	return c
}

// newCall returns a call with the complete input of a runtime, for a daemon in dir.
func newCall(verb, dir string) *call {
	return &call{
		env: map[string]string{
			"CNI_COMMAND": verb, "CNI_CONTAINERID": "c1", "CNI_NETNS": "/run/netns/a", "CNI_IFNAME": "eth0",
			"CNI_ARGS": "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=pod", "CNI_PATH": "/opt/cni/bin",
		},
		stdin: fmt.Sprintf(`{"cniVersion":%q,"name":"fairlead","type":"fairlead","socket":%q}`, versionFor(verb), filepath.Join(dir, "cni.sock")),
	}
}

// versionFor returns a version of CNI that has the verb: 1.0.0 if possible, otherwise 1.1.0.
func versionFor(verb string) string {
	if verb == cniproto.VerbStatus || verb == cniproto.VerbGC {
		return "1.1.0"
	}
	return "1.0.0"
}

// succeeds demands status 0, that stdout and an empty stderr.
func (c *call) succeeds(t *testing.T, stdout string) {
	t.Helper()
	if c.status != 0 || c.stdout.String() != stdout || c.stderr.Len() > 0 {
		t.Errorf("status %d, stdout %q, stderr %q: want 0, %q and nothing", c.status, c.stdout.String(), c.stderr.String(), stdout)
	}
}

// fails demands status 1, only a CNI error object on stdout, and an empty stderr. The error
// has the version, the code and each of the texts.
func (c *call) fails(t *testing.T, version string, code int, wantText ...string) {
	t.Helper()
	var e cniproto.Error
	d := json.NewDecoder(&c.stdout)
	d.DisallowUnknownFields()
	if err := d.Decode(&e); err != nil || d.More() {
		t.Fatalf("stdout is no error object: %v", err)
	}
	if c.status != 1 || e.Code != code || e.CNIVersion != version || c.stderr.Len() > 0 {
		t.Errorf("status %d, error %+v, stderr %q: want 1, code %d and version %s", c.status, e, c.stderr.String(), code, version)
	}
	for _, part := range wantText {
		if !strings.Contains(e.Error(), part) {
			t.Errorf("error %q lacks %q", e.Error(), part)
		}
	}
	for _, reserved := range []string{"not found", "no such file"} {
		if strings.Contains(strings.ToLower(e.Error()), reserved) {
			t.Errorf("error %q: a runtime takes %q for success", e.Error(), reserved)
		}
	}
}

type handlerFunc func(ctx context.Context, r cniproto.Request) ([]byte, error)

func (f handlerFunc) Handle(ctx context.Context, r cniproto.Request) ([]byte, error) {
	return f(ctx, r)
}

// serve runs the daemon's side in dir until the test ends.
func serve(t *testing.T, dir string, h handlerFunc) {
	t.Helper()
	l, err := server.Listen(filepath.Join(dir, "cni.sock"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := server.Serve(ctx, l, h, server.Config{UID: uint32(os.Getuid())}); err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
}

// listenAndDrop listens in dir. It closes the first connections after it has read their
// requests, without an answer; later ones get an empty answer. ids stops the listener and
// returns the IDs of all requests.
func listenAndDrop(t *testing.T, dir string, first int) (ids func() []string) {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(dir, "cni.sock"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			request, err := cniproto.DecodeRequest(conn)
			if err != nil {
				t.Errorf("request: %v", err)
			}
			got = append(got, request.RequestID)
			if len(got) > first {
				_, _ = conn.Write(cniproto.Answer{}.Encode())
			}
			_ = conn.Close()
		}
	}()
	ids = sync.OnceValue(func() []string {
		_ = l.Close()
		<-done
		return got
	})
	t.Cleanup(func() { ids() })
	return ids
}

func TestVersion(t *testing.T) {
	for _, tc := range []struct{ name, stdin, version string }{
		{"nothing", "", "1.1.0"},
		{"asked", `{"cniVersion":"0.4.0"}`, "0.4.0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := &call{env: map[string]string{"CNI_COMMAND": "VERSION"}, stdin: tc.stdin}
			c.run().succeeds(t, `{"cniVersion":"`+tc.version+`","supportedVersions":["0.3.1","0.4.0","1.0.0","1.1.0"]}`)
		})
	}
	c := &call{env: map[string]string{"CNI_COMMAND": "VERSION"}, stdin: "{"}
	c.run().fails(t, "1.1.0", cniproto.CodeDecode, "network configuration")
}

// Wrong input yields an error that names the wrong field. No handler gets the request, and
// no file is written.
func TestBadInput(t *testing.T) {
	// at completes the beginning of a configuration with the daemon's socket.
	at := func(c *call, beginning string) string {
		_, socket, _ := strings.Cut(c.stdin, `"socket":`)
		return beginning + `,"socket":` + socket
	}
	for _, tc := range []struct {
		name     string
		change   func(c *call)
		code     int
		wantText []string
		// version is that of the error: the configuration's, or the newest, if it is
		// empty, because the configuration's is unknown.
		version string
	}{
		{name: "no environment", change: func(c *call) { c.env = nil }, code: 4, wantText: []string{"CNI_COMMAND: missing"}},
		{name: "unknown verb", change: func(c *call) { c.env["CNI_COMMAND"] = "FROB" }, code: 4, wantText: []string{`CNI_COMMAND: "FROB"`, "VERSION"}},
		{name: "missing namespace", change: func(c *call) { delete(c.env, "CNI_NETNS") }, code: 4, wantText: []string{"CNI_NETNS: missing"}},
		{name: "container ID with a slash", change: func(c *call) { c.env["CNI_CONTAINERID"] = "a/b" }, code: 4, wantText: []string{`CNI_CONTAINERID: "a/b"`}},
		{
			name: "CHECK before it was there",
			change: func(c *call) {
				c.env["CNI_COMMAND"], c.stdin = "CHECK", at(c, `{"cniVersion":"0.3.1"`)
			}, code: 1, wantText: []string{`cniVersion: "0.3.1"`, "CHECK", "0.4.0"}, version: "0.3.1",
		},
		{
			name: "STATUS before it was there",
			change: func(c *call) {
				c.env["CNI_COMMAND"], c.stdin = "STATUS", at(c, `{"cniVersion":"1.0.0"`)
			}, code: 1, wantText: []string{`cniVersion: "1.0.0"`, "STATUS", "1.1.0"}, version: "1.0.0",
		},
		{
			name: "GC before it was there",
			change: func(c *call) {
				c.env["CNI_COMMAND"], c.stdin = "GC", at(c, `{"cniVersion":"1.0.0"`)
			}, code: 1, wantText: []string{`cniVersion: "1.0.0"`, "GC", "1.1.0"}, version: "1.0.0",
		},
		{
			name: "DEL of a container ID with a slash",
			change: func(c *call) {
				c.env["CNI_COMMAND"], c.env["CNI_CONTAINERID"] = "DEL", "../../a"
			}, code: 4, wantText: []string{`CNI_CONTAINERID: "../../a"`},
		},
		{name: "bad JSON", change: func(c *call) { c.stdin = at(c, "{socket") }, code: 6, wantText: []string{"network configuration: wrong JSON at byte 2"}},
		{name: "truncated", change: func(c *call) { c.stdin = c.stdin[:30] }, code: 6, wantText: []string{"network configuration: ends after 30 bytes"}},
		{name: "1 MB", change: func(c *call) { c.stdin += strings.Repeat(" ", 1_000_000) }, code: 6, wantText: []string{"limit of 1000000 bytes"}},
		{name: "no socket", change: func(c *call) { c.stdin = `{"cniVersion":"1.0.0","name":"n"}` }, code: 7, wantText: []string{"socket: missing", `for example "socket": "` + cniproto.DefaultSocket() + `"`}, version: "1.0.0"},
		{name: "no name", change: func(c *call) { c.stdin = at(c, `{"cniVersion":"1.0.0"`) }, code: 7, wantText: []string{`name: ""`, "required"}, version: "1.0.0"},
		{name: "another version", change: func(c *call) { c.stdin = at(c, `{"cniVersion":"2.0.0"`) }, code: 1, wantText: []string{`cniVersion: "2.0.0"`, "1.1.0"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			serve(t, dir, func(_ context.Context, r cniproto.Request) ([]byte, error) {
				t.Errorf("the daemon was asked %+v", r)
				return nil, nil
			})
			c := newCall("ADD", dir)
			tc.change(c)
			if tc.version == "" {
				tc.version = "1.1.0"
			}
			c.run().fails(t, tc.version, tc.code, tc.wantText...)
			if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
				t.Errorf("directory holds %v, %v: want the socket", entries, err)
			}
		})
	}
}

func TestForward(t *testing.T) {
	dir := t.TempDir()
	serve(t, dir, func(_ context.Context, r cniproto.Request) ([]byte, error) {
		switch {
		case r.ContainerID == "bad":
			return nil, &cniproto.Error{Code: cniproto.CodeUnknownContainer, Msg: "pod not found", Details: "open /x: no such file or directory"}
		case r.Verb == cniproto.VerbAdd:
			return fmt.Appendf(nil, "{\"ips\": [], \"of\": %q}\n", r.ContainerID+r.Netns+r.IfName), nil
		}
		return nil, nil
	})
	newCall("ADD", dir).run().succeeds(t, "{\"ips\": [], \"of\": \"c1/run/netns/aeth0\"}\n")
	for _, verb := range []string{"DEL", "CHECK", "STATUS", "GC"} {
		newCall(verb, dir).run().succeeds(t, "")
	}
	for _, verb := range cniproto.Verbs {
		c := newCall(verb, dir)
		c.env["CNI_CONTAINERID"] = "bad"
		c.run().fails(t, versionFor(verb), cniproto.CodeUnknownContainer, "pod absent; open /x: missing file or directory")
	}
}

// An ADD waits up to addPatience for a daemon that is away. The runtime sends ADDs as long as
// a STATUS succeeds without the daemon.
func TestAddAway(t *testing.T) {
	dir := t.TempDir()
	c := newCall("ADD", dir).run()
	c.fails(t, "1.0.0", cniproto.CodeTryAgainLater, "the daemon is away", filepath.Join(dir, "cni.sock"), "for 60s")
	if c.waited < cniproto.HeartbeatGrace || c.waited > cniproto.HeartbeatGrace+longestPause || c.waits < 240 || c.waits > 500 {
		t.Errorf("waited %v in %d pauses", c.waited, c.waits)
	}

	back := newCall("ADD", dir)
	back.onWait = func(n int) {
		if n == 3 {
			serve(t, dir, func(context.Context, cniproto.Request) ([]byte, error) { return []byte("{}"), nil })
		}
	}
	back.run().succeeds(t, "{}")
	if back.waits != 4 {
		t.Errorf("%d pauses, want 4", back.waits)
	}

	// The image of the next daemon is pulled when the last one has ended.
	dir = t.TempDir()
	slow := newCall("ADD", dir)
	const pull = 45 * time.Second
	slow.onWait = func(int) {
		if slow.waited >= pull {
			slow.onWait = nil
			serve(t, dir, func(context.Context, cniproto.Request) ([]byte, error) { return []byte("{}"), nil })
		}
	}
	slow.run().succeeds(t, "{}")
	if slow.waited < pull {
		t.Errorf("waited %v; must wait for a daemon that comes after %v", slow.waited, pull)
	}
}

// A request that the daemon may have received is sent a second time, but not a third time.
func TestAddLost(t *testing.T) {
	for _, tc := range []struct {
		name        string
		drops, sent int
	}{{"once", 1, 2}, {"always", 99, 2}} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			ids := listenAndDrop(t, dir, tc.drops)
			c := newCall("ADD", dir).run()
			if tc.drops == 1 {
				c.succeeds(t, "")
			} else {
				c.fails(t, "1.0.0", cniproto.CodeTryAgainLater, "went away before it answered")
			}
			if got := ids(); len(got) != tc.sent || got[0] == "" || got[0] != got[1] {
				t.Errorf("requests with IDs %q: want %d of the same", got, tc.sent)
			}
		})
	}
}

// An ADD that waits moves on to the next daemon each time that a daemon stops: several
// upgrades may follow each other during the wait.
func TestAddUpgrades(t *testing.T) {
	dir := t.TempDir()
	var ids []string
	serve(t, dir, func(_ context.Context, r cniproto.Request) ([]byte, error) {
		if ids = append(ids, r.RequestID); len(ids) <= 5 {
			return nil, fmt.Errorf("waiting: %w", server.ErrResend)
		}
		return []byte("{}"), nil
	})
	newCall("ADD", dir).run().succeeds(t, "{}")
	if len(ids) != 6 || len(slices.Compact(ids)) != 1 {
		t.Errorf("requests with IDs %q: want six of the same", ids)
	}
	ids = nil
	newCall("CHECK", dir).run().fails(t, "1.0.0", cniproto.CodeTryAgainLater, "the daemon is away: it is stopping")
}

// While a node is upgraded, the daemon may be of another release. The runtime tries again, and
// the node stays ready.
func TestAnotherVersion(t *testing.T) {
	for name, answer := range map[string]string{"newer": "fairlead/2\n and more", "older": "HTTP/1.1 400 Bad Request\r\n\r\n"} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			newSpool(t, dir)
			l, err := net.Listen("unix", filepath.Join(dir, "cni.sock"))
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			go func() {
				for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
					_, _ = cniproto.DecodeRequest(conn)
					_, _ = io.WriteString(conn, answer)
					_ = conn.Close()
				}
			}()
			for _, verb := range []string{"ADD", "DEL", "CHECK", "GC"} {
				newCall(verb, dir).run().fails(t, versionFor(verb), cniproto.CodeTryAgainLater, "different versions of their protocol", fmt.Sprintf("%q", answer[:11]))
			}
			newCall("STATUS", dir).run().fails(t, "1.1.0", cniproto.CodeUnavailable, "different versions of their protocol", "heartbeat")
			bootID, err := os.ReadFile(bootIDFile)
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, "heartbeat"), bootID, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			newCall("STATUS", dir).run().succeeds(t, "")
		})
	}
}

func spooled(t *testing.T, dir string) []cniproto.Request {
	t.Helper()
	files, err := server.ReadSpool(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []cniproto.Request
	for _, f := range files {
		if f.Damaged != nil {
			t.Errorf("damaged: %v", f.Damaged)
		}
		f.Request.RequestID = ""
		got = append(got, f.Request)
	}
	return got
}

// A DEL that no daemon answers is spooled and succeeds. Repeated DELs share one file.
func TestDelAway(t *testing.T) {
	dir := t.TempDir()
	newSpool(t, dir)
	for range 2 {
		c := newCall("DEL", dir)
		c.env["CNI_NETNS"] = ""
		c.run().succeeds(t, "")
		if c.waited < delPatience || c.waited > delPatience+longestPause {
			t.Errorf("waited %v", c.waited)
		}
	}
	want := []cniproto.Request{{
		Release: "unreleased", Verb: "DEL", ContainerID: "c1", IfName: "eth0", Args: "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=pod", Path: "/opt/cni/bin",
		Config: []byte(newCall("DEL", dir).stdin),
	}}
	if diff := cmp.Diff(want, spooled(t, filepath.Join(dir, "del"))); diff != "" {
		t.Errorf("spool (-want +got):\n%s", diff)
	}
}

// A configuration can make the plugin neither write to another place nor create a
// directory. An ADD returns an error that names the wrong path. A DEL is still served or
// spooled, so that the pod can end.
func TestPathsOfAConfiguration(t *testing.T) {
	dir := t.TempDir()
	private := filepath.Join(dir, "private")
	if err := os.Mkdir(private, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, spool := range map[string]string{"new": filepath.Join(dir, "a", "b"), "another directory": private} {
		t.Run("spool, "+name, func(t *testing.T) {
			with := func(verb string) *call {
				c := newCall(verb, dir)
				c.stdin = strings.Replace(c.stdin, `"socket"`, fmt.Sprintf(`"spool":%q,"socket"`, spool), 1)
				return c.run()
			}
			with("ADD").fails(t, "1.0.0", cniproto.CodeInvalidConfig, fmt.Sprintf("spool: %q", spool), filepath.Join(dir, "del"))
			with("DEL").succeeds(t, "")
			if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
				t.Errorf("directory holds %v, %v: want what was there", entries, err)
			}
			if entries, err := os.ReadDir(private); err != nil || len(entries) > 0 {
				t.Errorf("the other directory holds %v, %v", entries, err)
			}
		})
	}
	for name, socket := range map[string]string{"new": filepath.Join(dir, "x", "y", "cni.sock"), "no socket": private} {
		t.Run("ipam.socket, "+name, func(t *testing.T) {
			with := func(verb string) *call {
				c := newCall(verb, dir)
				c.name = "fairlead-ipam"
				c.stdin = fmt.Sprintf(`{"cniVersion":"1.0.0","name":"n","type":"macvlan","ipam":{"type":"fairlead-ipam","socket":%q}}`, socket)
				return c.run()
			}
			if name == "new" {
				with("ADD").fails(t, "1.0.0", cniproto.CodeTryAgainLater, socket, cniproto.DefaultSocket())
			} else {
				with("ADD").fails(t, "1.0.0", cniproto.CodeInvalidConfig, socket, cniproto.DefaultSocket())
			}
			with("DEL").succeeds(t, "")
			if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
				t.Errorf("directory holds %v, %v: want what was there", entries, err)
			}
		})
	}
}

// A DEL succeeds without a spool: then no daemon has run in this boot, or its cleanup has
// removed the spool, and no interface is plugged.
func TestDelWithoutASpool(t *testing.T) {
	dir := t.TempDir()
	newCall("DEL", dir).run().succeeds(t, "")
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("the plugin made %v, %v", entries, err)
	}
}

// A DEL fails if neither the daemon nor the spool takes it.
func TestDelSpoolUnwritable(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "del"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	wantText := []string{"the daemon is away", "cannot be put aside in " + filepath.Join(dir, "del")}
	newCall("DEL", dir).run().fails(t, "1.0.0", cniproto.CodeTryAgainLater, wantText...)
	if err := errors.Join(os.Remove(filepath.Join(dir, "del")), os.Mkdir(filepath.Join(dir, "del"), 0o755), os.Chmod(filepath.Join(dir, "del"), 0o755)); err != nil {
		t.Fatal(err)
	}
	newCall("DEL", dir).run().fails(t, "1.0.0", cniproto.CodeTryAgainLater, append(wantText, "mode 0700")...)
}

// After a DEL is spooled, the plugin sends it once more. If the daemon is back and serves
// it, the plugin removes it from the spool.
func TestDelDaemonComesBack(t *testing.T) {
	dir := t.TempDir()
	newSpool(t, dir)
	ids := listenAndDrop(t, dir, 2)
	newCall("DEL", dir).run().succeeds(t, "")
	if got := ids(); len(got) != 3 {
		t.Errorf("%d requests, want 3", len(got))
	}
	if got := spooled(t, filepath.Join(dir, "del")); len(got) > 0 {
		t.Errorf("spool holds %v", got)
	}
}

func TestCheckAndGCAway(t *testing.T) {
	for _, verb := range []string{"CHECK", "GC"} {
		c := newCall(verb, t.TempDir()).run()
		c.fails(t, versionFor(verb), cniproto.CodeTryAgainLater, "the daemon is away")
		if c.waits > 0 {
			t.Errorf("%s waited %d times", verb, c.waits)
		}
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errors.New("closed") }

func TestStdoutBroken(t *testing.T) {
	var stderr bytes.Buffer
	p := plugin{getenv: func(string) string { return "" }, stdin: strings.NewReader(""), stdout: brokenWriter{}, stderr: &stderr}
	if status := p.run(); status != 1 || !strings.Contains(stderr.String(), "closed") || !strings.Contains(stderr.String(), "CNI_COMMAND: missing") {
		t.Errorf("status %d, stderr %q: want 1 and the error", status, stderr.String())
	}
}
