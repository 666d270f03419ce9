// Package output writes the answer of a command: as a table with notes, or as JSON.
package output

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
)

// ErrAttention is the error of a command that has shown something that needs attention.
var ErrAttention = errors.New("something needs attention")

// Format is the value of -o.
type Format string

// The formats.
const (
	TableFormat Format = "table"
	JSONFormat  Format = "json"
)

// AddFlag adds the flag -o, whose default is TableFormat.
func (o *Format) AddFlag(cmd *cobra.Command) {
	*o = TableFormat
	cmd.Flags().VarP(o, "output", "o", "output `format`: table or json")
}

// String implements pflag.Value.
func (o *Format) String() string { return string(*o) }

// Type implements pflag.Value.
func (o *Format) Type() string { return "format" }

// Set implements pflag.Value.
func (o *Format) Set(s string) error {
	switch Format(s) {
	case TableFormat, JSONFormat:
		*o = Format(s)
		return nil
	}
	return fmt.Errorf("must be %q or %q", TableFormat, JSONFormat)
}

// Write writes a view in one piece: as JSON, or as the text that text returns.
func (o *Format) Write(w io.Writer, view any, text func() string) error {
	var raw []byte
	if *o == JSONFormat {
		var err error
		if raw, err = json.MarshalIndent(view, "", "  "); err != nil {
			return fmt.Errorf("encode the answer: %w", err)
		}
		raw = append(raw, '\n')
	} else {
		raw = []byte(text())
	}
	if _, err := w.Write(raw); err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	return nil
}

// Timestamp returns a time for JSON: in UTC, to the second, nil if t is zero.
func Timestamp(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC().Truncate(time.Second)
	return &t
}

// List returns a list for JSON, which is never null.
func List(items []string) []string {
	if items == nil {
		return []string{}
	}
	return items
}
