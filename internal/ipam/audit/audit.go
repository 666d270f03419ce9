// Package audit proves, of a cluster as it was read, that no address has two
// holders and that every one which is not free is explained. It is pure: it does
// no I/O and reads no clock. As things move while one reads, a finding counts
// when two looks at the cluster agree on it.
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
	"fairlead.dev/fairlead/internal/ipam/objects"
	"fairlead.dev/fairlead/internal/pod"
)

// patience is how long an address may be on its way: held for a claim that is being
// made.
const patience = time.Minute

// The invariants that are proved.
const (
	// OneHolder: an address has at most one live holder, and a record names it
	// only while its slot says so.
	OneHolder = "I1"
	// Explained: every slot that is not free is explained.
	Explained = "I2"
	// AddsUp: the counts of a pool add up, and are those of its blocks.
	AddsUp = "I7"
)

// Cluster is what was read of it.
type Cluster struct {
	Now          time.Time
	Pools        []v1alpha1.IPPool
	Blocks       []v1alpha1.IPBlock
	Reservations []v1alpha1.IPReservation
	Claims       []v1alpha1.IPClaim
	Attachments  []*v1alpha1.PodAttachment
	// Pods that are scheduled and not finished; others explain nothing.
	Pods []*corev1.Pod
}

// Finding is one breach of an invariant. It names no ages, so that two looks at
// one breach find the same.
type Finding struct {
	// Invariant is OneHolder, Explained or AddsUp.
	Invariant string `json:"invariant"`
	Domain    string `json:"domain"`
	// Address, or the block or the pool that the finding is about.
	Address string `json:"address"`
	// What is wrong, in a sentence.
	What string `json:"what"`
	// Evidence is what was seen.
	Evidence string `json:"evidence"`

	// version of what was read, where a finding holds only while that does not
	// change: a status is written a moment after the blocks.
	version string
}

// Report is what an audit comes to.
type Report struct {
	// Findings by domain and address.
	Findings []Finding `json:"findings"`
	// Slots counts those that are taken, freed, held or damaged, Blocks and
	// Attachments the objects that were looked at.
	Slots       int `json:"slots"`
	Blocks      int `json:"blocks"`
	Attachments int `json:"attachments"`
}

// Look audits a cluster.
func Look(c Cluster) Report {
	a := &auditor{
		Cluster:  c,
		blocks:   map[place]*ipam.Block{},
		versions: map[place]string{},
		leaving:  map[place]bool{},
		records:  map[pod.Key][]*v1alpha1.PodAttachment{},
		pods:     map[pod.Key]*corev1.Pod{},
		claims:   map[string]bool{},
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
	return Report{Findings: a.findings, Slots: a.seen, Blocks: len(c.Blocks), Attachments: len(c.Attachments)}
}

// Confirm returns the second report with those findings only that the first has
// too.
func Confirm(first, second Report) Report {
	second.Findings = slices.DeleteFunc(slices.Clone(second.Findings), func(f Finding) bool { return !slices.Contains(first.Findings, f) })
	return second
}

// compareAddresses puts addresses in their order and before everything else.
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

// place is where the truth about 64 addresses is.
type place struct {
	domain string
	block  netip.Prefix
}

type auditor struct {
	Cluster
	blocks   map[place]*ipam.Block
	versions map[place]string
	// leaving are blocks that are being deleted: nothing is taken from them.
	leaving  map[place]bool
	records  map[pod.Key][]*v1alpha1.PodAttachment // by whose the addresses are
	pods     map[pod.Key]*corev1.Pod
	claims   map[string]bool // by namespace/name
	findings []Finding
	seen     int
}

func (a *auditor) find(invariant, domain, address, what, evidence string) {
	a.findings = append(a.findings, Finding{Invariant: invariant, Domain: domain, Address: address, What: what, Evidence: evidence})
}

func (a *auditor) index() {
	for i := range a.Blocks {
		o := &a.Blocks[i]
		b, err := objects.Block(o)
		if err != nil {
			a.find(Explained, o.Spec.Domain, o.Spec.CIDR, "the block cannot be read", fmt.Sprintf("IPBlock %s: %v", o.Name, err))
			continue
		}
		if want := ipam.BlockName(o.Spec.Domain, b.Prefix()); want != o.Name {
			a.find(OneHolder, o.Spec.Domain, o.Spec.CIDR, "a second object claims to be the truth about the block",
				fmt.Sprintf("IPBlock %s, the one that is used is %s", o.Name, want))
			continue
		}
		at := place{o.Spec.Domain, b.Prefix()}
		a.blocks[at], a.versions[at], a.leaving[at] = b, o.ResourceVersion, o.DeletionTimestamp != nil
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

// slots asks of every slot of a block what explains it.
func (a *auditor) slots(domain string, b *ipam.Block) {
	for _, u := range b.Unreadable() {
		address := b.Prefix().String()
		if u.Addr.IsValid() {
			address = u.Addr.String()
		}
		a.find(Explained, domain, address, "a record cannot be read, and what it may be about is withheld", fmt.Sprintf("slot %q", u.Text))
	}
	for slot := range b.Slots() {
		a.seen++
		address := slot.Addr.String()
		young := a.Now.Sub(slot.Since) < patience
		switch slot.State {
		case ipam.Taken:
			if what := a.unexplained(domain, slot); what != "" {
				a.find(Explained, domain, address, what, evidenceOf(slot))
			}
		case ipam.Held:
			if !a.claims[slot.Claim] && !young {
				a.find(Explained, domain, address, "held for a claim that does not exist", evidenceOf(slot))
			}
		case ipam.Freed:
			if slot.Since.Sub(a.Now) > patience {
				a.find(Explained, domain, address, "cools down from a time that is still to come", evidenceOf(slot))
			}
		default: // damaged: found above
		}
	}
}

// unexplained says what is wrong with a taken slot, if anything is. A pod that has no
// PodAttachment and wants one waits, maybe for long, and what it has so far is its own.
func (a *auditor) unexplained(domain string, slot ipam.Slot) string {
	holder := pod.Key{Namespace: slot.Holder.Namespace, Name: slot.Holder.Pod, UID: types.UID(slot.Holder.PodUID)}
	records := a.records[holder]
	for _, r := range records {
		for _, i := range r.Spec.Interfaces {
			if i.Name == slot.Holder.Interface && i.Domain == domain && slices.Contains(addressesOf(i), slot.Addr) {
				return ""
			}
		}
	}
	p := a.pods[holder]
	switch {
	case len(records) > 0:
		return "taken for a pod whose PodAttachment does not name it"
	case p == nil:
		return "taken for a pod that has neither a PodAttachment nor lives"
	case !pod.Wants(p):
		return "taken for a pod that has no PodAttachment and wants none"
	}
	return "" // in creation, or it waits for the rest
}

// addressesOf an interface; what cannot be read is invalid.
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
		return fmt.Sprintf("slot taken by %s since %s", slot.Holder, since)
	case ipam.Held:
		return fmt.Sprintf("slot held for claim %s since %s", slot.Claim, since)
	case ipam.Freed:
		return "slot freed at " + since
	default:
		return "slot damaged"
	}
}

// attachments asks of every record whether its slots say the same, and whether
// it is the only one.
func (a *auditor) attachments() {
	named := namings{first: map[named]naming{}, more: map[named][]string{}}
	for _, r := range a.Attachments {
		if !pod.MayHold(r) {
			continue
		}
		for _, iface := range r.Spec.Interfaces {
			if iface.Domain == "" {
				continue // from elsewhere
			}
			for _, addr := range addressesOf(iface) {
				named.add(iface.Domain, addr, naming{r, iface.Name})
				if says := a.disagrees(r, iface, addr); says != "" {
					a.find(OneHolder, iface.Domain, addr.String(), "a PodAttachment names the address and its slot does not say so",
						fmt.Sprintf("%s; %s", describe(r, iface.Name), says))
				}
			}
		}
	}
	for k, by := range named.more {
		slices.Sort(by)
		a.find(OneHolder, k.domain, k.addr.String(), fmt.Sprintf("%d PodAttachments name the address", len(by)), strings.Join(by, "; "))
	}
}

// named is an address that PodAttachments name, naming an interface of one.
type named struct {
	domain string
	addr   netip.Addr
}
type naming struct {
	record *v1alpha1.PodAttachment
	iface  string
}

// namings are the addresses that PodAttachments name. The texts of all are made for
// those that several name.
type namings struct {
	first map[named]naming
	more  map[named][]string
}

func (n *namings) add(domain string, addr netip.Addr, by naming) {
	k := named{domain, addr}
	other, ok := n.first[k]
	if !ok {
		n.first[k] = by
		return
	}
	if n.more[k] == nil {
		n.more[k] = []string{describe(other.record, other.iface)}
	}
	n.more[k] = append(n.more[k], describe(by.record, by.iface))
}

func describe(r *v1alpha1.PodAttachment, iface string) string {
	return fmt.Sprintf("PodAttachment %s/%s (uid %s, node %s), interface %s", r.Namespace, r.Name, r.HolderUID(), r.Spec.NodeName, iface)
}

// holderOf is whose an interface of a record is.
func holderOf(r *v1alpha1.PodAttachment, iface string) ipam.Holder {
	of := pod.HolderOf(r)
	return ipam.Holder{PodUID: string(of.UID), Interface: iface, Namespace: of.Namespace, Pod: of.Name}
}

// disagrees is what the block says of an address, unless it says what the record
// says.
func (a *auditor) disagrees(r *v1alpha1.PodAttachment, iface v1alpha1.Interface, addr netip.Addr) string {
	b := a.blocks[place{iface.Domain, ipam.BlockOf(addr)}]
	if b == nil {
		return "there is no IPBlock with the address"
	}
	slot, recorded := b.Slot(addr)
	switch {
	case !recorded:
		return "the block has no record of it"
	case slot.State != ipam.Taken || !slot.Holder.Same(holderOf(r, iface.Name)):
		return evidenceOf(slot)
	}
	return ""
}
