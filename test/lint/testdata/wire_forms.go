// at: internal/controller/wire/example.go

// Package wire breaks the rule wire-forms.
package wire

import (
	_ "github.com/go-json-experiment/json"            // want: depguard:wire-forms
	_ "google.golang.org/protobuf/encoding/protowire" // want: depguard:wire-forms
)
