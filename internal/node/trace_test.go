package node

import (
	"context"
	"testing"
	"time"

	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/tracing"
	"fairlead.dev/fairlead/test/tracingtest"
)

type handlerFunc func(ctx context.Context, r cniproto.Request) ([]byte, error)

func (f handlerFunc) Handle(ctx context.Context, r cniproto.Request) ([]byte, error) {
	return f(ctx, r)
}

func TestRequestsAreTraced(t *testing.T) {
	collector := tracingtest.Listen(t)
	tracer, err := tracing.Start(t.Context(), collector.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	h := traced{tracer: tracer, next: handlerFunc(func(ctx context.Context, _ cniproto.Request) ([]byte, error) {
		tracing.Step(ctx, "plug", time.Now())
		return []byte("{}"), fault.Errorf(fault.ErrNotReady, "no record yet")
	})}
	const traceID = "0af7651916cd43dd8448eb211c80319c"
	r := cniproto.Request{Verb: cniproto.VerbAdd, ContainerID: "c1", Traceparent: "00-" + traceID + "-b7ad6b7169203331-01"}
	if result, err := h.Handle(t.Context(), r); string(result) != "{}" || err == nil {
		t.Errorf("%s, %v", result, err)
	}
	if err := tracer.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	spans := collector.Spans()
	for _, name := range []string{"CNI ADD", "plug"} {
		if got := spans[name].TraceID; got != traceID {
			t.Errorf("%s is part of trace %q", name, got)
		}
	}
	if got := spans["CNI ADD"].Status.Message; got != "no record yet" {
		t.Errorf("status %q", got)
	}
}
