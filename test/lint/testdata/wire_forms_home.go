// at: internal/slim/example/example.go

// Package example is the one place that may read objects otherwise than client-go.
package example

import (
	_ "github.com/go-json-experiment/json"
	_ "google.golang.org/protobuf/encoding/protowire"
)
