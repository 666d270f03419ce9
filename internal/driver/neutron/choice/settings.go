package choice

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"fairlead.dev/fairlead/internal/pod"
)

// AnnotationKuryr is Kuryr's annotation of a NetworkAttachmentDefinition: a JSON object with
// subnetId and driverType.
const AnnotationKuryr = "openstack.org/kuryr-config"

// Types of plugins whose networks have Neutron ports.
const (
	// Type is that of Fairlead.
	Type = "fairlead-neutron"
	// typePort and typeCNI are those of openstack-port-cni and openstack-cni.
	typePort = "openstack-port-cni"
	typeCNI  = "openstack-cni"
)

// Settings are the settings of a network, in names or IDs. An empty field is not set.
type Settings struct {
	Network   string
	Subnets   []string
	Groups    []string
	QoSPolicy string
	Project   string
	// PortSecurity and DNSName are nil if they are not set.
	PortSecurity, DNSName *bool
}

// unprotected reports whether port security is switched off.
func (s Settings) unprotected() bool { return s.PortSecurity != nil && !*s.PortSecurity }

// Bounds of the settings.
const (
	maxList = 16
	// maxName is the length of a name in Neutron.
	maxName = 255
)

// key reads the value of one key.
type key func(s *Settings, value json.RawMessage) error

// dialect has the keys of one type of plugin.
type dialect map[string]key

// common are the keys of all plugins that need no attention here.
var common = []string{"cniVersion", "cniVersions", "name", "type", "capabilities", "disableCheck", "disableGC"}

// dialects are the keys of each type of plugin; of the type "" those of AnnotationKuryr.
var dialects = map[string]dialect{
	Type: {
		"network":        text(func(s *Settings) *string { return &s.Network }),
		"subnets":        list(func(s *Settings) *[]string { return &s.Subnets }),
		"securityGroups": list(func(s *Settings) *[]string { return &s.Groups }),
		"qosPolicy":      text(func(s *Settings) *string { return &s.QoSPolicy }),
		"project":        text(func(s *Settings) *string { return &s.Project }),
		"portSecurity":   flag(func(s *Settings) **bool { return &s.PortSecurity }),
		"dnsName":        flag(func(s *Settings) **bool { return &s.DNSName }),
	},
	typePort: {
		"network_id":         text(func(s *Settings) *string { return &s.Network }),
		"subnet_id":          element(func(s *Settings) *[]string { return &s.Subnets }),
		"security_group_ids": list(func(s *Settings) *[]string { return &s.Groups }),
		// The node plugs the interface itself.
		"delegate_plugin": only("ovs"), "bridge": only("br-int"), "socket_file": ignored, "socket_path": ignored,
	},
	typeCNI: {
		"network":         text(func(s *Settings) *string { return &s.Network }),
		"subnet_name":     element(func(s *Settings) *[]string { return &s.Subnets }),
		"security_groups": list(func(s *Settings) *[]string { return &s.Groups }),
		// A project is where openstack-cni looks names up; its ports are in the project of the
		// credentials. The name of a port is part of its identity here.
		"project_name": ignored, "port_name": ignored,
	},
	"": {
		"subnetId":   element(func(s *Settings) *[]string { return &s.Subnets }),
		"driverType": only("neutron-vif", "nested-vlan", "nested-macvlan"), // the node chooses
	},
}

// PluginTypes are the types of plugins of the dialects.
func PluginTypes() []string { return []string{Type, typePort, typeCNI} }

// parse reads the settings of a network. An error names the key or the annotation, the value
// and the accepted form.
func parse(in *pod.Settings) (Settings, error) {
	if in.Type != "" {
		return dialects[in.Type].read(in.Type, in.Plugin)
	}
	kuryr, ok := in.Annotations[AnnotationKuryr]
	if !ok {
		return Settings{}, fmt.Errorf("spec.config: empty: must be a configuration of type %s, or the annotation %s must name a subnet", Type, AnnotationKuryr)
	}
	s, err := dialects[""].read("annotation "+AnnotationKuryr, kuryr)
	if err != nil {
		return Settings{}, fmt.Errorf("annotation %s: %w", AnnotationKuryr, err)
	}
	if len(s.Subnets) == 0 {
		return Settings{}, fmt.Errorf("annotation %s: subnetId: absent: must be the ID of a subnet", AnnotationKuryr)
	}
	return s, nil
}

// read reads an object; of names the dialect in an error.
func (d dialect) read(of, text string) (Settings, error) {
	var (
		s    Settings
		keys map[string]json.RawMessage
	)
	if err := json.Unmarshal([]byte(text), &keys); err != nil {
		return s, fmt.Errorf("%.64q: must be a JSON object: %w", text, err)
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(keys)) {
		read, ok := d[name]
		if !ok && !slices.Contains(common, name) {
			errs = append(errs, fmt.Errorf("%.64q: is not served for %s: remove it; served are %s", name, of, strings.Join(slices.Sorted(maps.Keys(d)), ", ")))
		}
		if ok && string(keys[name]) != "null" {
			if err := read(&s, keys[name]); err != nil {
				errs = append(errs, fmt.Errorf("%s: %.64s: %w", name, keys[name], err))
			}
		}
		if len(errs) == maxErrors {
			break
		}
	}
	return s, errors.Join(errs...)
}

// maxErrors is the number of errors that are reported at once.
const maxErrors = 8

var errName = fmt.Errorf("must be a name or an ID of 1 to %d characters", maxName)

func text(at func(*Settings) *string) key {
	return func(s *Settings, value json.RawMessage) error {
		var v string
		if err := json.Unmarshal(value, &v); err != nil || !isName(v) {
			return errName
		}
		*at(s) = v
		return nil
	}
}

// element reads one name as a list.
func element(at func(*Settings) *[]string) key {
	return func(s *Settings, value json.RawMessage) error {
		var v string
		if err := json.Unmarshal(value, &v); err != nil || !isName(v) {
			return errName
		}
		*at(s) = []string{v}
		return nil
	}
}

func list(at func(*Settings) *[]string) key {
	return func(s *Settings, value json.RawMessage) error {
		var v []string
		if err := json.Unmarshal(value, &v); err != nil || len(v) == 0 || len(v) > maxList || slices.ContainsFunc(v, func(n string) bool { return !isName(n) }) {
			return fmt.Errorf("must be a list of 1 to %d names or IDs", maxList)
		}
		*at(s) = v
		return nil
	}
}

func flag(at func(*Settings) **bool) key {
	return func(s *Settings, value json.RawMessage) error {
		var v bool
		if err := json.Unmarshal(value, &v); err != nil {
			return errors.New("must be true or false")
		}
		*at(s) = &v
		return nil
	}
}

// only accepts some values, which have no effect.
func only(accepted ...string) key {
	return func(_ *Settings, value json.RawMessage) error {
		var v string
		if err := json.Unmarshal(value, &v); err != nil || !slices.Contains(accepted, v) {
			return fmt.Errorf("must be %q, or left out", accepted)
		}
		return nil
	}
}

func ignored(*Settings, json.RawMessage) error { return nil }

// isName reports whether a text may be a name in Neutron.
func isName(s string) bool {
	return s != "" && len(s) <= maxName && strings.TrimSpace(s) == s && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f })
}

// names parses a list of names, separated by commas.
func names(text string) ([]string, error) {
	out := strings.Split(text, ",")
	for i := range out {
		if out[i] = strings.TrimSpace(out[i]); !isName(out[i]) || slices.Contains(out[:i], out[i]) {
			return nil, fmt.Errorf("%.64q: must be 1 to %d different names or IDs, separated by commas", text, maxList)
		}
	}
	if len(out) > maxList {
		return nil, fmt.Errorf("%.64q: %d names: must be 1 to %d", text, len(out), maxList)
	}
	return out, nil
}
