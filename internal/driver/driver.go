// Package driver is the contract between the controller and what interfaces
// are obtained from: address pools, OpenStack Neutron, another CNI plugin.
//
// A driver has two halves that are joined by data. This half runs in the
// controller and returns an interface complete with a typed binding; the node
// implements binding kinds and knows no driver. Drivers are listed in a plain
// table in the controller's main. The test suite in drivertest is the other
// half of this contract: every driver, real or fake, passes it.
package driver

import (
	"context"
	"errors"
	"iter"
	"net/netip"

	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// The sentinels that a driver wraps with %w. A foreign error that fits none of
// them is ErrUnavailable.
var (
	// ErrInvalid says that the request cannot succeed until somebody changes
	// the pod, the network or the configuration; the text names the field.
	ErrInvalid = errors.New("invalid request")
	// ErrExhausted says that nothing is left to hand out now; the text has
	// the counts.
	ErrExhausted = errors.New("exhausted")
	// ErrUnavailable says that the backend did not answer, or its answer is
	// unknown: the call is repeated later.
	ErrUnavailable = errors.New("unavailable")
	// ErrNotFound says that something the request names does not exist.
	ErrNotFound = errors.New("not found")
	// ErrConflict says that somebody else holds what was asked for; the text
	// names the holder when it is in the namespace of who asks.
	ErrConflict = errors.New("conflict")
)

// Detail is what an error has to say to operators beside its text, which the owner of
// the pod reads: nothing of other namespaces is in that. It is empty when there is
// nothing more.
func Detail(err error) string {
	if d, ok := errors.AsType[interface {
		error
		Detail() string
	}](err); ok {
		return d.Detail()
	}
	return ""
}

// Owner identifies what an interface is obtained for: all but NodeName, which is for
// placement, is its identity.
type Owner struct {
	// PodUID is the pod's own UID in the API, which no user can write: never one
	// that an annotation names.
	PodUID    types.UID
	Interface string
	Namespace string
	PodName   string
	NodeName  string
}

// Request asks for one interface of one pod.
type Request struct {
	Owner
	// Network is "default", or namespace/name of a NetworkAttachmentDefinition.
	Network string
	// Default is true for the pod's default interface.
	Default bool
	// Addresses that the pod asks for, at most one per family.
	Addresses []netip.Addr
	// Asks is what Parts.Read of the same driver returned: what else the pod and the
	// network ask of it.
	Asks any
	// Writable says whether an interface can be written down as a driver would make
	// it. A driver asks before it obtains anything, with as many addresses as there
	// would be, whichever they are, and fails with ErrInvalid. Nil says that all can.
	Writable func(v1alpha1.Interface) error
	// AddressOnly says that another CNI plugin makes the interface.
	AddressOnly bool
	// Labels of the pod, its namespace and its node; nil while they are not
	// known.
	PodLabels, NamespaceLabels, NodeLabels map[string]string
	// NetworkLabels are those of the namespace that the network's definition is in;
	// nil while they are not known, and on the default network.
	NetworkLabels map[string]string
}

// Attachment is an interface that a driver has obtained.
type Attachment struct {
	// Interface is complete: what the node needs to plug it.
	Interface v1alpha1.Interface
	// Active is true when the network carries the interface's traffic. It
	// matters only where Interface.WaitForActive is true.
	Active bool
}

// Ref names an interface that somebody holds: the record, and nothing of the
// pod. It is what Release needs.
type Ref struct {
	Owner
	Interface v1alpha1.Interface
}

// Driver obtains interfaces and takes them back. It is safe for concurrent
// use. Every method honours the deadline of its context, may be cut off at any
// step, and is repeated after a crash or a lost reply.
type Driver interface {
	// Ensure returns the interface that the request's owner already has, or
	// obtains one. It leaves at most one interface per owner behind, however
	// often it runs and wherever it was cut off. On an error nothing is left
	// that a later Ensure or Release of the same owner would not find. Nor does
	// it give anything back then: another process may have found it, and be
	// writing it down.
	//
	// It changes nothing of the request, and fails with ErrInvalid, ErrExhausted,
	// ErrNotFound, ErrConflict or ErrUnavailable.
	Ensure(ctx context.Context, r *Request) (*Attachment, error)

	// Release gives an interface back. It needs the record only, and returns
	// nil when nothing is left to give back: also for an owner that never had
	// any. It never takes anything from another owner, whatever the record
	// says. Where the interface has a Domain, it gives back the addresses that
	// are named and no others. The caller has proof that no node holds the
	// interface, or these addresses of it.
	//
	// It fails with ErrUnavailable: the caller repeats it for ever.
	Release(ctx context.Context, ref Ref) error

	// List yields every interface that this cluster holds at the backend, once
	// each, for garbage collection. A Ref from it may be written down as a
	// record again and be released. An error ends the sequence; what came
	// before it is then not complete and must not be subtracted from anything.
	//
	// It may say what was so a while ago: Confirm says what is.
	List(ctx context.Context) iter.Seq2[Ref, error]

	// Confirm returns what is left at the backend of an interface that List has
	// yielded, on the backend's own word: the interface, with those addresses of
	// it that its owner has.
	//
	// It fails with ErrNotFound when nothing is left, and with ErrUnavailable.
	Confirm(ctx context.Context, ref Ref) (v1alpha1.Interface, error)
}
