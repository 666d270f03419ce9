package main

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"sync"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// apiProxy passes calls on to the API server. It may end all watches and answer new ones as
// an API server does that has forgotten their resource version.
type apiProxy struct {
	url  string
	ca   []byte
	next *httputil.ReverseProxy

	mu      sync.Mutex
	expired bool
	refused int
	watches map[*http.Request]context.CancelFunc
}

// newAPIProxy starts a proxy that ends with the test. Its callers keep their credentials.
func newAPIProxy(t *testing.T, cfg *rest.Config) *apiProxy {
	t.Helper()
	at, err := url.Parse(cfg.Host)
	if err != nil {
		t.Fatal(err)
	}
	trust, err := rest.TLSConfigFor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: cfg.CAData, CAFile: cfg.CAFile}})
	if err != nil {
		t.Fatal(err)
	}
	p := &apiProxy{watches: map[*http.Request]context.CancelFunc{}}
	p.next = &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(at) },
		Transport:     &http.Transport{TLSClientConfig: trust, TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{}},
		FlushInterval: -1,
		ErrorHandler:  func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
	s := httptest.NewTLSServer(p) // clients send no token without TLS
	t.Cleanup(func() {
		p.forget(true) // a server waits for its requests
		s.Close()
	})
	p.url = s.URL
	p.ca = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	return p
}

func (p *apiProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer func() {
		if err := recover(); err != nil && err != http.ErrAbortHandler { //nolint:errorlint // as package http compares it
			panic(err)
		}
	}()
	if r.URL.Query().Get("watch") == "" {
		p.next.ServeHTTP(w, r)
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	p.mu.Lock()
	if p.expired {
		p.refused++
		p.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusGone)
		_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","message":"too old resource version: 1 (2)","reason":"Expired","code":410}`))
		return
	}
	p.watches[r] = cancel
	p.mu.Unlock()
	p.next.ServeHTTP(w, r.WithContext(ctx))
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.watches, r)
}

// forget ends all watches, and refuses new ones until it is called with false.
func (p *apiProxy) forget(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expired = on
	for _, end := range p.watches {
		end()
	}
}

// count returns the number of watches that were refused.
func (p *apiProxy) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.refused
}

// kubeconfig returns a copy of a kubeconfig that leads to the proxy.
func (p *apiProxy) kubeconfig(t *testing.T, path string) string {
	t.Helper()
	file, err := clientcmd.LoadFromFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range file.Clusters {
		c.Server, c.CertificateAuthority, c.CertificateAuthorityData, c.TLSServerName = p.url, "", p.ca, ""
	}
	out := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*file, out); err != nil {
		t.Fatal(err)
	}
	return out
}

// apiForgets has the API server answer 410 to all watches of controllers and daemons while
// pods come and go.
func (b *bed) apiForgets() {
	const enough = 40 // refused watches: several of each program
	p := newAPIProxy(b.T, b.c.REST)
	account, kubes := b.account, []string{}
	for _, n := range b.nodes {
		kubes = append(kubes, n.kube)
		b.forward(n, p.url)
		b.useAPI(n, p.kubeconfig(b.T, n.kube))
	}
	b.account = p.kubeconfig(b.T, account)
	b.lead(map[string]any{"driver": "neutron"}, nil)
	staying, leaving := b.pod("staying", b.nodes[0]), b.pod("leaving", b.nodes[1])
	from := b.running(staying)
	b.running(leaving)
	p.forget(true)
	b.delete(leaving)
	during := b.pod("during", b.nodes[1])
	b.await(fmt.Sprintf("%d watches to be refused", enough), func(context.Context) error {
		if n := p.count(); n < enough {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
	p.forget(false)
	b.pings(from, b.running(during), true)
	b.goes(leaving)
	after := b.pod("after", b.nodes[0])
	b.pings(from, b.running(after), true)
	b.delete(staying, during, after)
	b.nothingIsLeft()
	b.account = account
	for i, n := range b.nodes {
		b.useAPI(n, kubes[i])
	}
	b.lead(map[string]any{"driver": "neutron"}, nil)
	last := b.pod("last", b.nodes[0])
	b.running(last)
	b.delete(last)
	b.nothingIsLeft()
}

// useAPI starts the daemon of a node again, with another kubeconfig.
func (b *bed) useAPI(n *bedNode, kubeconfig string) {
	b.Helper()
	if err := n.daemon.Stop(); err != nil {
		b.Error(err)
	}
	n.kube = kubeconfig
	b.startDaemon(n)
}
