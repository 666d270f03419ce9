package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/cniproto/server"
	"fairlead.dev/fairlead/internal/netdev"
	"fairlead.dev/fairlead/internal/network"
	"fairlead.dev/fairlead/internal/run"
	"fairlead.dev/fairlead/internal/tracing"
)

// undoTimeout bounds the undo of an ADD that failed or was cancelled. What is
// left then is removed in the background.
const undoTimeout = 10 * time.Second

// verbs is the network plugin "fairlead": it serves what the CNI plugin forwards,
// by the PodAttachments of this node.
type verbs struct {
	kernel   Kernel
	api      API
	source   Source
	registry *registry
	ledger   *ledger
	manager  *network.Manager // after Init
	remover  *remover
	reaper   *reaper
	mender   *mender
	health   *health
	host     *hostNet
	firewall *firewall
	acks     *acknowledger
	reporter *reporter
	bindings bindings
	metrics  *metrics

	// addTimeout bounds how long an ADD waits for others.
	addTimeout time.Duration
	// leave ends every wait of an ADD, and onLeave calls what is to be done then.
	leave   func()
	onLeave func(func()) (stop func() bool)
	// node is named in messages.
	node string
	// reserved are the node's own ports.
	reserved []ReservedPort
}

// Handle serves one request, which is valid as Request.Validate says. Errors are
// *cniproto.Error.
func (v *verbs) Handle(ctx context.Context, r cniproto.Request) (result []byte, err error) {
	log := logr.FromContextOrDiscard(ctx).WithValues("verb", r.Verb, "sandbox", r.ContainerID)
	ctx = logr.NewContext(ctx, log)
	if r.IPAM != "" {
		result, err = v.handleIPAM(ctx, r)
	} else {
		result, err = v.handleSandbox(ctx, r)
	}
	if errors.Is(err, errLeaving) {
		return nil, server.ErrResend
	}
	if err != nil {
		log.V(run.LevelPod).Info("request failed", "args", r.Args, "reason", err.Error())
	}
	return result, cniError(err)
}

// handleSandbox serves the runtime, or who plugs pods in its place.
func (v *verbs) handleSandbox(ctx context.Context, r cniproto.Request) (result []byte, err error) {
	switch r.Verb {
	case cniproto.VerbAdd:
		result, err = v.manager.SetUpPod(ctx, r)
	case cniproto.VerbDel:
		err = v.manager.TearDownPod(ctx, r)
	case cniproto.VerbCheck:
		err = v.check(ctx, r)
	case cniproto.VerbStatus:
		err = v.status()
	case cniproto.VerbGC:
		err = v.gc(ctx, r)
	default:
		err = because(errUnserved, "CNI_COMMAND: %q is not served: ADD, DEL, CHECK, STATUS and GC are", r.Verb)
	}
	return result, err
}

// SetUpPod plugs a sandbox, once: the same request again has the same answer.
func (v *verbs) SetUpPod(ctx context.Context, r cniproto.Request) ([]byte, error) {
	pod, err := parseArgs(r.Args)
	if err != nil {
		return nil, err
	}
	if rec := v.ledger.get(r.ContainerID); rec != nil {
		return v.again(ctx, rec, r)
	}
	if pod.UID == "" {
		wait, cancel := v.patience(ctx)
		defer cancel()
		if pod, err = v.identify(wait, pod); err != nil {
			if cause := context.Cause(wait); errors.Is(cause, errLeaving) {
				err = cause
			}
			return nil, err
		}
	}
	rec, err := v.setUp(ctx, r, pod)
	if err != nil {
		return nil, err
	}
	return rec.Result, nil
}

// again answers the ADD of a sandbox that has a record.
func (v *verbs) again(ctx context.Context, rec *record, r cniproto.Request) ([]byte, error) {
	if rec.State != attached {
		return nil, because(errGone, "sandbox %s is being removed: an ADD came after its DEL, or before what was left of the one before is gone", r.ContainerID)
	}
	if rec.IfName != r.IfName {
		return nil, because(errEnvironment, "CNI_IFNAME: %q: sandbox %s has its default interface already, as %q", r.IfName, r.ContainerID, rec.IfName)
	}
	ns, err := v.kernel.Enter(r.Netns)
	if err != nil {
		return nil, fmt.Errorf("CNI_NETNS: %w", err)
	}
	defer ns.Close()
	if ns.ID() != rec.NetnsID {
		return nil, because(errEnvironment, "CNI_NETNS: %q: sandbox %s is plugged already, in another namespace, which was at %q", r.Netns, r.ContainerID, rec.Netns)
	}
	if err := stillThere(ctx, rec, ns, r.Netns); err != nil {
		return nil, err
	}
	return inVersion(rec.Result, r.CNIVersion())
}

// stillThere makes sure that a pod has the addresses that the answer to its ADD
// says, before it is given again.
func stillThere(ctx context.Context, rec *record, ns Sandbox, netns string) error {
	have, err := podIPs(ctx, ns, netns, rec.IfName)
	if err != nil {
		return because(errDiffers, "sandbox %s was plugged already, and is no longer: %w", rec.ContainerID, err)
	}
	for _, i := range rec.Interfaces {
		if i.Name != rec.IfName {
			continue
		}
		for _, s := range i.Addresses {
			if a, err := netip.ParsePrefix(s); err == nil && !slices.Contains(have, a.Addr()) {
				return because(errDiffers, "sandbox %s was plugged already, and its interface %s has lost its address %s", rec.ContainerID, i.Name, s)
			}
		}
	}
	return nil
}

// patience is for how long an ADD waits for others: addTimeout, and no longer than
// this daemon serves. The next one waits in its stead; until this one has ended
// there is none, and nobody else is served either.
func (v *verbs) patience(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, v.addTimeout)
	ctx, end := context.WithCancelCause(ctx)
	stop := v.onLeave(func() { end(errLeaving) })
	return ctx, func() {
		stop()
		end(nil)
		cancel()
	}
}

// setUp waits for what an ADD needs and plugs. Only the waiting is bounded by
// addTimeout: what was waited for in time is plugged.
func (v *verbs) setUp(ctx context.Context, r cniproto.Request, pod podRef) (rec *record, err error) {
	sandbox, err := v.kernel.Enter(r.Netns)
	if err != nil {
		return nil, fmt.Errorf("CNI_NETNS: %w", err)
	}
	defer sandbox.Close()

	wait, cancel := v.patience(ctx)
	defer cancel()
	idle, busy := v.manager.Idle(wait)
	defer busy()
	start := time.Now()
	mtu, err := v.host.await(idle)
	if err != nil {
		return nil, err
	}
	c, err := parseCapabilities(r.Config)
	if err != nil {
		return nil, err
	}
	rec, parsed, err := v.reserve(idle, record{
		Version: recordVersion, ContainerID: r.ContainerID, BootID: v.ledger.bootID, State: attaching,
		Netns: r.Netns, NetnsID: sandbox.ID(), IfName: r.IfName, Pod: pod, StartedAt: start,
	}, c, mtu)
	if err != nil {
		return nil, err
	}
	v.metrics.step("wait", start)
	tracing.Step(ctx, "wait", start)
	defer func() {
		if err != nil {
			v.undo(ctx, rec)
			rec = nil
		}
	}()
	if err := v.vouch(idle, rec); err != nil {
		return rec, err
	}
	start = time.Now()
	done, err := v.plug(ctx, sandbox, rec, parsed, r.CNIVersion())
	if err != nil {
		return rec, err
	}
	v.metrics.step("plug", start)
	tracing.Step(ctx, "plug", start)
	if err := v.awaitActive(wait, done); err != nil {
		return rec, err
	}
	// From here on the sandbox is the runtime's: only its DEL takes it back.
	done.AttachedAt = time.Now()
	if err := v.ledger.publish(done); err != nil {
		return rec, err
	}
	v.acks.enqueueSoon(done.attachmentKey())
	return done, nil
}

// plug makes every interface of a record, which are parsed, in order, and meanwhile
// prepares the record that has the answer.
func (v *verbs) plug(ctx context.Context, sandbox Sandbox, rec *record, parsed []netdev.Plug, version string) (*record, error) {
	var done *record
	prepared := make(chan error, 1)
	go func() {
		var err error
		done, err = v.prepare(rec, parsed[0], version)
		prepared <- err
	}()
	v.firewall.add(rec) // which takes its time, but less than the containers to start
	err := v.attach(ctx, sandbox, rec, parsed)
	if err := errors.Join(err, <-prepared); err != nil {
		return nil, err
	}
	wait, cancel := v.patience(ctx)
	defer cancel()
	if err := v.firewall.opened(wait, rec); err != nil {
		return nil, err
	}
	return done, context.Cause(ctx)
}

// prepare returns a record as it is to be when its interfaces are there, with the
// answer, and has its file ready.
func (v *verbs) prepare(rec *record, first netdev.Plug, version string) (*record, error) {
	result, err := encodeResult(cniResult(rec.Interfaces, first, rec.Netns), version)
	if err != nil {
		return nil, err
	}
	done := rec.with(func(r *record) { r.State, r.Result, r.AttachedAt = attached, result, time.Now() })
	return done, v.ledger.files.prepare(done)
}

// attach makes the interfaces, in order.
func (v *verbs) attach(ctx context.Context, sandbox Sandbox, rec *record, parsed []netdev.Plug) error {
	for _, p := range parsed {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		err := sandbox.Attach(ctx, p)
		v.bindings.note(bindingBridge, rec.Pod.UID, err)
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
func (v *verbs) undo(ctx context.Context, rec *record) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	v.ledger.files.discard(rec.ContainerID)
	if err := v.remover.remove(ctx, rec); err != nil {
		logr.FromContextOrDiscard(ctx).Error(err, "undo of an ADD failed, continuing in the background", "pod", rec.Pod)
		v.remover.later(rec)
	}
}

// TearDownPod lets a sandbox go, by its container ID and the interface of its ADD,
// with all that this ADD made. A DEL of any other interface changes nothing: it may
// be that of an ADD which was refused because the sandbox had its interface already.
//
// It answers as soon as it is written down that the links have to go: deleting one
// waits some 30 ms in the kernel, and nobody but the acknowledgement has to wait for
// that.
func (v *verbs) TearDownPod(ctx context.Context, r cniproto.Request) error {
	rec := v.ledger.get(r.ContainerID)
	switch {
	case rec != nil && (rec.State == deleting || !rec.isOf(r.IfName)):
		return nil
	case rec != nil:
		v.manager.End(r.ContainerID)
		return v.release(ctx, rec)
	case r.IfName == "":
		return nil
	}
	// Nothing is known of it; what a lost record left behind has this name.
	return v.kernel.Detach(ctx, netdev.HostName(r.ContainerID, r.IfName))
}

// release writes down that a sandbox has to go, and lets it go. Where that
// cannot be written it goes at once.
func (v *verbs) release(ctx context.Context, rec *record) error {
	dying := rec.with(func(r *record) { r.State = deleting })
	v.firewall.remove(rec) // a successor may have its host ports at once
	if err := v.ledger.put(dying); err != nil {
		logr.FromContextOrDiscard(ctx).Error(err, "record cannot be written, unplugging at once")
		return v.remover.remove(ctx, rec)
	}
	v.remover.enqueue(rec.ContainerID)
	return nil
}

// parseArgs takes the pod out of CNI_ARGS, "key=value;key=value".
func parseArgs(args string) (podRef, error) {
	var p podRef
	for pair := range strings.SplitSeq(args, ";") {
		key, value, _ := strings.Cut(pair, "=")
		switch key {
		case "K8S_POD_NAMESPACE":
			p.Namespace = value
		case "K8S_POD_NAME":
			p.Name = value
		case "K8S_POD_UID":
			p.UID = types.UID(value)
		}
	}
	var missing []string
	if p.Namespace == "" {
		missing = append(missing, "K8S_POD_NAMESPACE")
	}
	if p.Name == "" {
		missing = append(missing, "K8S_POD_NAME")
	}
	if len(missing) > 0 {
		return p, because(errEnvironment, "CNI_ARGS: %q: lacks %s", args, strings.Join(missing, " and "))
	}
	return p, nil
}
