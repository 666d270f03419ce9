package run

import (
	"context"
	"log/slog"
)

// late is a handler that formats the values of a logger only when it logs a message.
// controller-runtime makes a logger with five values for each reconcile and hardly ever
// logs with it; slog's own handlers format the values at once.
type late struct {
	slog.Handler
	// with adds the collected values and groups to the handler.
	with func(slog.Handler) slog.Handler
}

func lateHandler(h slog.Handler) slog.Handler {
	return late{h, func(h slog.Handler) slog.Handler { return h }}
}

// Handle implements slog.Handler.
func (l late) Handle(ctx context.Context, r slog.Record) error {
	return l.with(l.Handler).Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (l late) WithAttrs(attrs []slog.Attr) slog.Handler {
	return late{l.Handler, func(h slog.Handler) slog.Handler { return l.with(h).WithAttrs(attrs) }}
}

// WithGroup implements slog.Handler.
func (l late) WithGroup(name string) slog.Handler {
	return late{l.Handler, func(h slog.Handler) slog.Handler { return l.with(h).WithGroup(name) }}
}
