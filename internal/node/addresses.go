package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/go-logr/logr"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/node/answer"
	"fairlead.dev/fairlead/internal/node/fault"
	"fairlead.dev/fairlead/internal/node/ledger"
	"fairlead.dev/fairlead/internal/node/report"
	"fairlead.dev/fairlead/internal/tracing"
)

// handleIPAM serves a plugin that makes an interface and asks for its addresses
// (CNI specification 1.1.0, section 4, and the conventions for IPAM plugins).
func (pn *podNetwork) handleIPAM(ctx context.Context, r cniproto.Request) ([]byte, error) {
	key := ledger.AddressKey{ContainerID: r.ContainerID, IfName: r.IfName}
	switch r.Verb {
	case cniproto.VerbAdd:
		return pn.addAddresses(ctx, r)
	case cniproto.VerbDel:
		// An interface may be unplugged and plugged again.
		return nil, pn.turns.DelPart(ctx, key.String(), func(context.Context) error { return pn.freeAddresses(key) })
	case cniproto.VerbCheck:
		return nil, pn.checkAddresses(r)
	case cniproto.VerbStatus:
		if !pn.registry.IsSynced() {
			return nil, fault.Errorf(fault.ErrUnavailable, "node %s has not read its PodAttachments from the API server yet", pn.node)
		}
		return nil, nil
	default: // GC, the only other verb of a valid request
		return nil, pn.gcAddresses(ctx, r)
	}
}

// reasonNetworkDiffers is the reason of the event on a pod for which something is not
// done as whereabouts does it; the controller has the same one for networks.
const reasonNetworkDiffers = "NetworkDiffers"

// addAddresses answers with the addresses that the controller has taken for the
// interface: the same ones however often it is asked.
func (pn *podNetwork) addAddresses(ctx context.Context, r cniproto.Request) (result []byte, err error) {
	pod, err := answer.ParseArgs(r.Args)
	if err != nil {
		return nil, err
	}
	config, err := answer.ParseIPAM(r)
	if err != nil {
		return nil, err
	}
	err = pn.turns.AddPart(ctx, r.ContainerID, ledger.AddressKey{ContainerID: r.ContainerID, IfName: r.IfName}.String(), func(ctx context.Context) error {
		sandbox, err := pn.kernel.Enter(r.Netns)
		if err != nil {
			return fmt.Errorf("CNI_NETNS: %w", err)
		}
		id := sandbox.ID()
		sandbox.Close()
		draft := ledger.AddressRecord{
			Version: ledger.Version, ContainerID: r.ContainerID, IfName: r.IfName, BootID: pn.ledger.BootID,
			Netns: r.Netns, NetnsID: id, Config: config.Name, Pod: pod,
		}
		result, err = pn.attachAddresses(ctx, draft, config, r.CNIVersion())
		return err
	})
	return result, err
}

// attachAddresses writes the record that a draft becomes, and answers with it.
func (pn *podNetwork) attachAddresses(ctx context.Context, draft ledger.AddressRecord, config answer.IpamConfig, version string) ([]byte, error) {
	if old := pn.ledger.AddressesOf(draft.Key()); old != nil {
		if old.NetnsID == draft.NetnsID && old.Pod.Is(draft.Pod) {
			return answer.InVersion(old.Result, version)
		}
		return nil, fault.Errorf(fault.ErrEnvironment, "CNI_NETNS: %q: interface %s of sandbox %s has its addresses already, in another namespace or pod, which was at %q", draft.Netns, draft.IfName, draft.ContainerID, old.Netns)
	}
	wait, cancel := pn.patience(ctx)
	defer cancel()
	idle, busy := pn.turns.Idle(wait)
	defer busy()
	start := time.Now()
	claimed, iface, err := pn.claimAddresses(idle, draft, config)
	if err != nil {
		return nil, err
	}
	tracing.Step(ctx, "wait", start)
	pn.metrics.step("wait", start)
	done := *claimed
	done.AttachedAt = time.Now()
	err = pn.markRebooted(idle, claimed.Sandbox())
	if err == nil {
		done.Result, err = answer.IpamResult(iface, config, version)
	}
	if err == nil {
		err = context.Cause(ctx)
	}
	if err == nil {
		err = pn.ledger.WriteAddresses(&done)
	}
	if err != nil {
		return nil, errors.Join(err, pn.freeAddresses(claimed.Key()))
	}
	pn.ledger.ReplaceAddresses(&done)
	if config.Gateway != "" {
		pn.events.Report(report.Event{Pod: done.Pod, Reason: reasonNetworkDiffers, Note: fmt.Sprintf(
			"CNI_ARGS: GATEWAY=%.60s has no effect on interface %s: its gateway is what the network or the pool says", config.Gateway, done.IfName)})
	}
	pn.statuses.EnqueueSoon(done.Sandbox().AttachmentKey())
	return done.Result, nil
}

// claimAddresses waits for the pod's PodAttachment, and until no earlier sandbox
// has its interface.
func (pn *podNetwork) claimAddresses(ctx context.Context, draft ledger.AddressRecord, config answer.IpamConfig) (*ledger.AddressRecord, *v1alpha1.Interface, error) {
	for {
		pa, err := pn.await(ctx, draft.Pod)
		if err != nil {
			return nil, nil, err
		}
		iface, err := answer.AddressesFor(pa, draft.IfName, config, pn.ledger.AddressesHeldBy(draft.Key()))
		if err != nil {
			return nil, nil, err
		}
		rec := draft
		rec.Pod.UID, rec.Attachment, rec.Interface = pa.Spec.PodUID, ledger.Attachment{Name: pa.Name, UID: pa.UID}, iface.Name
		for _, cidr := range iface.Addresses {
			addr, _, _ := strings.Cut(cidr, "/")
			rec.Addresses = append(rec.Addresses, addr)
		}
		switch c := pn.ledger.ClaimAddresses(&rec); {
		case c.Before != nil && c.Before.ContainerID == draft.ContainerID: // in this moment
		case c.Before != nil:
			if err := pn.awaitPredecessorOfAddresses(ctx, c); err != nil {
				return nil, nil, err
			}
		case !c.Sealed:
			return &rec, iface, nil
		}
		// A sealed PodAttachment is being deleted; await sees that.
	}
}

// awaitPredecessorOfAddresses waits until the interface of the sandbox before has given its
// addresses back. When its namespace is gone its DEL is not waited for.
func (pn *podNetwork) awaitPredecessorOfAddresses(ctx context.Context, c ledger.AddressClaim) error {
	if pn.goneAddresses(c.Before) {
		return pn.reapAddresses(ctx, c.Before.Key())
	}
	select {
	case <-c.Gone:
		return nil
	case <-ctx.Done():
		if err := context.Cause(ctx); !errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("pod %s: ADD ended while it waited for sandbox %s to give its addresses back: %w", c.Before.Pod, c.Before.ContainerID, err)
		}
		return fault.Errorf(fault.ErrNotReady, "pod %s: its sandbox before, %s, did not give its addresses on %s back within %s", c.Before.Pod, c.Before.ContainerID, c.Before.IfName, pn.addTimeout)
	}
}

// freeAddresses forgets the addresses of an interface, and has the controller
// told when they were the pod's last.
func (pn *podNetwork) freeAddresses(k ledger.AddressKey) error {
	rec, err := pn.ledger.RemoveAddresses(k)
	if err != nil {
		return err
	}
	if rec == nil {
		// Nothing was known, or a damaged record that may have been of any pod.
		for _, key := range pn.registry.Keys() {
			pn.statuses.Enqueue(key)
		}
		return nil
	}
	pn.released(rec.Sandbox())
	return nil
}

// checkAddresses makes sure that the interface has its addresses still, as far as
// the result says: the plugin that made it looks at the kernel.
func (pn *podNetwork) checkAddresses(r cniproto.Request) error {
	rec := pn.ledger.AddressesOf(ledger.AddressKey{ContainerID: r.ContainerID, IfName: r.IfName})
	if rec == nil {
		return fault.Errorf(fault.ErrGone, "interface %s of sandbox %s has no addresses on node %s", r.IfName, r.ContainerID, pn.node)
	}
	prev, err := answer.ParsePrevResult(r)
	if err != nil {
		return err
	}
	var diffs []string
	for _, text := range rec.Addresses {
		ip := net.ParseIP(text)
		if !slices.ContainsFunc(prev.IPs, func(c *types100.IPConfig) bool { return c != nil && c.Address.IP.Equal(ip) }) {
			diffs = append(diffs, "prevResult lacks address "+text)
		}
	}
	if len(diffs) > 0 {
		return fault.Errorf(fault.ErrDiffers, "interface %s of sandbox %s: %s", r.IfName, r.ContainerID, strings.Join(diffs, "; "))
	}
	return nil
}

// gcAddresses forgets the addresses of interfaces that the runtime does not list and
// whose sandbox is no more. What lives keeps its addresses: a list may be that of
// another network of the same name, or empty because no pod uses a configuration.
func (pn *podNetwork) gcAddresses(ctx context.Context, r cniproto.Request) error {
	listed, told, err := answer.ValidSandboxes(r.Config)
	if err != nil || !told {
		return err
	}
	return pn.turns.Alone(ctx, func(ctx context.Context) error { return pn.sweepAddresses(ctx, listed) })
}

// sweepAddresses forgets the addresses of interfaces whose sandbox is no more, but
// for the containers that are listed.
func (pn *podNetwork) sweepAddresses(ctx context.Context, listed map[string]bool) error {
	var errs []error
	for _, rec := range pn.ledger.AllAddresses() {
		if rec.Result != nil && !listed[rec.ContainerID] && pn.goneAddresses(rec) {
			errs = append(errs, pn.reapAddresses(ctx, rec.Key()))
		}
	}
	return errors.Join(append(errs, pn.sweepDamaged(ctx))...)
}

// reapAddresses forgets the addresses of one, when no request for it is under way
// that changes the picture.
func (pn *podNetwork) reapAddresses(ctx context.Context, k ledger.AddressKey) error {
	return pn.turns.Do(ctx, k.String(), func(ctx context.Context) error {
		rec := pn.ledger.AddressesOf(k)
		if rec == nil || !pn.goneAddresses(rec) {
			return nil
		}
		logr.FromContextOrDiscard(ctx).Info("sandbox is gone without a DEL for its addresses", "sandbox", k.ContainerID, "interface", k.IfName, "pod", rec.Pod)
		pn.metrics.swept.WithLabelValues("addresses").Inc()
		return pn.freeAddresses(k)
	})
}

// goneAddresses tells whether nothing can use an interface any more: it is of an
// earlier boot, or its namespace is gone.
func (pn *podNetwork) goneAddresses(rec *ledger.AddressRecord) bool {
	return rec.BootID != pn.ledger.BootID || inspectNamespace(pn.kernel, rec.Sandbox()) == absent
}

// adoptAddresses takes over what the daemon before left.
func (pn *podNetwork) adoptAddresses(ctx context.Context) error {
	bad, err := pn.ledger.ReadAddresses()
	for _, e := range bad {
		logr.FromContextOrDiscard(ctx).Error(e, "record was damaged and set aside")
	}
	return err
}

// sweepDamaged forgets the damaged records of addresses whose container is no
// more. Until then no PodAttachment that they may be of is said to be unplugged.
func (pn *podNetwork) sweepDamaged(ctx context.Context) error {
	if !pn.registry.IsSynced() {
		return nil // of which PodAttachments they may be is not known yet
	}
	var errs []error
	for _, k := range pn.ledger.DamagedAlone() {
		errs = append(errs, pn.reapDamaged(ctx, k))
	}
	return errors.Join(errs...)
}

// reapDamaged forgets a damaged record when no namespace has an address that it may
// be about. That none is found is proof only when every namespace was looked into.
func (pn *podNetwork) reapDamaged(ctx context.Context, k ledger.AddressKey) error {
	return pn.turns.Do(ctx, k.String(), func(ctx context.Context) error {
		addrs, err := pn.addressesMaybeOf(k)
		if err != nil {
			return err
		}
		if len(addrs) > 0 {
			path, err := pn.statuses.Holding(ctx, addrs)
			if err != nil || path != "" {
				return err
			}
		}
		logr.FromContextOrDiscard(ctx).Info("damaged record is of a sandbox that is gone without a DEL for its addresses", "sandbox", k.ContainerID, "interface", k.IfName)
		pn.metrics.swept.WithLabelValues("addresses").Inc()
		return pn.freeAddresses(k)
	})
}

// addressesMaybeOf returns the addresses that a damaged record may be about: those
// of every PodAttachment that it may be of, but for interfaces of ours and such as
// have a record themselves.
func (pn *podNetwork) addressesMaybeOf(k ledger.AddressKey) ([]netip.Addr, error) {
	var addrs []netip.Addr
	for _, key := range pn.registry.Keys() {
		pa := pn.registry.Get(key)
		if pa == nil || !k.MaybeOf(pa.Status.Sandbox) {
			continue
		}
		for _, i := range pa.Spec.Interfaces {
			if i.Binding.AddressOnly == nil || pn.ledger.AddressesRecorded(pa.UID, i.Name) {
				continue
			}
			its, err := ledger.PlainAddresses(pa, i)
			if err != nil {
				return nil, err
			}
			addrs = append(addrs, its...)
		}
	}
	return addrs, nil
}
