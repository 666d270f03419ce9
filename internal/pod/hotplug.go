package pod

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// Changes compares the networks that a running pod selects with the further interfaces
// that it has. add are the selections without an interface, each with the name of the
// interface to add, and drop are the names of the interfaces that no selection has. An
// interface on the default network is no selection's, so it stays. So does a device of a
// device plugin, which the kubelet has allocated for the life of the pod.
//
// A selection with a name has the interface of this name if that is on its network, with
// the addresses and the MAC that it requests. A selection without a name has any other
// interface on its network whose name is not requested, so that an interface stays when
// the elements before it go. A selection whose name is that of an interface that has to go
// first is not in add.
func Changes(selected []Selection, has []v1alpha1.Interface) (add []Selection, drop []string) {
	used := map[string]bool{} // interfaces that a selection has
	match := func(s Selection, may func(v1alpha1.Interface) bool) bool {
		i := slices.IndexFunc(has, func(i v1alpha1.Interface) bool { return !i.Default && !used[i.Name] && may(i) && s.suits(i) })
		if i >= 0 {
			used[has[i].Name] = true
		}
		return i >= 0
	}
	found := make([]bool, len(selected))
	pass := func(named bool, may func(Selection, v1alpha1.Interface) bool) {
		for n, s := range selected {
			if !found[n] && s.Named == named {
				found[n] = match(s, func(i v1alpha1.Interface) bool { return may(s, i) })
			}
		}
	}
	sameName := func(s Selection, i v1alpha1.Interface) bool { return s.Interface == i.Name }
	pass(true, sameName)
	requested := map[string]bool{}
	for n, s := range selected {
		requested[s.Interface] = requested[s.Interface] || s.Named && !found[n]
	}
	pass(false, func(s Selection, i v1alpha1.Interface) bool { return sameName(s, i) && !requested[i.Name] })
	pass(false, func(_ Selection, i v1alpha1.Interface) bool { return !requested[i.Name] })
	taken := map[string]bool{}
	for _, i := range has {
		taken[i.Name] = true
		if !i.Default && i.Network != v1alpha1.DefaultNetwork && !allocated(i) && !used[i.Name] {
			drop = append(drop, i.Name)
		}
	}
	return additions(selected, found, taken, drop), drop
}

// allocated reports whether an interface is a device of a device plugin.
func allocated(i v1alpha1.Interface) bool {
	return i.Binding.HostDevice != nil && i.Binding.HostDevice.Resource != nil
}

// additions returns the selections that are not found and whose name is free. A selection
// without a name has the name of its place, otherwise the first free of net1, net2, ...
func additions(selected []Selection, found []bool, taken map[string]bool, drop []string) (add []Selection) {
	for n, s := range selected {
		if s.Named && !found[n] && !taken[s.Interface] {
			taken[s.Interface] = true
			add = append(add, s)
		}
	}
	for n, s := range selected {
		if s.Named || found[n] || slices.Contains(drop, s.Interface) {
			continue
		}
		for k := 1; taken[s.Interface]; k++ {
			s.Interface = fmt.Sprintf("net%d", k)
		}
		taken[s.Interface] = true
		add = append(add, s)
	}
	return add
}

// RefuseDefaultRoute returns an error if an interface is to bring a running pod the default
// route that another has already: the kernel would refuse it, and connections would break if the
// other lost it.
func RefuseDefaultRoute(wanted []Interface, has []v1alpha1.Interface) error {
	of := slices.IndexFunc(has, func(i v1alpha1.Interface) bool { return len(i.Gateways) > 0 })
	if of < 0 { // the node gives the default interface its gateways, or plugins do
		of = slices.IndexFunc(has, func(i v1alpha1.Interface) bool { return i.Default })
	}
	for _, w := range wanted {
		if w.DefaultRoute && of >= 0 {
			return fmt.Errorf("interface %s cannot have the default route of a running pod, which is on %s: remove default-route from network %s, or delete the pod, so that its successor has it",
				w.Name, has[of].Name, w.Network)
		}
	}
	return nil
}

// suits reports whether an interface is on the network of the selection, with the
// addresses and the MAC that it requests.
func (s Selection) suits(i v1alpha1.Interface) bool {
	if i.Network != s.Network() || s.MAC != "" && i.MAC != "" && !strings.EqualFold(s.MAC, i.MAC) {
		return false
	}
	has := func(a netip.Addr) bool {
		return slices.ContainsFunc(i.Addresses, func(cidr string) bool {
			p, err := netip.ParsePrefix(cidr)
			return err == nil && p.Addr() == a
		})
	}
	// An interface of a plugin that chooses addresses on the node has none in its record.
	return len(i.Addresses) == 0 || !slices.ContainsFunc(s.Addresses, func(a netip.Addr) bool { return !has(a) })
}
