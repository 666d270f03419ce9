package node

import (
	"context"
	"slices"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/node/answer"
	"fairlead.dev/fairlead/internal/node/ledger"
)

// addRequest is one ADD: of all interfaces that Fairlead plugs, or of the addresses of an
// interface that another plugin makes.
type addRequest interface {
	// await waits until the node is able to plug the interfaces of a PodAttachment.
	await(ctx context.Context, pa *v1alpha1.PodAttachment) error
	// plan resolves the interfaces of a PodAttachment, after await. It reserves nothing yet.
	plan(pa *v1alpha1.PodAttachment) (*plannedAdd, error)
	// encode encodes the answer to a plan whose interfaces are parsed.
	encode(p *plannedAdd) ([]byte, error)
}

// plannedAdd is an ADD that is resolved, to be recorded and made.
type plannedAdd struct {
	add ledger.Add
	// parsed are the interfaces of add, in the form that their kinds take.
	parsed []plug.Interface
	// request is the ADD that was planned.
	request addRequest
}

// unmade removes the interfaces from the ADD that were not made, all but the first ones: the DEL
// of plugins that were not executed could remove an interface of others. That of an ADD of
// addresses stays, since the record knows the ADD by it, and nothing is made for it anyway.
func (p *plannedAdd) unmade(left int) {
	if !p.add.AddressOnly() {
		p.add.Interfaces = p.add.Interfaces[:left]
	}
}

// plugRequest is the ADD of all interfaces of a pod that Fairlead plugs.
type plugRequest struct {
	cniproto.Request
	sandboxes    *sandboxes
	pod          ledger.Pod
	capabilities answer.Capabilities
	// mtu, in bytes, is for an interface on the default network that specifies none.
	mtu int
	// devices that the kubelet has allocated to the pod, by resource; nil if no interface
	// needs one.
	devices map[string][]string
}

func (r *plugRequest) await(ctx context.Context, pa *v1alpha1.PodAttachment) (err error) {
	r.mtu, err = r.sandboxes.awaitDefault(ctx, r.pod, pa.Spec.Interfaces...)
	if err == nil && answer.NeedDevices(pa.Spec.Interfaces...) {
		r.devices, err = r.sandboxes.devices.Of(ctx, r.pod.Namespace, r.pod.Name)
	}
	return err
}

// awaitDefault waits for the default network and the packet filter if one of these interfaces of a pod
// is on it, and returns its MTU: from its first packet on, the sources of a pod are checked.
func (sb *sandboxes) awaitDefault(ctx context.Context, pod ledger.Pod, interfaces ...v1alpha1.Interface) (mtu int, err error) {
	if !slices.ContainsFunc(interfaces, func(i v1alpha1.Interface) bool { return i.Binding.Routed != nil }) {
		return 0, nil
	}
	if mtu, err = sb.host.Await(ctx); err != nil {
		return 0, err
	}
	return mtu, sb.firewall.Await(ctx, pod)
}

func (r *plugRequest) plan(pa *v1alpha1.PodAttachment) (*plannedAdd, error) {
	interfaces, err := answer.Plan(answer.Present(pa), r.IfName, r.mtu, r.sandboxes.kinds)
	if err != nil {
		return nil, err
	}
	if err := answer.EnterDevices(interfaces, r.devices); err != nil {
		return nil, err
	}
	p := &plannedAdd{add: ledger.Add{Interfaces: interfaces}, request: r}
	if !r.sandboxes.ledger.HasAny(pa.UID, pa.Spec.Unplug) {
		p.add.Generation = pa.Generation
	}
	if err := r.capabilities.Apply(&p.add, r.pod, pa); err != nil {
		return nil, err
	}
	if err := answer.AtNode(&p.add, r.pod, r.sandboxes.host.Own()); err != nil {
		return nil, err
	}
	return p, answer.NotReserved(&p.add, r.pod, r.sandboxes.reserved)
}

func (r *plugRequest) encode(p *plannedAdd) ([]byte, error) {
	res, err := answer.Result(p.add.Interfaces, p.parsed[0], r.Netns)
	if err != nil {
		return nil, err
	}
	return answer.Encode(res, r.CNIVersion())
}
