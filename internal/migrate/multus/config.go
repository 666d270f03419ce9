package multus

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Config are the options of Multus that matter for a migration.
type Config struct {
	// Source is the place that it was read from, for people.
	Source string `json:"-"`

	ClusterNetwork   string            `json:"clusterNetwork"`
	Delegates        []json.RawMessage `json:"delegates"`
	DefaultNetworks  []string          `json:"defaultNetworks"`
	SystemNamespaces []string          `json:"systemNamespaces"`
	// MultusNamespace is the namespace of networks that name none; empty for kube-system.
	MultusNamespace    string `json:"multusNamespace"`
	NamespaceIsolation bool   `json:"namespaceIsolation"`
	// GlobalNamespaces are separated by commas; empty for "default".
	GlobalNamespaces       string `json:"globalNamespaces"`
	ReadinessIndicatorFile string `json:"readinessindicatorfile"`
	RetryDeleteOnError     bool   `json:"retryDeleteOnError"`
	AuxiliaryCNIChainName  string `json:"auxiliaryCNIChainName"`
	// ConfDir has the configurations of networks without spec.config, CNIDir the list of
	// each sandbox's plugins; empty for Multus' defaults.
	ConfDir string `json:"confDir"`
	CNIDir  string `json:"cniDir"`
	// ConfigFile is "auto" if Multus takes the first other file of the nodes' directory for
	// the cluster's network.
	ConfigFile string `json:"multusConfigFile"`
}

// maxConfig bounds a configuration, in bytes.
const maxConfig = 1 << 20

// ParseConfig parses a configuration of Multus in each of its forms: that of the daemon
// (daemon-config.json), and the plugin's own (00-multus.conf), alone or in a list.
func ParseConfig(text []byte) (Config, error) {
	var o struct {
		Config
		Type       string            `json:"type"`
		Plugins    []json.RawMessage `json:"plugins"`
		ChrootDir  string            `json:"chrootDir"`
		SocketDir  string            `json:"socketDir"`
		Kubeconfig string            `json:"kubeconfig"`
	}
	if len(text) > maxConfig {
		return Config{}, fmt.Errorf("configuration of Multus: %d bytes: at most %d", len(text), maxConfig)
	}
	if err := json.Unmarshal(text, &o); err != nil {
		return Config{}, fmt.Errorf("configuration of Multus: must be a JSON object, as daemon-config.json or 00-multus.conf: %w", err)
	}
	for _, raw := range o.Plugins {
		var p struct {
			Type string `json:"type"`
		}
		if json.Unmarshal(raw, &p) == nil && isMultus(p.Type) {
			return ParseConfig(raw)
		}
	}
	if !isMultus(o.Type) && o.ConfigFile == "" && o.SocketDir == "" && o.ChrootDir == "" {
		return Config{}, fmt.Errorf("configuration of Multus: type %q: must be that of Multus: daemon-config.json, or a file with a plugin of type multus or multus-shim", o.Type)
	}
	return o.Config, nil
}

func isMultus(plugin string) bool { return plugin == "multus" || plugin == "multus-shim" }

// ParseArgs returns the configuration that the entry point of the thin plugin makes from
// its arguments. ok is false if it copies a file instead.
func ParseArgs(args []string) (c Config, ok bool) {
	value := func(flag string) (string, bool) {
		for i, a := range args {
			if v, has := strings.CutPrefix(a, "--"+flag+"="); has {
				return v, true
			}
			if a == "--"+flag {
				if i+1 < len(args) && !strings.HasPrefix(args[i+1], "-") {
					return args[i+1], true
				}
				return "true", true
			}
		}
		return "", false
	}
	if file, has := value("multus-conf-file"); has && file != "auto" {
		return Config{}, false
	}
	c.ConfigFile = "auto"
	isolation, _ := value("namespace-isolation")
	c.NamespaceIsolation, _ = strconv.ParseBool(isolation)
	c.GlobalNamespaces, _ = value("global-namespaces")
	c.ReadinessIndicatorFile, _ = value("readiness-indicator-file")
	return c, true
}

// shared returns the namespaces whose networks all pods may use.
func (c Config) shared() []string {
	if c.GlobalNamespaces == "" {
		return []string{"default"}
	}
	var out []string
	for name := range strings.SplitSeq(c.GlobalNamespaces, ",") {
		if name = strings.TrimSpace(name); name != "" && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// namespace returns the namespace of networks that name none.
func (c Config) namespace() string {
	if c.MultusNamespace == "" {
		return "kube-system"
	}
	return c.MultusNamespace
}

// Setting is one option of Multus.
type Setting struct {
	Name string `json:"name"`
	// Value as Multus has it.
	Value string `json:"value"`
	// Served is false if Fairlead has no counterpart.
	Served bool `json:"served"`
	// Text describes the counterpart, or the remedy.
	Text string `json:"text"`
}

// settings judges the options of Multus.
func (s State) settings() []Setting {
	if s.Config == nil {
		return nil
	}
	c := *s.Config
	out := []Setting{s.defaultNetwork()}
	add := func(set, served bool, name, value, text string) {
		if set {
			out = append(out, Setting{Name: name, Value: value, Served: served, Text: text})
		}
	}
	add(len(c.DefaultNetworks) > 0, false, "defaultNetworks", strings.Join(c.DefaultNetworks, ", "), addsNone)
	add(len(c.SystemNamespaces) > 0, true, "systemNamespaces", strings.Join(c.SystemNamespaces, ", "), "without effect, as Fairlead has no defaultNetworks")
	add(c.namespace() != "kube-system", false, "multusNamespace", c.MultusNamespace,
		"Fairlead looks in kube-system for a network that v1.multus-cni.io/default-network names without a namespace: name the namespace there")
	add(c.NamespaceIsolation, true, "namespaceIsolation", "true", "networks.isolated and networks.sharedNamespaces, below")
	add(c.GlobalNamespaces != "" && !c.NamespaceIsolation, true, "globalNamespaces", c.GlobalNamespaces, "without effect, as namespaceIsolation is not set")
	add(c.ReadinessIndicatorFile != "", true, "readinessindicatorfile", c.ReadinessIndicatorFile, "not needed: STATUS reports whether the node can serve pods")
	add(c.RetryDeleteOnError, true, "retryDeleteOnError", "true", "always so")
	add(c.AuxiliaryCNIChainName != "", false, "auxiliaryCNIChainName", c.AuxiliaryCNIChainName, "not served: add the plugins of this chain to the runtime's configuration yourself")
	return out
}

// Texts about the default network.
const (
	already  = "Fairlead makes the default interface already"
	notOurs  = "the default network has to be Fairlead's: nodes can be switched when Fairlead makes the pods' default interface"
	addsNone = "Fairlead adds networks to no pod: name them in the annotation of the pods that need them"
)

// defaultNetwork judges the cluster's network.
func (s State) defaultNetwork() Setting {
	c := s.Config
	switch {
	case c.ClusterNetwork != "":
		if s.isFairlead(c.ClusterNetwork) {
			return Setting{Name: "clusterNetwork", Value: c.ClusterNetwork, Served: true, Text: already}
		}
		return Setting{Name: "clusterNetwork", Value: c.ClusterNetwork, Text: notOurs}
	case len(c.Delegates) > 1:
		return Setting{Name: "delegates", Value: fmt.Sprintf("%s and %d more", firstPlugin(c.Delegates[0]), len(c.Delegates)-1), Text: addsNone}
	case len(c.Delegates) == 1 && firstPlugin(c.Delegates[0]) == fairlead:
		return Setting{Name: "delegates", Value: fairlead, Served: true, Text: already}
	case len(c.Delegates) == 1:
		return Setting{Name: "delegates", Value: firstPlugin(c.Delegates[0]), Text: notOurs}
	}
	return Setting{Name: "clusterNetwork", Value: "auto", Served: true, Text: "the first other file in /etc/cni/net.d of each node: it must be 10-fairlead.conflist"}
}

// fairlead is the name and the type of Fairlead's configuration for the runtime.
const fairlead = "fairlead"

// isFairlead reports whether a clusterNetwork is Fairlead's configuration: by its name, by
// its file, or by a network that names its plugin.
func (s State) isFairlead(name string) bool {
	if name == fairlead || path.Base(name) == "10-fairlead.conflist" {
		return true
	}
	return slices.ContainsFunc(s.Networks, func(d Definition) bool {
		return d.Namespace == s.Config.namespace() && d.Name == name && firstPlugin([]byte(d.Config)) == fairlead
	})
}

// firstPlugin returns the type of the first plugin of a configuration.
func firstPlugin(config json.RawMessage) string {
	var o struct {
		Type    string `json:"type"`
		Plugins []struct {
			Type string `json:"type"`
		} `json:"plugins"`
	}
	if json.Unmarshal(config, &o) == nil && o.Type == "" && len(o.Plugins) > 0 {
		return o.Plugins[0].Type
	}
	return o.Type
}
