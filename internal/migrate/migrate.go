// Package migrate turns what whereabouts has recorded into what Fairlead
// records, and back. It is pure: what a cluster holds goes in, and what has to
// be written comes out; package cluster beside it reads and writes.
//
// Whereabouts keeps one address in two objects that often disagree, and knows
// neither the UID nor the node of a pod. So nothing is believed because one
// object says it: an address belongs to the pod that shows it, every record of
// either kind keeps its address from being handed out, and what no living pod
// explains is reported and withheld until a person has looked.
package migrate

import (
	"cmp"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/ipam"
)

// System is the value of v1alpha1.LabelMigratedFrom on what the migration made.
const System = "whereabouts"

// Pool is an IPPool of whereabouts (whereabouts.cni.cncf.io/v1alpha1).
type Pool struct {
	Namespace string
	// Name is the range in dashes, after the network's name and in slice mode
	// the node's.
	Name string
	// Range is a CIDR.
	Range string
	// Allocations by the address's offset from the start of the range, in
	// decimal digits.
	Allocations map[string]Allocation
}

// Allocation is one entry of a Pool.
type Allocation struct {
	ContainerID string `json:"id"`
	// PodRef is namespace/name.
	PodRef    string `json:"podref"`
	Interface string `json:"ifname,omitempty"`
}

// Reservation is an OverlappingRangeIPReservation.
type Reservation struct {
	Namespace string
	// Name is the address, with dashes for colons, after the network's name.
	Name      string
	PodRef    string
	Interface string
}

// SlicePool is a NodeSlicePool: which node has which part of a range.
type SlicePool struct {
	// Name is that of the network, or of the CNI configuration where the
	// network has none.
	Name  string
	Range string
	// Slices by node; those without a node are not listed.
	Slices map[string]string
}

// Network is a NetworkAttachmentDefinition whose addresses whereabouts gives.
type Network struct {
	// Name is namespace/name.
	Name string
	// Space is whereabouts' network_name; empty for the one without a name.
	Space string
	// Domain of Fairlead's that stands for the space, and Own is the one that the
	// network has the space in while the other is not open to its namespace.
	Domain, Own string
	// Ranges are the CIDRs that whereabouts names its pools by.
	Ranges []netip.Prefix
	// Overlapping is enable_overlapping_ranges: each address has a
	// Reservation too.
	Overlapping bool
	// Pools that serve the network in Fairlead.
	Pools []v1alpha1.IPPool
	// Gateways, Routes and DNS that its pods get.
	Gateways []string
	Routes   []v1alpha1.Route
	DNS      *v1alpha1.DNS
}

// State is what was read of a cluster.
type State struct {
	Pools        []Pool
	Reservations []Reservation
	Slices       []SlicePool
	Networks     []Network
	Pods         []corev1.Pod
	// BootIDs of nodes by name.
	BootIDs map[string]string
	// NodeUIDs of nodes by name.
	NodeUIDs map[string]types.UID
	// NamespaceLabels by the namespace's name.
	NamespaceLabels map[string]map[string]string

	// What Fairlead has.
	IPPools  []v1alpha1.IPPool
	Blocks   []v1alpha1.IPBlock
	Records  []v1alpha1.PodAttachment
	Withheld []v1alpha1.IPReservation

	// DomainOf is the domain that stands for a network_name.
	DomainOf func(space string) string
}

// Address is one of a domain.
type Address struct {
	Domain string     `json:"domain"`
	Addr   netip.Addr `json:"address"`
}

func compareAddresses(a, b Address) int {
	return cmp.Or(cmp.Compare(a.Domain, b.Domain), a.Addr.Compare(b.Addr))
}

// Holding is an address of a running pod.
type Holding struct {
	Address
	// Prefix is the address with the length of its link.
	Prefix netip.Prefix
	Holder ipam.Holder
	// ContainerID of the sandbox; empty when whereabouts does not know it.
	ContainerID string
	// Network is namespace/name, or "default" for a pod without Multus.
	Network string
	// Pool is the name of the IPPool that has the address; empty for none.
	Pool string
	// Slot is true when the block still has to be written.
	Slot bool
}

// Record is a PodAttachment to write, with the sandbox that its status gets.
type Record struct {
	Object *v1alpha1.PodAttachment
	// Written is true when the object is there and only its status is missing.
	Written bool
	Sandbox v1alpha1.Sandbox
}

// Kind of a finding. The values are for programs.
type Kind string

// The kinds. Where nothing else is said the address is withheld.
const (
	// NotRecorded: a pod uses an address that whereabouts has no record of. It
	// is imported.
	NotRecorded Kind = "NotRecorded"
	// RecordedForAnother: a pod uses an address that is recorded for another
	// pod. It is imported for the pod that uses it.
	RecordedForAnother Kind = "RecordedForAnother"
	// NotVerified: a running pod has no network-status, or one that shows the
	// interface without an address, as of one that is not in the kernel: it is
	// imported on whereabouts' word. Or the network-status does not list the
	// interface.
	NotVerified Kind = "NotVerified"
	// Duplicate: several running pods use the address.
	Duplicate Kind = "Duplicate"
	// PodGone: there is no pod of the name that is recorded.
	PodGone Kind = "PodGone"
	// PodFinished: that pod has finished.
	PodFinished Kind = "PodFinished"
	// NotShown: that pod runs, with other addresses.
	NotShown Kind = "NotShown"
	// NotYetShown: that pod is being started.
	NotYetShown Kind = "NotYetShown"
	// HasRecord: the pod has a PodAttachment, which is written once. The
	// address can be given to nobody until the pod is gone.
	HasRecord Kind = "HasRecord"
	// OutOfRange: the record's address lies outside of the pool's range.
	OutOfRange Kind = "OutOfRange"
	// Undecodable: the record names no address. There is nothing to withhold.
	Undecodable Kind = "Undecodable"
	// Ambiguous: the name can be read as several addresses, all withheld.
	Ambiguous Kind = "Ambiguous"
	// NoReservation: whereabouts has the allocation and not the reservation.
	// It changes nothing.
	NoReservation Kind = "NoReservation"
	// NoAllocation: it has the reservation and not the allocation. It changes
	// nothing.
	NoAllocation Kind = "NoAllocation"
	// Taken: Fairlead has given the address to somebody else. Nothing is
	// written while there is one.
	Taken Kind = "Taken"
	// NotOpened: a pool of a network is there and not open to its namespace, so
	// its next pods would have addresses of another address space. Nothing is
	// written while there is one.
	NotOpened Kind = "NotOpened"
)

// Outcome is what becomes of the address of a finding.
type Outcome string

// The outcomes.
const (
	Imported Outcome = "imported"
	Withheld Outcome = "withheld"
	Dropped  Outcome = "dropped"
	Reported Outcome = "reported"
	Refused  Outcome = "refused"
)

// Finding is one thing that whereabouts has recorded wrongly, or that cannot
// be taken over as it is.
type Finding struct {
	Kind    Kind    `json:"kind"`
	Outcome Outcome `json:"outcome"`
	Domain  string  `json:"domain"`
	// Address, or what stands in its place when it cannot be read.
	Address string `json:"address"`
	// Text says what was seen, in a sentence.
	Text string `json:"text"`
}

// Plan is what has to be written. It is empty when everything is there.
type Plan struct {
	// Pools to create.
	Pools []v1alpha1.IPPool
	// Withhold are IPReservations to create or to change.
	Withhold []v1alpha1.IPReservation
	// Release names those of an earlier run that are not needed any more.
	Release []string
	// Holdings of all running pods, also those that are imported already.
	Holdings []Holding
	// Records to write.
	Records []Record
	// Held counts the addresses that are withheld for findings.
	Held     int
	Findings []Finding
}

// Done says whether nothing is left to write.
func (p *Plan) Done() bool {
	return len(p.Pools) == 0 && len(p.Withhold) == 0 && len(p.Release) == 0 && len(p.Records) == 0 && p.Slots() == 0
}

// Slots counts the addresses whose block has to be written.
func (p *Plan) Slots() int {
	n := 0
	for _, h := range p.Holdings {
		if h.Slot {
			n++
		}
	}
	return n
}

// Refused returns the findings that forbid to write anything.
func (p *Plan) Refused() []Finding {
	var out []Finding
	for _, f := range p.Findings {
		if f.Outcome == Refused {
			out = append(out, f)
		}
	}
	return out
}

// in says whether a domain has the network's addresses.
func (n *Network) in(domain string) bool { return domain == n.Domain || n.Own != "" && domain == n.Own }

// namespace of the network.
func (n *Network) namespace() string {
	namespace, _, _ := strings.Cut(n.Name, "/")
	return namespace
}

// podRef is namespace/name.
func podRef(p *corev1.Pod) string { return p.Namespace + "/" + p.Name }
