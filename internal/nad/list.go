package nad

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// Bounds of a configuration, those of a PluginList in the API. Sizes are in bytes.
const (
	maxConfig  = 128 << 10
	maxPlugins = 16
	maxPlugin  = 16 << 10
	maxName    = 253
)

// versions of the CNI that Fairlead serves, in order.
var versions = []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"}

var (
	// networkName is the form that libcni accepts.
	networkName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]*$`)
	// program is the name of a plugin's file, without a folder.
	program = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}$`)
)

const wantProgram = "must be the name of a plugin: 1 to 63 of a-z, A-Z, 0-9, '_', '.', '-', beginning with a letter or digit"

// list is a network configuration: a list of plugins, or one plugin.
type list struct {
	name, version string
	plugins       []plugin
	ignored       []string
}

// plugin is the configuration of one plugin.
type plugin struct {
	// path is the beginning of the path of its options: "plugins[0].", or empty if the
	// configuration is that of one plugin.
	path string
	// kind is its type.
	kind string
	// text is its configuration as compact JSON.
	text []byte
	// ipam is its ipam section as it stands; nil if it is empty.
	ipam         json.RawMessage
	ipamType     string
	capabilities map[string]bool
}

// readList parses a configuration. The name is optional. With an error the list has the
// fields that could be read.
func readList(config []byte) (list, error) {
	var o struct {
		Name         string            `json:"name"`
		CNIVersion   string            `json:"cniVersion"`
		CNIVersions  []string          `json:"cniVersions"`
		DisableCheck json.RawMessage   `json:"disableCheck"`
		DisableGC    json.RawMessage   `json:"disableGC"`
		Type         json.RawMessage   `json:"type"`
		IPAM         json.RawMessage   `json:"ipam"`
		Plugins      []json.RawMessage `json:"plugins"`
	}
	var l list
	if err := json.Unmarshal(config, &o); err != nil {
		return l, explain("", err)
	}
	l.name = o.Name
	if err := unique("", config); err != nil {
		return l, err
	}
	for key, value := range map[string]json.RawMessage{"disableCheck": o.DisableCheck, "disableGC": o.DisableGC} {
		if strings.EqualFold(strings.Trim(string(value), `"`), "true") {
			l.ignored = append(l.ignored, key+": true: without effect")
		}
	}
	slices.Sort(l.ignored)
	raws, path := o.Plugins, "plugins[%d]."
	switch {
	case o.Plugins == nil:
		raws, path = []json.RawMessage{config}, ""
	case o.Type != nil:
		return l, fmt.Errorf("plugins: stands beside type: must be left out of the configuration of one plugin, or type of that of a list")
	case nonempty(o.IPAM) != nil:
		return l, fmt.Errorf("ipam: stands beside plugins: must be in one of them")
	case len(o.Plugins) == 0 || len(o.Plugins) > maxPlugins:
		return l, fmt.Errorf("plugins: %d elements: must have 1 to %d", len(o.Plugins), maxPlugins)
	}
	for i, raw := range raws {
		at := path
		if at != "" {
			at = fmt.Sprintf(path, i)
		}
		p, err := readPlugin(at, raw)
		if err != nil {
			return l, err
		}
		l.plugins = append(l.plugins, p)
	}
	if o.Name != "" && (len(o.Name) > maxName || !networkName.MatchString(o.Name)) {
		return l, fmt.Errorf("name: %s: must have 1 to %d of a-z, A-Z, 0-9, '_', '.', '-', and begin with a letter or digit", shown(o.Name), maxName)
	}
	best := -1
	for _, v := range append(o.CNIVersions, o.CNIVersion) {
		best = max(best, slices.Index(versions, v))
	}
	if best < 0 {
		return l, fmt.Errorf("cniVersion: %s: must be one of %s", shown(o.CNIVersion), strings.Join(versions, ", "))
	}
	l.version = versions[best]
	return l, nil
}

// readPlugin parses the keys that all plugins have.
func readPlugin(path string, raw json.RawMessage) (plugin, error) {
	var o struct {
		Type         string          `json:"type"`
		IPAM         json.RawMessage `json:"ipam"`
		Capabilities map[string]bool `json:"capabilities"`
	}
	if err := json.Unmarshal(raw, &o); err != nil {
		return plugin{}, explain(path, err)
	}
	if err := unique(path, raw); err != nil {
		return plugin{}, err
	}
	var text bytes.Buffer
	if err := json.Compact(&text, raw); err != nil {
		return plugin{}, explain(path, err)
	}
	p := plugin{path: path, kind: o.Type, text: text.Bytes(), ipam: nonempty(o.IPAM), capabilities: o.Capabilities}
	if len(p.text) > maxPlugin {
		return p, fmt.Errorf("%stype: %s: its configuration has %d bytes: at most %d", path, shown(o.Type), len(p.text), maxPlugin)
	}
	if !program.MatchString(o.Type) {
		return p, fmt.Errorf("%stype: %s: %s", path, shown(o.Type), wantProgram)
	}
	if p.ipam == nil {
		return p, nil
	}
	var i struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(p.ipam, &i); err != nil {
		return p, explain(path+"ipam.", err)
	}
	if err := unique(path+"ipam.", p.ipam); err != nil {
		return p, err
	}
	if p.ipamType = i.Type; !program.MatchString(i.Type) {
		return p, fmt.Errorf("%sipam.type: %s: %s", path, shown(i.Type), wantProgram)
	}
	return p, nil
}

// unique refuses an object that has a key twice. A plugin may see another of the values, or
// both merged, so it could execute a plugin that Fairlead does not see.
func unique(path string, object json.RawMessage) error {
	if !bytes.HasPrefix(bytes.TrimSpace(object), []byte("{")) {
		return nil // null has no keys
	}
	d := json.NewDecoder(bytes.NewReader(object))
	if _, err := d.Token(); err != nil {
		return explain(path, err)
	}
	seen := map[string]bool{}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return explain(path, err)
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return explain(path, err)
		}
		key, _ := t.(string)
		if seen[fold(key)] {
			return fmt.Errorf("%s: the key %s stands in it twice, perhaps in another case: must be there once", strings.TrimSuffix("configuration."+path, "."), shown(key))
		}
		seen[fold(key)] = true
	}
	return nil
}

// fold returns the same text for all keys that encoding/json takes for the same.
func fold(key string) string {
	return strings.Map(func(r rune) rune {
		for {
			next := unicode.SimpleFold(r)
			if next <= r {
				return next
			}
			r = next
		}
	}, key)
}

// nonempty returns a section, or nil if it is absent, null or {}.
func nonempty(section json.RawMessage) json.RawMessage {
	switch string(bytes.Join(bytes.Fields(section), nil)) {
	case "", "null", "{}":
		return nil
	}
	return section
}
