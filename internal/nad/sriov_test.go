package nad

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/fairlead/api/v1alpha1"
)

var servedFunctions = []servedCase{
	{name: "a virtual function", config: head + `"type":"sriov","deviceID":"0000:3B:02.1","logLevel":"debug","logFile":"/tmp/sriov.log",` + noIPAM, want: onFunction(v1alpha1.VFSettings{})},
	{name: "a device ID of the runtime", config: head + `"type":"sriov","deviceID":"0000:3b:02.2","runtimeConfig":{"deviceID":"0000:3b:02.1"},` + noIPAM, want: onFunction(v1alpha1.VFSettings{})},
	{
		name:   "a virtual function, all",
		config: head + `"type":"sriov","deviceID":"0000:3b:02.1","vlan":100,"vlanQoS":3,"vlanProto":"802.1AD","mac":"","spoofchk":"off","trust":"on","link_state":"enable","min_tx_rate":10,"max_tx_rate":20,` + ours,
		want: onFunction(v1alpha1.VFSettings{
			VLAN: &v1alpha1.VFVLAN{ID: 100, QoS: 3, Protocol: "802.1ad"}, SpoofCheck: new(false), Trust: new(true), LinkState: v1alpha1.VFLinkEnable, Rate: &v1alpha1.VFRate{Min: 10, Max: 20},
		}),
	},
	{name: "no VLAN, no limit", config: head + `"type":"sriov","deviceID":"0000:3b:02.1","vlan":0,"vlanQoS":0,"vlanProto":"802.1q","min_tx_rate":10,"max_tx_rate":0,"link_state":"auto",` + ours, want: onFunction(v1alpha1.VFSettings{VLAN: &v1alpha1.VFVLAN{}, Rate: &v1alpha1.VFRate{Min: 10}, LinkState: v1alpha1.VFLinkAuto})},
}

var refusedFunctions = []refusedCase{
	{"no virtual function", head + `"type":"sriov"}`, `deviceID: "": must be the PCI address of the virtual function, as 0000:3b:02.1, or the annotation`},
	{"a bad virtual function", head + `"type":"sriov","deviceID":"eth5"}`, `deviceID: "eth5": must be a PCI address`},
	{"a MAC for all", head + `"type":"sriov","deviceID":"0000:3b:02.1","mac":"02:00:00:00:00:01"}`, `mac: "02:00:00:00:00:01": every pod would have it`},
	{"a VLAN of a function", head + `"type":"sriov","deviceID":"0000:3b:02.1","vlan":4095}`, "vlan: 4095: must be 0 to 4094"},
	{"a negative VLAN", head + `"type":"sriov","deviceID":"0000:3b:02.1","vlan":-1}`, "vlan: -1: must be 0 to 4094"},
	{"a VLAN in quotes", head + `"type":"sriov","deviceID":"0000:3b:02.1","vlan":"100"}`, "vlan: a JSON string: must be"},
	{"a priority without a VLAN", head + `"type":"sriov","deviceID":"0000:3b:02.1","vlanQoS":1}`, "vlanQoS: 1: needs the option vlan"},
	{"a priority without a tag", head + `"type":"sriov","deviceID":"0000:3b:02.1","vlan":0,"vlanQoS":1}`, "vlanQoS: 1: must be 0 to 7, and 0 without a VLAN"},
	{"a high priority", head + `"type":"sriov","deviceID":"0000:3b:02.1","vlan":5,"vlanQoS":8}`, "vlanQoS: 8: must be 0 to 7"},
	{"a protocol without a VLAN", head + `"type":"sriov","deviceID":"0000:3b:02.1","vlanProto":"802.1ad"}`, `vlanProto: "802.1ad": needs the option vlan`},
	{"a protocol without a tag", head + `"type":"sriov","deviceID":"0000:3b:02.1","vlan":0,"vlanProto":"802.1ad"}`, `vlanProto: "802.1ad": must be "802.1q"`},
	{"another protocol", head + `"type":"sriov","deviceID":"0000:3b:02.1","vlan":5,"vlanProto":"802.1x"}`, `vlanProto: "802.1x": must be "802.1q" or "802.1ad"`},
	{"a check of sources", head + `"type":"sriov","deviceID":"0000:3b:02.1","spoofchk":"yes"}`, `spoofchk: "yes": must be "on" or "off"`},
	{"trust", head + `"type":"sriov","deviceID":"0000:3b:02.1","trust":"true"}`, `trust: "true": must be "on" or "off"`},
	{"a link's state", head + `"type":"sriov","deviceID":"0000:3b:02.1","link_state":"up"}`, `link_state: "up": must be "auto", "enable" or "disable"`},
	{"a negative rate", head + `"type":"sriov","deviceID":"0000:3b:02.1","max_tx_rate":-1}`, "max_tx_rate: -1: must be a number of Mbit/s"},
	{"rates the wrong way round", head + `"type":"sriov","deviceID":"0000:3b:02.1","min_tx_rate":2,"max_tx_rate":1}`, "min_tx_rate: 2: must be a number of Mbit/s, and not above max_tx_rate"},
}

// onFunction returns the binding of the virtual function at 0000:3b:02.1.
func onFunction(s v1alpha1.VFSettings) v1alpha1.Binding {
	return v1alpha1.Binding{HostDevice: &v1alpha1.HostDeviceBinding{PCIAddress: "0000:3b:02.1", VF: &s}}
}

// A network of virtual functions has a device of the resource that the kubelet chooses. Its
// settings need an opening of their own: a VLAN may belong to others.
func TestResourceOfVirtualFunctions(t *testing.T) {
	const resource = "intel.com/sriov_a"
	device := &v1alpha1.DeviceResource{Name: resource}
	for config, want := range map[string]struct {
		vf    v1alpha1.VFSettings
		reach []Need
	}{
		`{"cniVersion":"1.0.0","type":"sriov"}`:              {v1alpha1.VFSettings{}, []Need{{NeedDevice, resource}}},
		`{"cniVersion":"1.0.0","type":"sriov","vlan":0}`:     {v1alpha1.VFSettings{VLAN: &v1alpha1.VFVLAN{}}, []Need{{NeedDevice, resource}, {NeedPlugin, "sriov"}}},
		`{"cniVersion":"1.0.0","type":"sriov","trust":"on"}`: {v1alpha1.VFSettings{Trust: new(true)}, []Need{{NeedDevice, resource}, {NeedPlugin, "sriov"}}},
	} {
		n, err := ParseWithResource(config, nil, resource)
		if err != nil || n.Refused != nil {
			t.Fatalf("%s: %v, refused %v", config, err, n.Refused)
		}
		if diff := cmp.Diff(&v1alpha1.Binding{HostDevice: &v1alpha1.HostDeviceBinding{Resource: device, VF: &want.vf}}, n.Binding); diff != "" {
			t.Errorf("%s: -want +got:\n%s", config, diff)
		}
		if diff := cmp.Diff(want.reach, n.Reach()); diff != "" {
			t.Errorf("%s: reach: -want +got:\n%s", config, diff)
		}
		if !n.Capabilities()["mac"] {
			t.Errorf("%s: a pod cannot request a MAC", config)
		}
		valid(t, n)
	}
}
