package clitest

import (
	"bytes"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"fairlead.dev/fairlead/internal/cli/output"
)

// Renderer returns a function that returns the output of a command.
func Renderer(t *testing.T) func(format output.Format, view any, text func() string) string {
	return func(format output.Format, view any, text func() string) string {
		t.Helper()
		var b bytes.Buffer
		if err := format.Write(&b, view, text); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
}

// ManualNames reports an error for each of the names, and for each JSON field of the views,
// that a page of the manual does not name.
func ManualNames(t *testing.T, page string, names []string, views ...any) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	names = slices.Clone(names)
	for _, view := range views {
		names = append(names, fieldNames(reflect.TypeOf(view))...)
	}
	for _, name := range names {
		if !strings.Contains(string(text), "`"+name+"`") {
			t.Errorf("%s does not name `%s`", page, name)
		}
	}
}

// fieldNames returns the JSON names of a struct and of the structs in it. Structs of the API
// and of other modules have no names of the manual's.
func fieldNames(t reflect.Type) []string {
	for t.Kind() == reflect.Slice || t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || !strings.HasPrefix(t.PkgPath(), "fairlead.dev/fairlead/internal/") {
		return nil
	}
	var out []string
	for f := range t.Fields() {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
			out = append(out, name)
		}
		out = append(out, fieldNames(f.Type)...)
	}
	return out
}
