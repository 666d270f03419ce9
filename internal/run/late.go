package run

import (
	"context"
	"log/slog"
)

// late puts the values of a logger into text when something is logged.
// controller-runtime makes a logger with five values for each reconcile, and
// hardly ever says anything with it; slog's handlers write the values at once.
type late struct {
	slog.Handler
	// with is what the handler is to be given first.
	with func(slog.Handler) slog.Handler
}

func lateHandler(h slog.Handler) slog.Handler {
	return late{h, func(h slog.Handler) slog.Handler { return h }}
}

// Handle is of slog.Handler.
func (l late) Handle(ctx context.Context, r slog.Record) error {
	return l.with(l.Handler).Handle(ctx, r)
}

// WithAttrs is of slog.Handler.
func (l late) WithAttrs(attrs []slog.Attr) slog.Handler {
	return late{l.Handler, func(h slog.Handler) slog.Handler { return l.with(h).WithAttrs(attrs) }}
}

// WithGroup is of slog.Handler.
func (l late) WithGroup(name string) slog.Handler {
	return late{l.Handler, func(h slog.Handler) slog.Handler { return l.with(h).WithGroup(name) }}
}
