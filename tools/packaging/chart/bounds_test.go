package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"fairlead.dev/fairlead/internal/config"
)

// problems returns the problems of a configuration with one field set, by the program's own
// validation.
func problems(t *testing.T, path string, value any) string {
	t.Helper()
	program, field, _ := strings.Cut(path, ".config.")
	parts := strings.Split(field, ".")
	for _, part := range slices.Backward(parts) {
		name, isList := strings.CutSuffix(part, "[]")
		if isList {
			value = []any{value}
		}
		value = map[string]any{name: value}
	}
	raw, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	switch program {
	case "controller":
		c := config.DefaultController()
		if err := json.Unmarshal(raw, &c); err != nil {
			return err.Error()
		}
		err = c.Validate([]string{config.DriverNative, config.DriverNeutron})
	default:
		n := config.DefaultNode()
		if err := json.Unmarshal(raw, &n); err != nil {
			return err.Error()
		}
		n.NodeName, n.CNI.PluginSource, n.Socket = "n1", "/p", "/s"
		err = n.Validate()
	}
	if err == nil {
		return ""
	}
	return err.Error()
}

// TestBounds compares the bounds of the schema with the validation of the programs: a value
// within the bounds is accepted, a value beyond is refused with its path. A value may need
// another field to be valid, so only problems of the field itself count.
func TestBounds(t *testing.T) {
	for path, b := range bounds() {
		_, field, isConfig := strings.Cut(path, ".config.")
		if !isConfig {
			continue
		}
		field = strings.TrimSuffix(field, "[]")
		// A problem of the field repeats the value: "gre": must be none, vxlan or auto.
		of := func(value any) string {
			for line := range strings.Lines(problems(t, path, value)) {
				if strings.HasPrefix(line, field) && (strings.Contains(line, fmt.Sprint(value)+":") || strings.Contains(line, fmt.Sprintf("%q:", value))) {
					return line
				}
			}
			return ""
		}
		good, bad := b.Enum, []any{"else"}
		if b.Enum == nil {
			good, bad = []any{b.Min, b.Max}, []any{b.Min - 1, b.Max + 1}
		}
		for _, value := range good {
			// A partner that is missing is another problem, which the message names.
			if p := of(value); p != "" && !strings.Contains(p, "beside") && !strings.Contains(p, "low to") {
				t.Errorf("%s: %v is within the schema and refused: %s", path, value, p)
			}
		}
		for _, value := range bad {
			if of(value) == "" {
				t.Errorf("%s: %v is refused by the schema and accepted by the program: %q", path, value, problems(t, path, value))
			}
		}
	}
}
