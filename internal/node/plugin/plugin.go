package plugin

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/node/turns"
)

// Plugin is the network of a node, as the kubelet's NetworkPlugin was: one of
// them is chosen by its name, and everything else only knows this much of it.
type Plugin interface {
	// Name is a qualified name of Kubernetes, as "fairlead" or
	// "example.com/net", the same at all times.
	Name() string
	// Init is called once, before everything but Name, with the turns that the
	// plugin takes for work of its own. An error is fatal.
	Init(ctx context.Context, t *turns.Turns) error
	// SetUpPod plugs a sandbox, or changes nothing, and returns what ADD
	// answers, in the version of CNI that the request asks for. It undoes what
	// it did when ctx ends. The same request again has the same answer.
	SetUpPod(ctx context.Context, r cniproto.Request) (result []byte, err error)
	// TearDownPod unplugs a sandbox: what the SetUpPod with the same container ID and
	// interface made. It needs no more than these two, changes nothing of what another
	// interface's SetUpPod made, and is nil when nothing is there.
	TearDownPod(ctx context.Context, r cniproto.Request) error
	// Status says why SetUpPod cannot be served, or nil. It does not block.
	Status() error
	// Event tells of something that concerns more than one pod. It does not
	// block, and the plugin looks itself at what is there now.
	Event(e Event)
	// PodIPs are the addresses of global scope that an interface in the network
	// namespace at a path has: IPv4 first, then IPv6.
	PodIPs(netns, ifName string) ([]netip.Addr, error)
	// Parts are the further services of the plugin.
	Parts() Parts
}

// Parts are the services of a plugin beside plugging and unplugging. A plugin leaves nil
// where it has none.
type Parts struct {
	// Check compares a sandbox with what was plugged.
	Check func(ctx context.Context, r cniproto.Request) error
	// Collect lets go what the runtime does not list in a GC.
	Collect func(ctx context.Context, r cniproto.Request) error
	// Addresses serves a plugin that makes an interface and asks for its addresses.
	Addresses func(ctx context.Context, r cniproto.Request) (result []byte, err error)
	// Run works until ctx ends, from before the first request until after the last.
	Run func(ctx context.Context) error
	// Leave ends the waits of requests, which the next daemon serves.
	Leave func()
	// Sweep lets go what nobody has told of. It is called every minute.
	Sweep func(ctx context.Context) error
	// Ready says why pods cannot be served, or nil; Status is asked where there is none.
	Ready func() error
	// Checks fail, by name, when a restart may help.
	Checks map[string]func() error
	// Remembered is how many things the plugin remembers, by kind.
	Remembered func() map[string]int
}

// Event is something that a Plugin is told of.
type Event string

// PodCIDRChanged says that the addresses which are routed to this node or to
// another may have changed. It is the one event there is, as it was the
// kubelet's "pod-cidr-change".
const PodCIDRChanged Event = "pod-cidr-change"

// Candidate is a plugin that can be chosen.
type Candidate struct {
	Name string
	// New makes the plugin; it is called for the one that is chosen.
	New func() (Plugin, error)
}

// Choose makes the plugin of a name. The error names everything that is wrong
// with the candidates, whichever is chosen, and there is never a plugin beside
// an error: a kubelet that went on with the one and a log of the other is what
// this is not.
func Choose(candidates []Candidate, name string) (Plugin, error) {
	var errs []error
	var known []string
	var chosen func() (Plugin, error)
	seen := map[string]bool{}
	for i, c := range candidates {
		if why := validation.IsQualifiedName(c.Name); len(why) > 0 {
			errs = append(errs, fmt.Errorf("network plugin %d: name %q: must be a qualified name: %s", i, c.Name, strings.Join(why, "; ")))
			continue
		}
		if seen[c.Name] {
			errs = append(errs, fmt.Errorf("network plugin %d: name %q: is another's already", i, c.Name))
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
