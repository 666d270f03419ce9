package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"strings"
	"sync"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"

	"fairlead.dev/fairlead/test/netlab"
)

// proxy stands between programs and the API server: it counts their requests,
// and can hold back the writes of a PodAttachment's status.
type proxy struct {
	// kubeconfig is the path of a kubeconfig that leads to the proxy.
	kubeconfig string
	forward    *httputil.ReverseProxy

	mu     sync.Mutex
	counts map[call]int
	held   chan struct{} // closed when writes may pass; nil: they may pass
}

// call is a kind of request.
type call struct {
	program  string // as in the User-Agent
	verb     string // the HTTP method, or WATCH
	resource string // with its subresource, as "podattachments/status"
}

// String is the call in words.
func (c call) String() string { return c.program + " " + c.verb + " " + c.resource }

// serveProxy serves on the switch until the process ends.
func serveProxy(ctx context.Context, at *netlab.Machine, k *kube, kubeconfig string) (*proxy, error) {
	transport, err := rest.TransportFor(k.rest)
	if err != nil {
		return nil, err
	}
	target, _, err := rest.DefaultServerUrlFor(k.rest)
	if err != nil {
		return nil, err
	}
	listener, err := at.Listen(ctx, netip.AddrPortFrom(at.V4.Addr(), 0).String())
	if err != nil {
		return nil, err
	}
	p := &proxy{
		kubeconfig: kubeconfig,
		counts:     map[call]int{},
		forward: &httputil.ReverseProxy{
			Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
			Transport:     transport,
			FlushInterval: -1,                                                 // watches
			ErrorHandler:  func(http.ResponseWriter, *http.Request, error) {}, // watches end with their programs
		},
	}
	// Like the API server: TLS, and with it one connection for many requests at once.
	host := at.V4.Addr().String()
	certificate, key, err := cert.GenerateSelfSignedCertKey(host, nil, nil)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, err
	}
	server := &http.Server{ //nolint:gosec // it serves the bench's own programs
		Handler: p, TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13},
		ErrorLog: log.New(io.Discard, "", 0), // as above
	}
	go func() { _ = server.ServeTLS(listener, "", "") }()
	return p, p.writeKubeconfig("https://"+listener.Addr().String(), certificate)
}

// writeKubeconfig writes a kubeconfig that leads to a server and trusts a certificate, in
// PEM.
func (p *proxy) writeKubeconfig(server string, certificate []byte) error {
	const name = "bench"
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters[name] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: certificate}
	cfg.AuthInfos[name] = &clientcmdapi.AuthInfo{}
	cfg.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	cfg.CurrentContext = name
	if err := clientcmd.WriteToFile(*cfg, p.kubeconfig); err != nil {
		return fmt.Errorf("write a kubeconfig: %w", err)
	}
	return nil
}

// ServeHTTP implements http.Handler.
func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := callOf(r)
	p.mu.Lock()
	p.counts[c]++
	held := p.held
	p.mu.Unlock()
	if held != nil && c.verb == http.MethodPatch && c.resource == "podattachments/status" {
		select {
		case <-held:
		case <-r.Context().Done():
		}
	}
	p.forward.ServeHTTP(w, r)
}

// hold keeps writes of status back until release is called.
func (p *proxy) hold() (release func()) {
	held := make(chan struct{})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held = held
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		close(held)
		p.held = nil
	}
}

// reset sets all counts to zero.
func (p *proxy) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.counts)
}

// calls returns the counts.
func (p *proxy) calls() map[call]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.counts)
}

func callOf(r *http.Request) call {
	program, _, _ := strings.Cut(r.UserAgent(), "/")
	c := call{program: program, verb: r.Method, resource: resourceOf(r.URL.Path)}
	if r.URL.Query().Get("watch") != "" {
		c.verb = "WATCH"
	}
	return c
}

// resourceOf takes the resource and the subresource out of a path:
//
//	/api/v1/[namespaces/NAMESPACE/]RESOURCE[/NAME[/SUBRESOURCE]]
//	/apis/GROUP/VERSION/[namespaces/NAMESPACE/]RESOURCE[/NAME[/SUBRESOURCE]]
func resourceOf(path string) string {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case len(parts) > 2 && parts[0] == "api":
		parts = parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		parts = parts[3:]
	default:
		return path
	}
	if len(parts) > 2 && parts[0] == "namespaces" {
		parts = parts[2:]
	}
	if len(parts) > 2 {
		return parts[0] + "/" + parts[2]
	}
	return parts[0]
}
