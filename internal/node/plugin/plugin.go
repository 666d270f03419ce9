package plugin

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/node/turns"
)

// Plugin is the network of a node, as the kubelet's NetworkPlugin was. It is chosen by
// name, and its callers depend on this interface only.
type Plugin interface {
	// Name returns a qualified name of Kubernetes, as "fairlead" or
	// "example.com/net". It never changes.
	Name() string
	// Init is called once, before all other methods except Name. The plugin uses t for
	// operations of its own on sandboxes. An error is fatal.
	Init(ctx context.Context, t *turns.Turns) error
	// SetUpPod plugs a sandbox and returns the result of ADD, in the CNI version of the
	// request. After an error, also if ctx ends, nothing is left plugged. A repeated
	// request has the same result.
	SetUpPod(ctx context.Context, r cniproto.Request) (result []byte, err error)
	// TearDownPod removes the interfaces that SetUpPod with the same container ID and
	// interface name made. It needs only these two, and changes no interface of another
	// SetUpPod. It returns nil if there is nothing to remove.
	TearDownPod(ctx context.Context, r cniproto.Request) error
	// Status returns nil if SetUpPod can be served, otherwise the reason. It does not
	// block.
	Status() error
	// Parts returns the further services of the plugin.
	Parts() Parts
}

// Parts are the services of a plugin in addition to plugging and unplugging. A service that
// the plugin lacks is nil.
type Parts struct {
	// Check compares a sandbox with its record (CHECK).
	Check func(ctx context.Context, r cniproto.Request) error
	// Collect removes the sandboxes that the runtime does not list in a GC.
	Collect func(ctx context.Context, r cniproto.Request) error
	// Addresses serves a plugin that makes an interface and asks for its addresses.
	Addresses func(ctx context.Context, r cniproto.Request) (result []byte, err error)
	// Run works until ctx ends. It starts before the first request and ends after the
	// last.
	Run func(ctx context.Context) error
	// Leave ends the waits of requests, when the daemon ends. The next daemon serves
	// the requests.
	Leave func()
	// Sweep removes sandboxes that are gone without a DEL. It is called every minute.
	Sweep func(ctx context.Context) error
	// Ready returns nil if pods can be served, otherwise the reason. If it is nil, Status
	// is called instead.
	Ready func() error
	// Checks are functions by name. Such a function returns an error if a restart of the
	// daemon may help.
	Checks map[string]func() error
}

// Candidate is a plugin that can be chosen.
type Candidate struct {
	Name string
	// New makes the plugin. It is called only if the candidate is chosen.
	New func() (Plugin, error)
}

// Choose makes the plugin with a name. The error lists all faults of all candidates, not
// only of the chosen candidate. It returns either a plugin or an error, never both: the
// kubelet logged such an error and went on with the plugin.
func Choose(candidates []Candidate, name string) (Plugin, error) {
	var errs []error
	var known []string
	var chosen func() (Plugin, error)
	seen := map[string]bool{}
	for i, c := range candidates {
		if faults := validation.IsQualifiedName(c.Name); len(faults) > 0 {
			errs = append(errs, fmt.Errorf("network plugin %d: name %q: must be a qualified name: %s", i, c.Name, strings.Join(faults, "; ")))
			continue
		}
		if seen[c.Name] {
			errs = append(errs, fmt.Errorf("network plugin %d: name %q: another plugin has it already", i, c.Name))
			continue
		}
		seen[c.Name] = true
		known = append(known, c.Name)
		if c.Name == name {
			chosen = c.New
		}
	}
	if chosen == nil {
		errs = append(errs, fmt.Errorf("network plugin %q: is not known: must be one of %s", name, strings.Join(known, ", ")))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	p, err := chosen()
	if err != nil {
		return nil, fmt.Errorf("network plugin %s: %w", name, err)
	}
	return p, nil
}
