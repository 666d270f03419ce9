package run

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
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
