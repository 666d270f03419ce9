package v1alpha1

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// This file validates the spec of a PodAttachment by the schema of the embedded CRD, as the
// API server does (docs/adr/0033). So the controller validates a record before it takes
// anything for a pod. A rule in CEL is here too, since the library that evaluates it is large
// and slow; a rule that is not here fails every validation.

const (
	// maxSpec bounds a spec in bytes of JSON: etcd stores objects of up to 1.5 MiB.
	maxSpec = 1 << 20
	// maxShown is the number of bytes of a value that an error shows.
	maxShown = 64
)

// InvalidError lists all invalid fields of a spec.
//
// +kubebuilder:object:generate=false
type InvalidError []FieldError

// FieldError is one invalid field.
//
// +kubebuilder:object:generate=false
type FieldError struct {
	// Field is the path of the field, as spec.interfaces[0].name.
	Field string
	// Value of the field.
	Value string
	// Want describes valid values.
	Want string
}

// Error returns every field with its value and the valid values.
func (e InvalidError) Error() string {
	texts := make([]string, 0, len(e))
	for _, f := range e {
		value := f.Value
		if len(value) > maxShown {
			value = strings.ToValidUTF8(value[:maxShown], "") + "..."
		}
		texts = append(texts, fmt.Sprintf("%s: %q: %s", f.Field, value, f.Want))
	}
	return strings.Join(texts, "; ")
}

// Validate returns nil if the API server accepts the spec in a new PodAttachment, otherwise
// an InvalidError.
func (s *PodAttachmentSpec) Validate() error { return specForm().validate("spec", s) }

// Validate returns nil if the API server accepts the interface in a PodAttachment,
// otherwise an InvalidError.
func (i *Interface) Validate() error {
	return specForm().fields["interfaces"].items.validate("interface", i)
}

// form is the schema of a value, prepared for validation.
type form struct {
	*apiextensionsv1.JSONSchemaProps
	pattern *regexp.Regexp
	enum    []string
	// names are the names of the fields, sorted.
	names  []string
	fields map[string]*form
	items  *form
}

// specForm returns the form of PodAttachmentSpec.
var specForm = sync.OnceValue(func() *form {
	crd, err := readCRD("fairlead.dev_podattachments.yaml")
	if err != nil {
		panic(err) // it is embedded
	}
	spec := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
	return formOf(&spec)
})

func formOf(p *apiextensionsv1.JSONSchemaProps) *form {
	f := &form{JSONSchemaProps: p, pattern: regexp.MustCompile(p.Pattern), fields: map[string]*form{}}
	for _, e := range p.Enum {
		f.enum = append(f.enum, strings.Trim(string(e.Raw), `"`))
	}
	f.XValidations = slices.DeleteFunc(f.XValidations, func(r apiextensionsv1.ValidationRule) bool { return strings.Contains(r.Rule, "oldSelf") }) // for updates only
	for name, field := range p.Properties {
		f.fields[name] = formOf(&field)
	}
	f.names = slices.Sorted(maps.Keys(f.fields))
	if p.Items != nil {
		f.items = formOf(p.Items.Schema)
	}
	return f
}

// validate returns nil if a value is valid and can be stored, otherwise an InvalidError.
func (f *form) validate(path string, value any) error {
	raw, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	var decoded any
	if err := json.Unmarshal(raw, &decoded); err != nil {
		return fmt.Errorf("decode %s: %w", path, err)
	}
	var c checker
	c.count(path, len(raw), "bytes", nil, new(int64(maxSpec)))
	c.value(path, f, decoded)
	if len(c.errs) == 0 {
		return nil
	}
	return c.errs
}

// checker collects invalid fields.
//
// +kubebuilder:object:generate=false
type checker struct{ errs InvalidError }

func (c *checker) add(field, value, want string) {
	c.errs = append(c.errs, FieldError{field, value, want})
}

// count checks the number of some things; nil is no bound.
func (c *checker) count(path string, n int, things string, least, most *int64) {
	if want, ok := within(int64(n), least, most); !ok {
		c.add(path, fmt.Sprint(n, " ", things), "must have "+want)
	}
}

// within reports whether a number is in a range, which it describes otherwise.
func within[T int64 | float64](n T, least, most *T) (want string, ok bool) {
	switch {
	case (least == nil || n >= *least) && (most == nil || n <= *most):
		return "", true
	case most == nil:
		return fmt.Sprint("at least ", *least), false
	case least == nil:
		return fmt.Sprint("0 to ", *most), false
	case *least == *most:
		return fmt.Sprint("exactly ", *least), false
	}
	return fmt.Sprint(*least, " to ", *most), false
}

func (c *checker) value(path string, f *form, v any) {
	switch v := v.(type) {
	case string:
		c.text(path, f, v)
	case float64:
		if want, ok := within(v, f.Minimum, f.Maximum); !ok {
			c.add(path, fmt.Sprint(v), "must be "+want)
		}
	case nil: // a list that is required
		c.list(path, f, nil)
		return
	case []any:
		c.list(path, f, v)
	case map[string]any:
		c.count(path, len(v), "fields", f.MinProperties, f.MaxProperties)
		for _, name := range f.names {
			if field, ok := v[name]; ok {
				c.value(path+"."+name, f.fields[name], field)
			}
		}
	}
	for _, r := range f.XValidations {
		if rule, known := rules[r.Rule]; !known || !rule(v) {
			shown, ok := v.(string)
			if !ok {
				raw, _ := json.Marshal(v) // it was decoded from JSON
				shown = string(raw)
			}
			c.add(path, shown, r.Message)
		}
	}
}

func (c *checker) text(path string, f *form, v string) {
	if want, ok := within(int64(utf8.RuneCountInString(v)), f.MinLength, f.MaxLength); !ok {
		c.add(path, v, "must have "+want+" characters")
	}
	if !f.pattern.MatchString(v) {
		c.add(path, v, cmp.Or(patternTexts[f.Pattern], "must match "+f.Pattern))
	}
	if len(f.enum) > 0 && !slices.Contains(f.enum, v) {
		c.add(path, v, fmt.Sprintf("must be one of %q", f.enum))
	}
}

func (c *checker) list(path string, f *form, list []any) {
	c.count(path, len(list), "elements", f.MinItems, f.MaxItems)
	seen := map[any]bool{}
	for n, v := range list {
		at := fmt.Sprintf("%s[%d]", path, n)
		c.value(at, f.items, v)
		key := v
		switch {
		case f.XListType == nil || *f.XListType == "atomic":
			continue
		case len(f.XListMapKeys) == 1:
			key = v.(map[string]any)[f.XListMapKeys[0]]
			at += "." + f.XListMapKeys[0]
		}
		if seen[key] {
			c.add(at, fmt.Sprint(key), "must be in the list once")
		}
		seen[key] = true
	}
}
