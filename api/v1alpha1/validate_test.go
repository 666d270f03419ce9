package v1alpha1

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kube-openapi/pkg/validation/strfmt"
	"k8s.io/kube-openapi/pkg/validation/validate"

	"fairlead.dev/fairlead/api/v1alpha1/form"
)

// server validates PodAttachments as the API server does: against the embedded CRD, with
// the API server's library.
type server struct {
	validator *validate.SchemaValidator
}

func newServer(tb testing.TB) server {
	tb.Helper()
	crds, err := CRDs()
	if err != nil {
		tb.Fatal(err)
	}
	i := slices.IndexFunc(crds, func(c *apiextensionsv1.CustomResourceDefinition) bool { return c.Spec.Names.Kind == "PodAttachment" })
	schema := crds[i].Spec.Versions[0].Schema.OpenAPIV3Schema
	known := map[string]bool{
		// These concern updates only.
		"self == oldSelf": true,
		"self.podName == oldSelf.podName && self.podUID == oldSelf.podUID && self.nodeName == oldSelf.nodeName": true,
		"has(self.apiUID) == has(oldSelf.apiUID) && (!has(self.apiUID) || self.apiUID == oldSelf.apiUID) && has(self.nodeUID) == has(oldSelf.nodeUID) && (!has(self.nodeUID) || self.nodeUID == oldSelf.nodeUID) && has(self.podNamespace) == has(oldSelf.podNamespace) && (!has(self.podNamespace) || self.podNamespace == oldSelf.podNamespace)": true,
		"oldSelf.interfaces.all(o, self.interfaces.exists(i, i.name == o.name) || (has(oldSelf.unplug) && o.name in oldSelf.unplug))": true,
		"self.interfaces.all(i, oldSelf.interfaces.exists(o, o.name == i.name) || (has(oldSelf.plug) && i.name in oldSelf.plug))":     true,

		"isCIDR(self)":         true,
		"isIP(self)":           true,
		"self.min <= self.max": true,
		"[has(self.name), has(self.mac), has(self.kernelPath), has(self.pciAddress), has(self.resource)].filter(set, set).size() == 1": true,
		"!has(self.vf) || has(self.pciAddress) || has(self.resource)":                                                                  true,
		"has(self.parent) != has(self.parentMAC)":                                                                                      true,
		"self.id > 0 || !has(self.qos) && !has(self.protocol)":                                                                         true,
		"!has(self.max) || !has(self.min) || self.min <= self.max":                                                                     true,
		"self.filter(i, has(i.default) && i.default).size() <= 1":                                                                      true,
		"!has(self.binding.ovs) || has(self.mac) && size(self.mac) > 0 && has(self.mtu) && self.mtu > 0":                               true,
		"!has(self.internal) || !self.internal || has(self.binding.routed) && !(has(self.default) && self.default)":                    true,
	}
	for rule := range rulesOf(schema) {
		if !known[rule] {
			tb.Fatalf("the CRD has the rule %q: teach it to this test and to Validate", rule)
		}
	}
	raw, err := json.Marshal(schema)
	if err != nil {
		tb.Fatal(err)
	}
	openapi := &spec.Schema{}
	if err := json.Unmarshal(raw, openapi); err != nil {
		tb.Fatal(err)
	}
	return server{validate.NewSchemaValidator(openapi, nil, "", strfmt.Default)}
}

// rulesOf returns the CEL rules of a schema.
func rulesOf(s *apiextensionsv1.JSONSchemaProps) map[string]bool {
	out := map[string]bool{}
	for _, r := range s.XValidations {
		out[r.Rule] = true
	}
	for _, p := range s.Properties {
		for r := range rulesOf(&p) {
			out[r] = true
		}
	}
	if s.Items != nil && s.Items.Schema != nil {
		for r := range rulesOf(s.Items.Schema) {
			out[r] = true
		}
	}
	return out
}

// refuses returns the API server's error about an attachment; empty if it accepts it.
func (s server) refuses(t *testing.T, a *PodAttachment) string {
	t.Helper()
	raw, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	if len(raw) > 1<<20 {
		return fmt.Sprintf("it has %d bytes", len(raw))
	}
	var u map[string]any
	if err := json.Unmarshal(raw, &u); err != nil {
		t.Fatal(err)
	}
	if result := s.validator.Validate(u); !result.IsValid() {
		return result.AsError().Error()
	}
	return s.breaks(a)
}

// breaks evaluates the CRD's CEL rules, and the rules of a list-map.
func (s server) breaks(a *PodAttachment) string {
	cidr := func(s string) bool { p, err := netip.ParsePrefix(s); return err == nil && !p.Addr().Is4In6() }
	for _, list := range [][]string{a.Spec.Plug, a.Spec.Unplug} {
		once := map[string]bool{}
		for _, name := range list {
			if once[name] {
				return "twice: " + name
			}
			once[name] = true
		}
	}
	names, defaults := map[string]bool{}, 0
	for _, i := range a.Spec.Interfaces {
		if names[i.Name] {
			return "two interfaces are called " + i.Name
		}
		names[i.Name] = true
		if i.Default {
			defaults++
		}
		if i.Internal && (i.Default || i.Binding.Routed == nil) {
			return "internal: " + i.Name
		}
		for _, addr := range i.Addresses {
			if !cidr(addr) {
				return "address " + addr
			}
		}
		routed := i.Gateways
		if i.Binding.Routed != nil {
			routed = slices.Concat(routed, i.Binding.Routed.Of)
		}
		for _, gw := range routed {
			if a, err := netip.ParseAddr(gw); err != nil || a.Zone() != "" || a.Is4In6() {
				return "gateway " + gw
			}
		}
		for _, r := range i.Routes {
			if !cidr(r.Destination) {
				return "route " + r.Destination
			}
		}
		if why := breaksDevice(i.Binding.HostDevice); why != "" {
			return why
		}
		if v := i.Binding.VLAN; v != nil && (v.Parent == "") == (v.ParentMAC == "") {
			return "a VLAN without one parent"
		}
		if m := i.Binding.Macvlan; m != nil && (m.Parent == "") == (m.ParentMAC == "") {
			return "a macvlan without one parent"
		}
		if i.Binding.OVS != nil && (i.MAC == "" || i.MTU <= 0) {
			return "ovs without the MAC or the MTU of its port"
		}
		if b := i.Binding.Bridge; b != nil {
			for _, addr := range b.Addresses {
				if !cidr(addr) {
					return "address of the bridge " + addr
				}
			}
			for _, r := range b.Trunk {
				if r.Min > r.Max {
					return "trunk"
				}
			}
		}
	}
	if defaults > 1 {
		return "two default interfaces"
	}
	return ""
}

// nasty lists values that people and attackers write as names, UIDs, addresses and texts.
var nasty = []string{
	"", "-", "A_0:", "a", "web-0", "a/b", "a b", "\x00", "é", "a\nb", "..", ".", "-a", "a-", "A", "_", "%s", `"`, "0",
	"9b2e6f4e-1a2b-4c3d-8e9f-000000000001", "eth0", "net1", "10.0.0.5/24", "10.0.0.5", "010.0.0.5/24", "10.0.0.5/33", "fd00::5/64", "fe80::1%eth0",
	"::ffff:10.0.0.1/120", "::ffff:10.0.0.1", "0.0.0.0/0", "::/0", "02:23:45:67:89:ab", "02:23:45:67:89:AB", "default", "br0",
	strings.Repeat("a", 15), strings.Repeat("a", 16), strings.Repeat("a", 63), strings.Repeat("a", 64), strings.Repeat("a", 65),
	strings.Repeat("a", 253), strings.Repeat("a", 254), strings.Repeat("a", 317), strings.Repeat("a", 318), strings.Repeat("é", 200), strings.Repeat("a", 5000),
}

// maker makes attachments that are mostly valid, with some nasty values.
type maker struct{ rng *rand.Rand }

// breaksDevice is the part of breaks about a device.
func breaksDevice(d *HostDeviceBinding) string {
	if d == nil {
		return ""
	}
	given := 0
	for _, has := range []bool{d.Name != "", d.MAC != "", d.KernelPath != "", d.PCIAddress != "", d.Resource != nil} {
		if has {
			given++
		}
	}
	switch {
	case given != 1:
		return "a device named in several ways"
	case d.VF == nil:
		return ""
	case d.PCIAddress == "" && d.Resource == nil:
		return "a virtual function without a PCI address"
	case d.VF.VLAN != nil && d.VF.VLAN.ID <= 0 && (d.VF.VLAN.QoS != 0 || d.VF.VLAN.Protocol != ""):
		return "a priority without a VLAN"
	case d.VF.Rate != nil && d.VF.Rate.Max != 0 && d.VF.Rate.Min != 0 && d.VF.Rate.Min > d.VF.Rate.Max:
		return "rates the wrong way round"
	}
	return ""
}

func (m maker) text(right string) string {
	if m.rng.IntN(40) > 0 {
		return right
	}
	return nasty[m.rng.IntN(len(nasty))]
}

func (m maker) texts(right string, most int) []string {
	var out []string
	for range m.rng.IntN(most + 2) {
		out = append(out, m.text(right))
	}
	return out
}

func (m maker) few(most int) int {
	if m.rng.IntN(10) == 0 {
		return m.rng.IntN(most + 2)
	}
	return m.rng.IntN(3)
}

func (m maker) iface(n int) Interface {
	i := Interface{
		Name: m.text(fmt.Sprintf("net%d", n)), Network: m.text("default"), Driver: m.text("native"), Default: n == 0 || m.rng.IntN(60) == 0,
		Domain: m.text("default"), Pool: m.text("default"), Claim: m.text("default/db-0"), MAC: m.text(""), MTU: int32(m.rng.IntN(3)) * 1500,
	}
	for range m.few(16) {
		i.Addresses = append(i.Addresses, m.text("10.0.0.5/24"))
	}
	for range m.few(2) {
		i.Gateways = append(i.Gateways, m.text("fd00::1"))
	}
	for range m.few(64) {
		i.Routes = append(i.Routes, Route{Destination: m.text("10.0.0.0/8"), Gateway: m.text("10.0.0.1")})
	}
	if m.rng.IntN(4) == 0 {
		i.DNS = &DNS{Domain: m.text("cluster.local"), Nameservers: m.texts("10.0.0.10", 8), Search: m.texts("svc", 32), Options: m.texts("ndots:5", 32)}
	}
	m.bind(&i.Binding)
	if i.Binding.OVS != nil && m.rng.IntN(20) > 0 {
		i.MAC, i.MTU = m.text("fa:16:3e:00:00:01"), 1442
	}
	if m.rng.IntN(8) == 0 {
		i.Chain = m.plugins()
	}
	if m.rng.IntN(60) == 0 {
		i.MTU = -1
	}
	return i
}

// bind sets one member of a binding, sometimes none or two.
func (m maker) bind(b *Binding) {
	if m.rng.IntN(40) == 0 {
		b.AddressOnly = &AddressOnlyBinding{}
	}
	switch m.rng.IntN(40) {
	case 0:
	case 1, 2, 3:
		b.Macvlan = &MacvlanBinding{Parent: m.text("bond0"), Mode: m.text("vepa")}
	case 4, 5, 6:
		b.IPVLAN = &IPVLANBinding{Parent: m.text("bond0"), Mode: m.text("l3s")}
	case 7, 8, 9:
		b.VLAN = &VLANBinding{Parent: m.text("bond0"), ID: m.number(4094)}
	case 33:
		b.VLAN = &VLANBinding{ParentMAC: m.text("02:23:45:67:89:ab"), PortID: m.text("3f1c2d4e-0000-4000-8000-0123456789ab"), ID: 7}
	case 34:
		b.Macvlan = &MacvlanBinding{ParentMAC: m.text("02:23:45:67:89:ab"), Parent: m.text(""), Mode: "bridge"}
	case 10, 11, 12:
		b.HostDevice = &HostDeviceBinding{Name: m.text("ens1")}
	case 13:
		b.HostDevice = &HostDeviceBinding{MAC: m.text("02:23:45:67:89:ab")}
	case 14:
		b.HostDevice = &HostDeviceBinding{KernelPath: m.text("/sys/devices/pci0000:00/0000:00:1f.6")}
	case 15:
		b.HostDevice = &HostDeviceBinding{PCIAddress: m.text("0000:3b:00.1"), Name: m.text("")}
	case 16:
		b.HostDevice = &HostDeviceBinding{}
	case 20, 21:
		b.HostDevice = &HostDeviceBinding{Resource: &DeviceResource{Name: m.text("intel.com/sriov_a"), Device: m.text("0000:3b:02.1")}}
	case 22, 23, 24:
		b.HostDevice = &HostDeviceBinding{PCIAddress: m.text("0000:3b:02.1"), VF: m.virtualFunction()}
	case 25:
		b.HostDevice = &HostDeviceBinding{Name: "ens1", VF: m.virtualFunction()}
	case 17, 18, 19:
		b.Delegate = m.plugins()
	case 26, 27, 28:
		b.OVS = &OVSBinding{Bridge: m.text("br-int"), PortID: m.text("3f1c2d4e-0000-4000-8000-0123456789ab")}
	default:
		b.Bridge = &BridgeBinding{Name: m.text("br0"), SourceCheck: SourceCheck(m.text("")), VLAN: m.number(4094), Addresses: m.texts("10.0.0.1/24", 4)}
		for range m.few(64) {
			b.Bridge.Trunk = append(b.Bridge.Trunk, VLANRange{Min: m.number(4094), Max: 4094})
		}
	}
}

// number returns a number from 1 to most, rarely one beside them.
func (m maker) number(most int32) int32 {
	if m.rng.IntN(40) == 0 {
		return []int32{-1, 0, most + 1}[m.rng.IntN(3)]
	}
	return 1 + m.rng.Int32N(most)
}

func (m maker) virtualFunction() *VFSettings {
	v := &VFSettings{LinkState: VFLinkState(m.text("Enable"))}
	if m.rng.IntN(2) == 0 {
		v.VLAN = &VFVLAN{ID: m.number(4094), QoS: m.number(7), Protocol: m.text("802.1ad")}
	}
	if m.rng.IntN(2) == 0 {
		v.Rate, v.Trust = &VFRate{Min: m.number(10), Max: m.number(20)}, new(true)
	}
	return v
}

func (m maker) plugins() *PluginList {
	l := &PluginList{Name: m.text("net-a"), CNIVersion: m.text("1.0.0"), RuntimeConfig: m.text("{}"), Args: m.text("{}"), Plugins: []string{m.text(`{"type":"tuning"}`)}}
	for range m.few(16) {
		l.Plugins = append(l.Plugins, m.text(`{"type":"sbr"}`))
	}
	return l
}

func (m maker) attachment() *PodAttachment {
	a := &PodAttachment{
		TypeMeta:   metav1.TypeMeta{APIVersion: GroupVersion.String(), Kind: "PodAttachment"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-0-9b2e6f4e"},
		Spec: PodAttachmentSpec{
			PodName: m.text("web-0"), PodUID: types.UID(m.text("9b2e6f4e-1a2b")), APIUID: types.UID(m.text("")), PodNamespace: m.text(""), NodeName: m.text("node-1"), NodeUID: types.UID(m.text("")),
			Summary: AttachmentSummary{Interfaces: m.text("eth0"), Addresses: m.text("10.0.0.5")},
		},
	}
	for n := range m.few(4) {
		a.Spec.Plug = append(a.Spec.Plug, m.text(fmt.Sprintf("new%d", n)))
		a.Spec.Unplug = append(a.Spec.Unplug, m.text(fmt.Sprintf("old%d", n)))
	}
	for n := range m.few(32) {
		a.Spec.Interfaces = append(a.Spec.Interfaces, m.iface(n))
	}
	return a
}

// Own review 2: addresses were taken for a record that could not be written, and stayed
// taken for ever.
func TestValidIsAccepted(t *testing.T) {
	s := newServer(t)
	var accepted, refused int
	seen := map[string]bool{}
	for seed := range uint64(8_000) {
		a := maker{rand.New(rand.NewPCG(seed, 1))}.attachment()
		err := a.Spec.Validate()
		why := s.refuses(t, a)
		switch {
		case (err == nil) != (why == ""):
			t.Fatalf("seed %d: Validate says %v, the API server %q\n%+v", seed, err, why, a.Spec)
		case err == nil:
			accepted++
		default:
			refused++
			invalid, _ := errors.AsType[form.InvalidError](err)
			for _, f := range invalid {
				seen[f.Want] = true
			}
		}
	}
	if accepted < 1000 || refused < 1000 || len(seen) < 15 {
		t.Errorf("%d accepted, %d refused for %d reasons: that is no sample", accepted, refused, len(seen))
	}
}

// The error names every field that may be invalid, with its value and the valid values.
func TestValidateNamesTheField(t *testing.T) {
	right := func() *PodAttachment {
		return maker{rand.New(rand.NewPCG(0, 0))}.right()
	}
	if err := right().Spec.Validate(); err != nil {
		t.Fatal(err)
	}
	s := newServer(t)
	for name, tc := range map[string]struct {
		change func(*PodAttachmentSpec)
		want   string
	}{
		"UID":              {func(s *PodAttachmentSpec) { s.PodUID = "A_0:" }, `spec.podUID: "A_0:": must have 1 to 64 of a-z, A-Z, 0-9 and '-'`},
		"UID of the node":  {func(s *PodAttachmentSpec) { s.NodeUID = "a b" }, `spec.nodeUID: "a b": must have`},
		"own UID":          {func(s *PodAttachmentSpec) { s.APIUID = "a b" }, `spec.apiUID: "a b": must have`},
		"namespace":        {func(s *PodAttachmentSpec) { s.PodNamespace = "A" }, `spec.podNamespace: "A": must be the name of a namespace`},
		"no node":          {func(s *PodAttachmentSpec) { s.NodeName = "" }, `spec.nodeName: "": must have 1 to 253 characters`},
		"no interface":     {func(s *PodAttachmentSpec) { s.Interfaces = nil }, `spec.interfaces: "0 elements": must have 1 to 32`},
		"interface's name": {func(s *PodAttachmentSpec) { s.Interfaces[0].Name = "a:b" }, `spec.interfaces[0].name: "a:b": must have 1 to 15`},
		"one name twice": {func(s *PodAttachmentSpec) {
			s.Interfaces = append(s.Interfaces, s.Interfaces[0])
			s.Interfaces[1].Default = false
		}, `spec.interfaces[1].name: "eth0": must be in the list once`},
		"two defaults": {func(s *PodAttachmentSpec) {
			s.Interfaces = append(s.Interfaces, s.Interfaces[0])
			s.Interfaces[1].Name = "net1"
		}, `: at most one interface may be the default`},
		"address":            {func(s *PodAttachmentSpec) { s.Interfaces[0].Addresses = []string{"::ffff:10.0.0.1/120"} }, `spec.interfaces[0].addresses[0]: "::ffff:10.0.0.1/120": each address must be in CIDR form, as 10.0.0.5/24`},
		"gateway":            {func(s *PodAttachmentSpec) { s.Interfaces[0].Gateways = []string{"fe80::1%eth0"} }, `spec.interfaces[0].gateways[0]: "fe80::1%eth0": each gateway must be an IP address`},
		"route":              {func(s *PodAttachmentSpec) { s.Interfaces[0].Routes = []Route{{Destination: "10.0.0.0"}} }, `spec.interfaces[0].routes[0].destination: "10.0.0.0": a route's destination must be in CIDR form, as 10.0.0.0/8`},
		"MAC":                {func(s *PodAttachmentSpec) { s.Interfaces[0].MAC = "02:23:45:67:89:AB" }, `spec.interfaces[0].mac: "02:23:45:67:89:AB": must be six bytes`},
		"two bindings":       {func(s *PodAttachmentSpec) { s.Interfaces[0].Binding.AddressOnly = &AddressOnlyBinding{} }, `spec.interfaces[0].binding: "2 fields": must have exactly 1`},
		"a bridge's name":    {func(s *PodAttachmentSpec) { s.Interfaces[0].Binding.Bridge.Name = "" }, `spec.interfaces[0].binding.bridge.name: "": must have`},
		"a VLAN of a bridge": {func(s *PodAttachmentSpec) { s.Interfaces[0].Binding.Bridge.VLAN = 4095 }, `spec.interfaces[0].binding.bridge.vlan: "4095": must be 0 to 4094`},
		"a parent": {func(s *PodAttachmentSpec) {
			s.Interfaces[0].Binding = Binding{Macvlan: &MacvlanBinding{Parent: "a/b", Mode: "bridge"}}
		}, `spec.interfaces[0].binding.macvlan.parent: "a/b": must have 1 to 15`},
		"a parent by name and MAC": {func(s *PodAttachmentSpec) {
			s.Interfaces[0].Binding = Binding{VLAN: &VLANBinding{Parent: "eth0", ParentMAC: "02:23:45:67:89:ab", ID: 7}}
		}, `spec.interfaces[0].binding.vlan: "{\"id\":7,\"parent\":\"eth0\",\"parentMAC\":\"02:23:45:67:89:ab\"}": must have exactly one of parent and parentMAC`},
		"the MAC of a parent": {func(s *PodAttachmentSpec) {
			s.Interfaces[0].Binding = Binding{VLAN: &VLANBinding{ParentMAC: "02:23", ID: 7}}
		}, `spec.interfaces[0].binding.vlan.parentMAC: "02:23": must be six bytes`},
		"a mode": {func(s *PodAttachmentSpec) {
			s.Interfaces[0].Binding = Binding{IPVLAN: &IPVLANBinding{Parent: "bond0", Mode: "bridge"}}
		}, `spec.interfaces[0].binding.ipvlan.mode: "bridge": must be one of ["l2" "l3" "l3s"]`},
		"a resource without a vendor": {func(s *PodAttachmentSpec) {
			s.Interfaces[0].Binding = Binding{HostDevice: &HostDeviceBinding{Resource: &DeviceResource{Name: "sriov"}}}
		}, `spec.interfaces[0].binding.hostDevice.resource.name: "sriov": must be the name of a device plugin's resource`},
		"the ID of a device with a slash": {func(s *PodAttachmentSpec) {
			s.Interfaces[0].Binding = Binding{HostDevice: &HostDeviceBinding{Resource: &DeviceResource{Name: "intel.com/a", Device: "../a"}}}
		}, `spec.interfaces[0].binding.hostDevice.resource.device: "../a": must have at most 128`},
		"a resource and a device": {func(s *PodAttachmentSpec) {
			s.Interfaces[0].Binding = Binding{HostDevice: &HostDeviceBinding{Name: "ens1", Resource: &DeviceResource{Name: "intel.com/a"}}}
		}, `": must have exactly one of name, mac, kernelPath, pciAddress and resource`},
		"the ID of a port": {func(s *PodAttachmentSpec) {
			s.Interfaces[0].MAC, s.Interfaces[0].MTU = "fa:16:3e:00:00:01", 1442
			s.Interfaces[0].Binding = Binding{OVS: &OVSBinding{PortID: "port-1"}}
		}, `spec.interfaces[0].binding.ovs.portID: "port-1": must be the ID of a port`},
		"a port without its MAC": {func(s *PodAttachmentSpec) {
			s.Interfaces[0].MAC, s.Interfaces[0].MTU = "", 1442
			s.Interfaces[0].Binding = Binding{OVS: &OVSBinding{PortID: "3f1c2d4e-0000-4000-8000-0123456789ab"}}
		}, `an interface with binding ovs has the MAC and the MTU of its port`},
		"a port without its MTU": {func(s *PodAttachmentSpec) {
			s.Interfaces[0].MAC, s.Interfaces[0].MTU = "fa:16:3e:00:00:01", 0
			s.Interfaces[0].Binding = Binding{OVS: &OVSBinding{PortID: "3f1c2d4e-0000-4000-8000-0123456789ab"}}
		}, `an interface with binding ovs has the MAC and the MTU of its port`},
		"an internal default interface": {func(s *PodAttachmentSpec) {
			s.Interfaces[0].Internal, s.Interfaces[0].Default = true, true
			s.Interfaces[0].Binding = Binding{Routed: &RoutedBinding{}}
		}, `an internal interface has the binding routed and is not the default one`},
		"an internal interface of another kind": {func(s *PodAttachmentSpec) { s.Interfaces[0].Internal, s.Interfaces[0].Default = true, false }, `an internal interface has the binding routed`},
		"two devices": {func(s *PodAttachmentSpec) {
			s.Interfaces[0].Binding = Binding{HostDevice: &HostDeviceBinding{Name: "ens1", MAC: "02:23:45:67:89:ab"}}
		}, `spec.interfaces[0].binding.hostDevice: "{\"mac\":\"02:23:45:67:89:ab\",\"name\":\"ens1\"}": must have exactly one`},
		"a virtual function by its name": {func(s *PodAttachmentSpec) {
			s.Interfaces[0].Binding = Binding{HostDevice: &HostDeviceBinding{Name: "ens1", VF: &VFSettings{}}}
		}, `spec.interfaces[0].binding.hostDevice: "{\"name\":\"ens1\",\"vf\":{}}": vf needs pciAddress or resource`},
		"a priority without a VLAN": {func(s *PodAttachmentSpec) {
			s.Interfaces[0].Binding = Binding{HostDevice: &HostDeviceBinding{PCIAddress: "0000:3b:02.1", VF: &VFSettings{VLAN: &VFVLAN{QoS: 3}}}}
		}, `spec.interfaces[0].binding.hostDevice.vf.vlan: "{\"id\":0,\"qos\":3}": qos and protocol need a VLAN`},
		"rates the wrong way round": {func(s *PodAttachmentSpec) {
			s.Interfaces[0].Binding = Binding{HostDevice: &HostDeviceBinding{PCIAddress: "0000:3b:02.1", VF: &VFSettings{Rate: &VFRate{Min: 2, Max: 1}}}}
		}, `spec.interfaces[0].binding.hostDevice.vf.rate: "{\"max\":1,\"min\":2}": min must not be above max`},
		"the link of a virtual function": {func(s *PodAttachmentSpec) {
			s.Interfaces[0].Binding = Binding{HostDevice: &HostDeviceBinding{PCIAddress: "0000:3b:02.1", VF: &VFSettings{LinkState: "up"}}}
		}, `spec.interfaces[0].binding.hostDevice.vf.linkState: "up": must be one of`},
		"a chain without a plugin": {func(s *PodAttachmentSpec) {
			s.Interfaces[0].Chain = &PluginList{Name: "net-a", CNIVersion: "1.0.0"}
		}, `spec.interfaces[0].chain.plugins: "0 elements": must have 1 to 16`},
		"plugins that cannot be stored": {func(s *PodAttachmentSpec) {
			l := &PluginList{Name: "net-a", CNIVersion: "1.0.0", Plugins: slices.Repeat([]string{strings.Repeat("x", 16<<10)}, 16)}
			for n := range 5 {
				s.Interfaces = append(s.Interfaces, Interface{Name: fmt.Sprint("net", n), Network: "a/b", Driver: "native", Binding: Binding{Delegate: l}})
			}
		}, ` bytes": must have 0 to 1048576`},
		"what is too large": {func(s *PodAttachmentSpec) { s.Interfaces[0].Pool = strings.Repeat("x", 254) }, `spec.interfaces[0].pool: "` + strings.Repeat("x", 64) + `...": must have 0 to 253 characters`},
	} {
		t.Run(name, func(t *testing.T) {
			a := right()
			tc.change(&a.Spec)
			err := a.Spec.Validate()
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v\nwant %s", err, tc.want)
			}
			if s.refuses(t, a) == "" {
				t.Error("the API server accepts it")
			}
		})
	}
}

// right returns a valid attachment.
func (m maker) right() *PodAttachment {
	return &PodAttachment{
		TypeMeta:   metav1.TypeMeta{APIVersion: GroupVersion.String(), Kind: "PodAttachment"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-0-9b2e6f4e"},
		Spec: PodAttachmentSpec{
			PodName: "web-0", PodUID: "9b2e6f4e", NodeName: "node-1",
			Interfaces: []Interface{{
				Name: "eth0", Network: "default", Driver: "native", Default: true, Addresses: []string{"10.0.0.5/24"},
				Binding: Binding{Bridge: &BridgeBinding{Name: "br0"}},
			}},
		},
	}
}
