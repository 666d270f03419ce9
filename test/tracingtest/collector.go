// Package tracingtest is a collector of traces for tests.
package tracingtest

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
)

// Span has the fields of a span that tests use.
type Span struct {
	TraceID, SpanID, ParentSpanID string
	StartTimeUnixNano             string
	Name                          string
	Kind                          int
	Attributes                    []struct {
		Key   string
		Value struct{ StringValue string }
	}
	Status struct {
		Code    int
		Message string
	}
}

// Collector collects the spans that are sent to URL as OTLP over HTTP, in the JSON
// encoding.
type Collector struct {
	URL string

	mu    sync.Mutex
	spans map[string]Span
}

// Listen starts a collector on the loopback interface. It stops at the end of the test.
func Listen(tb testing.TB) *Collector {
	tb.Helper()
	c := &Collector{spans: map[string]Span{}}
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var sent struct {
			ResourceSpans []struct {
				ScopeSpans []struct{ Spans []Span }
			}
		}
		err := json.NewDecoder(r.Body).Decode(&sent)
		if err != nil || r.Method != http.MethodPost || r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/json" {
			tb.Errorf("%s %s, %s: %v", r.Method, r.URL.Path, r.Header.Get("Content-Type"), err)
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
	}))
	tb.Cleanup(s.Close)
	c.URL = s.URL
	return c
}

// Spans returns the collected spans by name; of several with one name, the last.
func (c *Collector) Spans() map[string]Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.spans
}
