package run

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// DurationBuckets are the buckets of histograms of requests, in seconds: from 0.5 ms to the
// four minutes that a kubelet allows for a sandbox.
var DurationBuckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 240}

// Check returns nil, or an error that describes the problem. It must not block.
type Check func() error

// Server serves /metrics, /healthz and /readyz.
type Server struct {
	// Address is the address to listen on, as "127.0.0.1:9470" or
	// "unix:/run/fairlead/metrics.sock"; "0" serves nothing.
	Address string
	// Metrics to serve.
	Metrics prometheus.Gatherer
	// Healthy checks fail only if a restart would help. An error of a single object never
	// makes them fail.
	Healthy map[string]Check
	// Ready checks fail while the program cannot do its work.
	Ready map[string]Check
}

// Register registers the metric fairlead_ready, which is the answer of /readyz.
func (s *Server) Register(r prometheus.Registerer) error {
	return r.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "fairlead", Name: "ready",
		Help: "1 while the program can do its work, as /readyz answers, otherwise 0.",
	}, func() float64 {
		for _, check := range s.Ready {
			if check() != nil {
				return 0
			}
		}
		return 1
	}))
}

// NeedLeaderElection returns false, so that standbys also serve.
func (s *Server) NeedLeaderElection() bool { return false }

// Start calls Run; it is for controller-runtime's manager.
func (s *Server) Start(ctx context.Context) error { return s.Run(ctx) }

// Run serves until ctx ends. It waits while another process has the address, as the
// previous process has during an upgrade.
func (s *Server) Run(ctx context.Context) error {
	if s.Address == "0" {
		<-ctx.Done()
		return nil
	}
	network, address := "tcp", s.Address
	if after, ok := strings.CutPrefix(s.Address, "unix:"); ok {
		network, address = "unix", after
	}
	l, err := listen(ctx, network, address)
	if err != nil {
		return fmt.Errorf("listen for metrics and health: %w", err)
	}
	if l == nil {
		return nil
	}
	srv := &http.Server{Handler: s.Handler(), ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() {
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = srv.Shutdown(grace)
	})
	defer stop()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve metrics and health: %w", err)
	}
	return nil
}

// listenPause is the time between two attempts to listen.
const listenPause = 200 * time.Millisecond

// listen listens on an address as soon as no other process does; it returns nil if ctx
// ends first.
func listen(ctx context.Context, network, address string) (net.Listener, error) {
	logged := false
	for {
		l, err := (&net.ListenConfig{}).Listen(ctx, network, address)
		switch {
		case err == nil:
			return l, nil
		case ctx.Err() != nil:
			return nil, nil //nolint:nilerr // the caller has stopped
		case !errors.Is(err, syscall.EADDRINUSE):
			return nil, err
		case network == "unix" && abandoned(ctx, address):
			if err := os.Remove(address); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
			continue
		case !logged:
			logged = true
			logr.FromContextOrDiscard(ctx).Info("waiting for another process to leave the address of metrics and health", "address", address)
		}
		select {
		case <-time.After(listenPause):
		case <-ctx.Done():
			return nil, nil
		}
	}
}

// abandoned reports whether no process listens on a unix socket, because its process was
// killed.
func abandoned(ctx context.Context, path string) bool {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err == nil {
		_ = conn.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// Handler returns the handler of the three paths.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.Metrics, promhttp.HandlerOpts{}))
	mux.Handle("GET /healthz", checks(s.Healthy))
	mux.Handle("GET /readyz", checks(s.Ready))
	return mux
}

func checks(all map[string]Check) http.Handler {
	names := make([]string, 0, len(all))
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names)
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		code, body := http.StatusOK, ""
		for _, name := range names {
			if err := all[name](); err != nil {
				code = http.StatusServiceUnavailable
				body += fmt.Sprintf("[-]%s: %v\n", name, err)
				continue
			}
			body += fmt.Sprintf("[+]%s ok\n", name)
		}
		w.WriteHeader(code)
		_, _ = w.Write([]byte(body))
	})
}
