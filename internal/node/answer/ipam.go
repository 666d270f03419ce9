package answer

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"

	cnitypes "github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/nad"
	"fairlead.dev/fairlead/internal/node/ledger"
	"fairlead.dev/fairlead/internal/whereabouts"
)

// IpamConfig has the settings of another plugin's network configuration that matter to
// its addresses.
type IpamConfig struct {
	// Name is the name of the network.
	Name string
	// routes, dns and static addresses are added by the network's ipam section.
	routes []*cnitypes.Route
	dns    cnitypes.DNS
	static []whereabouts.Address
	// Narrow is true if the network names pools or ranges of its own. Its addresses are
	// then never those of the default network.
	Narrow bool
	// asked are addresses that the runtime asks for.
	asked []netip.Addr
	// Gateway is the gateway in CNI_ARGS. It has no effect.
	Gateway string
}

// ParseIPAM decodes a network configuration and CNI_ARGS; errors: cniproto.Error with code
// 6 if the configuration cannot be decoded, fault.ErrInvalid, with the field, if a value
// is wrong.
func ParseIPAM(r cniproto.Request) (IpamConfig, error) {
	var c struct {
		Name string `json:"name"`
		IPAM struct {
			Routes []*cnitypes.Route `json:"routes"`
			DNS    cnitypes.DNS      `json:"dns"`
		} `json:"ipam"`
		RuntimeConfig struct {
			IPs []string `json:"ips"`
		} `json:"runtimeConfig"`
	}
	if err := json.Unmarshal(r.Config, &c); err != nil {
		return IpamConfig{}, &cniproto.Error{Code: cniproto.CodeDecode, Msg: "network configuration: " + err.Error()}
	}
	if i := slices.Index(c.IPAM.Routes, nil); i >= 0 {
		return IpamConfig{}, fault.Errorf(fault.ErrInvalid, "ipam.routes[%d]: null: must be a route, as {\"dst\": \"10.0.0.0/8\"}", i)
	}
	out := IpamConfig{Name: c.Name, routes: c.IPAM.Routes, dns: c.IPAM.DNS}
	section, err := nad.Section(r.Config)
	if err != nil {
		return out, fault.Errorf(fault.ErrInvalid, "%w", err)
	}
	if section != nil {
		if err := out.addSection(section, r.IPAM); err != nil {
			return out, err
		}
	}
	asked := c.RuntimeConfig.IPs
	for pair := range strings.SplitSeq(r.Args, ";") {
		switch key, value, _ := strings.Cut(pair, "="); {
		case key == "IP" && value != "":
			asked = append(asked, strings.Split(value, ",")...)
		case key == "GATEWAY":
			out.Gateway = value
		}
	}
	for _, text := range asked {
		addr, _, _ := strings.Cut(strings.TrimSpace(text), "/")
		a, err := netip.ParseAddr(addr)
		if err != nil {
			return out, fault.Errorf(fault.ErrInvalid, "ips: %q: must be an address, as 10.0.0.7 or 10.0.0.7/24", text)
		}
		out.asked = append(out.asked, a)
	}
	return out, nil
}

// addSection reads from the ipam section whether the network has addresses of its own,
// and the static addresses in a configuration of whereabouts. It ignores the flat file of
// whereabouts, which only the controller has.
func (c *IpamConfig) addSection(section json.RawMessage, program string) error {
	var o struct {
		Pools     []json.RawMessage `json:"pools"`
		Range     string            `json:"range"`
		IPRanges  []json.RawMessage `json:"ipRanges"`
		Addresses []struct {
			Address string `json:"address"`
			Gateway string `json:"gateway"`
		} `json:"addresses"`
	}
	if err := json.Unmarshal(section, &o); err != nil {
		return fault.Errorf(fault.ErrInvalid, "ipam: %w", err)
	}
	if program != whereabouts.Type {
		c.Narrow = len(o.Pools) > 0
		return nil
	}
	c.Narrow = o.Range != "" || len(o.IPRanges) > 0
	for i, s := range o.Addresses {
		prefix, err := netip.ParsePrefix(s.Address)
		if err != nil {
			return fault.Errorf(fault.ErrInvalid, "ipam.addresses[%d].address: %q: must be an address with the prefix length of its link, as 10.0.0.5/24", i, s.Address)
		}
		a := whereabouts.Address{Prefix: prefix}
		if s.Gateway != "" {
			if a.Gateway, err = netip.ParseAddr(s.Gateway); err != nil {
				return fault.Errorf(fault.ErrInvalid, "ipam.addresses[%d].gateway: %q: must be an address", i, s.Gateway)
			}
		}
		c.static = append(c.static, a)
	}
	return nil
}

// AddressesFor returns the interface of a PodAttachment for which another plugin asks
// addresses. In order of preference that is the interface named ifName, the interface on
// the network, and the default interface. The default interface may have any name, and
// matches only a network that names no pools or ranges.
//
// held maps each interface whose addresses the sandbox has already to the CNI_IFNAME of
// its ADD; these interfaces are left out. Errors: fault.ErrInvalid if no interface matches,
// or if it lacks an address that the runtime asks for.
func AddressesFor(pa *v1alpha1.PodAttachment, ifName string, config IpamConfig, held map[string]string) (*v1alpha1.Interface, error) {
	var found *v1alpha1.Interface
	rank := 0
	for i := range pa.Spec.Interfaces {
		iface := &pa.Spec.Interfaces[i]
		if iface.Binding.AddressOnly == nil || held[iface.Name] != "" {
			continue
		}
		match := 0
		switch _, network, _ := strings.Cut(iface.Network, "/"); {
		case iface.Name == ifName:
			match = 3
		case config.Name != "" && (network == config.Name || iface.Network == config.Name):
			match = 2
		case iface.Default && !config.Narrow:
			match = 1
		}
		if match > rank {
			found, rank = iface, match
		}
	}
	if found == nil {
		return nil, noAddresses(pa, ifName, config, held)
	}
	return found, config.has(found)
}

// has returns fault.ErrInvalid if an interface lacks an address that the runtime asks for.
func (c IpamConfig) has(i *v1alpha1.Interface) error {
	for _, a := range c.asked {
		if !slices.Contains(hosts(i.Addresses), a) && !slices.ContainsFunc(c.static, func(s whereabouts.Address) bool { return s.Prefix.Addr() == a }) {
			return fault.Errorf(fault.ErrInvalid, "ips: %s: the interface has %s: ask for an address with \"ips\" in the pod's annotation", a, strings.Join(i.Addresses, ", "))
		}
	}
	return nil
}

// DelegatedAddresses encodes the answer to the ADD of an IPAM plugin that is executed by
// the plugins of an interface. Errors: fault.ErrInvalid if the interface has no addresses,
// or lacks an address that is asked for.
func DelegatedAddresses(i *v1alpha1.Interface, config IpamConfig, version string) ([]byte, error) {
	if len(i.Addresses) == 0 {
		return nil, fault.Errorf(fault.ErrInvalid, "interface %s of network %s has no addresses of Fairlead: its ipam.type must be that of another plugin", i.Name, i.Network)
	}
	if err := config.has(i); err != nil {
		return nil, err
	}
	return IpamResult(i, config, version)
}

// noAddresses returns the error for an interface that has no addresses in a
// PodAttachment, with the remedy.
func noAddresses(pa *v1alpha1.PodAttachment, ifName string, config IpamConfig, held map[string]string) error {
	var has []string
	further := false
	for _, i := range pa.Spec.Interfaces {
		text := i.Name + " on " + i.Network
		if as := held[i.Name]; as != "" {
			text += " (which this sandbox has, as " + as + ")"
		}
		has = append(has, text)
		further = further || !i.Default
	}
	remedy := "a network is read when the pod is made, not when it is added to one that runs: name it in the annotation " + AnnotationNetworks + " and make the pod again"
	if !further {
		remedy = "no further network was read for this pod: the controller's configuration must have multiVIFSources: [npwg], and the pod's annotation " +
			AnnotationNetworks + " must name the network when the pod is made"
	}
	return fault.Errorf(fault.ErrInvalid, "PodAttachment %s/%s has no addresses for interface %q of network %q, only for %s: %s",
		pa.Namespace, pa.Name, ifName, config.Name, strings.Join(has, ", "), remedy)
}

// AnnotationNetworks is the annotation in which a pod names its further networks (NPWG
// multi-network specification, version 1.3, section 3.1).
const AnnotationNetworks = "k8s.v1.cni.cncf.io/networks"

// IpamResult encodes the answer of an IPAM plugin to ADD, in a CNI version. It has no
// interfaces, and its addresses no index of one. Errors: fault.ErrInvalid if the interface
// cannot be parsed.
func IpamResult(iface *v1alpha1.Interface, config IpamConfig, version string) ([]byte, error) {
	p, err := (&ledger.Interface{Interface: *iface}).ParseAddresses()
	if err != nil {
		return nil, fault.Errorf(fault.ErrInvalid, "interface %s: %w", iface.Name, err)
	}
	res := &types100.Result{
		CNIVersion: types100.ImplementedSpecVersion, IPs: cniAddresses(p), Routes: cniRoutes(p.Routes), DNS: cniDNS(iface.DNS),
	}
	for _, s := range config.static {
		c := &types100.IPConfig{Address: ipNet(s.Prefix)}
		if s.Gateway.IsValid() {
			c.Gateway = s.Gateway.AsSlice()
		}
		res.IPs = append(res.IPs, c)
	}
	for _, r := range config.routes {
		same := func(o *cnitypes.Route) bool { return o.Dst.String() == r.Dst.String() && o.GW.Equal(r.GW) }
		if i := slices.IndexFunc(res.Routes, same); i >= 0 {
			res.Routes[i] = r // it has further fields
		} else {
			res.Routes = append(res.Routes, r)
		}
	}
	if !config.dns.IsEmpty() {
		res.DNS = config.dns
	}
	return Encode(res, version)
}
