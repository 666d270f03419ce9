package nad

import (
	"fmt"
	"path"
	"regexp"
	"strings"

	"fairlead.dev/fairlead/api/v1alpha1"
)

var (
	macAddress = regexp.MustCompile(`^[0-9a-f]{2}(:[0-9a-f]{2}){5}$`)
	pciAddress = regexp.MustCompile(`^[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$`)
	// resourceName has the form of a DeviceResource in the API.
	resourceName = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/[a-zA-Z0-9]([a-zA-Z0-9_.-]{0,61}[a-zA-Z0-9])?$`)
	devicePath   = regexp.MustCompile(`^/sys/devices/[a-zA-Z0-9_.:/-]{1,240}$`)
)

// AnnotationResource names, on a NetworkAttachmentDefinition, the resource of the device
// plugin that allocates its devices.
const AnnotationResource = "k8s.v1.cni.cncf.io/resourceName"

// ResourceName reports whether a text can name the resource of a device plugin.
func ResourceName(text string) bool { return resourceName.MatchString(text) }

// checkResource returns an error if pods cannot get devices of the resource that the
// network names. served is true if its first plugin takes one.
func (n *Network) checkResource(resource string, served bool) error {
	switch {
	case resource == "":
		return nil
	case !ResourceName(resource):
		return fmt.Errorf("annotation %s: %s: must be the name of a device plugin's resource, as intel.com/sriov_a", AnnotationResource, shown(resource))
	case !served:
		return fmt.Errorf("annotation %s: %s: is served for the types host-device and sriov with addresses of Fairlead, static ones or none, and the type is %s: change the type, or remove the annotation",
			AnnotationResource, shown(resource), shown(n.Type))
	}
	return nil
}

type deviceOptions struct {
	common
	Device              string `json:"device"`
	HWAddr              string `json:"hwaddr"`
	KernelPath          string `json:"kernelpath"`
	PCIBusID            string `json:"pciBusID"`
	DPDKMode            bool   `json:"dpdkMode"`
	UseInterfaceNetwork bool   `json:"useInterfaceNetwork"`
	RuntimeConfig       struct {
		DeviceID string `json:"deviceID"`
	} `json:"runtimeConfig"`
}

// readHostDevice reads the options of host-device. A device ID takes the place of the PCI
// address, as in the reference plugin. If the network names a resource, the kubelet
// chooses the device.
func readHostDevice(r *reader, n *Network) v1alpha1.Binding {
	var o deviceOptions
	r.decode(&o)
	r.common(o.common, n)
	r.refuse("dpdkMode", o.DPDKMode, "remove it: the device must have a link of the kernel")
	r.refuse("useInterfaceNetwork", o.UseInterfaceNetwork, "remove it, and name the addresses in ipam")
	pci := "pciBusID"
	if o.RuntimeConfig.DeviceID != "" {
		pci, o.PCIBusID = "runtimeConfig.deviceID", o.RuntimeConfig.DeviceID
	}
	d := &v1alpha1.HostDeviceBinding{
		Name: o.Device, MAC: plainMAC(o.HWAddr), KernelPath: o.KernelPath, PCIAddress: strings.ToLower(o.PCIBusID),
	}
	var named []string
	for _, way := range []struct {
		option, text, value string
		valid               bool
		want                string
	}{
		{"device", o.Device, d.Name, linkName.MatchString(d.Name), "must be the name of a link of the node, as eth5"},
		{"hwaddr", o.HWAddr, d.MAC, macAddress.MatchString(d.MAC), "must be six bytes, as 02:23:45:67:89:01"},
		{
			"kernelpath", o.KernelPath, d.KernelPath, devicePath.MatchString(d.KernelPath) && path.Clean(d.KernelPath) == d.KernelPath,
			"must be a path below /sys/devices, as /sys/devices/pci0000:00/0000:00:1f.6, without '..'",
		},
		{pci, o.PCIBusID, d.PCIAddress, pciAddress.MatchString(d.PCIAddress), "must be a PCI address, as 0000:3b:00.1"},
	} {
		if way.value == "" {
			continue
		}
		named = append(named, way.option)
		if !way.valid {
			r.bad(way.option, way.text, way.want)
		}
	}
	switch {
	case r.resource != "" && len(named) == 0:
		d.Resource = &v1alpha1.DeviceResource{Name: r.resource}
	case r.resource != "":
		r.bad(named[0], d.Name+d.MAC+d.KernelPath+d.PCIAddress, "must not stand beside the annotation "+AnnotationResource+", by which the kubelet chooses the device: remove one of them")
	case len(named) == 0:
		r.bad("device", "", "must name the device, or else hwaddr, kernelpath or pciBusID must, or the annotation "+AnnotationResource+" the resource of a device plugin")
	case len(named) > 1:
		r.bad("device", strings.Join(named, ", "), "must name the device in one way")
	}
	return v1alpha1.Binding{HostDevice: d}
}

// plainMAC returns a MAC in lower case with colons.
func plainMAC(text string) string { return strings.ReplaceAll(strings.ToLower(text), "-", ":") }
