// at: internal/tracing/example/example.go

// Package example is the one place that may make spans.
package example

import (
	_ "go.opentelemetry.io/otel"
)
