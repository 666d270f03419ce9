package npwg

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver/fixed"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/nad"
	"fairlead.dev/fairlead/internal/pod"
)

// attached returns the interface that Fairlead makes for a pod on a network: by a kind of
// binding, or by executing the network's plugins. Errors: fault.ErrInvalid,
// fault.ErrNotFound, fault.ErrUnavailable.
func (n *Networks) attached(s pod.Selection) (pod.Interface, error) {
	known, err := n.get(keyOfNetwork(s))
	if err != nil {
		return pod.Interface{}, err
	}
	if known.settings != nil {
		w, err := byDriver(s, known)
		if err != nil {
			err = fmt.Errorf("%w: NetworkAttachmentDefinition %s: %w", fault.ErrInvalid, s.Network(), err)
		}
		return w, err
	}
	if err := n.attachable(s, known); err != nil {
		return pod.Interface{}, fmt.Errorf("%w: NetworkAttachmentDefinition %s: %w", fault.ErrInvalid, s.Network(), err)
	}
	w := pod.Interface{
		Name: s.Interface, Network: s.Network(), Driver: cmp.Or(known.driver, fixed.Name), Addresses: s.Addresses, MAC: s.MAC, Pools: known.Pools,
		ClaimReference: s.ClaimReference, MTU: known.MTU, Routes: known.Routes, Binding: known.Binding, OwnGateways: true,
	}
	if s.DeviceID != "" {
		w.Binding = known.Binding.DeepCopy() // attachable: it has a resource
		w.Binding.HostDevice.Resource.Device = s.DeviceID
	}
	switch {
	case known.Delegated():
		w.Binding = &v1alpha1.Binding{Delegate: pluginList(s, known, known.Plugins)}
		if !known.Served() { // the plugins choose the addresses
			w.Addresses, w.MAC = nil, ""
		}
	case len(known.Chain) > 0:
		w.Chain = pluginList(s, known, known.Chain)
	}
	if err := n.addresses(s, known, &w); err != nil {
		return pod.Interface{}, err
	}
	route(s, &w)
	return w, nil
}

// byDriver returns the interface on a network that only its driver reads.
func byDriver(s pod.Selection, known *network) (pod.Interface, error) {
	for _, wish := range s.Wishes() {
		if wish != "ips" && wish != "mac" {
			return pod.Interface{}, fmt.Errorf("the pod requests %s, which driver %s does not serve: remove it from the annotation", wish, known.driver)
		}
	}
	switch {
	case s.ClaimReference != "":
		return pod.Interface{}, fmt.Errorf("ipam-claim-reference: %q: driver %s has no claims: leave it out", s.ClaimReference, known.driver)
	case s.DeviceID != "":
		return pod.Interface{}, fmt.Errorf("deviceID: %q: driver %s has no devices: leave it out", s.DeviceID, known.driver)
	}
	w := pod.Interface{
		Name: s.Interface, Network: s.Network(), Driver: known.driver, Addresses: s.Addresses, MAC: s.MAC, Settings: known.settings, OwnGateways: true,
	}
	route(s, &w)
	return w, nil
}

// route gives an interface the default route of the pod, if the pod selects it for that.
func route(s pod.Selection, w *pod.Interface) {
	if !s.DefaultRoute {
		return
	}
	w.DefaultRoute, w.OwnGateways, w.Gateways = true, len(s.Gateways) > 0, nil
	for _, g := range s.Gateways {
		w.Gateways = append(w.Gateways, g.String())
	}
}

// attachable returns an error, in words for the pod's owner, if Fairlead cannot attach a
// pod to a network as the pod selects it.
func (n *Networks) attachable(s pod.Selection, known *network) error {
	if err := known.Attachable(nad.Selected{Wishes: s.Wishes(), ClaimReference: s.ClaimReference, DeviceID: s.DeviceID}); err != nil {
		return err
	}
	return n.mayUse(s.Namespace, known.Reach())
}

// addresses completes an interface by the part of its network about addresses.
func (n *Networks) addresses(s pod.Selection, known *network, w *pod.Interface) error {
	w.DNS = known.DNS
	switch {
	case known.Static != nil:
		w.Fixed, w.Routes = known.Static.Addresses, known.Static.Routes
		if len(w.Fixed) == 0 {
			w.Fixed, w.Addresses = s.Prefixes, nil
		}
		for _, g := range known.Static.Gateways {
			w.Gateways = append(w.Gateways, g.String())
		}
		w.DNS = cmp.Or(known.DNS, known.Static.DNS)
	case known.Whereabouts != nil:
		c := known.Whereabouts
		pools, err := n.poolsOf(s.Namespace, c)
		if err != nil {
			return err
		}
		w.Pools, w.EachPool, w.Routes, w.DNS = pools, true, slices.Clone(c.Routes), cmp.Or(known.DNS, c.DNS)
		for i := range w.Routes { // as whereabouts' plugin does
			if r := &w.Routes[i]; r.Gateway == "" && c.Gateway.IsValid() && strings.Contains(r.Destination, ":") == c.Gateway.Is6() {
				r.Gateway = c.Gateway.String()
			}
		}
	}
	return nil
}

// pluginList returns plugins of a network for the node to execute, with the wishes of a
// pod.
func pluginList(s pod.Selection, known *network, plugins []string) *v1alpha1.PluginList {
	return &v1alpha1.PluginList{
		Name: cmp.Or(known.Name, s.Name), CNIVersion: known.CNIVersion, Plugins: plugins, RuntimeConfig: s.RuntimeConfig(), Args: s.CNIArgs,
	}
}

// mayUse returns nil if networks of a namespace may use parts of the nodes, otherwise an
// error that names each part which is not open to them.
func (n *Networks) mayUse(namespace string, needs []nad.Need) error {
	if namespace == n.cfg.Namespace {
		return nil
	}
	n.mu.Lock()
	labels, known := n.labels[namespace]
	n.mu.Unlock()
	var missing []string
	for _, need := range needs {
		if !known || !slices.ContainsFunc(n.cfg.Open, func(o Opening) bool { return o.opens(labels, need) }) {
			missing = append(missing, fmt.Sprintf("%s %q", need.Kind, need.Name))
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("networks of namespace %s may not use %s of the nodes: ask the operator to open it (networks.open of fairlead-controller)", namespace, strings.Join(missing, ", "))
}
