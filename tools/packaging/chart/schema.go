package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"

	"github.com/invopop/jsonschema"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// duration is what the programs accept as a duration: as time.ParseDuration, not negative.
const duration = `^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`

// schema returns the JSON schema of the values, with the docstrings of the types. Packages
// are read below root.
func schema(root string) (*jsonschema.Schema, error) {
	r := &jsonschema.Reflector{
		Anonymous: true, DoNotReference: true, ExpandedStruct: true, RequiredFromJSONSchemaTags: true,
		Mapper: func(t reflect.Type) *jsonschema.Schema {
			if t == reflect.TypeFor[metav1.Duration]() {
				return &jsonschema.Schema{Type: "string", Pattern: duration}
			}
			return nil
		},
	}
	for _, dir := range []string{"internal/config", "tools/packaging/chart"} {
		// The library joins the path to the name of the module, so the path is relative.
		path, err := filepath.Rel(filepath.Join(root, "tools", "packaging"), filepath.Join(root, dir))
		if err != nil {
			return nil, err
		}
		if err := r.AddGoComments("fairlead.dev/fairlead/tools/packaging", path, jsonschema.WithFullComment()); err != nil {
			return nil, fmt.Errorf("read the docstrings of %s: %w", dir, err)
		}
	}
	// The name of a package that is a program is main to the reflection.
	for name, text := range r.CommentMap {
		if short, found := strings.CutPrefix(name, "fairlead.dev/fairlead/tools/packaging/chart."); found {
			r.CommentMap["main."+short] = text
		}
	}
	s := r.Reflect(Values{})
	s.ID, s.Version = "", "https://json-schema.org/draft/2020-12/schema"
	seen := map[string]bool{}
	complete("", s, seen)
	for path := range bounds() {
		if !seen[path] {
			return nil, fmt.Errorf("bound of %s: no such value", path)
		}
	}
	return s, nil
}

// complete writes the bounds into a schema and everything below it, and names fields in
// their descriptions as a user writes them.
func complete(path string, s *jsonschema.Schema, seen map[string]bool) {
	seen[path] = true
	if b, found := bounds()[path]; found {
		s.Enum = b.Enum
		if b.Enum == nil {
			s.Minimum, s.Maximum = json.Number(fmt.Sprint(b.Min)), json.Number(fmt.Sprint(b.Max))
		}
	}
	if s.Items != nil {
		complete(path+"[]", s.Items, seen)
	}
	if s.Properties == nil {
		return
	}
	names := map[string]string{}
	for p := s.Properties.Oldest(); p != nil; p = p.Next() {
		names[strings.ToLower(p.Key)] = p.Key
	}
	for p := s.Properties.Oldest(); p != nil; p = p.Next() {
		// The first word of a docstring is the name of its field.
		p.Value.Description = first.ReplaceAllLiteralString(p.Value.Description, p.Key)
		p.Value.Description = word.ReplaceAllStringFunc(strings.Join(strings.Fields(p.Value.Description), " "), func(w string) string {
			if name, found := names[strings.ToLower(w)]; found && w != "OpenStack" && w != "Open" {
				return name
			}
			return w
		})
		complete(strings.TrimPrefix(path+"."+p.Key, "."), p.Value, seen)
	}
}

// first is the name at the beginning of a docstring.
var first = regexp.MustCompile(`^[A-Z][A-Za-z]*\b`)

// word is a word that begins with a capital letter, as the names of fields in docstrings.
var word = regexp.MustCompile(`\b[A-Z][A-Za-z]+\b`)
