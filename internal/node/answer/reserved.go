package answer

import (
	"encoding/json"
	"strings"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/node/ledger"
)

// ReservedPort is a port of the host that the node itself needs.
type ReservedPort struct {
	// Protocol is "tcp", "udp" or "sctp".
	Protocol string
	Port     uint16
	// Option is the field of the configuration that reserves it.
	Option string
}

// NotReserved returns fault.ErrInvalid if a host port of a pod is reserved for the node
// itself: a port that Fairlead would open, or a port in the arguments of a plugin for
// portMappings.
func NotReserved(add *ledger.Add, pod ledger.Pod, reserved []ReservedPort) error {
	for _, p := range add.HostPorts {
		for _, r := range reserved {
			if r.Port == p.HostPort && r.Protocol == p.Protocol {
				return isReserved("runtimeConfig.portMappings", int64(p.HostPort), pod, r)
			}
		}
	}
	for _, i := range add.Interfaces {
		for _, list := range []*v1alpha1.PluginList{i.Chain, i.Binding.Delegate} {
			if list == nil || list.RuntimeConfig == "" {
				continue
			}
			if err := pluginsSpare(i.Interface, list, pod, reserved); err != nil {
				return err
			}
		}
	}
	return nil
}

// pluginsSpare returns fault.ErrInvalid if the plugins of an interface get a host port that
// is reserved. A plugin takes a mapping without a protocol for one of TCP.
func pluginsSpare(i v1alpha1.Interface, list *v1alpha1.PluginList, pod ledger.Pod, reserved []ReservedPort) error {
	var arguments struct {
		PortMappings []struct {
			HostPort int64  `json:"hostPort"`
			Protocol string `json:"protocol"`
		} `json:"portMappings"`
	}
	if err := json.Unmarshal([]byte(list.RuntimeConfig), &arguments); err != nil {
		return fault.Errorf(fault.ErrInvalid, "interface %s on network %s of pod %s: runtimeConfig: %w", i.Name, i.Network, pod, err)
	}
	for _, m := range arguments.PortMappings {
		protocol := strings.ToLower(m.Protocol)
		if protocol == "" {
			protocol = "tcp"
		}
		for _, r := range reserved {
			if int64(r.Port) == m.HostPort && r.Protocol == protocol {
				return isReserved("portMappings of network "+i.Network, m.HostPort, pod, r)
			}
		}
	}
	return nil
}

func isReserved(field string, port int64, pod ledger.Pod, r ReservedPort) error {
	return fault.Errorf(fault.ErrInvalid, "%s: host port %d/%s of pod %s is reserved for the node (%s in the configuration of fairlead-node): choose another port, or change that option",
		field, port, r.Protocol, pod, r.Option)
}
