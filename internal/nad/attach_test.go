package nad

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/whereabouts"
)

// plain compares networks by the fields that a caller sees.
var plain = cmp.Options{cmpopts.IgnoreUnexported(Network{}), cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}), cmpopts.EquateEmpty()}

const (
	head   = `{"cniVersion":"1.0.0","name":"net",`
	ours   = `"ipam":{"type":"fairlead-ipam"}}`
	noIPAM = `"dns":{}}`
)

// onBridge is the binding of a bridge without options, changed by edit.
func onBridge(edit func(b *v1alpha1.BridgeBinding)) v1alpha1.Binding {
	b := &v1alpha1.BridgeBinding{Name: "cni0", Create: true, NoHairpin: true, SourceCheck: v1alpha1.SourceFull}
	if edit != nil {
		edit(b)
	}
	return v1alpha1.Binding{Bridge: b}
}

// served are configurations that Fairlead serves in process.
type servedCase struct {
	name, config string
	want         v1alpha1.Binding
	mtu          int32
}

var served = append([]servedCase{
	{name: "bridge", config: head + `"type":"bridge",` + ours, want: onBridge(nil)},
	{name: "bridge by name", config: head + `"type":"bridge","bridge":"br-lab",` + ours, want: onBridge(func(b *v1alpha1.BridgeBinding) { b.Name = "br-lab" })},
	{name: "mtu", config: head + `"type":"bridge","mtu":9000,` + ours, want: onBridge(nil), mtu: 9000},
	{name: "hairpin", config: head + `"type":"bridge","hairpinMode":true,` + ours, want: onBridge(func(b *v1alpha1.BridgeBinding) { b.NoHairpin = false })},
	{name: "promiscuous", config: head + `"type":"bridge","promiscMode":true,` + ours, want: onBridge(func(b *v1alpha1.BridgeBinding) { b.Promiscuous = true })},
	{name: "isolated", config: head + `"type":"bridge","portIsolation":true,` + ours, want: onBridge(func(b *v1alpha1.BridgeBinding) { b.Isolated = true })},
	{name: "VLAN", config: head + `"type":"bridge","vlan":7,` + ours, want: onBridge(func(b *v1alpha1.BridgeBinding) { b.VLAN = 7 })},
	{
		name:   "trunk beside a VLAN",
		config: head + `"type":"bridge","vlan":7,"vlanTrunk":[{"minID":10,"maxID":20,"id":30},{"id":40},{}],` + ours,
		want: onBridge(func(b *v1alpha1.BridgeBinding) {
			b.VLAN, b.Trunk = 7, []v1alpha1.VLANRange{{Min: 10, Max: 20}, {Min: 30, Max: 30}, {Min: 40, Max: 40}}
		}),
	},
	{name: "trunk alone has VLAN 1 untagged", config: head + `"type":"bridge","vlanTrunk":[{"id":40}],` + ours, want: onBridge(func(b *v1alpha1.BridgeBinding) {
		b.VLAN, b.Trunk = 1, []v1alpha1.VLANRange{{Min: 40, Max: 40}}
	})},
	{name: "an empty trunk", config: head + `"type":"bridge","vlanTrunk":[],` + ours, want: onBridge(nil)},
	{name: "a check of MACs beside that of addresses", config: head + `"type":"bridge","macspoofchk":true,` + ours, want: onBridge(nil)},
	{name: "a check of MACs", config: head + `"type":"bridge","macspoofchk":true,` + noIPAM, want: onBridge(func(b *v1alpha1.BridgeBinding) { b.SourceCheck = v1alpha1.SourceMAC })},
	{name: "no check", config: head + `"type":"bridge",` + noIPAM, want: onBridge(func(b *v1alpha1.BridgeBinding) { b.SourceCheck = v1alpha1.SourceNone })},
	{name: "static addresses are checked", config: head + `"type":"bridge","ipam":{"type":"static","addresses":[{"address":"10.0.0.5/24"}]}}`, want: onBridge(nil)},
	{name: "whereabouts' addresses are checked", config: head + `"type":"bridge","ipam":{"type":"whereabouts","range":"10.0.0.0/24"}}`, want: onBridge(nil)},
	{
		name:   "gateways on the bridge",
		config: head + `"type":"bridge","isGateway":true,"ipam":{"type":"static","addresses":[{"address":"10.0.0.5/24"},{"address":"fd00::5/64","gateway":"fd00::9"},{"address":"10.0.0.6/24"}]}}`,
		want:   onBridge(func(b *v1alpha1.BridgeBinding) { b.Addresses = []string{"10.0.0.1/24", "fd00::9/64"} }),
	},
	{name: "a gateway without addresses has no effect", config: head + `"type":"bridge","isGateway":true,` + noIPAM, want: onBridge(func(b *v1alpha1.BridgeBinding) { b.SourceCheck = v1alpha1.SourceNone })},
	{
		name:   "defaults, written out",
		config: head + `"type":"bridge","isGateway":false,"isDefaultGateway":false,"forceAddress":false,"ipMasq":false,"ipMasqBackend":"nftables","preserveDefaultVlan":false,"enabledad":false,"disableContainerInterface":false,` + ours,
		want:   onBridge(nil),
	},
	{name: "macvlan", config: head + `"type":"macvlan","master":"eth1",` + ours, want: v1alpha1.Binding{Macvlan: &v1alpha1.MacvlanBinding{Parent: "eth1", Mode: "bridge"}}},
	{name: "macvlan, all", config: head + `"type":"macvlan","master":"eth1","mode":"passthru","mtu":1400,"linkInContainer":false,"bcqueuelen":0,"mac":"",` + ours, want: v1alpha1.Binding{Macvlan: &v1alpha1.MacvlanBinding{Parent: "eth1", Mode: "passthru"}}, mtu: 1400},
	{name: "ipvlan", config: head + `"type":"ipvlan","master":"eth1",` + ours, want: v1alpha1.Binding{IPVLAN: &v1alpha1.IPVLANBinding{Parent: "eth1", Mode: "l2"}}},
	{name: "ipvlan, all", config: head + `"type":"ipvlan","master":"eth1","mode":"l3s","mtu":1400,"linkInContainer":false,` + ours, want: v1alpha1.Binding{IPVLAN: &v1alpha1.IPVLANBinding{Parent: "eth1", Mode: "l3s"}}, mtu: 1400},
	{name: "vlan", config: head + `"type":"vlan","master":"bond0","vlanId":100,"mtu":1400,"linkInContainer":false,` + noIPAM, want: v1alpha1.Binding{VLAN: &v1alpha1.VLANBinding{Parent: "bond0", ID: 100}}, mtu: 1400},
	{name: "a device", config: head + `"type":"host-device","device":"eth5","dpdkMode":false,"useInterfaceNetwork":false,` + noIPAM, want: v1alpha1.Binding{HostDevice: &v1alpha1.HostDeviceBinding{Name: "eth5"}}},
	{name: "a device by MAC", config: head + `"type":"host-device","hwaddr":"02-AB-00-00-00-01",` + noIPAM, want: v1alpha1.Binding{HostDevice: &v1alpha1.HostDeviceBinding{MAC: "02:ab:00:00:00:01"}}},
	{name: "a device by path", config: head + `"type":"host-device","kernelpath":"/sys/devices/pci0000:00/0000:00:1f.6",` + noIPAM, want: v1alpha1.Binding{HostDevice: &v1alpha1.HostDeviceBinding{KernelPath: "/sys/devices/pci0000:00/0000:00:1f.6"}}},
	{name: "a device by PCI address", config: head + `"type":"host-device","pciBusID":"0000:3B:00.1",` + noIPAM, want: v1alpha1.Binding{HostDevice: &v1alpha1.HostDeviceBinding{PCIAddress: "0000:3b:00.1"}}},
	{name: "a device ID before the PCI address", config: head + `"type":"host-device","pciBusID":"0000:3b:00.1","runtimeConfig":{"deviceID":"0000:3b:00.2"},` + noIPAM, want: v1alpha1.Binding{HostDevice: &v1alpha1.HostDeviceBinding{PCIAddress: "0000:3b:00.2"}}},
	{name: "empty sections", config: head + `"type":"ipvlan","master":"eth1","args":null,"prevResult":null,"runtimeConfig":{ },"ipam":{` + "\n" + `}}`, want: v1alpha1.Binding{IPVLAN: &v1alpha1.IPVLANBinding{Parent: "eth1", Mode: "l2"}}},
	{name: "keys in any case", config: `{"CNIVersion":"1.0.0","TYPE":"vlan","Master":"bond0","VLANID":100}`, want: v1alpha1.Binding{VLAN: &v1alpha1.VLANBinding{Parent: "bond0", ID: 100}}},
}, servedFunctions...)

func TestServedInProcess(t *testing.T) {
	for _, tc := range served {
		t.Run(tc.name, func(t *testing.T) {
			got, err := Parse(tc.config, nil)
			if err != nil || got.Refused != nil || got.Delegated() || len(got.Chain) > 0 || len(got.Warnings)+len(got.Ignored) > 0 {
				t.Fatalf("error %v, network %+v", err, got)
			}
			if diff := cmp.Diff(&tc.want, got.Binding); diff != "" || got.MTU != tc.mtu {
				t.Errorf("MTU %d, -want +got:\n%s", got.MTU, diff)
			}
			valid(t, got)
		})
	}
}

// valid reports a binding or plugins that the API does not accept.
func valid(t *testing.T, n Network) {
	t.Helper()
	i := v1alpha1.Interface{Name: "net1", Network: "db/net", Driver: "native", MTU: n.MTU, DNS: n.DNS, Routes: n.Routes}
	list := func(plugins []string) *v1alpha1.PluginList {
		name := n.Name
		if name == "" {
			name = "net" // as the caller does
		}
		return &v1alpha1.PluginList{Name: name, CNIVersion: n.CNIVersion, Plugins: plugins}
	}
	if s := n.Static; s != nil {
		i.DNS, i.Routes = s.DNS, s.Routes
		for _, a := range s.Addresses {
			i.Addresses = append(i.Addresses, a.String())
		}
		for _, g := range s.Gateways {
			i.Gateways = append(i.Gateways, g.String())
		}
	}
	switch {
	case n.Delegated():
		i.Binding.Delegate = list(n.Plugins)
	case n.Binding != nil:
		i.Binding = *n.Binding
	default:
		return
	}
	if len(n.Chain) > 0 {
		i.Chain = list(n.Chain)
	}
	if err := i.Validate(); err != nil {
		t.Errorf("the API does not accept %+v: %v", n, err)
	}
}

// refused are configurations to which Fairlead does not attach pods.
type refusedCase struct{ name, config, want string }

var refused = append([]refusedCase{
	{"ipMasq", head + `"type":"bridge","ipMasq":true,` + ours, `network configuration: ipMasq: true: is not served for bridge: remove it`},
	{"in a list", `{"cniVersion":"1.0.0","plugins":[{"type":"bridge","ipMasq":true}]}`, `network configuration: plugins[0].ipMasq: true: is not served for bridge`},
	{"forceAddress", head + `"type":"bridge","forceAddress":true,` + ours, "forceAddress: true: is not served for bridge"},
	{"preserveDefaultVlan", head + `"type":"bridge","preserveDefaultVlan":true,` + ours, "preserveDefaultVlan: true: is not served for bridge"},
	{"enabledad", head + `"type":"bridge","enabledad":true,` + ours, "enabledad: true: is not served for bridge"},
	{"disableContainerInterface", head + `"type":"bridge","disableContainerInterface":true,` + noIPAM, "disableContainerInterface: true: is not served for bridge"},
	{"hairpin and promiscuous", head + `"type":"bridge","hairpinMode":true,"promiscMode":true,` + ours, "hairpinMode: true: must not be set together with promiscMode"},
	{"a bad bridge", head + `"type":"bridge","bridge":"a/b",` + ours, `bridge: "a/b": must be the name of a link`},
	{"an empty bridge", head + `"type":"bridge","bridge":"",` + ours, `bridge: "": must be the name of a link`},
	{"a large MTU", head + `"type":"bridge","mtu":65536,` + ours, "mtu: 65536: must be 0 to 65535"},
	{"a negative MTU", head + `"type":"macvlan","master":"eth1","mtu":-1,` + ours, "mtu: -1: must be 0 to 65535"},
	{"an MTU as text", head + `"type":"bridge","mtu":"1500",` + ours, "network configuration: mtu: a JSON string: must be a whole number"},
	{"a flag as text", head + `"type":"bridge","ipMasq":"false",` + ours, "ipMasq: a JSON string: must be true or false"},
	{"a large VLAN", head + `"type":"bridge","vlan":4095,` + ours, "vlan: 4095: must be 0 to 4094"},
	{"a trunk with one end", head + `"type":"bridge","vlanTrunk":[{"id":3},{"minID":4}],` + ours, "vlanTrunk[1]: \"only one of minID and maxID\": must have both or none"},
	{"a trunk upside down", head + `"type":"bridge","vlanTrunk":[{"minID":4,"maxID":3}],` + ours, `vlanTrunk[0]: "4-3": must be VLANs of 1 to 4094, the lower one first`},
	{"VLAN 0 in a trunk", head + `"type":"bridge","vlanTrunk":[{"id":0}],` + ours, `vlanTrunk[0].id: "0-0": must be VLANs`},
	{"a long trunk", head + `"type":"bridge","vlanTrunk":[` + strings.Repeat(`{"id":3},`, 64) + `{"id":4}],` + ours, "vlanTrunk: 65: must have at most 64 ranges"},
	{"a gateway on each node", head + `"type":"bridge","isGateway":true,` + ours, "isGateway: true: is not served for bridge with ipam.type fairlead-ipam: the bridge of every node would have the same address"},
	{"a default gateway on each node", head + `"type":"bridge","isDefaultGateway":true,"ipam":{"type":"whereabouts","range":"10.0.0.0/24"}}`, "isDefaultGateway: true: is not served for bridge with ipam.type whereabouts"},
	{"a gateway without addresses", head + `"type":"bridge","isGateway":true,"ipam":{"type":"static"}}`, "isGateway: true: is not served for bridge without ipam.addresses"},
	{"a gateway on a VLAN", head + `"type":"bridge","isGateway":true,"vlan":7,"ipam":{"type":"static","addresses":[{"address":"10.0.0.5/24"}]}}`, "isGateway: true: is not served for bridge together with vlan"},
	{"the pod as gateway", head + `"type":"bridge","isGateway":true,"ipam":{"type":"static","addresses":[{"address":"10.0.0.1/24"}]}}`, `ipam.addresses[0].gateway: "10.0.0.1": must be another address in 10.0.0.0/24`},
	{"another address as gateway", head + `"type":"bridge","isGateway":true,"ipam":{"type":"static","addresses":[{"address":"10.0.0.5/24"},{"address":"10.0.0.1/24","gateway":"10.0.0.9"}]}}`, `ipam.addresses: "10.0.0.1/24": must not be the gateway`},
	{"no room for a gateway", head + `"type":"bridge","isGateway":true,"ipam":{"type":"static","addresses":[{"address":"255.255.255.255/32"}]}}`, "ipam.addresses[0].gateway"},
	{"many gateways", head + `"type":"bridge","isGateway":true,"ipam":{"type":"static","addresses":[{"address":"10.0.0.5/24"},{"address":"10.0.1.5/24"},{"address":"10.0.2.5/24"},{"address":"10.0.3.5/24"},{"address":"10.0.4.5/24"}]}}`, `isGateway: "5 gateways": must be at most 4`},

	{"no master", head + `"type":"macvlan",` + ours, `master: "": must name the link of the node, as eth1: Fairlead does not guess the link`},
	{"no master of ipvlan", head + `"type":"ipvlan",` + ours, `master: "": must name the link`},
	{"a bad master", head + `"type":"vlan","vlanId":7,"master":"../eth0",` + ours, `master: "../eth0": must be the name of a link`},
	{"a bad mode", head + `"type":"macvlan","master":"eth1","mode":"l2",` + ours, `mode: "l2": must be one of ["bridge" "private" "vepa" "passthru"]`},
	{"a bad mode of ipvlan", head + `"type":"ipvlan","master":"eth1","mode":"bridge",` + ours, `mode: "bridge": must be one of ["l2" "l3" "l3s"]`},
	{"a MAC for all", head + `"type":"macvlan","master":"eth1","mac":"02:00:00:00:00:01",` + ours, `mac: "02:00:00:00:00:01": is not served for macvlan: every pod would have it`},
	{"bcqueuelen", head + `"type":"macvlan","master":"eth1","bcqueuelen":1000,` + ours, "bcqueuelen: 1000: is not served for macvlan"},
	{"linkInContainer", head + `"type":"macvlan","master":"eth1","linkInContainer":true,` + ours, "linkInContainer: true: is not served for macvlan"},
	{"linkInContainer of ipvlan", head + `"type":"ipvlan","master":"eth1","linkInContainer":true,` + ours, "linkInContainer: true: is not served for ipvlan"},
	{"linkInContainer of vlan", head + `"type":"vlan","vlanId":7,"master":"eth1","linkInContainer":true,` + ours, "linkInContainer: true: is not served for vlan"},
	{"VLAN 0", head + `"type":"vlan","master":"eth1",` + ours, "vlanId: 0: must be 1 to 4094"},

	{"no device", head + `"type":"host-device","capabilities":{"deviceID":true}}`, `device: "": must name the device`},
	{"two devices", head + `"type":"host-device","device":"eth5","hwaddr":"02:00:00:00:00:01"}`, `device: "device, hwaddr": must name the device in one way`},
	{"a bad device", head + `"type":"host-device","device":"eth 5"}`, `device: "eth 5": must be the name of a link`},
	{"a bad MAC", head + `"type":"host-device","hwaddr":"02:00"}`, `hwaddr: "02:00": must be six bytes`},
	{"a path that leads out", head + `"type":"host-device","kernelpath":"/sys/devices/../../etc"}`, `kernelpath: "/sys/devices/../../etc": must be a path below /sys/devices`},
	{"a bad PCI address", head + `"type":"host-device","pciBusID":"3b:00.1"}`, `pciBusID: "3b:00.1": must be a PCI address`},
	{"an auxiliary device", head + `"type":"host-device","runtimeConfig":{"deviceID":"mlx5_core.sf.4"}}`, `runtimeConfig.deviceID: "mlx5_core.sf.4": must be a PCI address`},
	{"dpdkMode", head + `"type":"host-device","pciBusID":"0000:3b:00.1","dpdkMode":true}`, "dpdkMode: true: is not served for host-device"},
	{"useInterfaceNetwork", head + `"type":"host-device","device":"eth5","useInterfaceNetwork":true}`, "useInterfaceNetwork: true: is not served for host-device"},

	{"a MAC in args", head + `"type":"bridge","args":{"cni":{"mac":"02:00:00:00:00:01"}},` + ours, `args.cni.mac: "02:00:00:00:00:01": every pod would have it`},
	{"addresses in args", head + `"type":"bridge","args":{"cni":{"ips":["10.0.0.7/24"]}},` + ours, `args.cni.ips: "10.0.0.7/24": every pod would have it`},
	{"args of a wrong type", head + `"type":"bridge","args":{"cni":{"mac":7}},` + ours, "args.cni.mac: a JSON number: must be a string"},
	{"runtimeConfig", head + `"type":"bridge","runtimeConfig":{"mac":"02:00:00:00:00:01"},` + ours, `runtimeConfig.mac: "02:00:00:00:00:01": is reserved for the runtime`},
	{"prevResult", head + `"type":"bridge","prevResult":{"ips":[]},` + ours, `prevResult: {"ips":[]}: is reserved for the runtime`},
	{"prevResult of an executed plugin", head + `"plugins":[{"type":"calico"},{"type":"ptp","prevResult":{"ips":[]}}]}`, "plugins[1].prevResult"},
	{"runtimeConfig of an executed plugin", head + `"plugins":[{"type":"bridge"},{"type":"portmap","runtimeConfig":{"portMappings":[{"hostPort":22}]}}]}`, "plugins[1].runtimeConfig.portMappings"},
	{"a bad nameserver", head + `"type":"bridge","dns":{"nameservers":["ns.example"]},` + ours, `dns.nameservers[0]: "ns.example": must be an address`},
	{"a long search list", head + `"type":"bridge","dns":{"search":[` + strings.Repeat(`"a",`, 32) + `"b"]},` + ours, `dns.search: "33 elements": must have at most 32`},
	{"a long domain", head + `"type":"bridge","dns":{"domain":"` + strings.Repeat("a", 254) + `"},` + ours, "dns.domain"},

	{"no version", `{"type":"bridge"}`, `cniVersion: "": must be one of 0.3.1, 0.4.0, 1.0.0, 1.1.0`},
	{"an old version", `{"cniVersion":"0.2.0","type":"bridge"}`, `cniVersion: "0.2.0": must be one of`},
	{"a bad name", `{"cniVersion":"1.0.0","name":"a/b","type":"bridge"}`, `name: "a/b": must have`},
	{"a name of a wrong type", `{"cniVersion":"1.0.0","name":7,"type":"bridge"}`, "name: a JSON number: must be a string"},
	{"no type", `{"cniVersion":"1.0.0"}`, `type: "": must be the name of a plugin`},
	{"a path as type", `{"cniVersion":"1.0.0","type":"../../bin/sh"}`, `type: "../../bin/sh": must be the name of a plugin`},
	{"dots as type", `{"cniVersion":"1.0.0","plugins":[{"type":"bridge"},{"type":".."}]}`, `plugins[1].type: "..": must be the name of a plugin`},
	{"null as plugin", `{"cniVersion":"1.0.0","plugins":[null]}`, `plugins[0].type: "": must be the name`},
	{"a path as type of addresses", `{"cniVersion":"1.0.0","type":"bridge","ipam":{"type":"a/b"}}`, `ipam.type: "a/b": must be the name of a plugin`},
	{"addresses without a type", `{"cniVersion":"1.0.0","type":"bridge","ipam":{"subnet":"10.0.0.0/24"}}`, `ipam.type: "": must be the name of a plugin`},
	{"a key twice", `{"cniVersion":"1.0.0","type":"calico","ipam":{"type":"evil"},"ipam":{}}`, `configuration: the key "ipam" stands in it twice`},
	{"a key in two cases", `{"cniVersion":"1.0.0","plugins":[{"type":"portmap","runtimeConfig":{"portMappings":[{"hostPort":22}]},"RuntimeConfig":{}}]}`, `configuration.plugins[0]: the key "RuntimeConfig" stands in it twice`},
	{"a key with a long s", `{"cniVersion":"1.0.0","type":"bridge","plugins":[],"pluginſ":[{"type":"evil"}]}`, `the key "pluginſ" stands in it twice`},
	{"a type of addresses twice", `{"cniVersion":"1.0.0","type":"calico","ipam":{"type":"evil","TYPE":"fairlead-ipam"}}`, `configuration.ipam: the key "TYPE" stands in it twice`},
	{"many reserved values", `{"cniVersion":"1.0.0","type":"calico","runtimeConfig":{` + many(100) + `"z":1}}`, "runtimeConfig.k0"},
	{"no plugins", `{"cniVersion":"1.0.0","plugins":[]}`, "plugins: 0 elements: must have 1 to 16"},
	{"many plugins", `{"cniVersion":"1.0.0","plugins":[` + strings.Repeat(`{"type":"tuning"},`, 16) + `{"type":"tuning"}]}`, "plugins: 17 elements"},
	{"a long plugin", `{"cniVersion":"1.0.0","type":"vendor","note":"` + strings.Repeat("a", maxPlugin) + `"}`, "bytes: at most 16384"},
	{"plugins beside a type", `{"cniVersion":"1.0.0","type":"bridge","plugins":[{"type":"macvlan"}]}`, "plugins: stands beside type"},
	{"plugins beside addresses", `{"cniVersion":"1.0.0","ipam":{"type":"fairlead-ipam"},"plugins":[{"type":"macvlan"}]}`, "ipam: stands beside plugins"},
	{"capabilities that are no flags", `{"cniVersion":"1.0.0","plugins":[{"type":"a"},{"type":"b","capabilities":{"mac":"yes"}}]}`, "plugins[1].capabilities"},

	{"a static address without length", head + `"type":"bridge","ipam":{"type":"static","addresses":[{"address":"10.0.0.5"}]}}`, `ipam.addresses[0].address: "10.0.0.5": must be an address with the prefix length`},
	{"an unusable static address", head + `"type":"bridge","ipam":{"type":"static","addresses":[{"address":"127.0.0.1/8"}]}}`, `ipam.addresses[0].address: "127.0.0.1/8": must be an address that an interface can have`},
	{"a static address twice", head + `"type":"bridge","ipam":{"type":"static","addresses":[{"address":"10.0.0.5/24"},{"address":"10.0.0.5/25"}]}}`, `ipam.addresses[1].address: "10.0.0.5/25": must be listed once`},
	{"many static addresses", head + `"type":"bridge","ipam":{"type":"static","addresses":[` + strings.Repeat(`{"address":"10.0.0.5/24"},`, 16) + `{}]}}`, `ipam.addresses: "17 elements": must have at most 16`},
	{"a gateway of the other family", head + `"type":"bridge","ipam":{"type":"static","addresses":[{"address":"10.0.0.5/24","gateway":"fd00::1"}]}}`, `ipam.addresses[0].gateway: "fd00::1": must be of the family of 10.0.0.5`},
	{"a bad gateway", head + `"type":"bridge","ipam":{"type":"static","addresses":[{"address":"10.0.0.5/24","gateway":"router"}]}}`, `ipam.addresses[0].gateway: "router": must be the address of a gateway`},
	{"a bad route", head + `"type":"bridge","ipam":{"type":"static","routes":[{"dst":"10.0.0.0"}]}}`, `ipam.routes[0].dst: "10.0.0.0": must be a network`},
	{"a bad way", head + `"type":"bridge","ipam":{"type":"static","routes":[{"dst":"10.0.0.0/8","gw":"fd00::1"}]}}`, `ipam.routes[0].gw: "fd00::1": must be of the family`},
	{"many routes", head + `"type":"bridge","ipam":{"type":"static","routes":[` + strings.Repeat(`{"dst":"10.0.0.0/8"},`, 64) + `{}]}}`, `ipam.routes: "65 elements": must have at most 64`},
	{"two default routes", head + `"type":"bridge","ipam":{"type":"static","routes":[{"dst":"0.0.0.0/0","gw":"10.0.0.1"},{"dst":"0.0.0.0/0","gw":"10.0.0.2"}]}}`, `ipam.routes[1].dst: "0.0.0.0/0": must be the only default route`},
	{"a route's table", head + `"type":"bridge","ipam":{"type":"static","routes":[{"dst":"10.0.0.0/8","table":100}]}}`, "ipam.routes[0].table: 100: is not served for bridge"},
	{"a route's MTU, of fairlead-ipam", head + `"type":"macvlan","master":"eth1","ipam":{"type":"fairlead-ipam","routes":[{"dst":"10.0.0.0/8","mtu":1400}]}}`, "ipam.routes[0].mtu: 1400: is not served for macvlan"},
	{"a route's priority, of whereabouts", head + `"type":"macvlan","master":"eth1","ipam":{"type":"whereabouts","range":"10.0.0.0/24","routes":[{"dst":"10.0.0.0/8","priority":5}]}}`, "ipam.routes[0].priority: 5: is not served for macvlan"},
	{"static addresses of a wrong type", head + `"type":"bridge","ipam":{"type":"static","addresses":"10.0.0.5/24"}}`, "ipam.addresses: a JSON string: must be a list"},
}, refusedFunctions...)

// many returns n different keys of an object.
func many(n int) string {
	var out strings.Builder
	for i := range n {
		fmt.Fprintf(&out, `"k%d":1,`, i)
	}
	return out.String()
}

func TestRefused(t *testing.T) {
	for _, tc := range refused {
		t.Run(tc.name, func(t *testing.T) {
			got, err := Parse(tc.config, nil)
			if err != nil {
				t.Fatal(err)
			}
			if got.Refused == nil || !strings.Contains(got.Refused.Error(), tc.want) {
				t.Fatalf("refused: %v, want %q", got.Refused, tc.want)
			}
			if got.Binding != nil || got.Delegated() || len(got.Reach())+len(got.Capabilities())+len(got.Chain) > 0 {
				t.Errorf("network %+v", got)
			}
			if len(got.Refused.Error()) > 1<<10 {
				t.Errorf("an error of %d bytes", len(got.Refused.Error()))
			}
		})
	}
}

// TestEveryOptionIsTried keeps the tables complete, and the page of networks.
func TestEveryOptionIsTried(t *testing.T) {
	page, err := os.ReadFile("../../docs/user/networks.md")
	if err != nil {
		t.Fatal(err)
	}
	for name, k := range kinds {
		_, rows, _ := strings.Cut(string(page), "\n### "+name+"\n")
		rows, _, _ = strings.Cut(rows, "\n##")
		for _, option := range k.options {
			tried := slices.ContainsFunc(refused, func(c refusedCase) bool {
				return strings.Contains(c.config, `"type":"`+name+`"`) && strings.Contains(c.config, `"`+option+`":`)
			})
			for _, c := range served {
				tried = tried || strings.Contains(c.config, `"type":"`+name+`"`) && strings.Contains(c.config, `"`+option+`":`)
			}
			if !tried {
				t.Errorf("no test has the option %s of %s", option, name)
			}
			if !strings.Contains(rows, "`"+option) {
				t.Errorf("docs/user/networks.md does not have the option %s of %s", option, name)
			}
		}
	}
}

// TestRefusedKeepsItsAddresses: a network that Fairlead does not attach may be attached by
// another program, with addresses from Fairlead.
func TestRefusedKeepsItsAddresses(t *testing.T) {
	for _, tc := range []struct{ config, ipam string }{
		{`{"type":"bridge","ipMasq":true,"ipam":{"type":"fairlead-ipam","pools":["a"]}}`, Type},
		{`{"cniVersion":"0.2.0","type":"macvlan","ipam":{"type":"whereabouts","range":"10.0.0.0/24"}}`, whereabouts.Type},
		{`{"ipam":{"type":"fairlead-ipam"}}`, Type},
	} {
		got, err := Parse(tc.config, nil)
		if err != nil || got.Refused == nil || got.IPAM != tc.ipam || !got.Served() || (got.Whereabouts != nil) != (tc.ipam == whereabouts.Type) {
			t.Errorf("%s: error %v, network %+v", tc.config, err, got)
		}
	}
}

func TestNetworks(t *testing.T) {
	a, p := netip.MustParseAddr, netip.MustParsePrefix
	macvlan := &v1alpha1.Binding{Macvlan: &v1alpha1.MacvlanBinding{Parent: "eth1", Mode: "bridge"}}
	for _, tc := range []struct {
		name, config string
		want         Network
		delegated    bool
		capabilities []string
		reach        []Need
	}{
		{
			name:         "in process, with a chain",
			config:       `{"cniVersion":"0.4.0","name":"lab","plugins":[{"type":"macvlan","master":"eth1", "capabilities":{"bandwidth":true}},{"type":"tuning", "sysctl":{"a":"<1>"},"capabilities":{"mac":false}},{"type":"sbr"},{"type":"portmap","capabilities":{"portMappings":true}},{"type":"sbr"}]}`,
			want:         Network{Name: "lab", CNIVersion: "0.4.0", Type: "macvlan", Binding: macvlan, Chain: []string{`{"type":"tuning","sysctl":{"a":"<1>"},"capabilities":{"mac":false}}`, `{"type":"sbr"}`, `{"type":"portmap","capabilities":{"portMappings":true}}`, `{"type":"sbr"}`}},
			capabilities: []string{"mac", "portMappings"},
			reach:        []Need{{NeedParent, "eth1"}, {NeedPlugin, "portmap"}, {NeedPlugin, "sbr"}, {NeedPlugin, "tuning"}},
		},
		{
			name:         "routes and DNS of fairlead-ipam",
			config:       head + `"type":"macvlan","master":"eth1","ipam":{"type":"fairlead-ipam","pools":["a"],"routes":[{"dst":"10.1.2.3/8","gw":"10.0.0.1"},{"dst":"fd00::/8"}],"dns":{"nameservers":["10.0.0.2"]}}}`,
			want:         Network{Name: "net", CNIVersion: "1.0.0", Type: "macvlan", IPAM: Type, Pools: []string{"a"}, Binding: macvlan, Routes: []v1alpha1.Route{{Destination: "10.0.0.0/8", Gateway: "10.0.0.1"}, {Destination: "fd00::/8"}}, DNS: &v1alpha1.DNS{Nameservers: []string{"10.0.0.2"}}},
			capabilities: []string{"ips", "mac"},
			reach:        []Need{{NeedParent, "eth1"}},
		},
		{
			name:         "the DNS of the plugin",
			config:       head + `"type":"ipvlan","master":"eth1","dns":{"domain":"lab"},"ipam":{"type":"fairlead-ipam","dns":{"domain":"pool"}}}`,
			want:         Network{Name: "net", CNIVersion: "1.0.0", Type: "ipvlan", IPAM: Type, Binding: &v1alpha1.Binding{IPVLAN: &v1alpha1.IPVLANBinding{Parent: "eth1", Mode: "l2"}}, DNS: &v1alpha1.DNS{Domain: "lab"}},
			capabilities: []string{"ips"}, // no mac
			reach:        []Need{{NeedParent, "eth1"}},
		},
		{
			name:   "static",
			config: head + `"type":"macvlan","master":"eth1","ipam":{"type":"static","addresses":[{"address":"10.0.0.5/24","gateway":"10.0.0.1"},{"address":"fd00::5/64"}],"routes":[{"dst":"0.0.0.0/0"},{"dst":"10.9.0.0/16"},{"dst":"fd01::/16"}],"dns":{"search":["lab"]}}}`,
			want: Network{Name: "net", CNIVersion: "1.0.0", Type: "macvlan", IPAM: StaticType, Binding: macvlan, Static: &Static{
				Addresses: []netip.Prefix{p("10.0.0.5/24"), p("fd00::5/64")},
				Gateways:  []netip.Addr{a("10.0.0.1")},
				Routes:    []v1alpha1.Route{{Destination: "10.9.0.0/16", Gateway: "10.0.0.1"}, {Destination: "fd01::/16"}},
				DNS:       &v1alpha1.DNS{Search: []string{"lab"}},
			}},
			capabilities: []string{"ips", "mac"},
			reach:        []Need{{NeedParent, "eth1"}},
		},
		{
			name:         "a gateway without a default route",
			config:       head + `"type":"macvlan","master":"eth1","ipam":{"type":"static","addresses":[{"address":"10.0.0.5/24","gateway":"10.0.0.1"}]}}`,
			want:         Network{Name: "net", CNIVersion: "1.0.0", Type: "macvlan", IPAM: StaticType, Binding: macvlan, Static: &Static{Addresses: []netip.Prefix{p("10.0.0.5/24")}}},
			capabilities: []string{"ips", "mac"},
			reach:        []Need{{NeedParent, "eth1"}},
		},
		{
			name:   "a default gateway on the bridge",
			config: head + `"type":"bridge","isDefaultGateway":true,"ipam":{"type":"static","addresses":[{"address":"10.0.0.5/24"},{"address":"fd00::5/64","gateway":"fd00::9"}],"routes":[{"dst":"::/0","gw":"fd00::8"}]}}`,
			want: Network{
				Name: "net", CNIVersion: "1.0.0", Type: "bridge", IPAM: StaticType,
				Binding: &v1alpha1.Binding{Bridge: &v1alpha1.BridgeBinding{Name: "cni0", Create: true, NoHairpin: true, SourceCheck: v1alpha1.SourceFull, Addresses: []string{"10.0.0.1/24", "fd00::9/64"}}},
				Static:  &Static{Addresses: []netip.Prefix{p("10.0.0.5/24"), p("fd00::5/64")}, Gateways: []netip.Addr{a("fd00::8"), a("10.0.0.1")}},
			},
			capabilities: []string{"ips", "mac"},
			reach:        []Need{{NeedAddress, "10.0.0.1/24"}, {NeedAddress, "fd00::9/64"}, {NeedBridge, "cni0"}},
		},
		{
			name:      "addresses of another plugin",
			config:    `{"cniVersion":"0.3.1","type":"bridge","bridge":"br0","ipMasq":true,"capabilities":{"ips":true,"mac":true},"ipam":{"type":"host-local","subnet":"10.0.0.0/24"}}`,
			want:      Network{CNIVersion: "0.3.1", Type: "bridge", IPAM: "host-local", Plugins: []string{`{"cniVersion":"0.3.1","type":"bridge","bridge":"br0","ipMasq":true,"capabilities":{"ips":true,"mac":true},"ipam":{"type":"host-local","subnet":"10.0.0.0/24"}}`}},
			delegated: true, capabilities: []string{"ips", "mac"},
			reach: []Need{{NeedBridge, "br0"}, {NeedPlugin, "bridge"}, {NeedPlugin, "host-local"}},
		},
		{
			name:      "a vendor's plugin with addresses of Fairlead",
			config:    head + `"type":"cnv-bridge","ipam":{"type":"fairlead-ipam","pools":["a"],"routes":[{"dst":"10.0.0.0/8","mtu":1400}]}}`,
			want:      Network{Name: "net", CNIVersion: "1.0.0", Type: "cnv-bridge", IPAM: Type, Pools: []string{"a"}, Plugins: []string{head + `"type":"cnv-bridge","ipam":{"type":"fairlead-ipam","pools":["a"],"routes":[{"dst":"10.0.0.0/8","mtu":1400}]}}`}},
			delegated: true,
			reach:     []Need{{NeedPlugin, "cnv-bridge"}},
		},
		{
			name:      "addresses in a later plugin",
			config:    `{"cniVersion":"1.0.0","plugins":[{"type":"bridge"},{"type":"ipvlan","ipam":{"type":"fairlead-ipam"}}]}`,
			want:      Network{CNIVersion: "1.0.0", Type: "bridge", IPAM: Type, Plugins: []string{`{"type":"bridge"}`, `{"type":"ipvlan","ipam":{"type":"fairlead-ipam"}}`}},
			delegated: true,
			reach:     []Need{{NeedBridge, "cni0"}, {NeedParent, ""}, {NeedPlugin, "bridge"}, {NeedPlugin, "ipvlan"}},
		},
		{
			name:      "executed plugins that name links",
			config:    `{"cniVersion":"1.0.0","plugins":[{"type":"tap","bridge":"br1"},{"type":"sriov","deviceID":"0000:3b:00.1","master":"eth1"},{"type":"host-device","device":"eth5"},{"type":"macvlan","master":"net1","linkInContainer":true},{"type":"vlan","master":"bond0","mtu":"wrong"}]}`,
			want:      Network{CNIVersion: "1.0.0", Type: "tap", Plugins: []string{`{"type":"tap","bridge":"br1"}`, `{"type":"sriov","deviceID":"0000:3b:00.1","master":"eth1"}`, `{"type":"host-device","device":"eth5"}`, `{"type":"macvlan","master":"net1","linkInContainer":true}`, `{"type":"vlan","master":"bond0","mtu":"wrong"}`}},
			delegated: true,
			reach: []Need{
				{NeedBridge, "br1"},
				{NeedDevice, "0000:3b:00.1"},
				{NeedDevice, "eth5"},
				{NeedParent, "bond0"},
				{NeedParent, "eth1"},
				{NeedPlugin, "host-device"},
				{NeedPlugin, "macvlan"},
				{NeedPlugin, "sriov"},
				{NeedPlugin, "tap"},
				{NeedPlugin, "vlan"},
			},
		},
		{
			name:      "executed plugins that name devices in other forms",
			config:    `{"cniVersion":"1.0.0","plugins":[{"type":"vendor"},{"type":"sriov","deviceID":"0000:3B:00.2"},{"type":"host-device","hwaddr":"02-AB-00-00-00-01","kernelpath":"/sys/devices/a/../b/","pciBusID":"0000:3B:00.1"}]}`,
			want:      Network{CNIVersion: "1.0.0", Type: "vendor", Plugins: []string{`{"type":"vendor"}`, `{"type":"sriov","deviceID":"0000:3B:00.2"}`, `{"type":"host-device","hwaddr":"02-AB-00-00-00-01","kernelpath":"/sys/devices/a/../b/","pciBusID":"0000:3B:00.1"}`}},
			delegated: true,
			reach:     []Need{{NeedDevice, "/sys/devices/b"}, {NeedDevice, "0000:3b:00.1"}, {NeedDevice, "0000:3b:00.2"}, {NeedDevice, "02:ab:00:00:00:01"}, {NeedPlugin, "host-device"}, {NeedPlugin, "sriov"}, {NeedPlugin, "vendor"}},
		},
		{
			name:      "the highest version",
			config:    `{"cniVersion":"1.0.0","cniVersions":["0.4.0","1.1.0","9.0.0"],"disableCheck":true,"disableGC":"True","plugins":[{"type":"calico","ipam":null}]}`,
			want:      Network{CNIVersion: "1.1.0", Type: "calico", Plugins: []string{`{"type":"calico","ipam":null}`}, Ignored: []string{"disableCheck: true: without effect", "disableGC: true: without effect"}},
			delegated: true,
			reach:     []Need{{NeedPlugin, "calico"}},
		},
		{
			name:         "options that nobody knows",
			config:       head + `"type":"macvlan","master":"eth1","macspoofchk":true,"logLevel":"debug","ipam":{"type":"static","addresses":[],"gateway":"10.0.0.1"}}`,
			want:         Network{Name: "net", CNIVersion: "1.0.0", Type: "macvlan", IPAM: StaticType, Binding: macvlan, Static: &Static{}, Ignored: []string{`"logLevel": not an option of macvlan, and ignored`, `"macspoofchk": not an option of macvlan, and ignored`, `"ipam.gateway": not an option of static, and ignored`}},
			capabilities: []string{"ips", "mac"},
			reach:        []Need{{NeedParent, "eth1"}},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := Parse(tc.config, nil)
			if err != nil || got.Refused != nil || got.Delegated() != tc.delegated {
				t.Fatalf("error %v, refused %v, network %+v", err, got.Refused, got)
			}
			if diff := cmp.Diff(tc.want, got, plain); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if diff := cmp.Diff(tc.capabilities, slices.Sorted(maps.Keys(got.Capabilities())), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("capabilities: -want +got:\n%s", diff)
			}
			if diff := cmp.Diff(tc.reach, got.Reach()); diff != "" {
				t.Errorf("reach: -want +got:\n%s", diff)
			}
			valid(t, got)
		})
	}
}

func TestLongConfiguration(t *testing.T) {
	_, err := Parse(`{"type":"bridge","note":"`+strings.Repeat("a", maxConfig)+`"}`, nil)
	if err == nil || !strings.Contains(err.Error(), "bytes: at most 131072") {
		t.Errorf("error %v", err)
	}
}

func FuzzAttach(f *testing.F) {
	for _, tc := range served {
		f.Add(tc.config)
	}
	for _, tc := range refused {
		f.Add(tc.config)
	}
	f.Fuzz(func(t *testing.T, config string) {
		n, err := Parse(config, nil)
		attached := n.Binding != nil || n.Delegated()
		if (err != nil || n.Refused != nil) && attached || n.Binding != nil && n.Delegated() {
			t.Fatalf("error %v, network %+v", err, n)
		}
		if err == nil && n.Refused == nil && strings.TrimSpace(config) != "" && !attached {
			t.Fatalf("%q is neither attached nor refused", config)
		}
		if attached && len(n.Reach()) == 0 {
			t.Fatalf("%q reaches nothing of the node", config)
		}
		if n.Binding != nil && n.Binding.OVS != nil {
			t.Fatalf("%q names the port %+v of Neutron", config, n.Binding.OVS)
		}
		valid(t, n)
	})
}

// A network with the annotation of a resource has a device of it that the kubelet chooses.
func TestResource(t *testing.T) {
	const resource = "intel.com/sriov_a"
	for _, tc := range []struct{ name, config, resource, says string }{
		{"host-device", `{"cniVersion":"1.0.0","type":"host-device"}`, resource, ""},
		{"with addresses of a pool", `{"cniVersion":"1.0.0","type":"host-device","ipam":{"type":"fairlead-ipam"}}`, resource, ""},
		{"beside a device", `{"cniVersion":"1.0.0","type":"host-device","device":"eth5"}`, resource, `device: "eth5": must not stand beside the annotation k8s.v1.cni.cncf.io/resourceName`},
		{"no name", `{"cniVersion":"1.0.0","type":"host-device"}`, "../a", `resourceName: "../a": must be the name of a device plugin's resource`},
		{"another type", `{"cniVersion":"1.0.0","type":"macvlan","master":"eth1"}`, resource, `resourceName: "intel.com/sriov_a": is served for the types host-device and sriov`},
		{"an executed plugin", `{"cniVersion":"1.0.0","type":"vendor"}`, resource, `and the type is "vendor"`},
		{"addresses of a plugin", `{"cniVersion":"1.0.0","type":"host-device","ipam":{"type":"dhcp"}}`, resource, "is served for the types host-device and sriov with addresses of Fairlead"},
		{"sriov with addresses of a plugin", `{"cniVersion":"1.0.0","type":"sriov","ipam":{"type":"dhcp"}}`, resource, "is served for the types host-device and sriov with addresses of Fairlead"},
		{"sriov beside a device", `{"cniVersion":"1.0.0","type":"sriov","deviceID":"0000:3b:02.1"}`, resource, `deviceID: "0000:3b:02.1": must not stand beside the annotation`},
		{"none", `{"cniVersion":"1.0.0","type":"host-device"}`, "", "or the annotation k8s.v1.cni.cncf.io/resourceName"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n, err := ParseWithResource(tc.config, nil, tc.resource)
			if err != nil {
				t.Fatal(err)
			}
			if tc.says != "" {
				if n.Refused == nil || !strings.Contains(n.Refused.Error(), tc.says) || n.Binding != nil {
					t.Errorf("refused: %v, binding %v", n.Refused, n.Binding)
				}
				return
			}
			want := &v1alpha1.Binding{HostDevice: &v1alpha1.HostDeviceBinding{Resource: &v1alpha1.DeviceResource{Name: resource}}}
			if diff := cmp.Diff(want, n.Binding); diff != "" || n.Refused != nil {
				t.Errorf("refused: %v, -want +got:\n%s", n.Refused, diff)
			}
			if diff := cmp.Diff([]Need{{NeedDevice, resource}}, n.Reach()); diff != "" {
				t.Errorf("reach: -want +got:\n%s", diff)
			}
		})
	}
}
