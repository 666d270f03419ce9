package answer

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	cnitypes "github.com/containernetworking/cni/pkg/types"
	types040 "github.com/containernetworking/cni/pkg/types/040"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/node/ledger"
)

// Kinds are the kinds of binding (kinds.Table).
type Kinds interface {
	// Plan validates an interface in the namespace at a place, and returns its Made.
	Plan(at link.Place, i plug.Interface) (plug.Made, error)
	// RandomMAC reports whether an interface of a binding has a random MAC if none is requested.
	RandomMAC(b v1alpha1.Binding) bool
}

// Plan returns the interfaces of a PodAttachment that Fairlead plugs, in order: the
// default interface first, under ifName, the name that the runtime passed. An interface on
// the default network without an MTU gets mtu, in bytes. An interface without a MAC gets a
// random MAC if its kind has them. The content of the CNI result is
// therefore known before the kernel is involved. Errors: fault.ErrInvalid.
func Plan(pa *v1alpha1.PodAttachment, ifName string, mtu int, kinds Kinds) ([]ledger.Interface, error) {
	if len(pa.Spec.Interfaces) == 0 {
		return nil, fault.Errorf(fault.ErrInvalid, "PodAttachment %s/%s: spec.interfaces: empty: must have the default interface", pa.Namespace, pa.Name)
	}
	first := slices.IndexFunc(pa.Spec.Interfaces, func(i v1alpha1.Interface) bool { return i.Default })
	if first < 0 {
		return nil, fault.Errorf(fault.ErrInvalid, "PodAttachment %s/%s: spec.interfaces: none is the default: must have one with default: true", pa.Namespace, pa.Name)
	}
	out := make([]ledger.Interface, 0, len(pa.Spec.Interfaces))
	if b := pa.Spec.Interfaces[first].Binding; b.AddressOnly != nil {
		return nil, fault.Errorf(fault.ErrInvalid, "PodAttachment %s/%s: interface %s: binding: addressOnly: another plugin makes this interface, and asks for its addresses under the name fairlead-ipam",
			pa.Namespace, pa.Name, pa.Spec.Interfaces[first].Name)
	}
	one := pa.Spec.Interfaces[first]
	one.Name = ifName
	out = append(out, resolve(one, mtu, kinds))
	for n, i := range pa.Spec.Interfaces {
		if n == first || i.Binding.AddressOnly != nil {
			continue
		}
		further, err := PlanFurther(pa, i, ifName, mtu, kinds)
		if err != nil {
			return nil, err
		}
		out = append(out, further)
	}
	return out, nil
}

// PlanFurther returns an interface of a PodAttachment beside the default one, which has
// the name ifName in the sandbox, as Plan does. Errors: fault.ErrInvalid.
func PlanFurther(pa *v1alpha1.PodAttachment, i v1alpha1.Interface, ifName string, mtu int, kinds Kinds) (ledger.Interface, error) {
	if i.Name == ifName {
		return ledger.Interface{}, fault.Errorf(fault.ErrInvalid, "PodAttachment %s/%s: spec.interfaces: name %q: the runtime gave this name to the default interface", pa.Namespace, pa.Name, i.Name)
	}
	return resolve(i, mtu, kinds), nil
}

func resolve(i v1alpha1.Interface, mtu int, kinds Kinds) ledger.Interface {
	if i.Binding.Delegate != nil { // the plugins choose
		return ledger.Interface{Interface: i}
	}
	if i.MTU == 0 && i.Network == v1alpha1.DefaultNetwork {
		i.MTU = int32(mtu) //nolint:gosec // an MTU is at most 65535
	}
	if i.MAC == "" && kinds.RandomMAC(i.Binding) {
		i.MAC = plug.RandomMAC().String()
	}
	return ledger.Interface{Interface: i}
}

// Present returns a PodAttachment without the interfaces that spec.unplug names, other than
// the default one: an ADD gets none of them.
func Present(pa *v1alpha1.PodAttachment) *v1alpha1.PodAttachment {
	if len(pa.Spec.Unplug) == 0 {
		return pa
	}
	c := *pa
	c.Spec.Interfaces = slices.DeleteFunc(slices.Clone(pa.Spec.Interfaces), func(i v1alpha1.Interface) bool {
		return !i.Default && slices.Contains(pa.Spec.Unplug, i.Name)
	})
	return &c
}

// Parse returns the interfaces of an ADD in the form that kinds of binding take. It enters
// the plan of its kind, in the namespace at a place, into the Made of each interface. Errors:
// fault.ErrInvalid.
func Parse(pa *v1alpha1.PodAttachment, containerID string, add *ledger.Add, at link.Place, kinds Kinds) ([]plug.Interface, error) {
	out := make([]plug.Interface, len(add.Interfaces))
	for n := range add.Interfaces {
		i := &add.Interfaces[n]
		p, err := i.Parse(containerID)
		if i.Binding.Delegate != nil || i.Chain != nil {
			p.Args = Args(pa, containerID)
		}
		if add.AddressOnly() {
			p.Name = add.IfName
		}
		if err == nil {
			i.Made, err = kinds.Plan(at, p)
		}
		if err != nil {
			return nil, fault.Errorf(fault.ErrInvalid, "PodAttachment %s/%s: interface %s: %w", pa.Namespace, pa.Name, i.Name, err)
		}
		out[n] = p
	}
	return out, nil
}

// Result returns the answer to ADD, in CNI version 1.1.0, without internal interfaces.
// interfaces are those of the ADD, the default interface first, and first is the default
// interface, parsed. MAC and MTU are empty where they are those of a link that the node has
// not looked at. The result has the addresses of the default interface only: CRI-O takes
// every address in it for an IP of the pod. If plugins were executed for the default
// interface, it is their result with the other interfaces. Errors: a recorded result of
// plugins cannot be decoded.
func Result(interfaces []ledger.Interface, first plug.Interface, netns string) (*types100.Result, error) {
	var res *types100.Result
	for n, i := range interfaces {
		if i.Internal {
			continue
		}
		part, err := executed(i)
		if err != nil {
			return nil, err
		}
		if part == nil {
			part = plain(i, netns)
		}
		if n > 0 {
			res.Interfaces = append(res.Interfaces, part.Interfaces...)
			continue
		}
		if res = part; i.Made.Plugins == nil {
			addNetwork(res, first)
		}
		if res.DNS.IsEmpty() {
			res.DNS = cniDNS(i.DNS)
		}
	}
	return res, nil
}

// Made returns the result of an interface that Fairlead has made, in CNI version 1.1.0:
// the prevResult of its chain.
func Made(i plug.Interface, m plug.Made) *types100.Result {
	res := plain(ledger.Interface{Interface: v1alpha1.Interface{Name: i.Name, MAC: i.MAC.String(), MTU: int32(i.MTU)}, Made: m}, m.Namespace.Path) //nolint:gosec // an MTU is at most 65535
	addNetwork(res, i)
	return res
}

// plain returns the links of an interface that Fairlead has made. The interface is the
// last one.
func plain(i ledger.Interface, netns string) *types100.Result {
	res := &types100.Result{CNIVersion: types100.ImplementedSpecVersion}
	if i.Made.HostLink != "" {
		res.Interfaces = append(res.Interfaces, &types100.Interface{Name: i.Made.HostLink})
	}
	mac, mtu := i.Known()
	res.Interfaces = append(res.Interfaces, &types100.Interface{Name: i.Name, Mac: mac, Mtu: mtu, Sandbox: netns})
	return res
}

// addNetwork adds the addresses and routes of the last interface of a result.
func addNetwork(res *types100.Result, p plug.Interface) {
	index := len(res.Interfaces) - 1
	for _, c := range cniAddresses(p) {
		c.Interface = new(index)
		res.IPs = append(res.IPs, c)
	}
	res.Routes = cniRoutes(append(p.DefaultRoutes(), p.Routes...))
}

// cniAddresses returns the addresses of an interface, each with the first gateway of its
// family.
func cniAddresses(p plug.Interface) (out []*types100.IPConfig) {
	for _, a := range p.Addresses {
		c := &types100.IPConfig{Address: ipNet(a)}
		if i := slices.IndexFunc(p.Gateways, func(g netip.Addr) bool { return g.Is4() == a.Addr().Is4() }); i >= 0 {
			c.Gateway = p.Gateways[i].AsSlice()
		}
		out = append(out, c)
	}
	return out
}

func cniRoutes(routes []plug.Route) (out []*cnitypes.Route) {
	for _, r := range routes {
		route := &cnitypes.Route{Dst: ipNet(r.Destination)}
		if r.Gateway.IsValid() {
			route.GW = r.Gateway.AsSlice()
		}
		out = append(out, route)
	}
	return out
}

func cniDNS(d *v1alpha1.DNS) cnitypes.DNS {
	if d == nil {
		return cnitypes.DNS{}
	}
	return cnitypes.DNS{Nameservers: d.Nameservers, Domain: d.Domain, Search: d.Search, Options: d.Options}
}

func ipNet(p netip.Prefix) net.IPNet {
	return net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// Encode encodes a result, of version 1.1.0, in the CNI version of the request: 0.3.1,
// 0.4.0, 1.0.0 or 1.1.0; errors: fault.ErrInvalid for another version.
func Encode(res *types100.Result, version string) ([]byte, error) {
	if version != types100.ImplementedSpecVersion {
		for _, i := range res.Interfaces {
			i.Mtu = 0 // came with 1.1.0
		}
	}
	converted, err := res.GetAsVersion(version)
	if err != nil {
		return nil, fault.Errorf(fault.ErrInvalid, "cniVersion: %w", err)
	}
	raw, err := json.Marshal(converted)
	if err != nil {
		return nil, fmt.Errorf("encode the result: %w", err)
	}
	return raw, nil
}

// InVersion converts a recorded result to the CNI version of the present request.
func InVersion(raw json.RawMessage, version string) ([]byte, error) {
	res, err := create.CreateFromBytes(raw)
	if err != nil {
		return nil, fmt.Errorf("decode the recorded result: %w", err)
	}
	if res.Version() == version {
		return raw, nil
	}
	newest, err := types100.GetResult(res)
	if err != nil {
		return nil, fmt.Errorf("decode the recorded result: %w", err)
	}
	return Encode(newest, version)
}

// The conversions to older versions are registered by this package.
var _ = types040.ImplementedSpecVersion

// AtNode returns fault.ErrInvalid if a host port is bound to an address of the host at which no host
// ports are. own are those at which they are.
func AtNode(add *ledger.Add, pod ledger.Pod, own []netip.Addr) error {
	for _, p := range add.HostPorts {
		if at := p.HostIP; at.IsValid() && !at.IsUnspecified() && !slices.Contains(own, at) {
			return fault.Errorf(fault.ErrInvalid, "runtimeConfig.portMappings: hostIP %s of host port %d of pod %s: must be an address of the node (%v) or empty for all of them",
				at, p.HostPort, pod, own)
		}
	}
	return nil
}

// ReservedPort are ports of the host that the node itself needs.
type ReservedPort struct {
	// Protocol is "tcp", "udp" or "sctp".
	Protocol    string
	First, Last uint16
	// Option is the field of the configuration that reserves them.
	Option string
}

func (r ReservedPort) has(protocol string, port int64) bool {
	return r.Protocol == protocol && int64(r.First) <= port && port <= int64(r.Last)
}

// NotReserved returns fault.ErrInvalid if a host port of a pod is reserved for the node
// itself: a port that Fairlead would open, or a port in the arguments of a plugin for
// portMappings.
func NotReserved(add *ledger.Add, pod ledger.Pod, reserved []ReservedPort) error {
	for _, p := range add.HostPorts {
		for _, r := range reserved {
			if r.has(p.Protocol, int64(p.HostPort)) {
				return isReserved("runtimeConfig.portMappings", int64(p.HostPort), pod, r)
			}
		}
	}
	for _, i := range add.Interfaces {
		for _, list := range []*v1alpha1.PluginList{i.Chain, i.Binding.Delegate} {
			if list == nil || list.RuntimeConfig == "" {
				continue
			}
			if err := pluginsSpare(i.Interface, list, pod, reserved); err != nil {
				return err
			}
		}
	}
	return nil
}

// pluginsSpare returns fault.ErrInvalid if the plugins of an interface get a host port that
// is reserved. A plugin takes a mapping without a protocol for one of TCP.
func pluginsSpare(i v1alpha1.Interface, list *v1alpha1.PluginList, pod ledger.Pod, reserved []ReservedPort) error {
	var arguments struct {
		PortMappings []struct {
			HostPort int64  `json:"hostPort"`
			Protocol string `json:"protocol"`
		} `json:"portMappings"`
	}
	if err := json.Unmarshal([]byte(list.RuntimeConfig), &arguments); err != nil {
		return fault.Errorf(fault.ErrInvalid, "interface %s on network %s of pod %s: runtimeConfig: %w", i.Name, i.Network, pod, err)
	}
	for _, m := range arguments.PortMappings {
		protocol := strings.ToLower(m.Protocol)
		if protocol == "" {
			protocol = "tcp"
		}
		for _, r := range reserved {
			if r.has(protocol, m.HostPort) {
				return isReserved("portMappings of network "+i.Network, m.HostPort, pod, r)
			}
		}
	}
	return nil
}

func isReserved(field string, port int64, pod ledger.Pod, r ReservedPort) error {
	return fault.Errorf(fault.ErrInvalid, "%s: host port %d/%s of pod %s is reserved for the node (%s in the configuration of fairlead-node): choose another port, or change that option",
		field, port, r.Protocol, pod, r.Option)
}

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
