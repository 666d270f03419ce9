package tracing

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// sendTimeout limits one request to the collector.
const sendTimeout = 10 * time.Second

// exporter sends spans as OTLP over HTTP, in the JSON encoding (OTLP 1.0.0, "JSON
// Protobuf Encoding"). OpenTelemetry's own exporter encodes protobuf, and the packages
// that it links for that cost each node 10 MB of memory, with tracing on or off.
type exporter struct {
	url    string
	client *http.Client
}

// newExporter returns an exporter to an endpoint. The default path is /v1/traces.
func newExporter(endpoint string) (*exporter, error) {
	u, err := url.Parse(endpoint)
	if err != nil {
		return nil, err
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = "/v1/traces"
	}
	return &exporter{url: u.String(), client: &http.Client{Timeout: sendTimeout}}, nil
}

// ExportSpans implements sdktrace.SpanExporter.
func (e *exporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	if len(spans) == 0 {
		return nil
	}
	body, err := json.Marshal(encode(spans))
	if err != nil {
		return fmt.Errorf("encode %d spans: %w", len(spans), err)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("send %d spans: %w", len(spans), err)
	}
	r.Header.Set("Content-Type", "application/json")
	answer, err := e.client.Do(r)
	if err != nil {
		return fmt.Errorf("send %d spans: %w", len(spans), err)
	}
	defer answer.Body.Close()                                      //nolint:errcheck // the body was read
	_, _ = io.Copy(io.Discard, io.LimitReader(answer.Body, 1<<16)) // so that the connection is reused
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("send %d spans to %s: %s", len(spans), e.url, answer.Status)
	}
	return nil
}

// Shutdown implements sdktrace.SpanExporter.
func (e *exporter) Shutdown(context.Context) error {
	e.client.CloseIdleConnections()
	return nil
}

// export is the body of a request: the used fields of OTLP's ExportTraceServiceRequest.
type export struct {
	ResourceSpans []resourceSpans `json:"resourceSpans"`
}

// resourceSpans are the spans of one program.
type resourceSpans struct {
	Resource   program      `json:"resource"`
	ScopeSpans []scopeSpans `json:"scopeSpans"`
}

// program describes a program.
type program struct {
	Attributes []attr `json:"attributes"`
}

// scopeSpans are the spans of one part of a program.
type scopeSpans struct {
	Scope struct {
		Name string `json:"name"`
	} `json:"scope"`
	Spans []span `json:"spans"`
}

// span is one span. IDs are in hexadecimal, times are nanoseconds since 1970 as
// decimal numbers.
type span struct {
	TraceID           string `json:"traceId"`
	SpanID            string `json:"spanId"`
	ParentSpanID      string `json:"parentSpanId,omitempty"`
	TraceState        string `json:"traceState,omitempty"`
	Name              string `json:"name"`
	Kind              int    `json:"kind"`
	StartTimeUnixNano string `json:"startTimeUnixNano"`
	EndTimeUnixNano   string `json:"endTimeUnixNano"`
	Attributes        []attr `json:"attributes,omitempty"`
	Status            status `json:"status"`
}

// status is the outcome of a span.
type status struct {
	Code    int    `json:"code,omitempty"` // statusError or 0
	Message string `json:"message,omitempty"`
}

// statusError is STATUS_CODE_ERROR of OTLP.
const statusError = 2

// attr is an attribute with a string value.
type attr struct {
	Key   string `json:"key"`
	Value struct {
		StringValue string `json:"stringValue"`
	} `json:"value"`
}

// encode returns a request with the spans. All spans are of the same program and scope.
func encode(spans []sdktrace.ReadOnlySpan) export {
	of := scopeSpans{Spans: make([]span, len(spans))}
	of.Scope.Name = scope
	for i, s := range spans {
		one := span{
			TraceID: s.SpanContext().TraceID().String(), SpanID: s.SpanContext().SpanID().String(),
			TraceState: s.SpanContext().TraceState().String(), Name: s.Name(), Kind: int(s.SpanKind()),
			StartTimeUnixNano: strconv.FormatInt(s.StartTime().UnixNano(), 10),
			EndTimeUnixNano:   strconv.FormatInt(s.EndTime().UnixNano(), 10),
			Attributes:        attributesOf(s.Attributes()),
		}
		if s.Parent().HasSpanID() {
			one.ParentSpanID = s.Parent().SpanID().String()
		}
		if s.Status().Code == codes.Error {
			one.Status = status{Code: statusError, Message: s.Status().Description}
		}
		of.Spans[i] = one
	}
	return export{ResourceSpans: []resourceSpans{{
		Resource:   program{Attributes: attributesOf(spans[0].Resource().Attributes())},
		ScopeSpans: []scopeSpans{of},
	}}}
}

func attributesOf(all []attribute.KeyValue) []attr {
	out := make([]attr, len(all))
	for i, kv := range all {
		out[i].Key = string(kv.Key)
		out[i].Value.StringValue = kv.Value.String()
	}
	return out
}
