package nad

import (
	"cmp"
	"encoding/json"
	"path"
	"slices"
	"strings"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// Kinds of a Need.
const (
	// NeedBridge is the use of a bridge, by its name.
	NeedBridge = "bridge"
	// NeedAddress is an address that the bridge gets, in CIDR form: the node itself has it.
	NeedAddress = "address"
	// NeedParent is the use of a link as a parent, by its name. The name is empty if an
	// executed plugin chooses the link: that of the node's default route.
	NeedParent = "parent"
	// NeedDevice is the use of a device, by its name, MAC, kernel path or PCI address, or of
	// a resource of devices, by its name.
	NeedDevice = "device"
	// NeedPlugin is the execution of a plugin, by its type. The settings of a virtual
	// function, which Fairlead makes itself, need the plugin sriov all the same.
	NeedPlugin = "plugin"
)

// Need is something of the node that an operator has to open to the namespace of a
// network.
type Need struct {
	// Kind is one of the constants above.
	Kind string
	// Name in this kind.
	Name string
}

// Reach returns the needs of the network, sorted by kind and name, each once. An executed
// plugin may reach more than its own need and the links that it names.
func (n Network) Reach() []Need { return slices.Clone(n.needs) }

func sorted(needs []Need) []Need {
	slices.SortFunc(needs, func(a, b Need) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
	})
	return slices.Compact(needs)
}

// bindingNeeds returns the needs of a binding.
func bindingNeeds(b v1alpha1.Binding) []Need {
	switch {
	case b.Bridge != nil:
		out := []Need{{NeedBridge, b.Bridge.Name}}
		for _, a := range b.Bridge.Addresses {
			out = append(out, Need{NeedAddress, a})
		}
		return out
	case b.Macvlan != nil:
		return []Need{{NeedParent, b.Macvlan.Parent}}
	case b.IPVLAN != nil:
		return []Need{{NeedParent, b.IPVLAN.Parent}}
	case b.VLAN != nil:
		return []Need{{NeedParent, b.VLAN.Parent}}
	default:
		d := b.HostDevice
		name := cmp.Or(d.Name, d.MAC, d.KernelPath, d.PCIAddress)
		if d.Resource != nil {
			name = d.Resource.Name
		}
		return append(settingNeeds(d.VF), Need{NeedDevice, name})
	}
}

// appendNeeds appends the needs of one kind whose names are not empty.
func appendNeeds(needs []Need, kind string, names ...string) []Need {
	for _, name := range names {
		if name != "" {
			needs = append(needs, Need{kind, name})
		}
	}
	return needs
}

// executedNeeds returns the needs of a plugin that is executed: itself, the plugin of its
// addresses, and the links that a reference plugin names, in the form that a binding has.
// Fairlead's IPAM is open to all.
func executedNeeds(p plugin) []Need {
	out := []Need{{NeedPlugin, p.kind}}
	if n := (Network{IPAM: p.ipamType}); p.ipamType != "" && !n.Served() {
		out = append(out, Need{NeedPlugin, p.ipamType})
	}
	var o struct {
		Bridge          string `json:"bridge"`
		Master          string `json:"master"`
		LinkInContainer bool   `json:"linkInContainer"`
		Device          string `json:"device"`
		HWAddr          string `json:"hwaddr"`
		KernelPath      string `json:"kernelpath"`
		PCIBusID        string `json:"pciBusID"`
		DeviceID        string `json:"deviceID"`
	}
	// Options of wrong types fail in the plugin; what could be read is needed all the same.
	_ = json.Unmarshal(p.text, &o)
	switch p.kind {
	case "bridge":
		out = append(out, Need{NeedBridge, cmp.Or(o.Bridge, defaultBridge)})
	case "macvlan", "ipvlan", "vlan":
		if !o.LinkInContainer {
			out = append(out, Need{NeedParent, o.Master})
		}
	case "tap":
		out = appendNeeds(out, NeedBridge, o.Bridge)
	case "host-device":
		out = appendNeeds(out, NeedDevice, o.Device, plainMAC(o.HWAddr), strings.ToLower(o.PCIBusID))
		if o.KernelPath != "" {
			out = appendNeeds(out, NeedDevice, path.Clean(o.KernelPath))
		}
	case "sriov":
		out = appendNeeds(out, NeedDevice, strings.ToLower(o.DeviceID))
		out = appendNeeds(out, NeedParent, o.Master)
	}
	return out
}
