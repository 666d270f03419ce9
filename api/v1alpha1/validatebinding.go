package v1alpha1

import (
	"fmt"
	"regexp"
	"slices"
)

const (
	// maxPlugins bounds the plugins of a list.
	maxPlugins = 16
	// maxPluginText bounds the text of one plugin's configuration, in bytes.
	maxPluginText = 16 << 10
	maxVLAN       = 4094
)

var (
	devicePattern   = regexp.MustCompile(`^/sys/devices/[a-zA-Z0-9_.:/-]{1,240}$`)
	pciPattern      = regexp.MustCompile(`^[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$`)
	resourcePattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/[a-zA-Z0-9]([a-zA-Z0-9_.-]{0,61}[a-zA-Z0-9])?$`)
	deviceIDPattern = regexp.MustCompile(`^([a-zA-Z0-9][a-zA-Z0-9_.:-]{0,127})?$`)
	portPattern     = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	sourceChecks    = []string{"", string(SourceFull), string(SourceMAC), string(SourceNone)}
	macvlanModes    = []string{"bridge", "private", "vepa", "passthru"}
	ipvlanModes     = []string{"l2", "l3", "l3s"}
	vfLinkStates    = []string{"", string(VFLinkAuto), string(VFLinkEnable), string(VFLinkDisable)}
	vfProtocols     = []string{"", "802.1Q", "802.1ad"}
	pluginsVersions = []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"}
)

// binding validates a binding: exactly one member, and its fields.
func (c *checker) binding(path string, b Binding) {
	members := 0
	member := func(set bool, check func()) {
		if set {
			members++
			check()
		}
	}
	member(b.AddressOnly != nil, func() {})
	member(b.Bridge != nil, func() { c.bridge(path+".bridge", b.Bridge) })
	member(b.OVS != nil, func() { c.ovs(path+".ovs", b.OVS) })
	member(b.Macvlan != nil, func() {
		c.parent(path+".macvlan", b.Macvlan.Parent, b.Macvlan.ParentMAC, b.Macvlan.PortID)
		c.among(path+".macvlan.mode", b.Macvlan.Mode, macvlanModes)
	})
	member(b.IPVLAN != nil, func() {
		c.link(path+".ipvlan.parent", b.IPVLAN.Parent)
		c.among(path+".ipvlan.mode", b.IPVLAN.Mode, ipvlanModes)
	})
	member(b.VLAN != nil, func() {
		c.parent(path+".vlan", b.VLAN.Parent, b.VLAN.ParentMAC, b.VLAN.PortID)
		c.vlan(path+".vlan.id", b.VLAN.ID, 1)
	})
	member(b.HostDevice != nil, func() { c.device(path+".hostDevice", b.HostDevice) })
	member(b.Delegate != nil, func() { c.plugins(path+".delegate", b.Delegate) })
	c.want(members == 1, path, fmt.Sprint(members)+" members", "must have exactly one")
}

func (c *checker) link(field, name string) {
	c.want(linkPattern.MatchString(name), field, name, wantInterface)
}

// parent validates the link that an interface is made on, and its port in Neutron.
func (c *checker) parent(path, name, mac, port string) {
	switch {
	case name != "" && mac != "":
		c.want(false, path+".parentMAC", mac, "must be empty with a parent")
	case mac != "":
		c.want(macPattern.MatchString(mac), path+".parentMAC", mac, wantMAC)
	default:
		c.link(path+".parent", name)
	}
	c.want(port == "" || portPattern.MatchString(port), path+".portID", port, wantPort)
}

func (c *checker) among(field, value string, accepted []string) {
	c.want(slices.Contains(accepted, value), field, value, fmt.Sprintf("must be one of %q", accepted))
}

func (c *checker) vlan(field string, id, least int32) {
	c.want(id >= least && id <= maxVLAN, field, fmt.Sprint(id), fmt.Sprintf("must be %d to %d", least, maxVLAN))
}

func (c *checker) bridge(path string, b *BridgeBinding) {
	c.link(path+".name", b.Name)
	c.count(path+".addresses", len(b.Addresses), 0, 4)
	for n, a := range b.Addresses {
		c.want(isCIDR(a), fmt.Sprintf("%s.addresses[%d]", path, n), a, wantAddress)
	}
	c.vlan(path+".vlan", b.VLAN, 0)
	c.count(path+".trunk", len(b.Trunk), 0, 64)
	for n, r := range b.Trunk {
		field := fmt.Sprintf("%s.trunk[%d]", path, n)
		c.vlan(field+".min", r.Min, 1)
		c.vlan(field+".max", r.Max, 1)
		c.want(r.Min <= r.Max, field, fmt.Sprintf("%d-%d", r.Min, r.Max), "min must not be above max")
	}
	c.among(path+".sourceCheck", string(b.SourceCheck), sourceChecks)
}

func (c *checker) ovs(path string, b *OVSBinding) {
	if b.Bridge != "" {
		c.link(path+".bridge", b.Bridge)
	}
	c.want(portPattern.MatchString(b.PortID), path+".portID", b.PortID, wantPort)
}

func (c *checker) device(path string, d *HostDeviceBinding) {
	fields := 0
	for _, f := range []struct {
		name, value string
		form        *regexp.Regexp
		want        string
	}{
		{"name", d.Name, linkPattern, wantInterface},
		{"mac", d.MAC, macPattern, wantMAC},
		{"kernelPath", d.KernelPath, devicePattern, "must be a path below /sys/devices"},
		{"pciAddress", d.PCIAddress, pciPattern, "must be a PCI address, as 0000:3b:00.1"},
	} {
		if f.value != "" {
			fields++
			c.want(f.form.MatchString(f.value), path+"."+f.name, f.value, f.want)
		}
	}
	if r := d.Resource; r != nil {
		fields++
		c.want(resourcePattern.MatchString(r.Name), path+".resource.name", r.Name, "must be the name of a device plugin's resource, as intel.com/sriov_a")
		c.want(deviceIDPattern.MatchString(r.Device), path+".resource.device", r.Device, "must have at most 128 of a-z, A-Z, 0-9, '_', '.', ':', '-', and begin with a letter or digit")
	}
	c.want(fields == 1, path, fmt.Sprint(fields)+" fields", "must have exactly one of name, mac, kernelPath, pciAddress and resource")
	if d.VF != nil {
		c.want(d.PCIAddress != "" || d.Resource != nil, path+".vf", "set", "needs pciAddress or resource")
		c.virtualFunction(path+".vf", d.VF)
	}
}

func (c *checker) virtualFunction(path string, s *VFSettings) {
	c.among(path+".linkState", string(s.LinkState), vfLinkStates)
	if v := s.VLAN; v != nil {
		c.vlan(path+".vlan.id", v.ID, 0)
		c.want(v.QoS >= 0 && v.QoS <= 7, path+".vlan.qos", fmt.Sprint(v.QoS), "must be 0 to 7")
		c.among(path+".vlan.protocol", v.Protocol, vfProtocols)
		c.want(v.ID > 0 || v.QoS == 0 && v.Protocol == "", path+".vlan.id", fmt.Sprint(v.ID), "must be 1 to 4094 beside qos and protocol")
	}
	if r := s.Rate; r != nil {
		c.want(r.Min >= 0 && r.Max >= 0 && (r.Max == 0 || r.Min <= r.Max), path+".rate", fmt.Sprintf("%d-%d", r.Min, r.Max), "must have min and max of at least 0, and min not above max")
	}
}

func (c *checker) plugins(path string, l *PluginList) {
	c.length(path+".name", l.Name, 1, 253)
	c.among(path+".cniVersion", l.CNIVersion, pluginsVersions)
	c.count(path+".plugins", len(l.Plugins), 1, maxPlugins)
	for n, p := range l.Plugins {
		c.length(fmt.Sprintf("%s.plugins[%d]", path, n), p, 1, maxPluginText)
	}
	c.length(path+".runtimeConfig", l.RuntimeConfig, 0, maxPluginText)
	c.length(path+".args", l.Args, 0, maxPluginText)
}
