package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"fairlead.dev/fairlead/test/openstack/lab"
)

// moment is a place in a call: before Neutron has it, or after, before the caller has the
// reply.
type moment string

const (
	before moment = "before"
	after  moment = "after"
)

// proxy passes the calls of Fairlead on to Neutron. A test sees each, and may lose its
// request or its reply.
type proxy struct {
	// clouds is the path of a clouds.yaml that leads to the proxy.
	clouds string

	mu    sync.Mutex
	calls []string
	watch func(call string, at moment) (lose bool)
}

var uuid = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f-]{27}`)

// newProxy starts a proxy that ends with the test.
func newProxy(t *testing.T, l *lab.Lab) *proxy {
	t.Helper()
	p := &proxy{clouds: filepath.Join(t.TempDir(), "clouds.yaml")}
	neutron := p.serve(t, l.NeutronURL, p.seen, func(r *http.Response) error { return p.reply(r) })
	// The catalog of a token has the URL of Neutron.
	keystone := p.serve(t, strings.TrimSuffix(l.KeystoneURL, "/v3"), func(http.ResponseWriter, *http.Request) {}, func(r *http.Response) error {
		raw, err := io.ReadAll(r.Body)
		if err != nil {
			return err
		}
		raw = bytes.ReplaceAll(raw, []byte(l.NeutronURL), []byte(neutron))
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(raw)), int64(len(raw))
		r.Header.Set("Content-Length", strconv.Itoa(len(raw)))
		return nil
	})
	raw, err := os.ReadFile(l.Clouds)
	if err == nil {
		raw = bytes.ReplaceAll(raw, []byte(strings.TrimSuffix(l.KeystoneURL, "/v3")), []byte(keystone))
		err = os.WriteFile(p.clouds, raw, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// serve starts a reverse proxy and returns its URL. A target that does not answer closes
// the connection of the caller.
func (p *proxy) serve(t *testing.T, target string, first func(http.ResponseWriter, *http.Request), reply func(*http.Response) error) string {
	t.Helper()
	to, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	reverse := &httputil.ReverseProxy{
		Rewrite:        func(r *httputil.ProxyRequest) { r.SetURL(to) },
		ModifyResponse: reply,
		ErrorHandler:   func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		first(w, r)
		reverse.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// callOf names a call: its method and its path with ID in place of each ID.
func callOf(r *http.Request) string {
	return r.Method + " " + uuid.ReplaceAllString(strings.TrimPrefix(r.URL.Path, "/v2.0"), "ID")
}

func (p *proxy) seen(_ http.ResponseWriter, r *http.Request) {
	call := callOf(r)
	p.mu.Lock()
	p.calls = append(p.calls, call)
	watch := p.watch
	p.mu.Unlock()
	if watch != nil && watch(call, before) {
		panic(http.ErrAbortHandler)
	}
}

func (p *proxy) reply(r *http.Response) error {
	p.mu.Lock()
	watch := p.watch
	p.mu.Unlock()
	if watch != nil && watch(callOf(r.Request), after) {
		return http.ErrAbortHandler
	}
	return nil
}

// intercept has watch see the calls; nil ends that.
func (p *proxy) intercept(watch func(call string, at moment) (lose bool)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watch = watch
}

// since returns the calls after the first n, and the number of all.
func (p *proxy) since(n int) ([]string, int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string{}, p.calls[n:]...), len(p.calls)
}
