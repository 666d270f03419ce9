// Package audit compares the records of a cluster about its addresses. Look checks a snapshot: no
// address has two holders, and every address that is not free is explained. A snapshot may be
// inconsistent, since the cluster changes while it is read, so a finding counts only if a
// second look confirms it. A leader looks at intervals (Auditor), and compares PodAttachments
// with blocks before it hands out any address (Comparer).
package audit

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/ipam/block"
	"fairlead.dev/fairlead/internal/pod"
)

// patience is how long an unexplained state may last: an address is held for a claim
// that is still being created, or clocks differ.
const patience = time.Minute

// The invariants that the audit checks.
const (
	// OneHolder: an address has at most one live holder, and a record names an address
	// only if the address's slot names the holder.
	OneHolder = "I1"
	// Explained: every slot that is not free is explained.
	Explained = "I2"
	// AddsUp: the counts in a pool's status add up, and match its blocks.
	AddsUp = "I7"
)

// Cluster is a snapshot of a cluster.
type Cluster struct {
	Now          time.Time
	Pools        []v1alpha1.IPPool
	Blocks       []v1alpha1.IPBlock
	Reservations []v1alpha1.IPReservation
	Claims       []v1alpha1.IPClaim
	Attachments  []*v1alpha1.PodAttachment
	// Pods that are scheduled and not finished. Other pods explain no address.
	Pods []*corev1.Pod
}

// Finding is one violation of an invariant. It contains no ages, so that two audits
// find the same violation with equal findings.
type Finding struct {
	// Invariant is OneHolder, Explained or AddsUp.
	Invariant string `json:"invariant"`
	Domain    string `json:"domain"`
	// Address is the address, block or pool with the violation.
	Address string `json:"address"`
	// What describes the violation in a short sentence.
	What string `json:"what"`
	// Evidence is the observed state.
	Evidence string `json:"evidence"`

	// version is set if the finding counts only while the objects do not change: a
	// status is written a moment after the blocks.
	version string
}

// Report is the result of an audit.
type Report struct {
	// Findings are sorted by domain and address.
	Findings []Finding `json:"findings"`
	// Slots is the number of taken, freed, held and damaged slots. Blocks and
	// Attachments are the numbers of objects in the snapshot.
	Slots       int `json:"slots"`
	Blocks      int `json:"blocks"`
	Attachments int `json:"attachments"`
}

// Look audits a cluster.
func Look(c Cluster) Report {
	a := &auditor{
		Cluster:     c,
		blocks:      map[blockID]*ipam.Block{},
		versions:    map[blockID]string{},
		terminating: map[blockID]bool{},
		records:     map[pod.Key][]*v1alpha1.PodAttachment{},
		pods:        map[pod.Key]*corev1.Pod{},
		claims:      map[string]bool{},
	}
	a.index()
	for at, b := range a.blocks {
		a.slots(at.domain, b)
	}
	a.attachments()
	for i := range c.Pools {
		a.counts(&c.Pools[i])
	}
	slices.SortFunc(a.findings, func(x, y Finding) int {
		return cmp.Or(cmp.Compare(x.Domain, y.Domain), compareAddresses(x.Address, y.Address),
			cmp.Compare(x.Invariant, y.Invariant), cmp.Compare(x.What, y.What), cmp.Compare(x.Evidence, y.Evidence))
	})
	if a.findings == nil {
		a.findings = []Finding{}
	}
	return Report{Findings: a.findings, Slots: a.slotCount, Blocks: len(c.Blocks), Attachments: len(c.Attachments)}
}

// Confirm returns the second report with only those findings that are in the first too.
func Confirm(first, second Report) Report {
	second.Findings = slices.DeleteFunc(slices.Clone(second.Findings), func(f Finding) bool { return !slices.Contains(first.Findings, f) })
	return second
}

// compareAddresses sorts addresses before everything that is not an address.
func compareAddresses(x, y string) int {
	a, errX := netip.ParseAddr(x)
	b, errY := netip.ParseAddr(y)
	switch {
	case errX == nil && errY == nil:
		return a.Compare(b)
	case errX == nil:
		return -1
	case errY == nil:
		return 1
	}
	return cmp.Compare(x, y)
}

// blockID identifies a block: only the IPBlock with its name counts.
type blockID struct {
	domain string
	block  netip.Prefix
}

type auditor struct {
	Cluster
	blocks   map[blockID]*ipam.Block
	versions map[blockID]string
	// terminating are blocks that are being deleted: no address is taken from them.
	terminating map[blockID]bool
	records     map[pod.Key][]*v1alpha1.PodAttachment // by the pod that has the addresses
	pods        map[pod.Key]*corev1.Pod
	claims      map[string]bool // by namespace/name
	findings    []Finding
	slotCount   int
}

func (a *auditor) find(invariant, domain, address, what, evidence string) {
	a.findings = append(a.findings, Finding{Invariant: invariant, Domain: domain, Address: address, What: what, Evidence: evidence})
}

func (a *auditor) index() {
	for i := range a.Blocks {
		o := &a.Blocks[i]
		b, err := block.Decode(o)
		if err != nil {
			a.find(Explained, o.Spec.Domain, o.Spec.CIDR, "the block cannot be read", fmt.Sprintf("IPBlock %s: %v", o.Name, err))
			continue
		}
		if want := ipam.BlockName(o.Spec.Domain, b.Prefix()); want != o.Name {
			a.find(OneHolder, o.Spec.Domain, o.Spec.CIDR, "a second IPBlock has the addresses of the block",
				fmt.Sprintf("IPBlock %s; only IPBlock %s is used", o.Name, want))
			continue
		}
		at := blockID{o.Spec.Domain, b.Prefix()}
		a.blocks[at], a.versions[at], a.terminating[at] = b, o.ResourceVersion, o.DeletionTimestamp != nil
	}
	for _, r := range a.Attachments {
		of := pod.HolderOf(r)
		a.records[of] = append(a.records[of], r)
	}
	for _, p := range a.Pods {
		a.pods[pod.KeyOf(p)] = p
	}
	for i := range a.Claims {
		a.claims[a.Claims[i].Namespace+"/"+a.Claims[i].Name] = true
	}
}

// slots checks that every slot of a block is explained.
func (a *auditor) slots(domain string, b *ipam.Block) {
	for _, u := range b.Unreadable() {
		address := b.Prefix().String()
		if u.Addr.IsValid() {
			address = u.Addr.String()
		}
		a.find(Explained, domain, address, "a record cannot be read, so the addresses that it may name are withheld", fmt.Sprintf("slot %q", u.Text))
	}
	for slot := range b.Slots() {
		a.slotCount++
		address := slot.Addr.String()
		young := a.Now.Sub(slot.Since) < patience
		switch slot.State {
		case ipam.Taken:
			for holder := range slot.Holders() {
				if what := a.unexplained(domain, slot.Addr, holder); what != "" {
					a.find(Explained, domain, address, what, evidenceOf(slot))
				}
			}
		case ipam.Held:
			if !a.claims[slot.Claim] && !young {
				a.find(Explained, domain, address, "held for a claim that does not exist", evidenceOf(slot))
			}
		case ipam.Freed:
			if slot.Since.Sub(a.Now) > patience {
				a.find(Explained, domain, address, "cools down since a time in the future", evidenceOf(slot))
			}
		default: // damaged slots are reported above
		}
	}
}

// unexplained returns why a holder of an address is not explained; empty if it is. A pod
// that has no PodAttachment yet and wants one may wait for long, and keeps the addresses
// that it has so far.
func (a *auditor) unexplained(domain string, addr netip.Addr, of ipam.Holder) string {
	holder := pod.Key{Namespace: of.Namespace, Name: of.Pod, UID: types.UID(of.PodUID)}
	records := a.records[holder]
	for _, r := range records {
		for _, i := range r.Spec.Interfaces {
			if i.Name == of.Interface && i.Domain == domain && slices.Contains(addressesOf(i), addr) {
				return ""
			}
		}
	}
	p := a.pods[holder]
	switch {
	case len(records) > 0:
		return "taken for a pod whose PodAttachment does not name the address"
	case p == nil:
		return "taken for a pod that is gone and has no PodAttachment"
	case !pod.Wants(p):
		return "taken for a pod that has no PodAttachment and needs none"
	}
	return "" // its record is being created, or it waits for further addresses
}

// addressesOf returns the addresses of an interface. An unparsable one is the zero
// Addr.
func addressesOf(i v1alpha1.Interface) []netip.Addr {
	var out []netip.Addr
	for _, cidr := range i.Addresses {
		p, _ := netip.ParsePrefix(cidr)
		out = append(out, p.Addr())
	}
	return out
}

func evidenceOf(slot ipam.Slot) string {
	since := "an unknown time"
	if !slot.Since.IsZero() {
		since = slot.Since.UTC().Format(time.RFC3339)
	}
	switch slot.State {
	case ipam.Taken:
		if slot.Second != (ipam.Holder{}) {
			return fmt.Sprintf("slot shared by %s since %s and %s", slot.Holder, since, slot.Second)
		}
		return fmt.Sprintf("slot taken by %s since %s", slot.Holder, since)
	case ipam.Held:
		return fmt.Sprintf("slot held for claim %s since %s", slot.Claim, since)
	case ipam.Freed:
		return "slot freed at " + since
	default:
		return "slot damaged"
	}
}

// attachments checks that every record agrees with the slots of its addresses, and that
// no other record names them.
func (a *auditor) attachments() {
	named := namings{first: map[named]naming{}, more: map[named][]naming{}}
	for _, r := range a.Attachments {
		if !pod.MayHold(r) {
			continue
		}
		for _, iface := range r.Spec.Interfaces {
			if iface.Domain == "" {
				continue // from another IPAM
			}
			for _, addr := range addressesOf(iface) {
				named.add(iface.Domain, addr, naming{r, iface.Name})
				if state := a.disagrees(r, iface, addr); state != "" {
					a.find(OneHolder, iface.Domain, addr.String(), "a PodAttachment names the address, but its slot does not name the pod",
						fmt.Sprintf("%s; %s", describe(r, iface.Name), state))
				}
			}
		}
	}
	for k, by := range named.more {
		if a.shared(k, by) {
			continue
		}
		texts := make([]string, len(by))
		for i, n := range by {
			texts[i] = describe(n.record, n.iface)
		}
		slices.Sort(texts)
		a.find(OneHolder, k.domain, k.addr.String(), fmt.Sprintf("%d PodAttachments name the address", len(by)), strings.Join(texts, "; "))
	}
}

// shared reports whether PodAttachments may name one address: they are those of the two
// launchers of a virtual machine that migrates, and the slot names both.
func (a *auditor) shared(k named, by []naming) bool {
	b := a.blocks[blockID{k.domain, ipam.BlockOf(k.addr)}]
	if b == nil || len(by) > 2 {
		return false
	}
	slot, _ := b.Slot(k.addr)
	return slot.Second != (ipam.Holder{}) && !slices.ContainsFunc(by, func(n naming) bool { return !slot.Has(holderOf(n.record, n.iface)) })
}

// named is an address that PodAttachments name. naming is an interface of a
// PodAttachment that names it.
type named struct {
	domain string
	addr   netip.Addr
}
type naming struct {
	record *v1alpha1.PodAttachment
	iface  string
}

// namings collects the addresses that PodAttachments name. more has only the addresses
// that several name.
type namings struct {
	first map[named]naming
	more  map[named][]naming
}

func (n *namings) add(domain string, addr netip.Addr, by naming) {
	k := named{domain, addr}
	other, ok := n.first[k]
	if !ok {
		n.first[k] = by
		return
	}
	if n.more[k] == nil {
		n.more[k] = []naming{other}
	}
	n.more[k] = append(n.more[k], by)
}

func describe(r *v1alpha1.PodAttachment, iface string) string {
	return fmt.Sprintf("PodAttachment %s/%s (uid %s, node %s), interface %s", r.Namespace, r.Name, r.HolderUID(), r.Spec.NodeName, iface)
}

// holderOf returns the holder of an interface's addresses, without the node.
func holderOf(r *v1alpha1.PodAttachment, iface string) ipam.Holder {
	of := pod.HolderOf(r)
	return ipam.Holder{PodUID: string(of.UID), Interface: iface, Namespace: of.Namespace, Pod: of.Name}
}

// disagrees returns the state of the address in its block; empty if it agrees with the
// record.
func (a *auditor) disagrees(r *v1alpha1.PodAttachment, iface v1alpha1.Interface, addr netip.Addr) string {
	b := a.blocks[blockID{iface.Domain, ipam.BlockOf(addr)}]
	if b == nil {
		return "there is no IPBlock with the address"
	}
	slot, recorded := b.Slot(addr)
	switch {
	case !recorded:
		return "the block has no record of it"
	case !slot.Has(holderOf(r, iface.Name)):
		return evidenceOf(slot)
	}
	return ""
}
