package ui

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"time"
)

//go:embed page
var page embed.FS

// Info is about the cluster of the page.
type Info struct {
	Server    string `json:"server"` // address of the API server
	Namespace string `json:"namespace,omitempty"`
	Version   string `json:"version"`
}

// policy lets the page load its own files alone, and no page frame it.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// Listen listens on an address of this machine's loopback. The page has no login, so that an
// address that other machines reach is an error.
func Listen(ctx context.Context, address string) (net.Listener, error) {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, fmt.Errorf("%q is no address with a port: write it as 127.0.0.1:8080, or 127.0.0.1:0 for a free port", address)
	}
	if !at.Addr().IsLoopback() {
		return nil, fmt.Errorf("%s is reached from other machines, and the page has no login: use an address such as 127.0.0.1:%d, "+
			"with kubectl port-forward or ssh -L from elsewhere", address, at.Port())
	}
	var config net.ListenConfig
	return config.Listen(ctx, "tcp", address)
}

// Serve serves the handler of the page, or of its health, until ctx ends. Streams end with
// ctx, and have a second to say so before their connections are closed.
func Serve(ctx context.Context, l net.Listener, h http.Handler) error {
	server := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, BaseContext: func(net.Listener) context.Context { return ctx }}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if server.Shutdown(grace) != nil {
			_ = server.Close()
		}
	})
	err := server.Serve(l)
	if !stop() {
		<-ended
	}
	if !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve on %s: %w", l.Addr(), err)
	}
	return nil
}

// Health serves /healthz and /readyz for a kubelet, which does not reach the loopback of a
// pod. It serves nothing of the cluster, so it may be reached from other machines. /readyz
// fails until every resource of the page was read or refused.
func Health(s *Stream) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if unread := s.Unread(); len(unread) > 0 {
			http.Error(w, fmt.Sprintf("not read yet: %v", unread), http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintln(w, "ok")
	})
	return mux
}

// Handler serves the page, its stream and the stories of pods.
func Handler(s *Stream, info Info) http.Handler {
	files, err := fs.Sub(page, "page")
	if err != nil {
		panic(err) // the name is valid
	}
	mux := http.NewServeMux()
	mux.Handle("/", http.FileServerFS(files))
	mux.HandleFunc("/stream", func(w http.ResponseWriter, r *http.Request) { stream(w, r, s, info) })
	mux.HandleFunc("/story", func(w http.ResponseWriter, r *http.Request) { story(w, r, s) })
	return guard(mux)
}

// guard refuses requests that other web sites cause in the user's browser: those for another
// host, whose name resolves to this machine, and those from another site.
func guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		site := r.Header.Get("Sec-Fetch-Site")
		switch {
		case r.Method != http.MethodGet:
			h.Set("Allow", "GET")
			http.Error(w, "the page only reads: use GET", http.StatusMethodNotAllowed)
		case !local(r.Host):
			http.Error(w, "the host must be localhost or a loopback address, as in the address that fairlead ui printed", http.StatusForbidden)
		case r.URL.Path != "/" && site != "" && site != "same-origin" && site != "none":
			http.Error(w, "another site must not read the page", http.StatusForbidden)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// local reports whether a Host header names this machine's loopback.
func local(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	} else if len(host) > 2 && host[0] == '[' && host[len(host)-1] == ']' {
		host = host[1 : len(host)-1]
	}
	a, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && a.IsLoopback()
}

// stream sends all rows, and then the changes, until the page is gone.
func stream(w http.ResponseWriter, r *http.Request, s *Stream, info Info) {
	w.Header().Set("Content-Type", "text/event-stream")
	all, following, end := s.Open()
	defer end()
	control := http.NewResponseController(w)
	send := func(m []byte) bool {
		_, err := w.Write(m)
		return err == nil && control.Flush() == nil
	}
	all = append([][]byte{message("start", info)}, all...)
	for _, m := range append(all, message("ready", nil)) {
		if !send(m) {
			return
		}
	}
	for {
		select {
		case <-r.Context().Done():
			return
		case m, open := <-following:
			if !open || !send(m) {
				return
			}
		}
	}
}

func story(w http.ResponseWriter, r *http.Request, s *Stream) {
	namespace, name := r.FormValue("namespace"), r.FormValue("name")
	told := s.Story(namespace, name)
	if told == nil {
		http.Error(w, "there is neither such a pod nor a PodAttachment of one", http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(told); err != nil {
		return // the page is gone
	}
}
