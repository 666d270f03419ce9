package node

import (
	"context"
	"encoding/json"
	"net/netip"

	cnitypes "github.com/containernetworking/cni/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
)

// Kernel makes and removes interfaces in the kernel.
type Kernel interface {
	// Enter opens the network namespace at a path. Errors: link.ErrNotNamespace if there
	// is none.
	Enter(path string) (Sandbox, error)
	// RandomMAC reports whether an interface of a binding has a random MAC if none is
	// requested (plug.Kinds).
	RandomMAC(b v1alpha1.Binding) bool
	Kinds
	Finder
}

// Kinds handles recorded interfaces (plug.Kinds).
type Kinds interface {
	// Names returns the names of the kinds, in order.
	Names() []string
	Remove(ctx context.Context, m plug.Made) error
	Gone(ctx context.Context, m plug.Made) (bool, error)
	Differences(ctx context.Context, m plug.Made, inside plug.Inspected) ([]string, error)
	Repair(ctx context.Context, m plug.Made) (bool, error)
}

// Finder handles interfaces that have no record (plug.Kinds).
type Finder interface {
	// Found lists the interfaces of Fairlead that have links on the host.
	Found(ctx context.Context) ([]plug.Found, error)
	// Finds reports whether Found lists the interfaces of a binding.
	Finds(b v1alpha1.Binding) bool
	// RemoveUnknown removes the rest of an interface of any kind.
	RemoveUnknown(ctx context.Context, at link.Place, containerID, name string) error
}

// Plugins executes the verbs of CNI that concern a network that plugins make.
type Plugins interface {
	// GC passes the attachments that are in use to the plugins of a network.
	GC(ctx context.Context, l v1alpha1.PluginList, valid []cnitypes.GCAttachment) error
	// Status returns nil if the plugins of a network can serve an ADD. Errors:
	// fault.ErrUnavailable, fault.ErrImpaired.
	Status(ctx context.Context, l v1alpha1.PluginList) error
}

// Sandbox is an open network namespace.
type Sandbox interface {
	// Place returns the place of the namespace.
	Place() link.Place
	// Plan validates an interface and returns the result that Make will have. Errors:
	// link.ErrInvalid.
	Plan(i plug.Interface) (plug.Made, error)
	// Make makes one interface and executes its plugins, whose result it returns; nil if
	// there are none. After an error the interface has to be removed if it has plugins.
	Make(ctx context.Context, i plug.Interface, m plug.Made) (json.RawMessage, error)
	// Inspect reads all interfaces, by name.
	Inspect(ctx context.Context) (map[string]plug.Inspected, error)
	// Announce tells the neighbors of an interface that its addresses have its MAC.
	Announce(i plug.Interface) error
	Close()
}

// RealKernel is the kernel of this machine.
type RealKernel struct{ *plug.Kinds }

// Enter opens the network namespace at a path.
func (k RealKernel) Enter(path string) (Sandbox, error) {
	ns, err := link.OpenNamespace(path)
	if err != nil {
		return nil, err
	}
	return realSandbox{ns, k.Kinds}, nil
}

type realSandbox struct {
	*link.Namespace
	kinds *plug.Kinds
}

func (s realSandbox) Plan(i plug.Interface) (plug.Made, error) { return s.kinds.Plan(s.Place(), i) }

func (s realSandbox) Make(ctx context.Context, i plug.Interface, m plug.Made) (json.RawMessage, error) {
	if err := s.kinds.Make(ctx, s.Namespace, i); err != nil {
		return nil, err
	}
	return s.kinds.Execute(ctx, i, m)
}

func (s realSandbox) Inspect(ctx context.Context) (map[string]plug.Inspected, error) {
	return plug.Inspect(ctx, s.Namespace)
}

func (s realSandbox) Announce(i plug.Interface) error {
	var addresses []netip.Addr
	for _, p := range i.Addresses {
		addresses = append(addresses, p.Addr())
	}
	return s.Namespace.Announce(i.Name, i.MAC, addresses)
}

func (s realSandbox) Close() { _ = s.Namespace.Close() }
