package controller

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/test/cluster"
)

// moment is one write of the controller, and on which side of it the process
// is killed: before the API server has it, or after, with the reply lost.
type moment struct {
	method, resource, subresource string
	// block is which one, as a CIDR, of the IPBlocks; empty of all others.
	block string
	after bool
}

func (m moment) String() string {
	side := "before"
	if m.after {
		side = "after"
	}
	text := strings.TrimSuffix(fmt.Sprintf("%s %s %s/%s", side, m.method, m.resource, m.subresource), "/")
	return strings.TrimSpace(text + " " + m.block)
}

// killer stands between a controller and the API server, where it has the rights
// that an installation gives it, and kills the controller at chosen moments.
type killer struct {
	*httptest.Server
	proxy *httputil.ReverseProxy

	mu     sync.Mutex
	victim *program
	due    func(moment) bool // says whether to kill it now
	listed <-chan struct{}   // no list of PodAttachments before; nil for none held up
}

func newKiller(t *testing.T, c *cluster.Cluster) *killer {
	t.Helper()
	target, err := url.Parse(c.REST.Host)
	if err != nil {
		t.Fatal(err)
	}
	account, err := clientcmd.BuildConfigFromFlags("", c.Account(cluster.ControllerAccount, ""))
	if err != nil {
		t.Fatal(err)
	}
	transport, err := rest.TransportFor(account)
	if err != nil {
		t.Fatal(err)
	}
	k := &killer{proxy: &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     transport,
		FlushInterval: -1,
		// Whichever side broke, the other's connection breaks too.
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
		ErrorLog:     log.New(io.Discard, "", 0),
	}}
	k.Server = httptest.NewServer(k)
	t.Cleanup(k.CloseClientConnections)
	t.Cleanup(k.Close)
	return k
}

// aim makes it kill the victim whenever due says so, which it asks for one
// moment after the other.
func (k *killer) aim(victim *program, due func(moment) bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.victim, k.due = victim, due
}

// arm makes it kill the victim at a moment, once.
func (k *killer) arm(at moment, victim *program) <-chan struct{} {
	fired, done := make(chan struct{}), false
	k.aim(victim, func(m moment) bool {
		if done || m != at {
			return false
		}
		done = true
		close(fired)
		return true
	})
	return fired
}

// shoot kills the victim if this is the moment.
func (k *killer) shoot(m moment) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.due == nil || !k.due(m) {
		return false
	}
	k.victim.kill()
	return true
}

func (k *killer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		k.hold(r)
		k.proxy.ServeHTTP(w, r)
		return
	}
	m, err := momentOf(r)
	if err != nil {
		return // the victim has gone
	}
	if k.shoot(m) {
		return
	}
	done := httptest.NewRecorder()
	k.proxy.ServeHTTP(done, r)
	if m.after = true; k.shoot(m) {
		return
	}
	maps.Copy(w.Header(), done.Header())
	w.WriteHeader(done.Code)
	_, _ = w.Write(done.Body.Bytes())
}

// holdLists holds up every list of PodAttachments until the channel is closed.
func (k *killer) holdLists(until <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.listed = until
}

func (k *killer) hold(r *http.Request) {
	k.mu.Lock()
	listed := k.listed
	k.mu.Unlock()
	if listed == nil || !strings.HasSuffix(r.URL.Path, "/podattachments") || r.URL.Query().Has("watch") {
		return
	}
	select {
	case <-listed:
	case <-r.Context().Done():
	}
}

// momentOf is the moment before a request.
func momentOf(r *http.Request) (moment, error) {
	m := moment{method: r.Method}
	var name string
	m.resource, name, m.subresource = resourceOf(r.URL.Path)
	if m.resource != "ipblocks" {
		return m, nil
	}
	if name == "" { // of what is made the body has the name
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return m, err
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		var o metav1.PartialObjectMetadata
		if err := json.Unmarshal(body, &o); err != nil {
			return m, err
		}
		name = o.Name
	}
	m.block = blockNamed(name)
	return m, nil
}

// blockNamed is the CIDR of the IPBlock of a name (ipam.BlockName).
func blockNamed(name string) string {
	raw, err := hex.DecodeString(name[strings.LastIndex(name, "-")+1:])
	if err != nil {
		return name
	}
	a, ok := netip.AddrFromSlice(raw)
	if !ok {
		return name
	}
	return ipam.BlockOf(a).String()
}

// resourceOf is the resource of an API path, the object's name and its
// subresource.
func resourceOf(path string) (resource, name, subresource string) {
	parts := append(strings.Split(strings.Trim(path, "/"), "/"), "", "")
	for i, part := range parts {
		switch part {
		case "podattachments", "ipblocks", "ippools", "ipclaims", "nodenetworks":
			return part, parts[i+1], parts[i+2]
		}
	}
	return "", "", ""
}

// kubeconfig returns the path of a kubeconfig for this server.
func (k *killer) kubeconfig(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	write(t, path, fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q}}]
contexts: [{name: c, context: {cluster: c, user: c}}]
users: [{name: c, user: {}}]
current-context: c
`, k.URL))
	return path
}

// program is a controller that is started again whenever it dies.
type program struct {
	// apiCrashes excuses what is forbidden: an API server that begins to serve may
	// not know its roles yet.
	apiCrashes bool

	mu      sync.Mutex
	process *os.Process
	starts  int
	bury    func() // nil for nothing
}

// buried has something done whenever a process has died, before the next begins.
func (p *program) buried(bury func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bury = bury
}

// died does that.
func (p *program) died() {
	p.mu.Lock()
	bury := p.bury
	p.mu.Unlock()
	if bury != nil {
		bury()
	}
}

func (p *program) started(process *os.Process) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.process = process
	p.starts++
}

// count is how many processes of it there were.
func (p *program) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.starts
}

// kill kills the process that runs now.
func (p *program) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.process.Signal(syscall.SIGKILL)
}

// leaseName is the Lease that the controllers elect their leader by.
const leaseName = "fairlead-controller"

// briefLease makes a standby notice soon that the leader was killed.
const briefLease = "leaderElection: {leaseDuration: 2s, renewDeadline: 1500ms, retryPeriod: 100ms}"

// supervise runs the controller until the test ends, and starts it again
// whenever it dies. More are further lines of its configuration, which has
// briefLease unless one of them is of the leader election.
func supervise(t *testing.T, kubeconfig string, more ...string) *program {
	t.Helper()
	binary, err := buildController()
	if err != nil {
		t.Fatal(err)
	}
	return superviseBinary(t, binary, kubeconfig, more...)
}

// superviseBinary is supervise for a controller that was built another way.
func superviseBinary(t *testing.T, binary, kubeconfig string, more ...string) *program {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "controller.yaml")
	if !slices.ContainsFunc(more, func(line string) bool { return strings.HasPrefix(line, "leaderElection:") }) {
		more = append(more, briefLease)
	}
	write(t, file, fmt.Sprintf("kubeconfig: %q\nmetricsAddress: \"0\"\n%s\n", kubeconfig, strings.Join(more, "\n")))
	output, err := os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &program{}
	begin := func() *exec.Cmd {
		cmd := exec.CommandContext(ctx, binary, "--config", file, "-v", "1")
		cmd.Stderr = output
		if err := cmd.Start(); err != nil {
			if ctx.Err() == nil { // the test goes on
				t.Error(err)
			}
			return nil
		}
		p.started(cmd.Process)
		return cmd
	}
	first := begin()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for cmd := first; cmd != nil; cmd = begin() {
			_ = cmd.Wait()
			if ctx.Err() != nil {
				return
			}
			p.died()
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		_ = output.Close()
		text, _ := os.ReadFile(output.Name())
		if strings.Contains(string(text), "forbidden") && !p.apiCrashes {
			t.Error("the controller tried what deploy/rights does not allow; its log says what")
		}
		if strings.Contains(string(text), "WARNING: DATA RACE") {
			t.Error("the race detector found a race in the controller; its log shows it")
		}
		if t.Failed() {
			t.Logf("the controller's log:\n%s", text)
		}
	})
	return p
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
