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

// Check says what is wrong, or nil. It must not block.
type Check func() error

// Server serves /metrics, /healthz and /readyz.
type Server struct {
	// Address to listen on, as "127.0.0.1:9470" or "unix:/run/fairlead/metrics.sock";
	// "0" serves nothing.
	Address string
	// Metrics to serve.
	Metrics prometheus.Gatherer
	// Healthy checks fail only when a restart would help: a single object's
	// error never does.
	Healthy map[string]Check
	// Ready checks fail while the program cannot do its work.
	Ready map[string]Check
}

// NeedLeaderElection makes a standby serve too.
func (s *Server) NeedLeaderElection() bool { return false }

// Start is Run, for controller-runtime's manager.
func (s *Server) Start(ctx context.Context) error { return s.Run(ctx) }

// Run serves until ctx ends. While another process has the address, as the one
// before has in an upgrade, it waits for it.
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

// listenPause lies between two attempts to listen.
const listenPause = 200 * time.Millisecond

// listen listens as soon as nobody else does; it returns nil when ctx ended first.
func listen(ctx context.Context, network, address string) (net.Listener, error) {
	told := false
	for {
		l, err := (&net.ListenConfig{}).Listen(ctx, network, address)
		switch {
		case err == nil:
			return l, nil
		case ctx.Err() != nil:
			return nil, nil //nolint:nilerr // nobody waits for it any more
		case !errors.Is(err, syscall.EADDRINUSE):
			return nil, err
		case network == "unix" && abandoned(ctx, address):
			if err := os.Remove(address); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
			continue
		case !told:
			told = true
			logr.FromContextOrDiscard(ctx).Info("waiting for another process to leave the address of metrics and health", "address", address)
		}
		select {
		case <-time.After(listenPause):
		case <-ctx.Done():
			return nil, nil
		}
	}
}

// abandoned tells whether a unix socket is what a process left that was killed.
func abandoned(ctx context.Context, path string) bool {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err == nil {
		_ = conn.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// Handler is the server without a listener.
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
