// Package migrate converts the records of whereabouts into records of Fairlead, and back.
// It is pure: its input is the state of a cluster, its output the objects to write.
// Package apply below it reads and writes.
//
// Whereabouts keeps one address in two objects that often disagree, and knows neither the
// UID nor the node of a pod. So one object is not believed alone: an address belongs to
// the pod that shows it, every record of either kind keeps its address from being handed
// out, and addresses that no living pod explains are reported and withheld until a person
// has decided.
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

// System is the value of v1alpha1.LabelMigratedFrom on objects that the migration
// created.
const System = "whereabouts"

// Pool is an IPPool of whereabouts (whereabouts.cni.cncf.io/v1alpha1).
type Pool struct {
	Namespace string
	// Name consists of the network's name, in slice mode the node's name, and the range
	// in dashes, joined by dashes.
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
	// Name consists of the network's name and the address with dashes for colons, joined
	// by a dash.
	Name      string
	PodRef    string
	Interface string
}

// SlicePool is a NodeSlicePool: the parts of a range by node.
type SlicePool struct {
	// Name is the name of the network, or of the CNI configuration if the network has
	// none.
	Name  string
	Range string
	// Slices by node; slices without a node are not listed.
	Slices map[string]string
}

// Network is a NetworkAttachmentDefinition whose addresses whereabouts gives.
type Network struct {
	// Name is namespace/name.
	Name string
	// Space is whereabouts' network_name; empty if it has none.
	Space string
	// Domain is Fairlead's domain for the space. Own is the domain that the network uses
	// while Domain is not open to its namespace.
	Domain, Own string
	// Ranges are the CIDRs in the names of whereabouts' pools.
	Ranges []netip.Prefix
	// Overlapping is enable_overlapping_ranges: each address also has a Reservation.
	Overlapping bool
	// Pools are Fairlead's pools for the network.
	Pools []v1alpha1.IPPool
	// Gateways, Routes and DNS that its pods get.
	Gateways []string
	Routes   []v1alpha1.Route
	DNS      *v1alpha1.DNS
}

// State is the state of a cluster.
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

	// Objects of Fairlead.
	IPPools  []v1alpha1.IPPool
	Blocks   []v1alpha1.IPBlock
	Records  []v1alpha1.PodAttachment
	Withheld []v1alpha1.IPReservation

	// DomainOf returns the domain that stands for a network_name.
	DomainOf func(space string) string
}

// Address is an address of a domain.
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
	// ContainerID of the sandbox; empty if whereabouts does not have it.
	ContainerID string
	// Network is namespace/name, or "default" for a pod without Multus.
	Network string
	// Pool is the name of the IPPool that contains the address; empty if there is none.
	Pool string
	// Slot is true if the block still has to be written.
	Slot bool
}

// Record is a PodAttachment to write, with the sandbox of its status.
type Record struct {
	Object *v1alpha1.PodAttachment
	// Written is true if the object exists and only its status is missing.
	Written bool
	Sandbox v1alpha1.Sandbox
}

// Kind is the kind of a finding. The values are for programs.
type Kind string

// The kinds. Unless the comment names another outcome, the address is withheld.
const (
	// NotRecorded: whereabouts has no record of an address that a pod uses. It is
	// imported.
	NotRecorded Kind = "NotRecorded"
	// RecordedForAnother: a pod uses an address that is recorded for another
	// pod. It is imported for the pod that uses it.
	RecordedForAnother Kind = "RecordedForAnother"
	// NotVerified: a running pod has no network-status, or its network-status shows the
	// interface without an address (as of an interface outside the kernel). The address
	// is imported from whereabouts' record. Or the network-status does not list the
	// interface.
	NotVerified Kind = "NotVerified"
	// Duplicate: several running pods use the address.
	Duplicate Kind = "Duplicate"
	// PodGone: the recorded pod does not exist.
	PodGone Kind = "PodGone"
	// PodFinished: the recorded pod has finished.
	PodFinished Kind = "PodFinished"
	// NotShown: the recorded pod runs with other addresses.
	NotShown Kind = "NotShown"
	// NotYetShown: the recorded pod is being started.
	NotYetShown Kind = "NotYetShown"
	// HasRecord: the pod has a PodAttachment without the address, and a PodAttachment is
	// immutable. No pod can get the address until the pod is gone.
	HasRecord Kind = "HasRecord"
	// OutOfRange: the recorded address lies outside the pool's range.
	OutOfRange Kind = "OutOfRange"
	// Undecodable: the record names no address. There is nothing to withhold.
	Undecodable Kind = "Undecodable"
	// Ambiguous: the name can be read as several addresses, all withheld.
	Ambiguous Kind = "Ambiguous"
	// NoReservation: whereabouts has the allocation but not the reservation. This changes
	// nothing.
	NoReservation Kind = "NoReservation"
	// NoAllocation: whereabouts has the reservation but not the allocation. This changes
	// nothing.
	NoAllocation Kind = "NoAllocation"
	// Taken: Fairlead has given the address to another pod. With such a finding nothing
	// is written.
	Taken Kind = "Taken"
	// NotOpened: the pool of a network exists and is not open to the network's namespace,
	// so the network's next pods would get addresses of another address space. With such
	// a finding nothing is written.
	NotOpened Kind = "NotOpened"
)

// Outcome is the treatment of the address of a finding.
type Outcome string

// The outcomes.
const (
	Imported Outcome = "imported"
	Withheld Outcome = "withheld"
	Dropped  Outcome = "dropped"
	Reported Outcome = "reported"
	Refused  Outcome = "refused"
)

// Finding is a wrong record of whereabouts, or a record that cannot be imported
// unchanged.
type Finding struct {
	Kind    Kind    `json:"kind"`
	Outcome Outcome `json:"outcome"`
	Domain  string  `json:"domain"`
	// Address, or the text in its place if it cannot be parsed.
	Address string `json:"address"`
	// Text describes the finding in a sentence.
	Text string `json:"text"`
}

// Plan lists the objects to write. It is empty if they are all written.
type Plan struct {
	// Pools to create.
	Pools []v1alpha1.IPPool
	// Withhold lists IPReservations to create or update.
	Withhold []v1alpha1.IPReservation
	// Release names IPReservations of an earlier run that are no longer needed.
	Release []string
	// Holdings of all running pods, also imported ones.
	Holdings []Holding
	// Records to write.
	Records []Record
	// Held counts the addresses that are withheld for findings.
	Held     int
	Findings []Finding
}

// Done reports whether nothing is left to write.
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

// Refused returns the findings that forbid any write.
func (p *Plan) Refused() []Finding {
	var out []Finding
	for _, f := range p.Findings {
		if f.Outcome == Refused {
			out = append(out, f)
		}
	}
	return out
}

// in reports whether a domain has the network's addresses.
func (n *Network) in(domain string) bool { return domain == n.Domain || n.Own != "" && domain == n.Own }

// namespace returns the network's namespace.
func (n *Network) namespace() string {
	namespace, _, _ := strings.Cut(n.Name, "/")
	return namespace
}

// podRef returns namespace/name.
func podRef(p *corev1.Pod) string { return p.Namespace + "/" + p.Name }
