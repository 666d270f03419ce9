package pod

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"regexp"
	"strings"
)

// Bounds of one element.
const (
	// maxArgs bounds cni-args, in bytes.
	maxArgs = 8 << 10
	// maxPorts is the number of elements of portMappings.
	maxPorts = 64
	// maxIPs is the number of elements of ips, that of an interface in the API.
	maxIPs = 16
)

// PortMapping is a port of the node that leads to a port of the pod.
type PortMapping struct {
	HostPort      int32 `json:"hostPort"`
	ContainerPort int32 `json:"containerPort"`
	// Protocol is tcp, udp or sctp.
	Protocol string `json:"protocol"`
	// HostIP is the address of the node; empty for all.
	HostIP string `json:"hostIP,omitempty"`
}

// Bandwidth limits the traffic of an interface: rates in bit/s, bursts in bits; 0 is no
// limit.
type Bandwidth struct {
	IngressRate  int64 `json:"ingressRate"`
	IngressBurst int64 `json:"ingressBurst"`
	EgressRate   int64 `json:"egressRate"`
	EgressBurst  int64 `json:"egressBurst"`
}

// Names of capabilities (CNI conventions).
const (
	capabilityIPs            = "ips"
	capabilityMAC            = "mac"
	capabilityPortMappings   = "portMappings"
	capabilityBandwidth      = "bandwidth"
	capabilityInfinibandGUID = "infinibandGUID"
)

// Wishes returns the capabilities that the element needs of the network, in a fixed order.
func (s Selection) Wishes() []string {
	var out []string
	for _, w := range []struct {
		name string
		set  bool
	}{
		{capabilityIPs, len(s.Prefixes) > 0},
		{capabilityMAC, s.MAC != ""},
		{capabilityPortMappings, len(s.PortMappings) > 0},
		{capabilityBandwidth, s.Bandwidth != nil},
		{capabilityInfinibandGUID, s.InfinibandGUID != ""},
	} {
		if w.set {
			out = append(out, w.name)
		}
	}
	return out
}

// RuntimeConfig returns the arguments of these capabilities as a JSON object; empty if
// there are none.
func (s Selection) RuntimeConfig() string {
	if len(s.Wishes()) == 0 {
		return ""
	}
	// Values of these types always have a JSON form.
	text, _ := json.Marshal(struct {
		IPs            []netip.Prefix `json:"ips,omitempty"`
		MAC            string         `json:"mac,omitempty"`
		PortMappings   []PortMapping  `json:"portMappings,omitempty"`
		Bandwidth      *Bandwidth     `json:"bandwidth,omitempty"`
		InfinibandGUID string         `json:"infinibandGUID,omitempty"`
	}{s.Prefixes, s.MAC, s.PortMappings, s.Bandwidth, s.InfinibandGUID})
	return string(text)
}

// selection is an element in the annotation's JSON form. Other keys are for the plugin
// that attaches the pod.
type selection struct {
	Name             string          `json:"name"`
	Namespace        string          `json:"namespace"`
	Interface        string          `json:"interface"`
	InterfaceRequest string          `json:"interfaceRequest"` // Multus, before 3.0
	IPs              []string        `json:"ips"`
	MAC              string          `json:"mac"`
	CNIArgs          json.RawMessage `json:"cni-args"`
	PortMappings     []PortMapping   `json:"portMappings"`
	Bandwidth        *Bandwidth      `json:"bandwidth"`
	DefaultRoute     *[]string       `json:"default-route"`
	InfinibandGUID   string          `json:"infiniband-guid"`
	ClaimReference   string          `json:"ipam-claim-reference"`
	DeviceID         string          `json:"deviceID"`
}

var (
	macAddress     = regexp.MustCompile(`^[0-9a-f]{2}(:[0-9a-f]{2}){5}$`)
	deviceID       = regexp.MustCompile(`^([a-zA-Z0-9][a-zA-Z0-9_.:-]{0,127})?$`)
	infinibandGUID = regexp.MustCompile(`^[0-9a-f]{2}(:[0-9a-f]{2}){7}$`)
)

// properties validates the properties of the interface: the keys of an element except for
// its names. An error names the key, the value and the accepted form.
func (s *Selection) properties(e selection) error {
	s.DeviceID = e.DeviceID
	s.MAC, s.InfinibandGUID, s.ClaimReference = strings.ToLower(e.MAC), strings.ToLower(e.InfinibandGUID), e.ClaimReference
	switch {
	case s.MAC != "" && !macAddress.MatchString(s.MAC):
		return fmt.Errorf("mac: %q: must be six bytes, as 02:23:45:67:89:01", e.MAC)
	case s.InfinibandGUID != "" && !infinibandGUID.MatchString(s.InfinibandGUID):
		return fmt.Errorf("infiniband-guid: %q: must be eight bytes, as c2:11:22:33:44:55:66:77", e.InfinibandGUID)
	case !deviceID.MatchString(e.DeviceID):
		return fmt.Errorf("deviceID: %.64q: must be the ID of a device, as 0000:3b:02.1", e.DeviceID)
	case s.ClaimReference != "" && len(e.IPs) > 0:
		return fmt.Errorf("ipam-claim-reference: %q: must not stand beside ips: the claim has the addresses: leave one of them out", e.ClaimReference)
	case len(e.IPs) > maxIPs:
		return fmt.Errorf("ips: %d addresses: at most %d", len(e.IPs), maxIPs)
	}
	for _, text := range e.IPs {
		p, err := parseIP(text)
		if err != nil {
			return err
		}
		s.Addresses, s.Prefixes = append(s.Addresses, p.Addr()), append(s.Prefixes, p)
	}
	return errors.Join(s.args(e.CNIArgs), s.ports(e.PortMappings), s.bandwidth(e.Bandwidth), s.defaultRoute(e.DefaultRoute))
}

// parseIP parses an address with or without the prefix length of its link. Without one the
// length is that of a single address.
func parseIP(text string) (netip.Prefix, error) {
	a, err := netip.ParseAddr(text)
	p := netip.PrefixFrom(a, a.BitLen())
	if err != nil {
		p, err = netip.ParsePrefix(text)
	}
	if err != nil || a.Zone() != "" || p.Addr().Is4In6() {
		return p, fmt.Errorf("ips: %q: must be an address, as 10.0.0.7 or 10.0.0.7/24", text)
	}
	return p, nil
}

// args keeps cni-args as compact JSON.
func (s *Selection) args(raw json.RawMessage) error {
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	var text bytes.Buffer
	if err := json.Compact(&text, raw); err != nil || text.Bytes()[0] != '{' {
		return fmt.Errorf(`cni-args: %.64q: must be a JSON object, as {"key": "value"}`, raw)
	}
	if text.Len() > maxArgs {
		return fmt.Errorf("cni-args: %d bytes: at most %d", text.Len(), maxArgs)
	}
	s.CNIArgs = text.String()
	return nil
}

// ports validates portMappings. The protocol is tcp if there is none.
func (s *Selection) ports(mappings []PortMapping) error {
	if len(mappings) > maxPorts {
		return fmt.Errorf("portMappings: %d elements: at most %d", len(mappings), maxPorts)
	}
	for i, m := range mappings {
		protocol := strings.ToLower(m.Protocol)
		if protocol == "" {
			protocol = "tcp"
		}
		ip, err := netip.ParseAddr(m.HostIP)
		switch {
		case m.HostPort < 1 || m.HostPort > 65535:
			return fmt.Errorf("portMappings[%d].hostPort: %d: must be 1 to 65535", i, m.HostPort)
		case m.ContainerPort < 1 || m.ContainerPort > 65535:
			return fmt.Errorf("portMappings[%d].containerPort: %d: must be 1 to 65535", i, m.ContainerPort)
		case protocol != "tcp" && protocol != "udp" && protocol != "sctp":
			return fmt.Errorf("portMappings[%d].protocol: %q: must be tcp, udp or sctp", i, m.Protocol)
		case m.HostIP != "" && (err != nil || ip.Zone() != "" || ip.Is4In6()):
			return fmt.Errorf("portMappings[%d].hostIP: %q: must be an address of the node, as 192.0.2.1", i, m.HostIP)
		}
		m.Protocol = protocol
		s.PortMappings = append(s.PortMappings, m)
	}
	return nil
}

// bandwidth validates bandwidth. Limits of 0 are none.
func (s *Selection) bandwidth(b *Bandwidth) error {
	if b == nil || *b == (Bandwidth{}) {
		return nil
	}
	for _, d := range []struct {
		name        string
		rate, burst int64
	}{{"ingress", b.IngressRate, b.IngressBurst}, {"egress", b.EgressRate, b.EgressBurst}} {
		switch {
		case d.rate < 0:
			return fmt.Errorf("bandwidth.%sRate: %d: must be 0 or more bit/s", d.name, d.rate)
		case d.burst < 0:
			return fmt.Errorf("bandwidth.%sBurst: %d: must be 0 or more bits", d.name, d.burst)
		case d.burst > 0 && d.rate == 0:
			return fmt.Errorf("bandwidth.%sBurst: %d: must stand beside %sRate: add the rate, or remove the burst", d.name, d.burst, d.name)
		}
	}
	s.Bandwidth = b
	return nil
}

// defaultRoute validates default-route: at most one gateway per family.
func (s *Selection) defaultRoute(gateways *[]string) error {
	if gateways == nil {
		return nil
	}
	s.DefaultRoute = true
	for i, text := range *gateways {
		a, err := netip.ParseAddr(text)
		if err != nil || a.Zone() != "" || a.Is4In6() || a.IsUnspecified() || a.IsMulticast() || a.IsLoopback() {
			return fmt.Errorf("default-route[%d]: %q: must be the address of a gateway, as 10.0.0.1", i, text)
		}
		for _, g := range s.Gateways {
			if g.Is4() == a.Is4() {
				return fmt.Errorf("default-route[%d]: %q: must be the only gateway of its family: %s is another", i, text, g)
			}
		}
		s.Gateways = append(s.Gateways, a)
	}
	return nil
}

// decode decodes an element. An error names the key and the JSON type that it must have.
func (e *selection) decode(raw json.RawMessage) error {
	err := json.Unmarshal(raw, e)
	var t *json.UnmarshalTypeError
	if !errors.As(err, &t) {
		return err
	}
	want := map[reflect.Kind]string{reflect.String: "a string", reflect.Slice: "a list", reflect.Struct: "an object"}[t.Type.Kind()]
	if want == "" {
		want = "a whole number"
	}
	if t.Field == "" {
		return fmt.Errorf(`a JSON %s: must be an object, as {"name":"net-a"}`, t.Value)
	}
	return fmt.Errorf("%s: a JSON %s: must be %s", t.Field, t.Value, want)
}
