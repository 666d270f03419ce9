package v1alpha1_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// kubectl get prints plain text: it would show a list as JSON, and only the first element
// of a list with [*].
func TestColumnsArePlainText(t *testing.T) {
	files, err := filepath.Glob("crd/fairlead.dev_*.yaml")
	if err != nil || len(files) != 9 {
		t.Fatalf("%d CRDs, %v: want 9", len(files), err)
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.Unmarshal(raw, &crd); err != nil {
			t.Fatal(err)
		}
		version := crd.Spec.Versions[0]
		for _, column := range version.AdditionalPrinterColumns {
			if column.JSONPath == ".metadata.creationTimestamp" {
				continue
			}
			if kind := kindAt(*version.Schema.OpenAPIV3Schema, column.JSONPath); kind != "string" && kind != "integer" && kind != "boolean" {
				t.Errorf("%s: column %s shows %s, which is of type %q", crd.Name, column.Name, column.JSONPath, kind)
			}
		}
	}
}

// step matches a field of a path, with an optional index.
var step = regexp.MustCompile(`\.(\w+)(\[[^]*]+\])?`)

// kindAt returns the type of the field at a path; "" if there is no such field.
func kindAt(schema apiextensionsv1.JSONSchemaProps, path string) string {
	for _, m := range step.FindAllStringSubmatch(strings.ReplaceAll(path, "@.type", "type"), -1) {
		var there bool
		if schema, there = schema.Properties[m[1]]; !there {
			return ""
		}
		if m[2] != "" && schema.Items != nil {
			schema = *schema.Items.Schema
		}
	}
	return schema.Type
}

func TestOneLine(t *testing.T) {
	for _, tc := range []struct {
		texts []string
		most  int
		want  string
	}{
		{nil, 10, ""},
		{[]string{"10.1.0.0/26"}, 20, "10.1.0.0/26"},
		{[]string{"a", "bb", "ccc"}, 8, "a,bb,ccc"},
		{[]string{"a", "bb", "cccc"}, 8, "a,bb,..."},
		{[]string{"abcdefghijk"}, 8, ",..."},
	} {
		if got := v1alpha1.OneLine(tc.texts, tc.most); got != tc.want || len(got) > tc.most {
			t.Errorf("%q in %d bytes: %q, want %q", tc.texts, tc.most, got, tc.want)
		}
	}
}
