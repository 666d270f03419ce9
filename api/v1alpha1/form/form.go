// Package form validates values by the schema of an embedded CRD, as the API server does
// (docs/adr/0033), before the controller takes anything for a pod. A rule in CEL is here too; a rule
// that is not here fails every validation.
package form

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

const (
	// maxSpec bounds a spec in bytes of JSON: etcd stores objects of up to 1.5 MiB.
	maxSpec = 1 << 20
	// maxShown is the number of bytes of a value that an error shows.
	maxShown = 64
)

// InvalidError lists all invalid fields of a spec.
type InvalidError []FieldError

// FieldError is one invalid field.
type FieldError struct {
	// Field is the path of the field, as spec.interfaces[0].name. Want describes valid values.
	Field, Value, Want string
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

// Form is the schema of a value, prepared for validation.
type Form struct {
	*apiextensionsv1.JSONSchemaProps
	pattern *regexp.Regexp
	enum    []string
	fields  map[string]*Form
	items   *Form
}

// Of returns the form of a schema.
func Of(p *apiextensionsv1.JSONSchemaProps) *Form {
	f := &Form{JSONSchemaProps: p, pattern: regexp.MustCompile(p.Pattern), fields: map[string]*Form{}}
	for _, e := range p.Enum {
		f.enum = append(f.enum, strings.Trim(string(e.Raw), `"`))
	}
	f.XValidations = slices.DeleteFunc(f.XValidations, func(r apiextensionsv1.ValidationRule) bool { return strings.Contains(r.Rule, "oldSelf") }) // for updates only
	for name, field := range p.Properties {
		f.fields[name] = Of(&field)
	}
	if p.Items != nil {
		f.items = Of(p.Items.Schema)
	}
	return f
}

// Field returns the form of a field of an object, Items that of the elements of a list.
func (f *Form) Field(name string) *Form { return f.fields[name] }

// Items is described at Field.
func (f *Form) Items() *Form { return f.items }

// Validate returns nil if a value is valid and can be stored, otherwise an InvalidError.
func (f *Form) Validate(path string, value any) error {
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
	if len(c) == 0 {
		return nil
	}
	return InvalidError(c)
}

// checker collects invalid fields.
type checker InvalidError

func (c *checker) add(field, value, want string) { *c = append(*c, FieldError{field, value, want}) }

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

func (c *checker) value(path string, f *Form, v any) {
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
		for _, name := range slices.Sorted(maps.Keys(v)) {
			c.value(path+"."+name, f.fields[name], v[name])
		}
	}
	for _, r := range f.XValidations {
		if rule, known := Rules[r.Rule]; !known || !rule(v) {
			c.add(path, shown(v), r.Message)
		}
	}
}

// shown returns the text of a value in an error; a list has too much for one.
func shown(v any) string {
	if list, ok := v.([]any); ok {
		return fmt.Sprint(len(list), " elements")
	} else if text, ok := v.(string); ok {
		return text
	}
	raw, _ := json.Marshal(v) // it was decoded from JSON
	return string(raw)
}

func (c *checker) text(path string, f *Form, v string) {
	if want, ok := within(int64(utf8.RuneCountInString(v)), f.MinLength, f.MaxLength); !ok {
		c.add(path, v, "must have "+want+" characters")
	}
	if !f.pattern.MatchString(v) {
		c.add(path, v, cmp.Or(PatternTexts[f.Pattern], "must match "+f.Pattern))
	}
	if len(f.enum) > 0 && !slices.Contains(f.enum, v) {
		c.add(path, v, fmt.Sprintf("must be one of %q", f.enum))
	}
}

func (c *checker) list(path string, f *Form, list []any) {
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

// Rules are the CEL rules for the spec of a new PodAttachment, by their text in the CRD.
var Rules = map[string]func(v any) bool{
	"isCIDR(self)":         isCIDR,
	"isIP(self)":           isIP,
	"self.min <= self.max": ordered,
	"!has(self.max) || !has(self.min) || self.min <= self.max": ordered,
	"has(self.parent) != has(self.parentMAC)":                  func(v any) bool { return set(v, "parent", "parentMAC") == 1 },
	"[has(self.name), has(self.mac), has(self.kernelPath), has(self.pciAddress), has(self.resource)].filter(set, set).size() == 1": func(v any) bool {
		return set(v, "name", "mac", "kernelPath", "pciAddress", "resource") == 1
	},
	"!has(self.vf) || has(self.pciAddress) || has(self.resource)": func(v any) bool {
		return set(v, "vf") == 0 || set(v, "pciAddress", "resource") > 0
	},
	"self.id > 0 || !has(self.qos) && !has(self.protocol)": func(v any) bool {
		return number(v, "id") > 0 || set(v, "qos", "protocol") == 0
	},
	"self.filter(i, has(i.default) && i.default).size() <= 1": func(v any) bool {
		defaults := 0
		for _, i := range v.([]any) {
			defaults += set(i, "default") // false is left out
		}
		return defaults <= 1
	},
	"!has(self.binding.ovs) || has(self.mac) && size(self.mac) > 0 && has(self.mtu) && self.mtu > 0": func(v any) bool {
		return set(v.(map[string]any)["binding"], "ovs") == 0 || set(v, "mac") == 1 && number(v, "mtu") > 0
	},
	"!has(self.internal) || !self.internal || has(self.binding.routed) && !(has(self.default) && self.default)": func(v any) bool { // false is left out
		return set(v, "internal") == 0 || set(v.(map[string]any)["binding"], "routed") == 1 && set(v, "default") == 0
	},
}

// isCIDR and isIP accept the same texts as the API server's functions
// (k8s.io/apiserver/pkg/cel/library).
func isCIDR(v any) bool {
	p, err := netip.ParsePrefix(v.(string))
	return err == nil && !p.Addr().Is4In6()
}

func isIP(v any) bool {
	a, err := netip.ParseAddr(v.(string))
	return err == nil && a.Zone() == "" && !a.Is4In6()
}

// ordered reports whether min is not above max, if both are set.
func ordered(v any) bool {
	return set(v, "min", "max") < 2 || number(v, "min") <= number(v, "max")
}

// set returns how many of some fields are set.
func set(v any, fields ...string) (n int) {
	for _, f := range fields {
		if _, ok := v.(map[string]any)[f]; ok {
			n++
		}
	}
	return n
}

// number returns a field; 0 if it is not set.
func number(v any, field string) float64 {
	n, _ := v.(map[string]any)[field].(float64)
	return n
}

const (
	interfaceText = "must have 1 to 15 of a-z, A-Z, 0-9, '_', '.', '-', and begin with a letter or digit"
	macText       = "must be six bytes, as 02:23:45:67:89:ab"
)

// PatternTexts describe the texts that match a pattern of the schema.
var PatternTexts = map[string]string{
	`^[a-zA-Z0-9-]{1,64}$`:                                                                 "must have 1 to 64 of a-z, A-Z, 0-9 and '-'",
	`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`:                                                 "must be the name of a namespace",
	`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,14}$`:                                                    interfaceText,
	`^([a-zA-Z0-9][a-zA-Z0-9_.-]{0,14})?$`:                                                 interfaceText,
	`^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)?$`:                                              "must be the name of a domain: 1 to 63 of a-z, 0-9 and '-'",
	`^([0-9a-f]{2}(:[0-9a-f]{2}){5})?$`:                                                    macText,
	`^[0-9a-f]{2}(:[0-9a-f]{2}){5}$`:                                                       macText,
	`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`:                                          "must be the ID of a port, as 3f1c2d4e-0000-4000-8000-0123456789ab",
	`^/sys/devices/[a-zA-Z0-9_.:/-]{1,240}$`:                                               "must be a path below /sys/devices",
	`^[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$`:                                        "must be a PCI address, as 0000:3b:00.1",
	`^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/[a-zA-Z0-9]([a-zA-Z0-9_.-]{0,61}[a-zA-Z0-9])?$`: "must be the name of a device plugin's resource, as intel.com/sriov_a",
	`^([a-zA-Z0-9][a-zA-Z0-9_.:-]{0,127})?$`:                                               "must have at most 128 of a-z, A-Z, 0-9, '_', '.', ':', '-', and begin with a letter or digit",
}
