package report

import (
	"slices"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/node/ledger"
)

// maxAddresses is the limit of addresses of one link in the status.
const maxAddresses = 16

// linksOf returns the interfaces of a sandbox that Fairlead plugs, if there are several or
// plugins were executed: MAC and MTU from the record, where it has them, otherwise from the
// inspected namespace. The addresses are those that plugins have chosen. An interface that
// is being unplugged is among them until nothing is left of it.
func linksOf(rec *ledger.Record, inside map[string]plug.Inspected) (links []v1alpha1.SandboxLink) {
	add := rec.Plug()
	if add == nil || len(add.Interfaces) < 2 && !add.Executes() {
		return nil
	}
	for _, i := range add.Interfaces {
		if i.State == ledger.Attaching {
			continue // it may fail
		}
		mac, mtu := i.Known()
		if mac == "" {
			mac = inside[i.Name].MAC
		}
		if seen := inside[i.Name].MTU; mtu == 0 && seen <= link.MaxMTU { // a pod may put lo in its place
			mtu = seen
		}
		l := v1alpha1.SandboxLink{Name: i.Name, MAC: mac, MTU: int32(mtu)} //nolint:gosec // an MTU is at most 65535
		if d := i.Binding.HostDevice; d != nil {
			l.PCIAddress = d.PCIAddress
		}
		if d := i.Made.Device; d != nil && d.PCIAddress != "" {
			l.PCIAddress = d.PCIAddress
		}
		if i.Binding.Delegate != nil {
			l.Addresses = i.Addresses[:min(len(i.Addresses), maxAddresses)]
		}
		links = append(links, l)
	}
	return links
}

// generationOf returns the generation of the PodAttachment whose spec a sandbox has.
func generationOf(rec *ledger.Record) int64 {
	if add := rec.Plug(); add != nil {
		return add.Generation
	}
	return 0
}

// sameSpec reports whether a status has the generation of a record and its interfaces. A
// record without a generation may lack interfaces.
func sameSpec(s *v1alpha1.Sandbox, rec *ledger.Record) bool {
	generation := generationOf(rec)
	return generation == 0 || s.Generation == generation && slices.EqualFunc(s.Links, linksOf(rec, nil), func(a, b v1alpha1.SandboxLink) bool { return a.Name == b.Name })
}
