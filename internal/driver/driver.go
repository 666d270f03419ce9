// Package driver is the contract between the controller and the sources of interfaces:
// address pools, OpenStack Neutron, another CNI plugin.
//
// A driver runs in the controller and returns an interface with a typed binding. The node
// implements the kinds of bindings and knows no driver. Drivers are listed in a plain table
// in the controller's main. A driver wraps the errors of package fault with %w; a foreign error
// that fits none of them is fault.ErrUnavailable. The contract includes the test suite in drivertest: every
// driver, real or fake, passes it.
package driver

import (
	"context"
	"errors"
	"iter"
	"net/netip"

	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// Detail returns the part of an error that is for operators only; empty if there is none.
// The owner of the pod reads the text of the error, so the text has no information about
// other namespaces.
func Detail(err error) string {
	if d, ok := errors.AsType[interface {
		error
		Detail() string
	}](err); ok {
		return d.Detail()
	}
	return ""
}

// Owner is the pod and the interface name for which an interface is obtained. All fields
// but NodeName, which is for placement, are its identity.
type Owner struct {
	// PodUID is the pod's own UID in the API, which no user can write. It is never a UID
	// from an annotation.
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
	// NoDefaultRoute is true if the default route of the pod is not on this interface,
	// although it may be the default interface.
	NoDefaultRoute bool
	// Addresses that the pod requests, at most one per family.
	Addresses []netip.Addr
	// MAC that the pod requests, as 02:23:45:67:89:ab; empty for any. The caller writes it
	// into the record. A driver that gives several interfaces to one link refuses a MAC
	// that another interface of the link has, with fault.ErrConflict.
	MAC string
	// Asks is the result of Networks.Read of the same driver: the requests of the pod and the
	// network that only this driver understands.
	Asks any
	// Writable returns nil if a record with the interface is valid. A driver calls it
	// before it obtains anything, with the interface as it would be: the number of
	// addresses matters, their values do not. If Writable fails, Ensure returns
	// fault.ErrInvalid. Nil: every interface can be recorded.
	Writable func(v1alpha1.Interface) error
	// AddressOnly is true if another CNI plugin makes the interface.
	AddressOnly bool
	// Binding is how the network has the interface plugged; nil is the driver's choice.
	// The driver copies it into the Attachment.
	Binding *v1alpha1.Binding
	// Labels of the pod, its namespace and its node; nil while they are not known.
	PodLabels, NamespaceLabels, NodeLabels map[string]string
	// NamespaceAnnotations are those annotations of the pod's namespace that drivers read
	// (pod.KeptOfNamespace). They are known if NamespaceLabels are.
	NamespaceAnnotations map[string]string
	// NetworkLabels are the labels of the namespace of the network's
	// NetworkAttachmentDefinition; nil while they are not known, and on the default
	// network.
	NetworkLabels map[string]string
}

// Attachment is an interface that a driver has obtained.
type Attachment struct {
	// Interface has everything that the node needs to plug it.
	Interface v1alpha1.Interface
	// Active is true if the network carries the interface's traffic. It matters only if
	// Interface.WaitForActive is true.
	Active bool
}

// Ref names an interface by its owner and its record. Release needs only a Ref, not the
// pod.
type Ref struct {
	Owner
	Interface v1alpha1.Interface
}

// Driver obtains interfaces and takes them back. It is safe for concurrent use. Every
// method honours the deadline of its context, may be interrupted at any step, and is
// repeated after a crash or a lost reply.
type Driver interface {
	// Ensure returns the interface that the request's owner already has, or obtains an
	// interface. An owner has at most one, however often Ensure runs and wherever it was
	// interrupted. If Ensure fails, a later Ensure or Release of the same owner finds
	// everything that it left. A failed Ensure gives nothing back, since another process
	// may have found the interface and be recording it.
	//
	// Ensure does not change the request. Errors: fault.ErrInvalid, fault.ErrExhausted, fault.ErrNotFound,
	// fault.ErrConflict, fault.ErrUnavailable.
	Ensure(ctx context.Context, r *Request) (*Attachment, error)

	// Release gives an interface back. It needs the record only. It returns nil if there is
	// nothing to give back, also for an owner that never had an interface. It never takes
	// anything from another owner, whatever the record has. If the interface has a Domain,
	// it gives back the named addresses and no others. The caller has proof that no node
	// holds the interface, or these addresses of it.
	//
	// Errors: fault.ErrUnavailable. The caller repeats a failed Release for ever.
	Release(ctx context.Context, ref Ref) error

	// List yields every interface that this cluster holds at the backend, once each, for
	// garbage collection. A Ref from it may be recorded again and be released. An error
	// ends the sequence; the Refs before it are then incomplete and must not be subtracted
	// from anything.
	//
	// List may yield an outdated state. Confirm returns the current one.
	List(ctx context.Context) iter.Seq2[Ref, error]

	// Confirm reads an interface that List has yielded from the backend itself, and returns
	// it with those of its addresses that the owner still has.
	//
	// Errors: fault.ErrNotFound if nothing is left, fault.ErrUnavailable.
	Confirm(ctx context.Context, ref Ref) (v1alpha1.Interface, error)
}
