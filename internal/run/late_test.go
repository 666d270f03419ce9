package run

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The output is the same as that of the wrapped handler.
func TestLateHandler(t *testing.T) {
	opts := &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}
	said := func(wrap func(slog.Handler) slog.Handler) string {
		var out bytes.Buffer
		log := slog.New(wrap(slog.NewTextHandler(&out, opts))).With("program", "p")
		first, second := log.With("pod", "ns/a"), log.WithGroup("g").With("pod", "ns/b", "n", 2)
		first.Info("one", "k", "v")
		second.Debug("too low")
		second.With("last", true).Error("two")
		log.Warn("three")
		return out.String()
	}
	want := said(func(h slog.Handler) slog.Handler { return h })
	if diff := cmp.Diff(want, said(lateHandler)); diff != "" || want == "" {
		t.Errorf("-want %q +got:\n%s", want, diff)
	}
}
