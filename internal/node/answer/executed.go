package answer

import (
	"encoding/json"
	"fmt"
	"net"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/node/ledger"
)

// Executed returns an interface after the ADD of its plugins, with their result. If they
// have made the interface, its MAC, MTU and addresses are those of the result. Its routes
// are left to the plugins, whose CHECK compares them. Errors: the result cannot be decoded.
func Executed(i ledger.Interface, result json.RawMessage) (ledger.Interface, error) {
	with := *i.Made.Plugins
	with.Result = result
	i.Made.Plugins = &with
	res, err := executed(i)
	if err != nil || i.Binding.Delegate == nil {
		return i, err
	}
	i.Addresses, i.Gateways, i.Routes = nil, nil, nil
	i.MAC, i.MTU = "", 0
	for n, own := range res.Interfaces {
		if own.Name != i.Name || own.Sandbox == "" {
			continue
		}
		if mac, err := net.ParseMAC(own.Mac); err == nil && len(mac) == 6 {
			i.MAC = mac.String()
		}
		if own.Mtu > 0 && own.Mtu <= link.MaxMTU {
			i.MTU = int32(own.Mtu)
		}
		for _, ip := range res.IPs {
			if ip.Interface != nil && *ip.Interface == n {
				i.Addresses = append(i.Addresses, ip.Address.String())
			}
		}
	}
	return i, nil
}

// executed returns the recorded result of the plugins of an interface, nil if it has no
// plugins.
func executed(i ledger.Interface) (*types100.Result, error) {
	if i.Made.Plugins == nil {
		return nil, nil
	}
	out, err := create.CreateFromBytes(i.Made.Plugins.Result)
	if err != nil {
		return nil, fmt.Errorf("result of the plugins of interface %s: %w", i.Name, err)
	}
	return types100.GetResult(out)
}

// served are the capabilities that Fairlead serves itself for an interface that it makes:
// a chain does not get them.
var served = []string{"portMappings", "bandwidth"}

// handOver adds the runtime's arguments of capabilities to the plugins of the default
// interface. The list keeps its own arguments. Only capabilities that a plugin declares are
// added, because the record keeps them. Errors: fault.ErrInvalid.
func handOver(list *v1alpha1.PluginList, config json.RawMessage, except ...string) (*v1alpha1.PluginList, error) {
	var runtime struct {
		RuntimeConfig map[string]json.RawMessage `json:"runtimeConfig"`
	}
	if err := json.Unmarshal(config, &runtime); err != nil {
		return nil, fault.Errorf(fault.ErrInvalid, "runtimeConfig: must be a JSON object: %w", err)
	}
	all := map[string]json.RawMessage{}
	if list.RuntimeConfig != "" {
		if err := json.Unmarshal([]byte(list.RuntimeConfig), &all); err != nil {
			return nil, fault.Errorf(fault.ErrInvalid, "runtimeConfig of network %s: must be a JSON object: %w", list.Name, err)
		}
	}
	added := false
	for n, text := range list.Plugins {
		var p struct {
			Capabilities map[string]bool `json:"capabilities"`
		}
		if err := json.Unmarshal([]byte(text), &p); err != nil {
			return nil, fault.Errorf(fault.ErrInvalid, "plugins[%d] of network %s: must be a JSON object: %w", n, list.Name, err)
		}
		for name, declared := range p.Capabilities {
			if value, ok := runtime.RuntimeConfig[name]; ok && declared && !slices.Contains(except, name) && all[name] == nil {
				all[name], added = value, true
			}
		}
	}
	if !added {
		return list, nil
	}
	raw, err := json.Marshal(all)
	if err != nil {
		return nil, fmt.Errorf("encode runtimeConfig: %w", err)
	}
	out := list.DeepCopy()
	out.RuntimeConfig = string(raw)
	return out, nil
}
