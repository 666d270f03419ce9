package node

import (
	"context"
	"fmt"
	"slices"
	"strings"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/go-logr/logr"

	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/node/answer"
	"fairlead.dev/fairlead/internal/node/background"
	"fairlead.dev/fairlead/internal/node/ledger"
	"fairlead.dev/fairlead/internal/run"
)

// check compares Fairlead's part of the kernel with the record and with the result of the
// ADD, which the runtime passes. It changes nothing itself: it leaves repairable
// differences on the host's side to the repairer, and all others to people.
func (sb *sandboxes) check(ctx context.Context, r cniproto.Request) error {
	prev, err := answer.ParsePrevResult(r)
	if err != nil {
		return err
	}
	return sb.locks.Do(ctx, r.ContainerID, func(ctx context.Context) error {
		rec := sb.ledger.Get(r.ContainerID)
		add := rec.Attached()
		if rec != nil && rec.Damaged {
			return damaged(rec.ContainerID)
		}
		if add == nil {
			return fault.Errorf(fault.ErrGone, "sandbox %s is not plugged on node %s", r.ContainerID, sb.node)
		}
		if add.IfName != "" && add.IfName != r.IfName {
			return fault.Errorf(fault.ErrEnvironment, "CNI_IFNAME: %q: the default interface of sandbox %s is %q", r.IfName, r.ContainerID, add.IfName)
		}
		seen, err := sb.inspect(ctx, r.Netns, rec)
		if err != nil {
			return err
		}
		found := differences(rec.ContainerID, add.Interfaces, prev, seen)
		diffs := found.diffs
		if len(found.others) > 0 {
			logr.FromContextOrDiscard(ctx).V(run.LevelPod).Info("CHECK: later plugins of the chain have changed a sandbox, as they may", "pod", rec.Pod, "changes", found.others)
		}
		if len(diffs) == 0 {
			return nil
		}
		if found.repairable {
			sb.background.Enqueue(background.Repair, r.ContainerID)
		}
		return &cniproto.Error{
			Code:    answer.CodeDiffers,
			Msg:     fmt.Sprintf("sandbox %s of pod %s is not as it was plugged: %s", r.ContainerID, rec.Pod, plural(len(diffs), "difference")),
			Details: strings.Join(diffs, "; "),
		}
	})
}

// inspection is the state of a sandbox in the kernel.
type inspection struct {
	inside map[string]plug.Inspected
	// host holds the differences on the host's side, by interface.
	host map[string][]string
	// filter describes the missing parts of the packet filter.
	filter []string
}

// inspect reads the state of the namespace, of the host's side and of the packet filter.
// Errors: fault.ErrDiffers if the namespace is not the recorded one.
func (sb *sandboxes) inspect(ctx context.Context, netns string, rec *ledger.Record) (s inspection, err error) {
	ns, err := sb.namespaces.Open(netns)
	if err != nil {
		return s, fmt.Errorf("CNI_NETNS: %w", err)
	}
	defer func() { _ = ns.Close() }()
	if ns.Place().ID != rec.NetnsID {
		return s, fault.Errorf(fault.ErrDiffers, "CNI_NETNS: %q: not the namespace that sandbox %s was plugged into, which was at %q", netns, rec.ContainerID, rec.Netns)
	}
	if s.inside, err = sb.namespaces.Inspect(ctx, ns); err != nil {
		return s, fmt.Errorf("look into the namespace at %q: %w", netns, err)
	}
	s.host, s.filter = map[string][]string{}, sb.firewall.Missing(rec.ContainerID)
	for _, i := range rec.Plug().Interfaces {
		if i.State != "" {
			continue // it is being plugged or unplugged
		}
		if s.host[i.Name], err = sb.kinds.Differences(ctx, i.Made, s.inside[i.Name]); err != nil {
			return s, err
		}
	}
	return s, nil
}

// findings are the results of a CHECK, in words.
type findings struct {
	// diffs are differences from the sandbox that was plugged.
	diffs []string
	// others are changes that later plugins of the chain may make.
	others []string
	// repairable is true if one of diffs is on the host's side, where it can be repaired.
	repairable bool
}

func (f *findings) differs(format string, args ...any) {
	f.diffs = append(f.diffs, fmt.Sprintf(format, args...))
}

func (f *findings) changed(format string, args ...any) {
	f.others = append(f.others, fmt.Sprintf(format, args...))
}

// differences compares a sandbox with the interfaces of its record.
//
// Later plugins of the chain may change the sandbox (CNI specification 1.1.0, section 2,
// "CHECK"), and need not change the result with it. The MTU may therefore be smaller than
// the network's, a route may be in another table, and a route of the ADD is required only
// if prevResult still has it. Additions of other plugins are ignored. A changed MAC is a
// difference all the same: the node lets a pod send with its own MAC alone, and must not
// accept another from a plugin.
//
// The runtime keeps the result of the ADD. It lacks the interfaces that the running pod got
// later, and may have some that the pod has lost.
func differences(containerID string, interfaces []ledger.Interface, prev *types100.Result, s inspection) (f findings) {
	for n, i := range interfaces {
		if i.State != "" {
			continue
		}
		fromPrev := answer.PrevInterface(prev, i.Name)
		switch {
		case i.HotPlugged, i.Internal: // prevResult may have an earlier interface of this name, or none
			fromPrev = &types100.Interface{}
		case fromPrev == nil:
			f.differs("prevResult: lacks interface %s of the sandbox", i.Name)
			fromPrev = &types100.Interface{}
		}
		have, ok := s.inside[i.Name]
		if !ok {
			f.differs("interface %s is missing", i.Name)
			continue
		}
		if !have.Up && i.Binding.Delegate == nil {
			f.differs("interface %s is down", i.Name)
		}
		if d := s.host[i.Name]; len(d) > 0 {
			f.diffs, f.repairable = append(f.diffs, d...), true
		}
		p, err := i.Parse(containerID)
		if err != nil {
			continue // it cannot be compared
		}
		if i.Binding.Delegate == nil { // plugins that make an interface compare it themselves
			f.link(i.Name, p, have, fromPrev)
		}
		f.network(i.Name, n == 0, p, have, prev)
	}
	for _, lacks := range s.filter { // the filter repairs itself
		f.differs("packet filter: %s", lacks)
	}
	return f
}

// link compares MAC and MTU of an interface inside the sandbox, where they are known.
func (f *findings) link(name string, p plug.Interface, have plug.Inspected, fromPrev *types100.Interface) {
	own := p.MAC.String()
	switch want := orElse(fromPrev.Mac, own); {
	case want == "":
	case !strings.EqualFold(want, have.MAC):
		f.differs("interface %s has MAC %s, not %s", name, have.MAC, want)
	case own != "" && !strings.EqualFold(want, own):
		f.differs("interface %s has MAC %s, which a plugin after this one gave it: the node drops what it sends, because it was plugged with %s: have this plugin give it, by its capability mac", name, have.MAC, own)
	}
	switch want := orElse(fromPrev.Mtu, p.MTU); {
	case want == 0:
	case have.MTU > want:
		f.differs("interface %s has an MTU of %d bytes, not %d", name, have.MTU, want)
	case have.MTU < p.MTU:
		f.changed("interface %s has an MTU of %d bytes, less than the network's %d", name, have.MTU, p.MTU)
	}
}

// network compares addresses and routes of an interface inside the sandbox. The result of
// the ADD has addresses and routes of the default interface only.
func (f *findings) network(name string, isDefault bool, p plug.Interface, have plug.Inspected, prev *types100.Result) {
	for _, a := range p.Addresses {
		if !slices.Contains(have.Addresses, a) {
			f.differs("interface %s lacks address %s", name, a)
		}
		if isDefault && !answer.PrevAddress(prev, a) {
			f.differs("prevResult: lacks address %s of interface %s", a, name)
		}
	}
	for _, route := range ledger.RoutesOf(p) {
		switch {
		case slices.Contains(have.Routes, route):
		case isDefault && !answer.PrevRoute(prev, route):
			f.changed("interface %s lacks the route %s, as prevResult does", name, routeText(route))
		case slices.Contains(have.OtherRoutes, route):
			f.changed("interface %s has the route %s in another table", name, routeText(route))
		default:
			f.differs("interface %s lacks the route %s", name, routeText(route))
		}
	}
}

func routeText(r plug.Route) string {
	if !r.Gateway.IsValid() {
		return "to " + r.Destination.String()
	}
	return fmt.Sprintf("to %s via %s", r.Destination, r.Gateway)
}

func orElse[T comparable](a, b T) T {
	var none T
	if a != none {
		return a
	}
	return b
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
