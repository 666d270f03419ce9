package run

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestServerAnswers(t *testing.T) {
	reg := prometheus.NewRegistry()
	reg.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "fairlead_test_pods", Help: "x"}))
	s := &Server{
		Metrics: reg,
		Healthy: map[string]Check{"alive": func() error { return nil }},
		Ready:   map[string]Check{"b": func() error { return errors.New("no bridge") }, "a": func() error { return nil }},
	}
	cases := []struct {
		path string
		code int
		want string
	}{
		{"/metrics", http.StatusOK, "fairlead_test_pods 0"},
		{"/healthz", http.StatusOK, "[+]alive ok\n"},
		{"/readyz", http.StatusServiceUnavailable, "[+]a ok\n[-]b: no bridge\n"},
		{"/", http.StatusNotFound, ""},
	}
	for _, tc := range cases {
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, tc.path, nil))
		if w.Code != tc.code || !strings.Contains(w.Body.String(), tc.want) {
			t.Errorf("%s: %d %q, want %d %q", tc.path, w.Code, w.Body.String(), tc.code, tc.want)
		}
	}
}

// The metric fairlead_ready has the answer of /readyz.
func TestReadyMetric(t *testing.T) {
	reg, ready := prometheus.NewRegistry(), errors.New("no bridge")
	s := &Server{Ready: map[string]Check{"a": func() error { return nil }, "b": func() error { return ready }}}
	if err := s.Register(reg); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"0", "1"} {
		text := "# HELP fairlead_ready 1 while the program can do its work, as /readyz answers, otherwise 0.\n# TYPE fairlead_ready gauge\nfairlead_ready " + want + "\n"
		if err := testutil.GatherAndCompare(reg, strings.NewReader(text)); err != nil {
			t.Error(err)
		}
		ready = nil
	}
}

// An upgrade starts the new process while the old process still serves; a killed process
// leaves its socket behind.
func TestServerWaitsForItsAddress(t *testing.T) {
	for _, network := range []string{"unix", "tcp"} {
		t.Run(network, func(t *testing.T) {
			address := "127.0.0.1:0"
			if network == "unix" {
				address = filepath.Join(t.TempDir(), "s")
			}
			before, err := net.Listen(network, address)
			if err != nil {
				t.Fatal(err)
			}
			name := before.Addr().String()
			if network == "unix" {
				before.(*net.UnixListener).SetUnlinkOnClose(false)
				name = "unix:" + name
			}
			s := &Server{Address: name, Metrics: prometheus.NewRegistry()}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- s.Run(ctx) }()
			if network == "unix" { // Run checks whether a process listens
				if conn, err := before.Accept(); err == nil {
					conn.Close()
				}
			}
			before.Close()
			client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, network, before.Addr().String())
			}}}
			defer client.CloseIdleConnections()
			for {
				req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://x/healthz", nil)
				if err != nil {
					t.Fatal(err)
				}
				if resp, err := client.Do(req); err == nil {
					resp.Body.Close()
					break
				}
			}
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}
