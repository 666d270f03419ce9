package delegate

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"

	"github.com/containernetworking/cni/libcni"
	cnitypes "github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/node/install"
)

// pluginList is a parsed list.
type pluginList struct {
	name, version string
	plugins       []pluginConfig
	// runtime are the arguments of capabilities, args the value of args.cni.
	runtime, args map[string]json.RawMessage
}

// pluginConfig is the configuration of one plugin.
type pluginConfig struct {
	// kind is its type.
	kind string
	conf *libcni.PluginConfig
}

// kindPattern is the form of the type of a plugin. It has no slash and does not begin with
// a dot, so that it leads to no other directory.
var kindPattern = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,127}$`)

// parse parses a list; the error has all faults, each with the field, its value and the
// accepted values.
func parse(l v1alpha1.PluginList) (*pluginList, error) {
	out := &pluginList{name: l.Name, version: l.CNIVersion}
	var errs []error
	if err := cniproto.CheckNetworkName(l.Name); err != nil {
		errs = append(errs, errors.New(err.Error())) // its code is that of a request
	}
	if !slices.Contains(cniproto.Versions, l.CNIVersion) {
		errs = append(errs, fmt.Errorf("cniVersion: %.20q: must be one of %q", l.CNIVersion, cniproto.Versions))
	}
	if len(l.Plugins) == 0 {
		errs = append(errs, errors.New("plugins: empty: must have at least one"))
	}
	for n, text := range l.Plugins {
		p, err := parsePlugin(text)
		if err != nil {
			errs = append(errs, fmt.Errorf("plugins[%d]: %w", n, err))
		}
		out.plugins = append(out.plugins, p)
	}
	for _, f := range []struct {
		name, text string
		into       *map[string]json.RawMessage
	}{{"runtimeConfig", l.RuntimeConfig, &out.runtime}, {"args", l.Args, &out.args}} {
		if f.text == "" {
			continue
		}
		if err := json.Unmarshal([]byte(f.text), f.into); err != nil {
			errs = append(errs, fmt.Errorf("%s: %.60q: must be a JSON object: %w", f.name, f.text, err))
		}
	}
	return out, errors.Join(errs...)
}

func parsePlugin(text string) (p pluginConfig, err error) {
	p.conf, err = libcni.NetworkPluginConfFromBytes([]byte(text))
	if err != nil {
		return p, fmt.Errorf("%.60q: must be a JSON object with a type: %w", text, err)
	}
	p.kind = p.conf.Network.Type
	if err := checkKind("type", p.kind); err != nil {
		return p, err
	}
	if slices.Contains(cniproto.IPAMPrograms, p.kind) {
		return p, fmt.Errorf("type: %q: must make an interface: it only gives addresses, as ipam.type", p.kind)
	}
	if ipam := p.conf.Network.IPAM.Type; ipam != "" {
		return p, checkKind("ipam.type", ipam)
	}
	return p, nil
}

func checkKind(field, kind string) error {
	switch {
	case !kindPattern.MatchString(kind):
		return fmt.Errorf("%s: %.140q: must be the name of a plugin: letters, digits and _ . -, not in the beginning", field, kind)
	case kind == install.PluginName:
		return fmt.Errorf("%s: %q: must be another plugin: Fairlead would execute itself", field, kind)
	}
	return nil
}

// with has the values that are added to the configuration of a plugin.
type with struct {
	// result is the prevResult, of CNI version 1.1.0; nil for none.
	result *types100.Result
	// valid are the attachments in use, for GC; nil for none.
	valid []cnitypes.GCAttachment
	// runtime adds the arguments of the capabilities that the plugin declares.
	runtime bool
	// socket is added to the ipam section of Fairlead if it names none.
	socket string
}

// config returns the configuration of a plugin for its standard input.
func (l *pluginList) config(p pluginConfig, more with) ([]byte, error) {
	values := map[string]any{"name": l.name, "cniVersion": l.version}
	if more.result != nil {
		prev, err := inVersion(more.result, l.version)
		if err != nil {
			return nil, err
		}
		values["prevResult"] = prev
	}
	if more.valid != nil {
		values["cni.dev/valid-attachments"] = more.valid
		values["cni.dev/attachments"] = more.valid // its name in an earlier text of the specification (cni#1101)
	}
	if len(l.args) > 0 {
		args, err := section(p.conf.Bytes, "args")
		if err != nil {
			return nil, err
		}
		args["cni"] = l.args
		values["args"] = args
	}
	asked := map[string]json.RawMessage{}
	for capability, declared := range p.conf.Network.Capabilities {
		if value, ok := l.runtime[capability]; ok && declared && more.runtime {
			asked[capability] = value
		}
	}
	if len(asked) > 0 {
		values["runtimeConfig"] = asked
	}
	if slices.Contains(cniproto.IPAMPrograms, p.conf.Network.IPAM.Type) && more.socket != "" {
		ipam, err := section(p.conf.Bytes, "ipam")
		if err != nil {
			return nil, err
		}
		if ipam["socket"] == nil {
			ipam["socket"] = more.socket
			values["ipam"] = ipam
		}
	}
	conf, err := libcni.InjectConf(p.conf, values)
	if err != nil {
		return nil, fmt.Errorf("configuration of plugin %s: %w", p.kind, err)
	}
	return conf.Bytes, nil
}

// section returns an object of a configuration, empty if it has none.
func section(config []byte, name string) (map[string]any, error) {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(config, &all); err != nil {
		return nil, fmt.Errorf("configuration of a plugin: %w", err)
	}
	out := map[string]any{}
	if raw, ok := all[name]; ok {
		if err := json.Unmarshal(raw, &out); err != nil {
			return nil, fmt.Errorf("%s: %.60q: must be a JSON object: %w", name, raw, err)
		}
	}
	if out == nil { // null
		out = map[string]any{}
	}
	return out, nil
}
