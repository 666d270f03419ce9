// at: internal/node/otel/example.go

// Package otel breaks the rule tracing.
package otel

import (
	_ "go.opentelemetry.io/otel"           // want: depguard:tracing
	_ "go.opentelemetry.io/otel/sdk/trace" // want: depguard:tracing
)
