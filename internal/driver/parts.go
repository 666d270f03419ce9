package driver

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/pod"
)

// Parts is all that a driver brings. Only Driver is required: any other field is nil
// when the driver has no use for it. The functions are safe for concurrent use, and all
// but Setup, Wake, ReclaimAfter and Activations answer from memory, at once.
type Parts struct {
	// Driver obtains interfaces and takes them back.
	Driver Driver

	// Setup registers what the driver runs beside the controller: reconcilers, gauges,
	// loops. Main calls it once, before the manager starts.
	Setup func(ctx context.Context, mgr manager.Manager, term Term) error

	// NetworkTypes are the types by which a NetworkAttachmentDefinition names this driver:
	// values of ipam.type. Each type belongs to one driver.
	NetworkTypes []string

	// Read returns what a pod, its annotations above all, and a network say to this driver
	// about one interface; Ensure finds it in Request.Asks. The controller reads for all
	// interfaces of a pod before it obtains any. Errors: ErrInvalid.
	Read func(p *corev1.Pod, i *pod.Interface) (asks any, err error)

	// Synced reports whether the driver knows all that is taken; once true it stays true.
	// Before, the controller asks the driver for nothing and gives it nothing back. When it
	// becomes true the driver calls both functions of Wake. Nil: always.
	Synced func() bool

	// Ready reports whether the driver may hand out interfaces, as far as it has to compare
	// what it knows with the PodAttachments first. When it becomes true the driver calls
	// Wake.Waiting. Nil: always.
	Ready func() bool

	// Wake has the driver call pods back when something changes that they wait for, until
	// ctx ends. It returns at once, and runs on the leader and on standbys.
	Wake func(ctx context.Context, w Wake) error

	// Awaited reports whether pods of the same namespace may wait for an interface whose
	// PodAttachment is gone now. Nil: no.
	Awaited func(gone v1alpha1.Interface) bool

	// Held returns what an owner has, in the form of Driver.List. Nil where garbage
	// collection alone finds what a pod left that never had all of its interfaces.
	Held func(o Owner) []Ref

	// GivenSince reports whether an owner was given something that it has at or after a
	// moment, which is known to the second; i is the interface in the record of that owner.
	// Nil: no.
	GivenSince func(o Owner, i v1alpha1.Interface, moment time.Time) bool

	// Surplus returns the part of an interface that its owner's PodAttachment, which has the
	// interfaces named, does not name and that can be given back while the rest stays; ok is
	// false if there is none. Nil: an interface is one thing, and stays with its pod.
	Surplus func(held v1alpha1.Interface, named []v1alpha1.Interface) (part v1alpha1.Interface, ok bool)

	// ReclaimAfter returns how long the operator has the interfaces, which are those of one
	// PodAttachment that are of this driver, wait for a node that is unreachable; 0 is for
	// ever. It reads from a cache or from the API server. Nil: for ever.
	ReclaimAfter func(ctx context.Context, from client.Reader, interfaces []v1alpha1.Interface) (time.Duration, error)

	// Active reports whether an interface with WaitForActive carries traffic, as far as the
	// driver knows; why says what it waits for, and may be empty. Nil: nothing is known, and
	// no interface of the driver has WaitForActive.
	Active func(o Owner) (active bool, why string)

	// Activations calls changed with the owner of each interface about which Active has come
	// to another answer, and goes on until ctx ends. It runs in each term of a leader: it
	// begins with the owners of all interfaces that became active while nobody listened.
	Activations func(ctx context.Context, changed func(o Owner))

	// Origin says in words where an interface is from that is on no known network.
	Origin func(i v1alpha1.Interface) string

	// Remembered is how many things the driver remembers, by kind, for a metric.
	Remembered func() map[string]int
}

// Wake calls pods back that wait.
type Wake struct {
	// Waiting has the pods looked at that could not be given their network.
	Waiting func()
	// Leaving has the pods looked at whose release waits for a node.
	Leaving func()
}

// Term gives work to this process while it leads.
type Term interface {
	// Reconciler is r while this process leads; its work waits otherwise.
	Reconciler(r reconcile.Reconciler) reconcile.Reconciler
	// EachTerm runs f once in each term, with a context that ends with the term.
	EachTerm(f func(context.Context) error) func(context.Context) error
}

// Knows reports whether the driver knows all that is taken and may hand out.
func (p Parts) Knows() bool {
	return p.IsSynced() && (p.Ready == nil || p.Ready())
}

// IsSynced reports whether the driver knows all that is taken.
func (p Parts) IsSynced() bool { return p.Synced == nil || p.Synced() }

// Table has the drivers by name.
type Table map[string]Parts

// Names of the drivers, sorted, for people: "native, neutron".
func (t Table) Names() string { return strings.Join(slices.Sorted(maps.Keys(t)), ", ") }

// ByAddress is Parts.Surplus of a driver whose addresses can be given back one by one:
// the addresses of an interface that the record does not name in the same domain.
func ByAddress(held v1alpha1.Interface, named []v1alpha1.Interface) (part v1alpha1.Interface, ok bool) {
	if held.Domain == "" {
		return v1alpha1.Interface{}, false
	}
	part = held
	part.Addresses = slices.DeleteFunc(slices.Clone(held.Addresses), func(cidr string) bool {
		p, err := netip.ParsePrefix(cidr)
		return err != nil || names(named, held, p.Addr())
	})
	return part, len(part.Addresses) > 0
}

// names reports whether an interface of a record names an address of one that is held.
func names(named []v1alpha1.Interface, held v1alpha1.Interface, a netip.Addr) bool {
	return slices.ContainsFunc(named, func(i v1alpha1.Interface) bool {
		return i.Name == held.Name && i.Domain == held.Domain && slices.ContainsFunc(i.Addresses, func(cidr string) bool {
			p, err := netip.ParsePrefix(cidr)
			return err == nil && p.Addr() == a
		})
	})
}
