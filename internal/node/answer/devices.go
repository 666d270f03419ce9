package answer

import (
	"regexp"
	"slices"
	"strings"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/node/ledger"
)

var pciAddress = regexp.MustCompile(`^[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$`)

// NeedDevices reports whether one of these interfaces is a device that the kubelet has
// allocated.
func NeedDevices(interfaces ...v1alpha1.Interface) bool {
	return slices.ContainsFunc(interfaces, func(i v1alpha1.Interface) bool { return resourceOf(i) != nil })
}

func resourceOf(i v1alpha1.Interface) *v1alpha1.DeviceResource {
	if i.Binding.HostDevice == nil {
		return nil
	}
	return i.Binding.HostDevice.Resource
}

// EnterDevices enters the devices of a pod, by resource and sorted, into the bindings of the
// interfaces that need one: those that name their device first, then the others in order.
// No two interfaces have the same device. Errors: fault.ErrInvalid if the pod does not have
// the device, or has fewer devices than interfaces that need one.
func EnterDevices(interfaces []ledger.Interface, allocated map[string][]string) error {
	taken := map[string]bool{}
	for _, named := range []bool{true, false} {
		for n := range interfaces {
			r := resourceOf(interfaces[n].Interface)
			if r == nil || (r.Device != "") != named {
				continue
			}
			id := r.Device
			has := allocated[r.Name]
			free := func(id string) bool { return !taken[strings.ToLower(id)] }
			if !named {
				if i := slices.IndexFunc(has, free); i >= 0 {
					id = has[i]
				}
			}
			switch {
			case len(has) == 0:
				return fault.Errorf(fault.ErrInvalid, "interface %s: the pod has no device of resource %s: request it in the resources of a container", interfaces[n].Name, r.Name)
			case id == "":
				return fault.Errorf(fault.ErrInvalid, "interface %s: the pod has %d devices of resource %s, %s, and its other interfaces have them: request one for each interface",
					interfaces[n].Name, len(has), r.Name, strings.Join(has, ", "))
			case !slices.ContainsFunc(has, func(h string) bool { return strings.EqualFold(h, id) }):
				return fault.Errorf(fault.ErrInvalid, "interface %s: deviceID: %q: must be a device of resource %s that the pod has: %s", interfaces[n].Name, id, r.Name, strings.Join(has, ", "))
			case !free(id):
				return fault.Errorf(fault.ErrInvalid, "interface %s: deviceID: %q: another interface of the pod has it", interfaces[n].Name, id)
			}
			taken[strings.ToLower(id)] = true
			binding, err := deviceBinding(interfaces[n].Binding.HostDevice, id)
			if err != nil {
				return fault.Errorf(fault.ErrInvalid, "interface %s: %w", interfaces[n].Name, err)
			}
			interfaces[n].Binding.HostDevice = binding // the cache has the other
		}
	}
	return nil
}

// deviceBinding returns the binding of an interface with its device by the ID: a PCI
// address, otherwise the name of a link. The binding keeps the resource for the record.
func deviceBinding(of *v1alpha1.HostDeviceBinding, id string) (*v1alpha1.HostDeviceBinding, error) {
	b := &v1alpha1.HostDeviceBinding{Resource: &v1alpha1.DeviceResource{Name: of.Resource.Name, Device: id}, VF: of.VF}
	if pci := strings.ToLower(id); pciAddress.MatchString(pci) {
		b.PCIAddress = pci
		return b, nil
	}
	if b.VF != nil {
		return nil, fault.Errorf(fault.ErrInvalid, "device %q of resource %s: must be a PCI address, as 0000:3b:02.1: the network is of type sriov", id, of.Resource.Name)
	}
	if err := link.CheckName(id); err != nil {
		return nil, fault.Errorf(fault.ErrInvalid, "device %q of resource %s: must be a PCI address, as 0000:3b:02.1, or the name of a link: %w", id, of.Resource.Name, err)
	}
	b.Name = id
	return b, nil
}
