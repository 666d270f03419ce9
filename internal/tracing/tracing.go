// Package tracing sends the durations of a request's steps to a collector over OTLP.
// The request is a span of the trace that its caller began (W3C Trace Context). The
// package is the only importer of OpenTelemetry.
package tracing

import (
	"context"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

const (
	// scope is the name of the instrumentation scope.
	scope = "fairlead.dev/fairlead"
	// flushTimeout limits the wait for a collector at the end of the program.
	flushTimeout = 2 * time.Second
)

// Tracer makes spans and sends them in the background. An unavailable collector delays
// nothing: spans that do not fit into the queue are dropped.
type Tracer struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
}

// Start returns a Tracer that sends spans to the OTLP endpoint (HTTP, JSON), a URL like
// "http://127.0.0.1:4318"; the default path is /v1/traces. attributes describe the
// program: "service.name", "host.name" and so on. The error is that of the URL.
func Start(ctx context.Context, endpoint string, attributes map[string]string) (*Tracer, error) {
	exporter, err := newExporter(endpoint)
	if err != nil {
		return nil, fmt.Errorf("send traces to %s: %w", endpoint, err)
	}
	log := logr.FromContextOrDiscard(ctx)
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		log.Error(err, "traces were not sent", "endpoint", endpoint)
	}))
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(exporter),
		sdktrace.WithResource(resource.NewSchemaless(keyValues(attributes)...)),
	)
	return &Tracer{provider: provider, tracer: provider.Tracer(scope)}, nil
}

// Close sends the remaining spans. It takes two seconds at most.
func (t *Tracer) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("send the last traces: %w", err)
	}
	return nil
}

// Parent identifies the caller's span by the values of the headers traceparent,
// tracestate and baggage. Unreadable values are ignored; without a traceparent a new
// trace begins.
type Parent struct{ Traceparent, Tracestate, Baggage string }

// Request begins the span of a request. The returned function ends it with the
// request's error, nil for success.
func (t *Tracer) Request(ctx context.Context, name string, parent Parent, attributes map[string]string) (context.Context, func(error)) {
	carrier := propagation.MapCarrier{
		"traceparent": parent.Traceparent, "tracestate": parent.Tracestate, "baggage": parent.Baggage,
	}
	ctx = propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{}).Extract(ctx, carrier)
	ctx, span := t.tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(keyValues(attributes)...))
	return ctx, func(err error) {
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
		}
		span.End()
	}
}

// Step adds a step to the request's span in ctx, from start until now. It does nothing
// if ctx has no span.
func Step(ctx context.Context, name string, start time.Time) {
	request := trace.SpanFromContext(ctx)
	if !request.IsRecording() {
		return
	}
	_, span := request.TracerProvider().Tracer(scope).Start(ctx, name, trace.WithTimestamp(start))
	span.End()
}

func keyValues(attributes map[string]string) []attribute.KeyValue {
	out := make([]attribute.KeyValue, 0, len(attributes))
	for k, v := range attributes {
		out = append(out, attribute.String(k, v))
	}
	return out
}
