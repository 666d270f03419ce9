package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/node/answer"
	"fairlead.dev/fairlead/internal/node/apiserver"
	"fairlead.dev/fairlead/internal/node/ledger"
	"fairlead.dev/fairlead/internal/node/report"
	"fairlead.dev/fairlead/internal/node/wait"
)

// reasonNotPlugged is the reason of an event on a running pod whose interfaces are not
// those of its changed PodAttachment.
const reasonNotPlugged = "InterfaceNotPlugged"

// HotPlug makes the interfaces of a running sandbox those of its PodAttachment: it
// unplugs some and plugs others. A failure concerns one interface alone. A DEL cancels it, as
// it cancels the ADD.
//
// The record of a sandbox names an interface before it is made, and until nothing is left
// of it. An interface whose plugging or unplugging was interrupted has a State in the
// record: the next daemon removes it, also without the API server.
func (sb *sandboxes) HotPlug(ctx context.Context, containerID string) error {
	add := sb.ledger.Get(containerID).Attached()
	if add == nil {
		return nil
	}
	return sb.locks.Add(ctx, containerID, add.IfName, func(ctx context.Context) error {
		rec := sb.ledger.Get(containerID)
		if rec.Attached() == nil {
			return nil
		}
		pa := sb.registry.Get(rec.AttachmentKey())
		if apiserver.Ready(pa) && pa.UID == rec.Attachment.UID {
			return sb.apply(ctx, rec, pa)
		}
		err := sb.unplugSurplus(ctx, rec, nil)
		if now := sb.registry.Get(rec.AttachmentKey()); pa == nil && now != nil {
			sb.background.Consider(now) // it came meanwhile
		}
		return err
	})
}

// apply makes the interfaces of a running sandbox those of its PodAttachment, and records
// the generation that was applied. The generation confirms that the interfaces of
// spec.unplug are gone, so an older one stays while one of them is there.
func (sb *sandboxes) apply(ctx context.Context, rec *ledger.Record, pa *v1alpha1.PodAttachment) error {
	err := sb.unplugSurplus(ctx, rec, &pa.Spec)
	var notes []string
	if err != nil {
		notes = append(notes, err.Error())
	}
	failures := map[string]string{}
	for _, i := range sb.ledger.Get(rec.ContainerID).Plug().Lacks(&pa.Spec) {
		failed := sb.hotPlug(ctx, sb.ledger.Get(rec.ContainerID), pa, i)
		if failed != nil {
			failures[i.Name] = failed.Error()
			notes = append(notes, failed.Error())
			err = errors.Join(err, failed)
		}
	}
	if cause := context.Cause(ctx); cause != nil {
		return fmt.Errorf("pod %s: %w", rec.Pod, cause)
	}
	if len(notes) > 0 {
		report.Warn(sb.events, rec.Pod, reasonNotPlugged, "the interfaces of the running pod cannot all follow its networks, which is tried again: "+strings.Join(notes, "; "))
	}
	rec = sb.ledger.Get(rec.ContainerID)
	now := *rec.Plug()
	now.Failures = failures
	if !sb.ledger.HasAny(pa.UID, pa.Spec.Unplug) {
		now.Generation = pa.Generation
	}
	if now.Generation != rec.Plug().Generation || !maps.Equal(failures, rec.Plug().Failures) {
		err = errors.Join(err, sb.ledger.Put(rec.WithAdd(now)))
	}
	err = errors.Join(err, sb.announceFurther(ctx, rec.ContainerID, pa))
	sb.statuses.Enqueue(rec.AttachmentKey())
	return err
}

// announceFurther announces the addresses of hot-plugged interfaces that have become active,
// as announceActive does for those of an ADD. The record forgets it afterwards.
func (sb *sandboxes) announceFurther(ctx context.Context, containerID string, pa *v1alpha1.PodAttachment) error {
	rec := sb.ledger.Get(containerID)
	todo := rec.Plug().ToAnnounce(pa)
	if len(todo) == 0 { // as a rule
		return nil
	}
	ns, err := sb.enterRecorded(rec)
	if err != nil {
		return fmt.Errorf("announce the addresses of pod %s: %w", rec.Pod, err)
	}
	defer func() { _ = ns.Close() }()
	parsed, err := answer.Parse(pa, containerID, &ledger.Add{Interfaces: slices.Clone(todo)}, ns.Place(), sb.kinds)
	if err != nil {
		return err
	}
	sb.announceActive(ctx, ns, &plannedAdd{add: ledger.Add{Interfaces: todo}, parsed: parsed})
	add := *rec.Plug()
	for _, i := range todo {
		i.Unannounced = false
		add = add.WithInterface(i)
	}
	return sb.ledger.Put(rec.WithAdd(add))
}

// unplugSurplus unplugs the interfaces that a running sandbox must not have (Add.Surplus),
// the last one first.
func (sb *sandboxes) unplugSurplus(ctx context.Context, rec *ledger.Record, spec *v1alpha1.PodAttachmentSpec) error {
	var errs []error
	for _, name := range slices.Backward(rec.Plug().Surplus(spec)) {
		start := time.Now()
		if err := sb.hotUnplug(ctx, rec.ContainerID, name); err != nil {
			errs = append(errs, err)
			continue
		}
		sb.metrics.step("hot_unplug", start)
		logr.FromContextOrDiscard(ctx).Info("interface unplugged from a running sandbox", "sandbox", rec.ContainerID, "pod", rec.Pod, "interface", name)
	}
	return errors.Join(errs...)
}

// hotUnplug removes an interface from a running sandbox. The record names it until nothing
// is left of it, which is the evidence for the status.
func (sb *sandboxes) hotUnplug(ctx context.Context, containerID, name string) error {
	rec := sb.ledger.Get(containerID)
	i, has := rec.Plug().Interface(name)
	if !has {
		return nil
	}
	i.State = ledger.Deleting
	rec = rec.WithAdd(rec.Plug().WithInterface(i))
	if err := sb.ledger.Put(rec); err != nil {
		return err
	}
	sb.firewall.Add(containerID, rec.Plug()) // without the interface
	if err := sb.kinds.Remove(ctx, i.Made); err != nil {
		return fmt.Errorf("unplug interface %s of pod %s: %w", name, rec.Pod, err)
	}
	return sb.ledger.Unplugged(containerID, name)
}

// hotPlug makes an interface in a running sandbox. The record names it first.
func (sb *sandboxes) hotPlug(ctx context.Context, rec *ledger.Record, pa *v1alpha1.PodAttachment, want v1alpha1.Interface) error {
	start := time.Now()
	if _, has := rec.Plug().Interface(want.Name); has {
		return fault.Errorf(fault.ErrNotReady, "plug interface %s of pod %s: an earlier interface of this name is not unplugged yet", want.Name, rec.Pod)
	}
	ns, err := sb.enterRecorded(rec)
	if err != nil {
		return fmt.Errorf("plug interface %s of pod %s: %w", want.Name, rec.Pod, err)
	}
	defer func() { _ = ns.Close() }()
	planned, err := sb.planHotPlug(ctx, rec, pa, want)
	if err != nil {
		return err
	}
	one := ledger.Add{Interfaces: []ledger.Interface{planned}}
	parsed, err := answer.Parse(pa, rec.ContainerID, &one, ns.Place(), sb.kinds)
	if err != nil {
		return err
	}
	i := one.Interfaces[0]
	i.State, i.HotPlugged = ledger.Attaching, true
	claimed, err := sb.claimFurther(ctx, rec, i)
	if err != nil {
		return err
	}
	add := *claimed.Plug()
	sb.firewall.Add(rec.ContainerID, &add)
	last := len(add.Interfaces) - 1
	err = sb.makeOne(ctx, ns, claimed, &add, last, parsed[0])
	others := errors.Is(err, link.ErrExists) // the interface is not ours to remove
	if err == nil {
		err = sb.finishPlug(ctx, claimed, add.Interfaces[last])
	}
	if err != nil {
		return errors.Join(err, sb.undoPlug(ctx, rec.ContainerID, i.Name, others))
	}
	sb.metrics.step("hot_plug", start)
	logr.FromContextOrDiscard(ctx).Info("interface plugged into a running sandbox", "sandbox", rec.ContainerID, "pod", rec.Pod, "interface", i.Name)
	return nil
}

// planHotPlug plans an interface that a running sandbox gets. If it is a device that the
// kubelet has allocated, no other interface of the sandbox has it.
func (sb *sandboxes) planHotPlug(ctx context.Context, rec *ledger.Record, pa *v1alpha1.PodAttachment, want v1alpha1.Interface) (ledger.Interface, error) {
	waiting, cancel := sb.waits.WithAddTimeout(ctx)
	defer cancel()
	mtu, err := sb.awaitDefault(waiting, rec.Pod, want)
	if err != nil {
		return ledger.Interface{}, fmt.Errorf("plug interface %s of pod %s: %w", want.Name, rec.Pod, err)
	}
	planned, err := answer.PlanFurther(pa, want, rec.Plug().IfName, mtu, sb.kinds)
	if err == nil {
		err = answer.NotReserved(&ledger.Add{Interfaces: []ledger.Interface{planned}}, rec.Pod, sb.reserved)
	}
	if err != nil || !answer.NeedDevices(want) {
		return planned, err
	}
	devices, err := sb.devices.Of(ctx, rec.Pod.Namespace, rec.Pod.Name)
	if err != nil {
		return planned, fmt.Errorf("plug interface %s of pod %s: %w", want.Name, rec.Pod, err)
	}
	all := append(slices.Clone(rec.Plug().Interfaces), planned)
	err = answer.EnterDevices(all, devices)
	return all[len(all)-1], err
}

// enterRecorded opens the namespace of a sandbox. Errors: fault.ErrDiffers if another one is
// at its path.
func (sb *sandboxes) enterRecorded(rec *ledger.Record) (*link.Namespace, error) {
	ns, err := sb.namespaces.Open(rec.Netns)
	if err != nil {
		return nil, err
	}
	if ns.Place().ID != rec.NetnsID {
		_ = ns.Close()
		return nil, fault.Errorf(fault.ErrDiffers, "the namespace at %q is not that of sandbox %s", rec.Netns, rec.ContainerID)
	}
	return ns, nil
}

// claimFurther enters an interface into the record of a running sandbox, on disk, unless
// another sandbox still has its addresses. Errors: fault.ErrNotReady.
func (sb *sandboxes) claimFurther(ctx context.Context, rec *ledger.Record, i ledger.Interface) (*ledger.Record, error) {
	got := sb.ledger.Claim(rec, rec.Plug().WithInterface(i))
	switch {
	case got.Declared:
		return nil, fault.Errorf(fault.ErrNotReady, "plug interface %s of pod %s: its PodAttachment is being deleted", i.Name, rec.Pod)
	case got.Before != nil:
		return nil, errors.Join(sb.background.Reap(ctx, got.Before.ContainerID), fault.Errorf(fault.ErrNotReady,
			"plug interface %s of pod %s: its addresses are still those of %s", i.Name, rec.Pod, podNameFor(rec.Pod, got.Before)))
	}
	if err := sb.ledger.Put(got.Record); err != nil {
		sb.ledger.Adopt(rec)
		return nil, err
	}
	return got.Record, nil
}

// finishPlug records that an interface is plugged, when the packet filter lets it send.
func (sb *sandboxes) finishPlug(ctx context.Context, rec *ledger.Record, i ledger.Interface) error {
	waiting, cancel := sb.waits.WithAddTimeout(ctx)
	defer cancel()
	if err := sb.firewall.Opened(waiting, rec.Pod, &ledger.Add{Interfaces: []ledger.Interface{i}}); err != nil {
		return err
	}
	i.State, i.Unannounced = "", i.WaitForActive
	return sb.ledger.Put(rec.WithAdd(rec.Plug().WithInterface(i)))
}

// undoPlug removes an interface that could not be plugged. others is true if another
// program has an interface of its name, so that nothing was made. It also works if ctx has
// ended.
func (sb *sandboxes) undoPlug(ctx context.Context, containerID, name string, others bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), wait.UndoTimeout)
	defer cancel()
	if !others {
		return sb.hotUnplug(ctx, containerID, name)
	}
	err := sb.ledger.Unplugged(containerID, name)
	sb.firewall.Add(containerID, sb.ledger.Get(containerID).Plug())
	return err
}
