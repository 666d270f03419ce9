package tracing

import (
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/fairlead/test/tracingtest"
)

const (
	traceID     = "0af7651916cd43dd8448eb211c80319c"
	parentID    = "b7ad6b7169203331"
	traceparent = "00-" + traceID + "-" + parentID + "-01"
)

// A request belongs to its caller's trace, and its steps belong to the request.
func TestRequestIsPartOfItsCallersTrace(t *testing.T) {
	collector := tracingtest.Listen(t)
	tracer, err := Start(t.Context(), collector.URL, map[string]string{"service.name": "test"})
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	ctx, end := tracer.Request(t.Context(), "ADD", Parent{Traceparent: traceparent}, map[string]string{"sandbox": "c1"})
	Step(ctx, "wait", start)
	end(errors.New("no bridge"))
	_, end = tracer.Request(t.Context(), "DEL", Parent{Traceparent: "nonsense"}, nil)
	end(nil)
	Step(t.Context(), "plug", start) // outside any request
	if err := tracer.Close(t.Context()); err != nil {
		t.Fatal(err)
	}

	spans := collector.Spans()
	if len(spans) != 3 {
		t.Fatalf("spans %v", spans)
	}
	wait, add, del := spans["wait"], spans["ADD"], spans["DEL"]
	if got := add.TraceID + "-" + add.ParentSpanID; got != traceID+"-"+parentID {
		t.Errorf("ADD is part of %s", got)
	}
	if diff := cmp.Diff(add.TraceID, wait.TraceID) + cmp.Diff(add.SpanID, wait.ParentSpanID); diff != "" {
		t.Errorf("the step is no part of its request:\n%s", diff)
	}
	if wait.StartTimeUnixNano != strconv.FormatInt(start.UnixNano(), 10) {
		t.Errorf("the step began at %s", wait.StartTimeUnixNano)
	}
	if len(add.Attributes) != 1 || add.Attributes[0].Key != "sandbox" || add.Attributes[0].Value.StringValue != "c1" {
		t.Errorf("attributes %v", add.Attributes)
	}
	if add.Status.Code != 2 || add.Status.Message != "no bridge" || add.Kind != 2 { // 2 is an error, and 2 is a server (OTLP)
		t.Errorf("ADD is %+v", add)
	}
	if del.ParentSpanID != "" || del.TraceID == traceID || del.Status.Code != 0 {
		t.Errorf("DEL is %+v", del)
	}
}

// An unavailable collector delays nothing.
func TestCollectorIsAway(t *testing.T) {
	tracer, err := Start(t.Context(), "http://127.0.0.1:1", nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 5000 {
		_, end := tracer.Request(t.Context(), "ADD", Parent{}, nil)
		end(nil)
	}
	// Lost spans are logged and are no error of the program.
	if err := tracer.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
