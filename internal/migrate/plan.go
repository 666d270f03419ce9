package migrate

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/pod"
)

// Make plans the migration of a state. After a complete migration the plan of the new
// state is empty: this verifies a migration, and an interrupted migration continues with
// the rest.
//
// Addresses that no running pod explains are withheld, or left free if drop is set. An
// error names an object of Fairlead that cannot be parsed.
func Make(s State, drop bool) (*Plan, error) {
	p, err := newPlanner(s, drop)
	if err != nil {
		return nil, err
	}
	all := slices.Collect(maps.Keys(p.claims))
	for at := range p.uses {
		if len(p.claims[at]) == 0 {
			all = append(all, at)
		}
	}
	slices.SortFunc(all, compareAddresses)
	for _, at := range all {
		p.decide(at)
	}
	p.makePools()
	p.makeRecords()
	p.makeWithheld()
	slices.SortStableFunc(p.plan.Findings, func(a, b Finding) int {
		x, _ := netip.ParseAddr(a.Address)
		y, _ := netip.ParseAddr(b.Address)
		return cmp.Or(cmp.Compare(a.Domain, b.Domain), x.Compare(y), cmp.Compare(a.Address, b.Address), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Text, b.Text))
	})
	return p.plan, nil
}

// orphan returns the outcome for an address that no running pod explains.
func (p *planner) orphan() Outcome {
	if p.drop {
		return Dropped
	}
	return Withheld
}

func (p *planner) hold(at Address) { p.held[at] = true }

// decide plans one address.
func (p *planner) decide(at Address) {
	claims, uses := p.claims[at], p.users(at)
	p.compareKinds(at, claims)
	switch len(uses) {
	case 0:
		p.decideUnused(at, claims)
	case 1:
		u := uses[0]
		switch {
		case len(claims) == 0:
			p.find(NotRecorded, Imported, at, "pod %s uses it, and whereabouts has no record of it", podRef(u.pod))
		case !slices.ContainsFunc(claims, func(c claim) bool { return c.PodRef == podRef(u.pod) }):
			p.find(RecordedForAnother, Imported, at, "pod %s uses it; %s", podRef(u.pod), describeClaims(claims))
		case u.silent:
			p.find(NotVerified, Imported, at, "%s; the pod runs, and its network-status shows no address of the interface: it cannot be verified", describeClaims(claims))
		}
		p.take(at, u, claims)
	default:
		texts := make([]string, 0, len(uses))
		for _, u := range uses {
			text := podRef(u.pod)
			if u.silent {
				text += " (its network-status shows no address of the interface)"
			}
			texts = append(texts, text)
		}
		p.find(Duplicate, Withheld, at, "it is used by %s: delete all of them but one, and migrate again", strings.Join(texts, " and "))
		p.hold(at)
	}
}

// users returns the pods that use an address, each once: pods that show it, and running
// pods for which it is recorded and that show nothing at all, or the interface without an
// address.
func (p *planner) users(at Address) []use {
	var out []use
	for _, u := range p.uses[at] {
		if !slices.ContainsFunc(out, func(o use) bool { return o.pod == u.pod }) {
			out = append(out, u)
		}
	}
	for _, c := range p.claims[at] {
		of := p.pods[c.PodRef]
		if of == nil || !started(of) || slices.ContainsFunc(out, func(o use) bool { return o.pod == of }) {
			continue
		}
		entries, known := statusOf(of)
		if !known {
			out = append(out, use{pod: of, network: p.networkOf(at), silent: true})
		} else if e, ok := hidden(entries, c.Interface); ok {
			out = append(out, use{pod: of, iface: e.Interface, network: e.Name, silent: true})
		}
	}
	return out
}

// compareKinds reports a disagreement between the two kinds of record.
func (p *planner) compareKinds(at Address, claims []claim) {
	reserved := slices.ContainsFunc(claims, func(c claim) bool { return c.reserved })
	allocated := slices.ContainsFunc(claims, func(c claim) bool { return !c.reserved })
	switch {
	case allocated && !reserved && p.overlapping[at.Domain]:
		p.find(NoReservation, Reported, at, "%s; there is no OverlappingRangeIPReservation", describeClaims(claims))
	case reserved && !allocated:
		p.find(NoAllocation, Reported, at, "%s; no IPPool has it", describeClaims(claims))
	}
}

func describeClaims(claims []claim) string {
	texts := make([]string, 0, len(claims))
	for _, c := range claims {
		texts = append(texts, fmt.Sprintf("%s is for %s", c.where, cmp.Or(c.PodRef, "no pod")))
	}
	return strings.Join(texts, ", ")
}

// decideUnused plans an address that is recorded and not used by a running pod.
func (p *planner) decideUnused(at Address, claims []claim) {
	kind, text := PodGone, "there is no such pod"
	for _, c := range claims {
		of := p.pods[c.PodRef]
		switch {
		case of == nil:
		case pod.Finished(of):
			if kind == PodGone {
				kind, text = PodFinished, "the pod has finished"
			}
		case kind == NotYetShown:
		case started(of):
			if entries, _ := statusOf(of); !lists(entries, c.Interface) {
				kind, text = NotVerified, "the pod runs, and its network-status does not list the interface: it cannot be verified"
			} else if kind != NotVerified {
				kind, text = NotShown, "the pod runs with other addresses"
			}
		default:
			kind, text = NotYetShown, "the pod has not started: migrate again when it runs or is gone"
		}
	}
	outcome := p.orphan()
	if kind == NotYetShown {
		outcome = Withheld
	}
	p.find(kind, outcome, at, "%s; %s", describeClaims(claims), text)
	if outcome == Withheld {
		p.hold(at)
	}
}

// networkOf returns the network of an address; DefaultNetwork if there is none or
// several.
func (p *planner) networkOf(at Address) string {
	name := v1alpha1.DefaultNetwork
	for _, n := range p.networks {
		if n.Domain == at.Domain && n.covers(at.Addr) {
			if name != v1alpha1.DefaultNetwork {
				return v1alpha1.DefaultNetwork
			}
			name = n.Name
		}
	}
	return name
}

// take plans to record the address of a pod.
func (p *planner) take(at Address, u use, claims []claim) {
	h := Holding{
		Address: at, Prefix: p.prefix(at, u.network), Network: u.network, Slot: true,
		Holder: ipam.Holder{PodUID: string(u.pod.UID), Interface: u.iface, Namespace: u.pod.Namespace, Pod: u.pod.Name, Node: u.pod.Spec.NodeName},
	}
	record := p.records[pod.KeyOf(u.pod)]
	if record != nil {
		h.Holder.PodUID = string(record.HolderUID())
	}
	for _, c := range claims {
		if c.PodRef != podRef(u.pod) {
			continue
		}
		h.Holder.Interface = cmp.Or(h.Holder.Interface, c.Interface)
		if h.Holder.Interface == c.Interface {
			h.ContainerID = cmp.Or(h.ContainerID, c.ContainerID)
		}
	}
	h.Holder.Interface = cmp.Or(h.Holder.Interface, "eth0") // versions before 0.6.2 recorded no interface
	if !interfaceName.MatchString(h.Holder.Interface) || h.Holder.Validate() != nil {
		p.find(Undecodable, Withheld, at, "%s: %q is no name of an interface", describeClaims(claims), h.Holder.Interface)
		p.hold(at)
		return
	}
	h.Pool = p.poolOf(at, u.network)
	if err := writable(u.pod); err != nil {
		p.find(Undecodable, Withheld, at, "pod %s uses it, and its PodAttachment could not be written: %v", podRef(u.pod), err)
		p.hold(at)
		return
	}
	if record != nil && !names(record, h) {
		p.find(HasRecord, Withheld, at, "pod %s has PodAttachment %s, which was written without it: no pod can get it until that pod is gone", podRef(u.pod), record.Name)
		p.hold(at)
		return
	}
	if s, ok := p.slot(at); ok {
		switch {
		case s.State == ipam.Taken && s.Holder.Same(h.Holder):
			h.Slot = false
		case s.State == ipam.Taken:
			p.find(Taken, Refused, at, "pod %s uses it, and Fairlead has given it to %s", podRef(u.pod), s.Holder)
			return
		case s.State == ipam.Held:
			p.find(Taken, Refused, at, "pod %s uses it, and Fairlead keeps it for claim %s", podRef(u.pod), s.Claim)
			return
		case s.State == ipam.Damaged:
			p.find(Taken, Refused, at, "pod %s uses it, and Fairlead's own record of it cannot be read: see `fairlead ipam audit`", podRef(u.pod))
			return
		default: // freed
		}
	}
	p.plan.Holdings = append(p.plan.Holdings, h)
}

// writable returns nil if the pod's identity fits a PodAttachment, otherwise the reason.
func writable(of *corev1.Pod) error {
	some := v1alpha1.Interface{
		Name: v1alpha1.DefaultInterface, Network: v1alpha1.DefaultNetwork, Driver: driverName,
		Binding: v1alpha1.Binding{AddressOnly: &v1alpha1.AddressOnlyBinding{}},
	}
	return pod.Record(pod.IdentityOf(of), []v1alpha1.Interface{some}).Spec.Validate()
}

// slot returns Fairlead's record of an address: in its domain, or in the own domain of a
// network that Fairlead has served before.
func (p *planner) slot(at Address) (ipam.Slot, bool) {
	found, ok := p.slotIn(at.Domain, at.Addr)
	for _, n := range p.networks {
		if found.State == ipam.Taken || n.Domain != at.Domain || n.Own == "" || !n.covers(at.Addr) {
			continue
		}
		if s, there := p.slotIn(n.Own, at.Addr); there && (s.State == ipam.Taken || s.State == ipam.Held) {
			found, ok = s, true
		}
	}
	return found, ok
}

func (p *planner) slotIn(domain string, a netip.Addr) (ipam.Slot, bool) {
	b := p.blocks[ipam.BlockName(domain, ipam.BlockOf(a))]
	if b == nil {
		return ipam.Slot{}, false
	}
	return b.Slot(a)
}

// prefix returns the address with the length of the pod's link. That is the length of the
// network's range, which in slice mode is wider than the pool's.
func (p *planner) prefix(at Address, network string) netip.Prefix {
	var ranges []netip.Prefix
	if n := p.byName[network]; n != nil {
		ranges = n.Ranges
	}
	for _, l := range slices.Concat(ranges, p.links[at.Domain]) {
		if l.Contains(at.Addr) {
			return netip.PrefixFrom(at.Addr, l.Bits())
		}
	}
	return netip.PrefixFrom(at.Addr, at.Addr.BitLen())
}

func (p *planner) poolOf(at Address, network string) string {
	if n := p.byName[network]; n != nil {
		if pool := n.poolOf(at.Addr); pool != nil {
			return pool.Name()
		}
	}
	for _, n := range p.networks {
		if pool := n.poolOf(at.Addr); n.Domain == at.Domain && pool != nil {
			return pool.Name()
		}
	}
	return ""
}

// names reports whether a record has the address on the interface.
func names(r *v1alpha1.PodAttachment, h Holding) bool {
	for _, i := range r.Spec.Interfaces {
		if i.Name == h.Holder.Interface && i.Domain == h.Domain {
			for _, cidr := range i.Addresses {
				if n, err := netip.ParsePrefix(cidr); err == nil && n.Addr() == h.Addr {
					return true
				}
			}
		}
	}
	return false
}

// makeRecords plans a PodAttachment for every pod with addresses. Its sandbox is the
// sandbox in whereabouts' records, in state Attached, so that the node checks whether the
// sandbox exists before it confirms that nothing holds the addresses.
func (p *planner) makeRecords() {
	byPod := map[string][]Holding{} // by namespace/name
	for _, h := range p.plan.Holdings {
		of := h.Holder.Namespace + "/" + h.Holder.Pod
		byPod[of] = append(byPod[of], h)
	}
	for i := range p.Pods {
		of := &p.Pods[i]
		held := byPod[podRef(of)]
		if len(held) == 0 {
			continue
		}
		sandbox := v1alpha1.Sandbox{State: v1alpha1.SandboxAttached, BootID: p.BootIDs[of.Spec.NodeName]}
		for _, h := range held {
			sandbox.ID = cmp.Or(sandbox.ID, h.ContainerID)
		}
		if there := p.records[pod.KeyOf(of)]; there != nil {
			if there.Status.Sandbox == nil && there.Labels[v1alpha1.LabelMigratedFrom] == System {
				p.plan.Records = append(p.plan.Records, Record{Object: there, Written: true, Sandbox: sandbox})
			}
			continue
		}
		record := pod.Record(pod.IdentityOf(of), p.interfacesOf(held))
		record.OwnerReferences = []metav1.OwnerReference{pod.OwnerOf(of)}
		record.Spec.NodeUID = p.NodeUIDs[of.Spec.NodeName]
		record.Labels = map[string]string{v1alpha1.LabelMigratedFrom: System}
		p.plan.Records = append(p.plan.Records, Record{Object: record, Sandbox: sandbox})
	}
	slices.SortFunc(p.plan.Records, func(a, b Record) int {
		return cmp.Or(cmp.Compare(a.Object.Namespace, b.Object.Namespace), cmp.Compare(a.Object.Name, b.Object.Name))
	})
}

// interfacesOf returns the interfaces of a pod with their addresses. Gateways, routes and
// DNS of the network are for a later sandbox of the pod.
func (p *planner) interfacesOf(held []Holding) []v1alpha1.Interface {
	var out []v1alpha1.Interface
	for _, h := range held {
		i := slices.IndexFunc(out, func(i v1alpha1.Interface) bool { return i.Name == h.Holder.Interface })
		if i < 0 {
			i = len(out)
			more := v1alpha1.Interface{
				Name: h.Holder.Interface, Network: h.Network, Driver: driverName, Domain: h.Domain, Pool: h.Pool,
				Default: h.Network == v1alpha1.DefaultNetwork,
				Binding: v1alpha1.Binding{AddressOnly: &v1alpha1.AddressOnlyBinding{}},
			}
			if n := p.byName[h.Network]; n != nil {
				more.Gateways, more.Routes, more.DNS = n.Gateways, n.Routes, n.DNS
			}
			out = append(out, more)
		}
		out[i].Addresses = append(out[i].Addresses, h.Prefix.String())
	}
	return out
}

// driverName is the driver that releases the addresses.
const driverName = "native"
