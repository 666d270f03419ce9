package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/netdev"
	"fairlead.dev/fairlead/internal/node/answer"
	"fairlead.dev/fairlead/internal/node/apiserver"
	"fairlead.dev/fairlead/internal/node/fault"
	"fairlead.dev/fairlead/internal/node/ledger"
	"fairlead.dev/fairlead/internal/tracing"
)

// undoTimeout bounds the undo of an ADD that failed or was cancelled. What is
// left then is removed in the background.
const undoTimeout = 10 * time.Second

// SetUpPod plugs a sandbox, once: the same request again has the same answer.
func (pn *podNetwork) SetUpPod(ctx context.Context, r cniproto.Request) ([]byte, error) {
	pod, err := answer.ParseArgs(r.Args)
	if err != nil {
		return nil, err
	}
	if rec := pn.ledger.Get(r.ContainerID); rec != nil {
		return pn.answerRepeat(ctx, rec, r)
	}
	if pod.UID == "" {
		wait, cancel := pn.patience(ctx)
		defer cancel()
		if pod, err = pn.identify(wait, pod); err != nil {
			if cause := context.Cause(wait); errors.Is(cause, fault.ErrLeaving) {
				err = cause
			}
			return nil, err
		}
	}
	rec, err := pn.setUp(ctx, r, pod)
	if err != nil {
		return nil, err
	}
	return rec.Result, nil
}

// answerRepeat answers the ADD of a sandbox that has a record.
func (pn *podNetwork) answerRepeat(ctx context.Context, rec *ledger.Record, r cniproto.Request) ([]byte, error) {
	if rec.State != ledger.Attached {
		return nil, fault.Errorf(fault.ErrGone, "sandbox %s is being removed: an ADD came after its DEL, or before what was left of the one before is gone", r.ContainerID)
	}
	if rec.IfName != r.IfName {
		return nil, fault.Errorf(fault.ErrEnvironment, "CNI_IFNAME: %q: sandbox %s has its default interface already, as %q", r.IfName, r.ContainerID, rec.IfName)
	}
	ns, err := pn.kernel.Enter(r.Netns)
	if err != nil {
		return nil, fmt.Errorf("CNI_NETNS: %w", err)
	}
	defer ns.Close()
	if ns.ID() != rec.NetnsID {
		return nil, fault.Errorf(fault.ErrEnvironment, "CNI_NETNS: %q: sandbox %s is plugged already, in another namespace, which was at %q", r.Netns, r.ContainerID, rec.Netns)
	}
	if err := stillThere(ctx, rec, ns, r.Netns); err != nil {
		return nil, err
	}
	return answer.InVersion(rec.Result, r.CNIVersion())
}

// stillThere makes sure that a pod has the addresses that the answer to its ADD
// says, before it is given again.
func stillThere(ctx context.Context, rec *ledger.Record, ns Sandbox, netns string) error {
	have, err := podIPs(ctx, ns, netns, rec.IfName)
	if err != nil {
		return fault.Errorf(fault.ErrDiffers, "sandbox %s was plugged already, and is no longer: %w", rec.ContainerID, err)
	}
	if lost := lacks(rec, have); lost != "" {
		return fault.Errorf(fault.ErrDiffers, "sandbox %s was plugged already, and its %s", rec.ContainerID, lost)
	}
	return nil
}

// setUp waits for what an ADD needs and plugs. Only the waiting is bounded by
// addTimeout: what was waited for in time is plugged.
func (pn *podNetwork) setUp(ctx context.Context, r cniproto.Request, pod ledger.Pod) (rec *ledger.Record, err error) {
	sandbox, err := pn.kernel.Enter(r.Netns)
	if err != nil {
		return nil, fmt.Errorf("CNI_NETNS: %w", err)
	}
	defer sandbox.Close()

	wait, cancel := pn.patience(ctx)
	defer cancel()
	idle, busy := pn.turns.Idle(wait)
	defer busy()
	start := time.Now()
	mtu, err := pn.host.Await(idle)
	if err != nil {
		return nil, err
	}
	c, err := answer.ParseCapabilities(r.Config)
	if err != nil {
		return nil, err
	}
	rec, parsed, err := pn.reserve(idle, ledger.Record{
		Version: ledger.Version, ContainerID: r.ContainerID, BootID: pn.ledger.BootID, State: ledger.Attaching,
		Netns: r.Netns, NetnsID: sandbox.ID(), IfName: r.IfName, Pod: pod, StartedAt: start,
	}, c, mtu)
	if err != nil {
		return nil, err
	}
	pn.metrics.step("wait", start)
	tracing.Step(ctx, "wait", start)
	defer func() {
		if err != nil {
			pn.undo(ctx, rec)
			rec = nil
		}
	}()
	if err := pn.markRebooted(idle, rec); err != nil {
		return rec, err
	}
	start = time.Now()
	done, err := pn.plug(ctx, sandbox, rec, parsed, r.CNIVersion())
	if err != nil {
		return rec, err
	}
	pn.metrics.step("plug", start)
	tracing.Step(ctx, "plug", start)
	if err := pn.awaitActive(wait, done); err != nil {
		return rec, err
	}
	// From here on the sandbox is the runtime's: only its DEL takes it back.
	done.AttachedAt = time.Now()
	if err := pn.ledger.Publish(done); err != nil {
		return rec, err
	}
	pn.statuses.EnqueueSoon(done.AttachmentKey())
	return done, nil
}

// plug makes every interface of a record, which are parsed, in order, and meanwhile
// prepares the record that has the answer.
func (pn *podNetwork) plug(ctx context.Context, sandbox Sandbox, rec *ledger.Record, parsed []netdev.Plug, version string) (*ledger.Record, error) {
	var done *ledger.Record
	prepared := make(chan error, 1)
	go func() {
		var err error
		done, err = pn.prepare(rec, parsed[0], version)
		prepared <- err
	}()
	pn.firewall.Add(rec) // which takes its time, but less than the containers to start
	err := pn.attach(ctx, sandbox, rec, parsed)
	if err := errors.Join(err, <-prepared); err != nil {
		return nil, err
	}
	wait, cancel := pn.patience(ctx)
	defer cancel()
	if err := pn.firewall.Opened(wait, rec); err != nil {
		return nil, err
	}
	return done, context.Cause(ctx)
}

// prepare returns a record as it is to be when its interfaces are there, with the
// answer, and has its file ready.
func (pn *podNetwork) prepare(rec *ledger.Record, first netdev.Plug, version string) (*ledger.Record, error) {
	result, err := answer.Encode(answer.Result(rec.Interfaces, first, rec.Netns), version)
	if err != nil {
		return nil, err
	}
	done := rec.With(func(r *ledger.Record) { r.State, r.Result, r.AttachedAt = ledger.Attached, result, time.Now() })
	return done, pn.ledger.Prepare(done)
}

// attach makes the interfaces, in order.
func (pn *podNetwork) attach(ctx context.Context, sandbox Sandbox, rec *ledger.Record, parsed []netdev.Plug) error {
	for _, p := range parsed {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		err := sandbox.Attach(ctx, p)
		pn.bindings.Note(bindingBridge, rec.Pod.UID, err)
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				err = fmt.Errorf("%w: %w", cause, err)
			}
			return fmt.Errorf("plug interface %s of pod %s: %w", p.Name, rec.Pod, err)
		}
	}
	return nil
}

// undo takes a claim back, with all that may have been plugged under it. It
// does its work also when ctx has ended.
func (pn *podNetwork) undo(ctx context.Context, rec *ledger.Record) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	pn.ledger.Discard(rec.ContainerID)
	if err := pn.remover.remove(ctx, rec); err != nil {
		logr.FromContextOrDiscard(ctx).Error(err, "undo of an ADD failed, continuing in the background", "pod", rec.Pod)
		pn.remover.later(rec)
	}
}

// reserve waits for the pod's PodAttachment and claims it for the sandbox of a
// draft: from then on its status does not become Detached behind the ADD's back.
//
// What the runtime asks for beside the interfaces is settled here, before anything
// is done. It returns the record with its interfaces as they are to be plugged.
func (pn *podNetwork) reserve(ctx context.Context, draft ledger.Record, c answer.Capabilities, mtu int) (*ledger.Record, []netdev.Plug, error) {
	for {
		pa, err := pn.await(ctx, draft.Pod)
		if err != nil {
			return nil, nil, err
		}
		interfaces, err := answer.Plan(pa, draft.ContainerID, draft.IfName, mtu)
		if err != nil {
			return nil, nil, err
		}
		rec := draft.With(func(r *ledger.Record) {
			r.Pod.UID, r.Interfaces = pa.Spec.PodUID, interfaces
			r.Attachment = ledger.Attachment{Name: pa.Name, UID: pa.UID}
		})
		if err := c.Apply(rec, pa); err != nil {
			return nil, nil, err
		}
		if err := answer.NotReserved(rec, pn.reserved); err != nil {
			return nil, nil, err
		}
		parsed, err := answer.Plugs(pa, rec)
		if err != nil {
			return nil, nil, err
		}
		got, err := pn.claim(ctx, pa, rec)
		switch {
		case err != nil:
			return nil, nil, err
		case got.Before != nil: // it is gone, and so is what was waited with
		case got.Taken != nil:
			return nil, nil, fault.Errorf(fault.ErrNotReady, "pod %s: host port %d/%s is taken on node %s by %s",
				draft.Pod, got.Taken.HostPort, got.Taken.Protocol, pn.node, told(draft.Pod, got.By))
		case !got.Sealed:
			return rec, parsed, nil
		}
		// A sealed PodAttachment is being deleted; await sees that.
	}
}

// claim puts down a record when no sandbox before it has its addresses. Heirs of
// the same addresses come one after the other.
func (pn *podNetwork) claim(ctx context.Context, pa *v1alpha1.PodAttachment, rec *ledger.Record) (got ledger.Claim, err error) {
	err = pn.turns.Identity(ctx, rec.Identity(), func(ctx context.Context) error {
		for {
			if got = pn.ledger.Claim(rec); got.Before == nil {
				return nil
			}
			if err := pn.awaitPredecessor(ctx, rec, got); err != nil {
				return err
			}
			if now := pn.registry.Get(apiserver.KeyOf(pa)); !ready(now) || now.UID != pa.UID {
				return nil
			}
		}
	})
	return got, err
}

// awaitPredecessor waits until the sandbox before is gone: two with the same addresses
// on one bridge would take each other's traffic. When its namespace is gone its
// DEL is not waited for.
func (pn *podNetwork) awaitPredecessor(ctx context.Context, rec *ledger.Record, c ledger.Claim) error {
	if c.Before.State == ledger.Attached {
		if err := pn.reap(ctx, c.Before.ContainerID); err != nil {
			return err
		}
	}
	select {
	case <-c.Gone:
		return nil
	case <-ctx.Done():
		if err := context.Cause(ctx); !errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("pod %s: ADD ended while it waited for sandbox %s to go: %w", rec.Pod, c.Before.ContainerID, err)
		}
		return fault.Errorf(fault.ErrNotReady, "pod %s: its addresses are still those of %s, which was not removed within %s",
			rec.Pod, told(rec.Pod, c.Before), pn.addTimeout)
	}
}

// told names a pod to another, whose owner reads it in an event of the kubelet: one of
// her namespace by its name, any other by its sandbox alone.
func told(to ledger.Pod, of *ledger.Record) string {
	if of.Pod.Namespace != to.Namespace {
		return "a pod of another namespace (sandbox " + of.ContainerID + ")"
	}
	return fmt.Sprintf("pod %s (sandbox %s)", of.Pod, of.ContainerID)
}
