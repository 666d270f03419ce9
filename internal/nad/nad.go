// Package nad parses NetworkAttachmentDefinitions (NPWG multi-network specification 1.3)
// as far as Fairlead serves them: networks whose plugin gets its addresses from
// fairlead-ipam, also under the name of whereabouts. Pure functions; no I/O.
package nad

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"

	"fairlead.dev/fairlead/internal/whereabouts"
)

// Kind is the kind of NetworkAttachmentDefinitions in the API.
var Kind = schema.GroupVersionKind{Group: "k8s.cni.cncf.io", Version: "v1", Kind: "NetworkAttachmentDefinition"}

// Type is the ipam.type of Fairlead.
const Type = "fairlead-ipam"

// maxPools is the number of pools that a network may name.
const maxPools = 16

// Network is a parsed NetworkAttachmentDefinition.
type Network struct {
	// IPAM is the ipam.type: Type, whereabouts.Type, or the type of another plugin, which
	// Fairlead leaves alone; empty if there is none.
	IPAM string
	// Pools of fairlead-ipam, in order: the first pool that serves an interface gives its
	// addresses. Empty means the pools of the default network.
	Pools []string
	// Whereabouts is the configuration of whereabouts, in which an interface gets an
	// address of each range; nil for other types.
	Whereabouts *whereabouts.Config
	// Warnings describe the options of the configuration that Fairlead treats
	// differently.
	Warnings []string
}

// Served reports whether Fairlead gives the network's addresses.
func (n Network) Served() bool { return n.IPAM == Type || n.IPAM == whereabouts.Type }

// Parse parses spec.config. Options that a configuration of whereabouts does not set come
// from flat, the content of its flat file, which may be empty. An error names the field,
// the value and the accepted form. Network is empty if spec.config is empty, because the
// configuration is then a file on the nodes.
func Parse(config string, flat []byte) (Network, error) {
	section, err := Section([]byte(config))
	if err != nil || section == nil {
		return Network{}, err
	}
	var n Network
	if n.IPAM, err = typeOf(section); err != nil {
		return Network{}, err
	}
	switch n.IPAM {
	case Type:
		n.Pools, err = pools(section)
	case whereabouts.Type:
		var c whereabouts.Config
		if c, n.Warnings, err = whereabouts.Parse(section, flat); err == nil {
			n.Whereabouts = &c
		}
	}
	if err != nil {
		return Network{}, err
	}
	return n, nil
}

// Section returns the ipam section of a network configuration, or of the first plugin
// with one in a list (CNI specification 1.1.0, section 1); nil if there is none.
func Section(config []byte) (json.RawMessage, error) {
	if len(bytes.TrimSpace(config)) == 0 {
		return nil, nil
	}
	type plugin struct {
		IPAM json.RawMessage `json:"ipam"`
	}
	var list struct {
		plugin
		Plugins []plugin `json:"plugins"`
	}
	if err := json.Unmarshal(config, &list); err != nil {
		return nil, fmt.Errorf("network configuration: must be a JSON object as in the CNI specification: %w", err)
	}
	for _, p := range append([]plugin{list.plugin}, list.Plugins...) {
		if empty := bytes.TrimSpace(p.IPAM); len(empty) > 0 && !bytes.Equal(empty, []byte("null")) && !bytes.Equal(empty, []byte("{}")) {
			return p.IPAM, nil
		}
	}
	return nil, nil
}

func typeOf(section json.RawMessage) (string, error) {
	var o struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(section, &o); err != nil {
		return "", fmt.Errorf("network configuration: ipam: %w", err)
	}
	return o.Type, nil
}

// pools parses the option of fairlead-ipam.
func pools(section json.RawMessage) ([]string, error) {
	var o struct {
		Pools []string `json:"pools"`
	}
	if err := json.Unmarshal(section, &o); err != nil {
		return nil, fmt.Errorf("network configuration: ipam: %w", err)
	}
	if len(o.Pools) > maxPools {
		return nil, fmt.Errorf("ipam.pools: %d entries: at most %d", len(o.Pools), maxPools)
	}
	var errs []error
	for i, name := range o.Pools {
		switch {
		case len(validation.IsDNS1123Subdomain(name)) > 0:
			errs = append(errs, fmt.Errorf("ipam.pools[%d]: %q: must be the name of an IPPool", i, name))
		case slices.Contains(o.Pools[:i], name):
			errs = append(errs, fmt.Errorf("ipam.pools[%d]: %q: must be named once", i, name))
		}
	}
	return o.Pools, errors.Join(errs...)
}
