package node

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/node/ledger"
)

// Kernel is what plugging asks of the kernel.
type Kernel interface {
	// Enter opens the network namespace at a path. The error is
	// link.ErrNotNamespace when there is none.
	Enter(path string) (Sandbox, error)
	// Detach removes a host end, and returns when it is gone. It is nil when
	// there is none.
	Detach(ctx context.Context, hostName string) error
	// Links lists the host ends that are ours.
	Links(ctx context.Context) ([]plug.HostLink, error)
	// MendHostEnd sets a host end up and makes it a port of the bridge again.
	MendHostEnd(hostName, bridge string) error
}

// Sandbox is an open network namespace.
type Sandbox interface {
	ID() link.NamespaceID
	// Attach plugs one interface, or changes nothing.
	Attach(ctx context.Context, p plug.Interface) error
	// Inspect reads all interfaces, by name.
	Inspect(ctx context.Context) (map[string]plug.Inspected, error)
	Close()
}

// RealKernel is the kernel of this machine.
type RealKernel struct{ *plug.Kernel }

// Enter opens the network namespace at a path.
func (k RealKernel) Enter(path string) (Sandbox, error) {
	ns, err := link.OpenNamespace(path)
	if err != nil {
		return nil, err
	}
	return realSandbox{Namespace: ns, kernel: k.Kernel}, nil
}

type realSandbox struct {
	*link.Namespace
	kernel *plug.Kernel
}

func (s realSandbox) Attach(ctx context.Context, p plug.Interface) error {
	_, err := s.kernel.Attach(ctx, s.Namespace, p)
	return err
}

func (s realSandbox) Close() { _ = s.Namespace.Close() }

func (s realSandbox) Inspect(ctx context.Context) (map[string]plug.Inspected, error) {
	return plug.Inspect(ctx, s.Namespace)
}

// presence is what can be said of a recorded namespace.
type presence int

const (
	// present: it is there.
	present presence = iota
	// unclear: something is in its place that may hide it, as when the mounts
	// of namespaces do not reach the daemon's container.
	unclear
	// absent: nothing is there any more, or a namespace that came after it.
	absent
)

// inspectNamespace tells whether the namespace of a record is still there.
func inspectNamespace(k Kernel, r *ledger.Record) presence {
	ns, err := k.Enter(r.Netns)
	switch {
	case err == nil:
		id := ns.ID()
		ns.Close()
		if id != r.NetnsID {
			return absent
		}
		return present
	case !errors.Is(err, fs.ErrNotExist):
		return unclear
	}
	// A directory that is missing as a whole was not given to the daemon.
	if _, err := os.Stat(filepath.Dir(r.Netns)); err != nil {
		return unclear
	}
	return absent
}
