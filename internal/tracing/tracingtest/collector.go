// Package tracingtest is a collector of traces for tests.
package tracingtest

import (
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// Collector takes in what is sent to URL, as OTLP over HTTP.
type Collector struct {
	URL string

	mu    sync.Mutex
	spans map[string]*tracev1.Span
}

// Listen starts a collector on the loopback interface that ends with the test.
func Listen(tb testing.TB) *Collector {
	tb.Helper()
	c := &Collector{spans: map[string]*tracev1.Span{}}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var sent collectorv1.ExportTraceServiceRequest
		if err == nil {
			err = proto.Unmarshal(body, &sent)
		}
		if err != nil || r.URL.Path != "/v1/traces" {
			tb.Errorf("POST %s: %v", r.URL.Path, err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, resource := range sent.ResourceSpans {
			for _, scope := range resource.ScopeSpans {
				for _, span := range scope.Spans {
					c.spans[span.Name] = span
				}
			}
		}
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	tb.Cleanup(s.Close)
	c.URL = s.URL
	return c
}

// Spans are the spans that came, the last of each name.
func (c *Collector) Spans() map[string]*tracev1.Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.spans
}
