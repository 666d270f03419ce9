package node

import (
	"context"

	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/cniproto/server"
	"fairlead.dev/fairlead/internal/tracing"
)

// traced makes each request a part of the trace that the runtime began. libcni passes the
// trace to plugins from version 1.3.1.
type traced struct {
	next   server.Handler
	tracer *tracing.Tracer
}

// Handle is part of server.Handler.
func (t traced) Handle(ctx context.Context, r cniproto.Request) (result []byte, err error) {
	ctx, end := t.tracer.Request(ctx, "CNI "+r.Verb,
		tracing.Parent{Traceparent: r.Traceparent, Tracestate: r.Tracestate, Baggage: r.Baggage},
		map[string]string{"cni.container_id": r.ContainerID, "cni.ifname": r.IfName, "cni.args": r.Args})
	defer func() { end(err) }()
	return t.next.Handle(ctx, r)
}
