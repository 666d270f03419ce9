package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/invopop/jsonschema"
)

const generated = "Generated from tools/packaging/chart and internal/config by hack/generate.sh; do not edit."

// schemaFile returns values.schema.json.
func schemaFile(s *jsonschema.Schema) ([]byte, error) {
	raw, err := json.MarshalIndent(s, "", "  ")
	return append(raw, '\n'), err
}

// value is a value of the chart in the files for people.
type value struct {
	path, name string
	schema     *jsonschema.Schema
	// chart is the default of the chart; nil if it leaves the default to the program.
	chart any
	// program is the default of the program.
	program any
}

// values returns the values below one, in order.
func (v value) values() []value {
	if v.schema.Properties == nil {
		return nil
	}
	chart, _ := v.chart.(map[string]any)
	program, _ := v.program.(map[string]any)
	var out []value
	for p := v.schema.Properties.Oldest(); p != nil; p = p.Next() {
		path := strings.TrimPrefix(v.path+"."+p.Key, ".")
		below := value{path: path, name: p.Key, schema: p.Value, chart: chart[p.Key], program: program[p.Key]}
		if own, found := programDefaults()[path]; found {
			below.program = plain(own)
		}
		out = append(out, below)
	}
	return out
}

// plain returns a struct as JSON has it.
func plain(in any) (out any) {
	raw, err := json.Marshal(in)
	if err == nil {
		err = json.Unmarshal(raw, &out)
	}
	if err != nil {
		panic(fmt.Sprintf("a configuration that is no JSON: %v", err)) // its types are ours
	}
	return out
}

// section reports whether the files for people show the values below one. An entry of a list
// has none, nor has a section that is absent by default.
func (v value) section() bool {
	return v.schema.Properties != nil && (v.chart != nil || v.program != nil)
}

// shown returns the default as YAML on one line.
func (v value) shown() string {
	d := v.chart
	if d == nil {
		d = v.program
	}
	if d == nil {
		switch v.schema.Type {
		case "string":
			d = ""
		case "array":
			d = []any{}
		case "integer":
			d = 0
		case "boolean":
			d = false
		default:
			return "null"
		}
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(d); err != nil {
		panic(fmt.Sprintf("a default that is no JSON: %v", err)) // defaults are constants
	}
	return strings.TrimSpace(b.String())
}

// valuesFile returns values.yaml: every value with its description. A value that the chart
// leaves to the program is a comment.
func valuesFile(s *jsonschema.Schema) []byte {
	b := &bytes.Buffer{}
	fmt.Fprintf(b, "# %s\n# A line as \"#field: value\" shows the default of the program.\n", generated)
	writeValues(b, value{schema: s, chart: defaults()}, 0)
	return b.Bytes()
}

func writeValues(b *bytes.Buffer, v value, depth int) {
	indent := strings.Repeat("  ", depth)
	for _, below := range v.values() {
		if depth == 0 {
			b.WriteByte('\n')
		}
		for _, line := range wrap(below.schema.Description, 92-len(indent)) {
			fmt.Fprintf(b, "%s# %s\n", indent, line)
		}
		mark := ""
		if below.chart == nil {
			mark = "#"
		}
		if below.section() {
			fmt.Fprintf(b, "%s%s%s:\n", indent, mark, below.name)
			writeValues(b, below, depth+1)
			continue
		}
		fmt.Fprintf(b, "%s%s%s: %s\n", indent, mark, below.name, below.shown())
	}
}

// wrap breaks a text into lines of at most width characters.
func wrap(text string, width int) (lines []string) {
	line := ""
	for w := range strings.FieldsSeq(text) {
		if line != "" && len(line)+1+len(w) > width {
			lines, line = append(lines, line), ""
		}
		line = strings.TrimSpace(line + " " + w)
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}

// page returns the page that describes all values, also those of entries of lists and of
// sections that are absent by default.
func page(s *jsonschema.Schema) []byte {
	b := &bytes.Buffer{}
	fmt.Fprintf(b, "<!-- %s -->\n\n# Values of the Helm chart\n\n", generated)
	b.WriteString("How they are set: [installing](install.md). The configurations of both programs are\n" +
		"explained in [configuration](configuration.md). An unknown value, or one of another type, is\n" +
		"refused.\n")
	for _, top := range (value{schema: s, chart: defaults()}).values() {
		fmt.Fprintf(b, "\n## %s\n\n%s\n\n| value | default | |\n|---|---|---|\n", top.name, top.schema.Description)
		writeRows(b, top)
	}
	return b.Bytes()
}

func writeRows(b *bytes.Buffer, v value) {
	for _, below := range v.values() {
		text := below.schema.Description
		if e := enum(below.schema); e != "" {
			text += " One of " + e + "."
		}
		shown := "`" + below.shown() + "`"
		if below.section() {
			shown = ""
		}
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", below.path, shown, strings.ReplaceAll(strings.TrimSpace(text), "|", `\|`))
		if strings.HasSuffix(below.name, "elector") {
			continue // a selector of Kubernetes
		}
		writeRows(b, below)
		if item := below.schema.Items; item != nil && item.Properties != nil {
			writeRows(b, value{path: below.path + "[]", schema: item})
		}
	}
}

// enum returns the values that a text, or an entry of a list, may have.
func enum(s *jsonschema.Schema) string {
	if s.Items != nil {
		s = s.Items
	}
	var out []string
	for _, e := range s.Enum {
		out = append(out, fmt.Sprintf("`%v`", e))
	}
	return strings.Join(out, ", ")
}
