package node

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/node/answer"
	"fairlead.dev/fairlead/internal/node/apiserver"
	"fairlead.dev/fairlead/internal/node/background"
	"fairlead.dev/fairlead/internal/node/ledger"
	"fairlead.dev/fairlead/internal/node/locks"
	"fairlead.dev/fairlead/internal/node/report"
	"fairlead.dev/fairlead/internal/warn"
)

// addresses serves plugins that make interfaces and ask for their addresses.
type addresses struct {
	namespaces Namespaces
	registry   *apiserver.Registry
	ledger     *ledger.Ledger
	locks      *locks.Locks // after Init
	events     *warn.Teller
	sandboxes  *sandboxes
	background *background.Background
	// node is the name of the node, for messages.
	node string
}

// serve serves a plugin that makes an interface and asks for its addresses (CNI
// specification 1.1.0, section 4, and the conventions for IPAM plugins).
func (a *addresses) serve(ctx context.Context, r cniproto.Request) (result []byte, err error) {
	if rec := a.ledger.Get(r.ContainerID); rec != nil {
		if add, i := rec.Delegated(r.IfName); i != nil {
			return a.delegatedAddresses(r, add, i)
		}
	}
	switch r.Verb {
	case cniproto.VerbAdd:
		err = a.locks.Add(ctx, r.ContainerID, r.IfName, func(ctx context.Context) (err error) {
			result, err = a.addAddresses(ctx, r)
			return err
		})
		return result, err
	case cniproto.VerbDel:
		// An interface may be unplugged and plugged again.
		return nil, a.locks.Unplug(ctx, r.ContainerID, r.IfName, func(ctx context.Context) error { return a.delAddresses(ctx, r) })
	case cniproto.VerbCheck:
		return nil, a.checkAddresses(r)
	case cniproto.VerbStatus:
		if !a.registry.IsSynced() {
			return nil, fault.Errorf(fault.ErrNotServing, "node %s has not read its PodAttachments from the API server yet", a.node)
		}
		return nil, nil
	default: // GC, the only other verb of a valid request
		if a.background.IsCollecting() { // it comes from a plugin that this GC executes, or just after it
			return nil, nil
		}
		return nil, collect(ctx, a.background, r, false)
	}
}

// delegatedAddresses serves a plugin that the daemon itself executes for an interface. The
// operation that executes the plugin has the sandbox's turn, so a request that waited for
// it would wait for itself. An ADD gets the addresses in the record of this operation. A
// DEL has no effect: the addresses are free when the interface is gone.
func (a *addresses) delegatedAddresses(r cniproto.Request, add *ledger.Add, i *ledger.Interface) ([]byte, error) {
	switch r.Verb {
	case cniproto.VerbAdd:
		if add.State != ledger.Attaching && i.State != ledger.Attaching { // the sandbox's ADD, a hot plug
			return nil, fault.Errorf(fault.ErrGone, "interface %s of sandbox %s has its addresses already, or is being removed: only the plugins that make it get them", r.IfName, r.ContainerID)
		}
		config, err := answer.ParseIPAM(r)
		if err != nil {
			return nil, err
		}
		return answer.DelegatedAddresses(&i.Interface, config, r.CNIVersion())
	case cniproto.VerbCheck:
		return nil, checkAddresses(r, i)
	}
	return nil, nil
}

// reasonNetworkDiffers is the reason of an event on a pod: a request of the pod is served
// in another way than whereabouts serves it. The controller uses the same reason for
// networks.
const reasonNetworkDiffers = "NetworkDiffers"

// addAddresses answers with the addresses that the controller has taken for the
// interface. Repeated requests get the same addresses.
func (a *addresses) addAddresses(ctx context.Context, r cniproto.Request) ([]byte, error) {
	pod, err := answer.ParseArgs(r.Args)
	if err != nil {
		return nil, err
	}
	config, err := answer.ParseIPAM(r)
	if err != nil {
		return nil, err
	}
	if rec := a.ledger.Get(r.ContainerID); rec != nil {
		if add := rec.AddressesFor(r.IfName); add != nil {
			return a.repeatAddresses(rec, add, r, pod)
		}
	}
	if pod, err = a.sandboxes.identify(ctx, pod); err != nil {
		return nil, err
	}
	result, err := a.sandboxes.add(ctx, r, pod, &addressRequest{Request: r, ledger: a.ledger, config: config})
	if err == nil && config.Gateway != "" {
		report.Warn(a.events, pod, reasonNetworkDiffers, fmt.Sprintf(
			"CNI_ARGS: GATEWAY=%.60s has no effect on interface %s: its gateway comes from the network or the pool", config.Gateway, r.IfName))
	}
	return result, err
}

// addressRequest is the ADD of the addresses of an interface that another plugin makes.
type addressRequest struct {
	cniproto.Request
	ledger *ledger.Ledger
	config answer.IpamConfig
	iface  *v1alpha1.Interface
}

func (*addressRequest) await(context.Context, *v1alpha1.PodAttachment) error { return nil }

func (r *addressRequest) plan(pa *v1alpha1.PodAttachment) (p *plannedAdd, err error) {
	r.iface, err = answer.AddressesFor(answer.Present(pa), r.IfName, r.config, heldBy(r.ledger.Get(r.ContainerID)))
	if err != nil {
		return nil, err
	}
	return &plannedAdd{add: ledger.Add{Interfaces: []ledger.Interface{{Interface: *r.iface}}}, request: r}, nil
}

func (r *addressRequest) encode(*plannedAdd) ([]byte, error) {
	return answer.IpamResult(r.iface, r.config, r.CNIVersion())
}

// repeatAddresses answers an ADD for addresses that was answered before.
func (a *addresses) repeatAddresses(rec *ledger.Record, add *ledger.Add, r cniproto.Request, pod ledger.Pod) ([]byte, error) {
	sandbox, err := a.namespaces.Open(r.Netns)
	if err != nil {
		return nil, fmt.Errorf("CNI_NETNS: %w", err)
	}
	id := sandbox.Place().ID
	_ = sandbox.Close()
	switch {
	case rec.NetnsID != id || !rec.Pod.Is(pod):
		return nil, fault.Errorf(fault.ErrEnvironment, "CNI_NETNS: %q: interface %s of sandbox %s has its addresses already, in another namespace or pod, which was at %q", r.Netns, r.IfName, r.ContainerID, rec.Netns)
	case add.State != ledger.Attached:
		return nil, fault.Errorf(fault.ErrGone, "interface %s of sandbox %s is being removed: this ADD came before its addresses were returned", r.IfName, r.ContainerID)
	}
	return answer.InVersion(add.Result, r.CNIVersion())
}

// heldBy returns the CNI_IFNAMEs of the interfaces of a sandbox that other plugins have
// asked addresses for, by the names of the interfaces in the PodAttachment.
func heldBy(rec *ledger.Record) map[string]string {
	out := map[string]string{}
	if rec == nil {
		return out
	}
	for _, a := range rec.Adds {
		if a.AddressOnly() {
			out[a.Interfaces[0].Name] = a.IfName
		}
	}
	return out
}

// delAddresses removes the addresses of an interface from the record. The controller
// learns it from the status.
func (a *addresses) delAddresses(ctx context.Context, r cniproto.Request) error {
	rec := a.ledger.Get(r.ContainerID)
	if rec == nil {
		return nil
	}
	if add := rec.AddressesFor(r.IfName); add != nil {
		return a.background.Release(ctx, rec, *add)
	}
	if rec.Damaged { // they may be the last that it had
		a.background.Enqueue(background.Reap, r.ContainerID)
	}
	return nil
}

// checkAddresses returns an error unless prevResult still has the addresses of the
// interface. The plugin that made the interface checks the kernel. Errors: fault.ErrGone
// if the interface has no addresses, fault.ErrDiffers if prevResult lacks one.
func (a *addresses) checkAddresses(r cniproto.Request) error {
	var add *ledger.Add
	if rec := a.ledger.Get(r.ContainerID); rec != nil {
		add = rec.AddressesFor(r.IfName)
	}
	if add == nil || add.State != ledger.Attached {
		return fault.Errorf(fault.ErrGone, "interface %s of sandbox %s has no addresses on node %s", r.IfName, r.ContainerID, a.node)
	}
	return checkAddresses(r, &add.Interfaces[0])
}

// checkAddresses returns fault.ErrDiffers unless prevResult has the addresses of an
// interface.
func checkAddresses(r cniproto.Request, i *ledger.Interface) error {
	prev, err := answer.ParsePrevResult(r)
	if err != nil {
		return err
	}
	var diffs []string
	for _, text := range i.Addresses {
		p, err := netip.ParsePrefix(text)
		if err != nil || !slices.ContainsFunc(prev.IPs, func(c *types100.IPConfig) bool { return c != nil && c.Address.IP.Equal(p.Addr().AsSlice()) }) {
			address, _, _ := strings.Cut(text, "/")
			diffs = append(diffs, "prevResult lacks address "+address)
		}
	}
	if len(diffs) > 0 {
		return fault.Errorf(fault.ErrDiffers, "interface %s of sandbox %s: %s", r.IfName, r.ContainerID, strings.Join(diffs, "; "))
	}
	return nil
}
