package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-logr/logr"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/netdev/kinds"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/node/answer"
	"fairlead.dev/fairlead/internal/node/apiserver"
	"fairlead.dev/fairlead/internal/node/background"
	"fairlead.dev/fairlead/internal/node/filter"
	"fairlead.dev/fairlead/internal/node/health"
	"fairlead.dev/fairlead/internal/node/hostnet"
	"fairlead.dev/fairlead/internal/node/ledger"
	"fairlead.dev/fairlead/internal/node/locks"
	"fairlead.dev/fairlead/internal/node/report"
	"fairlead.dev/fairlead/internal/node/wait"
	"fairlead.dev/fairlead/internal/tracing"
	"fairlead.dev/fairlead/internal/warn"
)

// sandboxes serves the verbs of sandboxes: ADD, DEL, CHECK and hot plug.
type sandboxes struct {
	waits      *wait.Waits
	background *background.Background
	kinds      *kinds.Table
	namespaces Namespaces
	registry   *apiserver.Registry
	ledger     *ledger.Ledger
	locks      *locks.Locks // after Init
	host       *hostnet.Network
	firewall   *filter.Firewall
	statuses   *report.Statuses
	events     *warn.Teller
	bindings   health.Bindings
	devices    Devices
	metrics    *metrics
	// node is the name of the node, for messages.
	node string
	// reserved are the node's own ports.
	reserved []answer.ReservedPort
}

// setUp plugs a sandbox once. A repeated request gets the same answer.
func (sb *sandboxes) setUp(ctx context.Context, r cniproto.Request) ([]byte, error) {
	pod, err := answer.ParseArgs(r.Args)
	if err != nil {
		return nil, err
	}
	if rec := sb.ledger.Get(r.ContainerID); rec != nil && rec.Plug() != nil {
		return sb.answerRepeat(ctx, rec, r)
	}
	if pod, err = sb.identify(ctx, pod); err != nil {
		return nil, err
	}
	c, err := answer.ParseCapabilities(r.Config)
	if err != nil {
		return nil, err
	}
	return sb.add(ctx, r, pod, &plugRequest{sandboxes: sb, Request: r, pod: pod, capabilities: c})
}

// identify returns the pod with its UID. It asks the API server if the runtime does not pass one.
func (sb *sandboxes) identify(ctx context.Context, pod ledger.Pod) (ledger.Pod, error) {
	if pod.UID != "" {
		return pod, nil
	}
	waiting, cancel := sb.waits.WithAddTimeout(ctx)
	defer cancel()
	pod, err := sb.waits.Identify(waiting, pod)
	if cause := context.Cause(waiting); err != nil && errors.Is(cause, fault.ErrLeaving) {
		err = cause
	}
	return pod, err
}

// answerRepeat answers an ADD of a sandbox that already has one.
func (sb *sandboxes) answerRepeat(ctx context.Context, rec *ledger.Record, r cniproto.Request) ([]byte, error) {
	add := rec.Plug()
	if add.State != ledger.Attached {
		return nil, fault.Errorf(fault.ErrGone, "sandbox %s is being removed: this ADD came after its DEL, or before the rest of an earlier ADD was removed", r.ContainerID)
	}
	if add.IfName != r.IfName {
		return nil, fault.Errorf(fault.ErrEnvironment, "CNI_IFNAME: %q: sandbox %s has its default interface already, as %q", r.IfName, r.ContainerID, add.IfName)
	}
	ns, err := sb.namespaces.Open(r.Netns)
	if err != nil {
		return nil, fmt.Errorf("CNI_NETNS: %w", err)
	}
	defer func() { _ = ns.Close() }()
	if ns.Place().ID != rec.NetnsID {
		return nil, fault.Errorf(fault.ErrEnvironment, "CNI_NETNS: %q: sandbox %s is plugged already, in another namespace, which was at %q", r.Netns, r.ContainerID, rec.Netns)
	}
	if err := sb.verifyAddresses(ctx, r.ContainerID, add, ns); err != nil {
		return nil, err
	}
	return answer.InVersion(add.Result, r.CNIVersion())
}

// verifyAddresses returns an error unless a pod still has the addresses in the answer to
// its first ADD. Errors: fault.ErrDiffers.
func (sb *sandboxes) verifyAddresses(ctx context.Context, containerID string, add *ledger.Add, ns *link.Namespace) error {
	inside, err := sb.namespaces.Inspect(ctx, ns)
	have, there := inside[add.IfName]
	if err == nil && !there {
		err = fmt.Errorf("interface %s is missing in the namespace at %q", add.IfName, ns.Path())
	}
	if err != nil {
		return fault.Errorf(fault.ErrDiffers, "sandbox %s was plugged before, and is not any more: %w", containerID, err)
	}
	if lost := add.LostAddress(have); lost != "" {
		return fault.Errorf(fault.ErrDiffers, "sandbox %s was plugged before, and its %s", containerID, lost)
	}
	return nil
}

// add waits for the PodAttachment, makes the interfaces of an ADD and answers. addTimeout
// bounds only the waiting: an ADD that got its PodAttachment in time is made. The wait for
// active interfaces has a bound of its own.
func (sb *sandboxes) add(ctx context.Context, r cniproto.Request, pod ledger.Pod, w addRequest) (result []byte, err error) {
	ns, err := sb.namespaces.Open(r.Netns)
	if err != nil {
		return nil, fmt.Errorf("CNI_NETNS: %w", err)
	}
	defer func() { _ = ns.Close() }()
	sandbox := &ledger.Record{
		Version: ledger.Version, ContainerID: r.ContainerID, BootID: sb.ledger.BootID, Netns: r.Netns, NetnsID: ns.Place().ID, Pod: pod,
	}
	if err := sb.checkRecord(sandbox); err != nil {
		return nil, err
	}
	waiting, cancel := sb.waits.WithAddTimeout(ctx)
	defer cancel()
	idle, busy := sb.locks.Idle(waiting)
	defer busy()
	start := time.Now()
	rec, p, err := sb.reserve(idle, ns, sandbox, r.IfName, w)
	if err != nil {
		return nil, locks.Cause(idle, err)
	}
	sb.step(ctx, "wait", start)
	defer func() {
		if err != nil {
			sb.undo(ctx, rec, p.add)
			result = nil
		}
	}()
	err = sb.waits.MarkRebooted(idle, rec)
	if err == nil {
		err = sb.putUnfindable(rec, &p.add)
	}
	if err != nil {
		p.unmade(0)
		return nil, locks.Cause(idle, err)
	}
	start = time.Now()
	if err := sb.plug(ctx, ns, rec, p); err != nil {
		return nil, err
	}
	sb.step(ctx, "plug", start)
	if err := sb.awaitActive(ctx, rec, &p.add); err != nil {
		return nil, err
	}
	sb.announceActive(ctx, ns, p)
	// From here on the sandbox belongs to the runtime: only its DEL removes it.
	p.add.AttachedAt = time.Now()
	if err := sb.ledger.Publish(rec.WithAdd(p.add)); err != nil {
		return nil, err
	}
	if pa := sb.registry.Get(rec.AttachmentKey()); pa != nil && pa.UID == rec.Attachment.UID {
		sb.background.Consider(pa) // it may have changed meanwhile
	}
	sb.statuses.EnqueueSoon(rec.AttachmentKey())
	return p.add.Result, nil
}

// awaitActive waits for the interfaces of an ADD that have to become active (wait.Waits.Active).
func (sb *sandboxes) awaitActive(ctx context.Context, rec *ledger.Record, add *ledger.Add) error {
	if !slices.ContainsFunc(add.Interfaces, func(i ledger.Interface) bool { return i.WaitForActive }) { // as a rule
		return nil
	}
	defer sb.metrics.step("active", time.Now())
	if !add.Executes() { // the DEL of an undo must not meet the GC of the same plugin
		sb.locks.Leave(ctx)
	}
	return sb.waits.Active(ctx, rec, add)
}

// announceActive announces the addresses of the interfaces that were awaited: the network
// carries no packet of them before. Without it the neighbors of an earlier pod with an
// address send to that pod's MAC for up to half a minute. The pod works if it fails.
func (sb *sandboxes) announceActive(ctx context.Context, ns *link.Namespace, p *plannedAdd) {
	for n, i := range p.add.Interfaces {
		if !i.WaitForActive {
			continue
		}
		if err := sb.namespaces.Announce(ns, p.parsed[n]); err != nil {
			logr.FromContextOrDiscard(ctx).Error(err, "addresses were not announced", "interface", i.Name)
		}
	}
}

func (sb *sandboxes) step(ctx context.Context, name string, start time.Time) {
	sb.metrics.step(name, start)
	tracing.Step(ctx, name, start)
}

// checkRecord returns an error if a sandbox has a record that is damaged, or that names
// another pod or another namespace. The record of links whose ADD is not known names none.
// Errors: fault.ErrDiffers, fault.ErrEnvironment.
func (sb *sandboxes) checkRecord(sandbox *ledger.Record) error {
	rec := sb.ledger.Get(sandbox.ContainerID)
	switch {
	case rec == nil:
		return nil
	case rec.Damaged:
		return damaged(rec.ContainerID)
	case rec.Netns != "" && rec.NetnsID != sandbox.NetnsID:
		return fault.Errorf(fault.ErrEnvironment, "CNI_NETNS: %q: sandbox %s has interfaces already, in another namespace, which was at %q", sandbox.Netns, sandbox.ContainerID, rec.Netns)
	case rec.Pod != ledger.Pod{} && !rec.Pod.Is(sandbox.Pod):
		return fault.Errorf(fault.ErrEnvironment, "CNI_ARGS: sandbox %s has interfaces already, of another pod", sandbox.ContainerID)
	}
	return nil
}

// damaged returns the error of a request for a sandbox whose record was damaged.
func damaged(containerID string) error {
	return fault.Errorf(fault.ErrDiffers, "the record of sandbox %s was damaged, so its interfaces are not known: replace the pod", containerID)
}

// putUnfindable puts an ADD on disk before its interfaces are made, if one of them has no
// link on the host by which a later daemon finds it, or has plugins.
func (sb *sandboxes) putUnfindable(rec *ledger.Record, add *ledger.Add) error {
	hidden := func(i ledger.Interface) bool { return i.Made.HostLink == "" || i.Made.Plugins != nil }
	if add.AddressOnly() || !slices.ContainsFunc(add.Interfaces, hidden) { // as a rule
		return nil
	}
	return sb.ledger.Put(rec)
}

// plug makes every interface of an ADD, in order, and prepares the record with the answer
// at the same time, or after the plugins that are executed. If plug returns nil, the ADD is
// Attached and its file is prepared.
func (sb *sandboxes) plug(ctx context.Context, ns *link.Namespace, rec *ledger.Record, p *plannedAdd) error {
	done := p.add
	prepared := make(chan error, 1)
	if !p.add.Executes() {
		go func() { prepared <- sb.prepare(rec, &done, p) }()
	}
	if !p.add.AddressOnly() {
		sb.firewall.Add(rec.ContainerID, &p.add) // takes its time, but less than the containers to start
	}
	left, err := sb.makeAll(ctx, ns, rec, p)
	switch {
	case !done.Executes():
		err = errors.Join(err, <-prepared)
	case err == nil:
		done = p.add
		err = sb.prepare(rec, &done, p)
	}
	if err != nil {
		p.unmade(left)
		return err
	}
	if !p.add.AddressOnly() {
		waiting, cancel := sb.waits.WithAddTimeout(ctx)
		defer cancel()
		if err := sb.firewall.Opened(waiting, rec.Pod, &p.add); err != nil {
			return err
		}
	}
	p.add = done
	return context.Cause(ctx)
}

// prepare sets an ADD to the state that it has when its interfaces are made, with the
// answer, and prepares the file of its record.
func (sb *sandboxes) prepare(rec *ledger.Record, add *ledger.Add, p *plannedAdd) (err error) {
	if add.Result, err = p.request.encode(p); err != nil {
		return err
	}
	add.State, add.AttachedAt = ledger.Attached, time.Now()
	return sb.ledger.Prepare(rec.WithAdd(*add))
}

// makeAll makes the interfaces, in order. After an error, as many of the first interfaces
// are left and have to be removed.
func (sb *sandboxes) makeAll(ctx context.Context, ns *link.Namespace, rec *ledger.Record, p *plannedAdd) (left int, err error) {
	for n, i := range p.parsed {
		if err := context.Cause(ctx); err != nil {
			return n, err
		}
		err := sb.makeOne(ctx, ns, rec, &p.add, n, i)
		if err == nil {
			continue
		}
		left = n + 1
		if errors.Is(err, link.ErrExists) { // the interface is that of others
			left = n
		}
		return left, err
	}
	return len(p.parsed), nil
}

// makeOne makes interface n of an ADD, and enters the result of its plugins into the ADD.
// Errors: link.ErrExists if another program has an interface of the name.
func (sb *sandboxes) makeOne(ctx context.Context, ns *link.Namespace, rec *ledger.Record, add *ledger.Add, n int, i plug.Interface) error {
	made := add.Interfaces[n].Made
	err := sb.kinds.Make(ctx, ns, i)
	var result json.RawMessage
	if err == nil {
		result, err = sb.kinds.Execute(ctx, i, made)
	}
	sb.bindings.Note(made.Kind, rec.Pod.UID, err)
	if err == nil && result != nil {
		err = sb.recordExecuted(rec, add, n, result)
	}
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); cause != nil {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	return fmt.Errorf("plug interface %s of pod %s: %w", i.Name, rec.Pod, err)
}

// recordExecuted enters the result of plugins into the ADD and puts it on disk: their DEL
// gets it, also if the daemon is killed.
func (sb *sandboxes) recordExecuted(rec *ledger.Record, add *ledger.Add, n int, result json.RawMessage) error {
	i, err := answer.Executed(add.Interfaces[n], result)
	if err != nil {
		return err
	}
	add.Interfaces = slices.Clone(add.Interfaces) // the ledger has the others
	add.Interfaces[n] = i
	return sb.ledger.Put(rec.WithAdd(*add))
}

// undo removes an ADD and everything that was made for it. It also works if ctx has
// ended.
func (sb *sandboxes) undo(ctx context.Context, rec *ledger.Record, add ledger.Add) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), wait.UndoTimeout)
	defer cancel()
	sb.ledger.Discard(rec.ContainerID)
	if err := sb.background.Remove(ctx, rec.ContainerID, add); err != nil {
		logr.FromContextOrDiscard(ctx).Error(err, "undo of an ADD failed, continuing in the background", "pod", rec.Pod)
		sb.background.RemoveLater(rec, add)
	}
}

// reserve waits for the pod's PodAttachment, then for the node, and claims the former for
// an ADD of a sandbox: from then on its status cannot become Detached while the ADD runs.
// The plan is made before anything is taken. reserve returns the record with the ADD.
func (sb *sandboxes) reserve(ctx context.Context, ns *link.Namespace, draft *ledger.Record, ifName string, w addRequest) (*ledger.Record, *plannedAdd, error) {
	start := time.Now()
	for {
		pa, err := sb.waits.Attachment(ctx, draft.Pod)
		if err != nil {
			return nil, nil, err
		}
		if err := w.await(ctx, pa); err != nil {
			return nil, nil, err
		}
		if now := sb.registry.Get(apiserver.KeyOf(pa)); !apiserver.Ready(now) || now.UID != pa.UID {
			continue // it went while the node became ready
		}
		p, err := sb.planAttaching(pa, ns, draft.ContainerID, ifName, w)
		if err != nil {
			return nil, nil, err
		}
		p.add.StartedAt = start
		sandbox := draft.With(func(r *ledger.Record) {
			r.Pod.UID, r.Attachment = pa.Spec.PodUID, ledger.Attachment{Name: pa.Name, UID: pa.UID}
		})
		got, err := sb.claim(ctx, pa, sandbox, p.add)
		switch {
		case err != nil:
			return nil, nil, err
		case got.Taken != nil:
			return nil, nil, fault.Errorf(fault.ErrNotReady, "pod %s: host port %d/%s is taken on node %s by %s",
				draft.Pod, got.Taken.HostPort, got.Taken.Protocol, sb.node, podNameFor(draft.Pod, got.By))
		case got.Record != nil && !sb.outdated(pa):
			return got.Record, p, nil
		case got.Record != nil:
			err = sb.ledger.Finish(draft.ContainerID, p.add)
		}
		if err != nil {
			return nil, nil, err
		}
		// The PodAttachment is being deleted, which await notices, or it went or changed
		// while claim waited for an earlier sandbox.
	}
}

// planAttaching resolves the interfaces of a PodAttachment for an ADD of a sandbox.
func (sb *sandboxes) planAttaching(pa *v1alpha1.PodAttachment, ns *link.Namespace, containerID, ifName string, w addRequest) (*plannedAdd, error) {
	p, err := w.plan(pa)
	if err != nil {
		return nil, err
	}
	p.add.IfName, p.add.State = ifName, ledger.Attaching
	p.parsed, err = answer.Parse(pa, containerID, &p.add, ns.Place(), sb.kinds)
	return p, err
}

// outdated reports whether the spec of a PodAttachment has changed since a plan of it was
// made. An earlier sandbox may have confirmed that an interface of the plan is unplugged,
// and another pod may have its address.
func (sb *sandboxes) outdated(pa *v1alpha1.PodAttachment) bool {
	now := sb.registry.Get(apiserver.KeyOf(pa))
	return now != nil && now.UID == pa.UID && now.Generation != pa.Generation
}

// claim adds an ADD to the ledger as soon as no earlier sandbox has its addresses. Pods
// that inherit the same addresses take turns.
func (sb *sandboxes) claim(ctx context.Context, pa *v1alpha1.PodAttachment, sandbox *ledger.Record, add ledger.Add) (got ledger.Claim, err error) {
	err = sb.locks.Identity(ctx, add.Identity(), func(ctx context.Context) error {
		for {
			if got = sb.ledger.Claim(sandbox, add); got.Before == nil {
				return nil
			}
			if err := sb.awaitPredecessor(ctx, sandbox.Pod, got); err != nil {
				return err
			}
			if now := sb.registry.Get(apiserver.KeyOf(pa)); !apiserver.Ready(now) || now.UID != pa.UID {
				return nil
			}
		}
	})
	return got, err
}

// awaitPredecessor waits until the earlier sandbox is gone: two sandboxes with the same
// addresses on one bridge would take each other's traffic. If the namespace of the
// earlier sandbox is gone, awaitPredecessor does not wait for its DEL. Errors:
// fault.ErrNotReady if addTimeout passed.
func (sb *sandboxes) awaitPredecessor(ctx context.Context, pod ledger.Pod, c ledger.Claim) error {
	if err := sb.background.Reap(ctx, c.Before.ContainerID); err != nil {
		return err
	}
	select {
	case <-c.Gone:
		return nil
	case <-ctx.Done():
		if err := context.Cause(ctx); !errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("pod %s: ADD ended while it waited for sandbox %s to go: %w", pod, c.Before.ContainerID, err)
		}
		return fault.Errorf(fault.ErrNotReady, "pod %s: its addresses are still those of %s, which was not removed within %s",
			pod, podNameFor(pod, c.Before), sb.waits.AddTimeout)
	}
}

// podNameFor describes a pod in a message to another pod, which that pod's owner reads in
// an event of the kubelet. A pod of the same namespace is described by its name, any
// other pod by its sandbox alone.
func podNameFor(to ledger.Pod, of *ledger.Record) string {
	if of.Pod.Namespace != to.Namespace {
		return "a pod of another namespace (sandbox " + of.ContainerID + ")"
	}
	return fmt.Sprintf("pod %s (sandbox %s)", of.Pod, of.ContainerID)
}
