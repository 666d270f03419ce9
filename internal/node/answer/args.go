package answer

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/nft"
	"fairlead.dev/fairlead/internal/node/ledger"
)

// ParseArgs returns the pod that CNI_ARGS, "key=value;key=value", names. The UID may be
// empty; errors: fault.ErrEnvironment if namespace or name are missing.
func ParseArgs(args string) (ledger.Pod, error) {
	var p ledger.Pod
	for pair := range strings.SplitSeq(args, ";") {
		key, value, _ := strings.Cut(pair, "=")
		switch key {
		case "K8S_POD_NAMESPACE":
			p.Namespace = value
		case "K8S_POD_NAME":
			p.Name = value
		case "K8S_POD_UID":
			p.UID = types.UID(value)
		}
	}
	var missing []string
	if p.Namespace == "" {
		missing = append(missing, "K8S_POD_NAMESPACE")
	}
	if p.Name == "" {
		missing = append(missing, "K8S_POD_NAME")
	}
	if len(missing) > 0 {
		return p, fault.Errorf(fault.ErrEnvironment, "CNI_ARGS: %q: lacks %s", args, strings.Join(missing, " and "))
	}
	return p, nil
}

// Args returns the CNI_ARGS of plugins that are executed for a pod. They are those of a
// runtime, whatever the runtime passed.
func Args(pa *v1alpha1.PodAttachment, containerID string) string {
	pod := pa.Pod()
	return strings.Join([]string{
		"IgnoreUnknown=1", "K8S_POD_NAMESPACE=" + pod.Namespace, "K8S_POD_NAME=" + pod.Name,
		"K8S_POD_INFRA_CONTAINER_ID=" + containerID, "K8S_POD_UID=" + string(pa.Spec.PodUID),
	}, ";")
}

// Capabilities are the settings of runtimeConfig, which a runtime passes with an ADD (CNI
// conventions, "dynamic plugin specific fields"). Keys are accepted in any case:
// containerd sends HostPort, in the conventions it is hostPort.
type Capabilities struct {
	PortMappings []portMapping `json:"portMappings"`
	Bandwidth    *bandwidth    `json:"bandwidth"`
	IPs          []string      `json:"ips"`
	MAC          string        `json:"mac"`
	DNS          *runtimeDNS   `json:"dns"`
	// The others are not used. They must be well-formed.
	CgroupPath     string            `json:"cgroupPath"`
	PodAnnotations map[string]string `json:"io.kubernetes.cri.pod-annotations"`

	// config is the network configuration of the runtime, from which executed plugins get
	// capabilities.
	config json.RawMessage
}

// portMapping forwards a port of the host to the pod. It is ignored if HostPort is 0 or
// less.
type portMapping struct {
	HostPort      int64  `json:"hostPort"`
	ContainerPort int64  `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"hostIP"`
}

// bandwidth has rates in bit/s and bursts in bit.
type bandwidth struct {
	IngressRate  uint64 `json:"ingressRate"`
	IngressBurst uint64 `json:"ingressBurst"`
	EgressRate   uint64 `json:"egressRate"`
	EgressBurst  uint64 `json:"egressBurst"`
}

type runtimeDNS struct {
	Servers  []string `json:"servers"`
	Searches []string `json:"searches"`
	Options  []string `json:"options"`
}

// ParseCapabilities returns the capabilities in a network configuration; errors:
// cniproto.Error with code 6 if they cannot be decoded.
func ParseCapabilities(config json.RawMessage) (c Capabilities, err error) {
	var network struct {
		RuntimeConfig Capabilities `json:"runtimeConfig"`
	}
	if err := json.Unmarshal(config, &network); err != nil {
		return c, &cniproto.Error{Code: cniproto.CodeDecode, Msg: "network configuration: runtimeConfig: " + err.Error()}
	}
	network.RuntimeConfig.config = config
	return network.RuntimeConfig, nil
}

// ports returns the host ports, each once; errors: fault.ErrInvalid, with the field.
func (c Capabilities) ports() ([]nft.Port, error) {
	var out []nft.Port
	for n, m := range c.PortMappings {
		if m.HostPort <= 0 {
			continue
		}
		bad := func(field string, value any, want string) error {
			return fault.Errorf(fault.ErrInvalid, "runtimeConfig.portMappings[%d].%s: %v: %s", n, field, value, want)
		}
		p := nft.Port{Protocol: strings.ToLower(m.Protocol)}
		if p.Protocol == "" {
			p.Protocol = "tcp"
		}
		switch {
		case m.HostPort > 65535:
			return nil, bad("hostPort", m.HostPort, "must be at most 65535")
		case m.ContainerPort < 1 || m.ContainerPort > 65535:
			return nil, bad("containerPort", m.ContainerPort, "must be between 1 and 65535")
		case !slices.Contains([]string{"tcp", "udp", "sctp"}, p.Protocol):
			return nil, bad("protocol", fmt.Sprintf("%.20q", m.Protocol), "must be tcp, udp or sctp")
		}
		p.HostPort, p.ContainerPort = uint16(m.HostPort), uint16(m.ContainerPort)
		if m.HostIP != "" {
			ip, err := netip.ParseAddr(m.HostIP)
			if err != nil || ip.Zone() != "" {
				return nil, bad("hostIP", fmt.Sprintf("%.60q", m.HostIP), "must be an IP address, or empty for all of the node's")
			}
			p.HostIP = ip.Unmap()
		}
		if slices.Contains(out, p) {
			continue
		}
		if i := slices.IndexFunc(out, p.Overlaps); i >= 0 {
			return nil, bad("hostPort", m.HostPort, fmt.Sprintf("leads to port %d of the pod already", out[i].ContainerPort))
		}
		out = append(out, p)
	}
	return out, nil
}

// Apply enters the capabilities into the ADD of a pod, whose first interface is the
// default interface. The controller has chosen the addresses, so a runtime may ask only
// for these. The same holds for the MAC, unless the PodAttachment has none: then the
// runtime may choose it. Plugins that make the default interface get the capabilities that
// they declare, and Fairlead serves none. Errors: fault.ErrInvalid, with the field.
func (c Capabilities) Apply(add *ledger.Add, pod ledger.Pod, pa *v1alpha1.PodAttachment) (err error) {
	first := &add.Interfaces[0]
	if list := first.Binding.Delegate; list != nil {
		first.Binding.Delegate, err = handOver(list, c.config)
		return err
	}
	if first.Chain != nil {
		if first.Chain, err = handOver(first.Chain, c.config, served...); err != nil {
			return err
		}
	}
	for n, s := range c.IPs {
		if !slices.Contains(hosts(first.Addresses), host(s)) {
			return fault.Errorf(fault.ErrInvalid, "runtimeConfig.ips[%d]: %.60q: must be one of the addresses that interface %s of pod %s has been given: %s",
				n, s, first.Name, pod, strings.Join(first.Addresses, ", "))
		}
	}
	if c.MAC != "" {
		mac, err := net.ParseMAC(c.MAC)
		if err != nil || len(mac) != 6 {
			return fault.Errorf(fault.ErrInvalid, "runtimeConfig.mac: %.60q: must be six bytes in hexadecimal", c.MAC)
		}
		if slices.ContainsFunc(pa.Spec.Interfaces, func(i v1alpha1.Interface) bool {
			return i.Default && i.MAC != "" && !strings.EqualFold(i.MAC, mac.String())
		}) {
			return fault.Errorf(fault.ErrInvalid, "runtimeConfig.mac: %s: must be %s, which interface %s of pod %s has been given", mac, first.MAC, first.Name, pod)
		}
		first.MAC = mac.String()
	}
	if b := c.Bandwidth; b != nil && (b.IngressRate > 0 || b.EgressRate > 0) {
		first.Bandwidth = &plug.Bandwidth{
			IngressRate: b.IngressRate, IngressBurst: b.IngressBurst, EgressRate: b.EgressRate, EgressBurst: b.EgressBurst,
		}
	}
	first.DNS = mergeDNS(first.DNS, c.DNS)
	ports, err := c.ports()
	if err != nil {
		return err
	}
	if add.HostPorts = ports; len(ports) > 0 && first.Binding.Routed == nil && first.Binding.Bridge == nil {
		return fault.Errorf(fault.ErrInvalid, "runtimeConfig.portMappings: must be empty: host port %d of pod %s needs an interface that leads to the node, and the default interface %s is of another kind",
			ports[0].HostPort, pod, first.Name)
	}
	return c.reachable(first, pod)
}

// reachable returns fault.ErrInvalid if a host port is bound to an address of the host
// whose family the pod has no address of.
func (c Capabilities) reachable(first *ledger.Interface, pod ledger.Pod) error {
	for n, m := range c.PortMappings {
		at := host(m.HostIP)
		if m.HostPort <= 0 || !at.IsValid() || slices.ContainsFunc(hosts(first.Addresses), func(a netip.Addr) bool { return a.Is4() == at.Is4() }) {
			continue
		}
		return fault.Errorf(fault.ErrInvalid, "runtimeConfig.portMappings[%d].hostIP: %s: must be of a family that pod %s has an address of: interface %s has %s",
			n, m.HostIP, pod, first.Name, strings.Join(first.Addresses, ", "))
	}
	return nil
}

// host returns the address in "10.0.0.5/24" or "10.0.0.5". It returns the zero Addr if the
// text has no address.
func host(s string) netip.Addr {
	address, _, _ := strings.Cut(s, "/")
	a, _ := netip.ParseAddr(address)
	return a.Unmap()
}

func hosts(addresses []string) (out []netip.Addr) {
	for _, s := range addresses {
		if a := host(s); a.IsValid() {
			out = append(out, a)
		}
	}
	return out
}

// mergeDNS returns the DNS settings of the network, followed by those of the runtime.
func mergeDNS(network *v1alpha1.DNS, runtime *runtimeDNS) *v1alpha1.DNS {
	if runtime == nil || len(runtime.Servers)+len(runtime.Searches)+len(runtime.Options) == 0 {
		return network
	}
	merged := &v1alpha1.DNS{}
	if network != nil {
		merged = network.DeepCopy()
	}
	merged.Nameservers = union(merged.Nameservers, runtime.Servers)
	merged.Search = union(merged.Search, runtime.Searches)
	merged.Options = union(merged.Options, runtime.Options)
	return merged
}

func union(a, b []string) []string {
	for _, s := range b {
		if !slices.Contains(a, s) {
			a = append(a, s)
		}
	}
	return a
}
