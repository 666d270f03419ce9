// Package heal corrects blocks that contradict the PodAttachments. Blocks are objects
// that people can delete, edit or replace by an older state. If a living PodAttachment
// names an address and its block does not, heal takes the address again for the pod.
// Until that is done, the address is not handed out. Heal never takes an address away
// from another holder.
package heal

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/ipam/block"
	"fairlead.dev/fairlead/internal/pod"
)

const (
	// settle is how long heal waits before it examines a loss. The informers of two
	// kinds may show different moments, and the loss may disappear. Safety does not
	// depend on it: a lost address is withheld at once.
	settle = time.Second
	// lastRetry is the longest pause between two attempts.
	lastRetry = 30 * time.Second
	// atOnce is how many losses are examined at the same time.
	atOnce = 16
)

// Config of a Healer.
type Config struct {
	// Client reads from caches.
	Client client.Reader
	// Live reads from the API server. An apparent loss may be a release that the cache
	// has not shown yet.
	Live client.Reader
	// Store has the blocks.
	Store *block.Store
	// Routed reports whether the blocks of a pool are routed to nodes, and whether the
	// pool is known.
	Routed func(pool string) (routed, known bool)
	// Synced reports whether the store knows all blocks.
	Synced func() bool
}

// Healer corrects blocks while this process leads.
type Healer struct {
	cfg Config
	// watching is true once new records are checked, healed once all existing records
	// have been.
	watching, healed atomic.Bool

	mu sync.Mutex
	// onHealed are called when all records have been checked.
	onHealed []func()
	// refused are the losses that cannot be given back, with the reason.
	refused map[refusal]string
}

// refusal identifies a loss that cannot be given back.
type refusal struct {
	holder ipam.Holder
	domain string
	addr   netip.Addr
}

// New returns a Healer.
func New(cfg Config) *Healer { return &Healer{cfg: cfg, refused: map[refusal]string{}} }

// Healed reports whether every address that a living record names is taken, or withheld
// until it is. No address may be handed out before.
func (h *Healer) Healed() bool { return h.healed.Load() }

// OnHealed adds a function that is called each time that Healed becomes true.
func (h *Healer) OnHealed(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.onHealed = append(h.onHealed, f)
}

// Watch checks each new record. It may be from a leader that wrote it at the end of its
// term, after its addresses were lost.
func (h *Healer) Watch(ctx context.Context, informers ctrlcache.Informers) error {
	records, err := informers.GetInformer(ctx, &v1alpha1.PodAttachment{}, ctrlcache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watch PodAttachments: %w", err)
	}
	_, err = records.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: func(o any) { h.Appeared(o.(*v1alpha1.PodAttachment)) }})
	if err != nil {
		return fmt.Errorf("watch PodAttachments: %w", err)
	}
	return nil
}

// Appeared checks a new record.
func (h *Healer) Appeared(record *v1alpha1.PodAttachment) {
	if h.watching.Load() {
		h.check(record)
	}
}

// Run checks all records and heals until ctx ends. It is called once in each term of
// this process as the leader.
func (h *Healer) Run(ctx context.Context) error {
	defer h.End()
	if err := h.Begin(ctx); err != nil || ctx.Err() != nil {
		return err
	}
	h.heal(ctx)
	return nil
}

// Begin compares all records with the blocks, in memory. From then on, the addresses
// without a block record are withheld, and Healed returns true. If the cache of records
// is filled late, the List in it waits until the cache is complete.
func (h *Healer) Begin(ctx context.Context) error {
	if !toolscache.WaitForCacheSync(ctx.Done(), h.cfg.Synced) {
		return nil
	}
	h.cfg.Store.Guard(true)
	h.watching.Store(true)
	var records v1alpha1.PodAttachmentList
	if err := h.cfg.Client.List(ctx, &records, client.UnsafeDisableDeepCopy); err != nil {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the term has ended
		}
		return fmt.Errorf("read attachments from cache: %w", err)
	}
	missing := 0
	for i := range records.Items {
		missing += h.check(&records.Items[i])
	}
	if missing > 0 {
		log.FromContext(ctx).Info("withholding addresses that PodAttachments name and blocks lack", "addresses", missing)
	}
	h.healed.Store(true)
	h.mu.Lock()
	callbacks := slices.Clone(h.onHealed)
	h.mu.Unlock()
	for _, f := range callbacks {
		f()
	}
	return nil
}

// End ends the term of a leader. All losses are forgotten, and the next term begins
// with Begin.
func (h *Healer) End() {
	h.healed.Store(false)
	h.watching.Store(false)
	h.cfg.Store.Guard(false)
}

// check reports the addresses of a record to the store, and returns how many of them
// the blocks have no record of.
func (h *Healer) check(record *v1alpha1.PodAttachment) int {
	missing := 0
	for _, l := range h.namedBy(record) {
		if h.cfg.Store.Miss(l) {
			missing++
		}
	}
	return missing
}

// heal calls Heal whenever there is a loss, until ctx ends.
func (h *Healer) heal(ctx context.Context) {
	delay := time.Duration(0)
	for {
		var again <-chan time.Time
		if delay > 0 {
			again = time.After(delay)
		}
		select {
		case <-ctx.Done():
			return
		case <-again:
		case <-h.cfg.Store.Losses():
			if !pause(ctx, settle) {
				return
			}
		}
		switch err := h.Heal(ctx); {
		case err == nil:
			delay = 0
		case ctx.Err() != nil:
			return
		default:
			delay = min(max(settle, 2*delay), lastRetry)
			log.FromContext(ctx).V(1).Info("healing is incomplete, retrying", "err", err.Error(), "after", delay.String())
		}
	}
}

// pause waits, and returns false if ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// Heal examines each loss once. If the holder still has the address, the address is
// taken for it again. Otherwise the address cools down as after any free. Deleted
// blocks are created again. Heal returns an error if some of this is still to be done.
func (h *Healer) Heal(ctx context.Context) error {
	rewritten := h.cfg.Store.Rewrite(ctx)
	lost := h.cfg.Store.Lost()
	if len(lost) == 0 {
		h.refused = map[refusal]string{}
		return rewritten
	}
	known, err := h.known(ctx)
	if err != nil {
		return errors.Join(rewritten, err)
	}
	var (
		mu      sync.Mutex
		errs    = []error{rewritten}
		refused = map[refusal]string{}
		all     sync.WaitGroup
		places  = make(chan struct{}, atOnce)
	)
	for _, l := range lost {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			err := h.examine(ctx, l, known[l.Holder.PodUID])
			mu.Lock()
			defer mu.Unlock()
			if errs = append(errs, err); block.Refused(err) {
				refused[refusal{l.Holder, l.Domain, l.Addr}] = err.Error()
			}
		})
	}
	all.Wait()
	h.logRefused(ctx, refused)
	return errors.Join(errs...)
}

// known returns the names of the records in the cache, by the UID of their pods.
func (h *Healer) known(ctx context.Context) (map[string][]types.NamespacedName, error) {
	var records v1alpha1.PodAttachmentList
	if err := h.cfg.Client.List(ctx, &records, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("read attachments from cache: %w", err)
	}
	out := make(map[string][]types.NamespacedName, len(records.Items))
	for i := range records.Items {
		r := &records.Items[i]
		uid := holderOf(r, "").PodUID
		out[uid] = append(out[uid], client.ObjectKeyFromObject(r))
	}
	return out, nil
}

// logRefused logs each refused loss once.
func (h *Healer) logRefused(ctx context.Context, refused map[refusal]string) {
	for l, why := range refused {
		if h.refused[l] != why {
			log.FromContext(ctx).Error(errors.New(why), "cannot give a lost address back to its pod, retrying",
				"domain", l.domain, "address", l.addr.String(), "holder", l.holder.String())
		}
	}
	h.refused = refused
}

// examine examines a loss.
func (h *Healer) examine(ctx context.Context, l block.Loss, known []types.NamespacedName) error {
	has, err := h.stillHas(ctx, &l, known)
	switch {
	case err != nil:
		return err
	case !has:
		return h.freeLost(ctx, l)
	}
	if err := h.cfg.Store.Restore(ctx, l); err != nil {
		return fmt.Errorf("take %s of domain %s for %s again: %w", l.Addr, l.Domain, l.Holder, err)
	}
	log.FromContext(ctx).Info("restored an address that its block had lost", "domain", l.Domain, "address", l.Addr.String(), "holder", l.Holder.String())
	return nil
}

// freeLost ends a loss whose holder no longer has the address. A pod may have used the
// address until a moment ago, so it must cool down. If the block has no record of it at
// all, freeLost writes one.
func (h *Healer) freeLost(ctx context.Context, l block.Loss) error {
	if l.Unsaid() {
		err := h.cfg.Store.Restore(ctx, l)
		if err == nil {
			err = h.cfg.Store.Free(ctx, l.Holder, l.Domain, []netip.Addr{l.Addr})
		}
		if err != nil && !block.Refused(err) {
			return fmt.Errorf("free %s of domain %s, formerly of %s: %w", l.Addr, l.Domain, l.Holder, err)
		}
	}
	h.cfg.Store.Absolve(l)
	return nil
}

// stillHas asks the API server whether a holder still has the lost address. It has if a
// record of the pod names the address, or if the pod lives and its record is not
// written yet. A record also determines l.Node, the node of a block that has to be
// created.
func (h *Healer) stillHas(ctx context.Context, l *block.Loss, known []types.NamespacedName) (bool, error) {
	own := types.NamespacedName{Namespace: l.Holder.Namespace, Name: pod.AttachmentName(l.Holder.Pod, types.UID(l.Holder.PodUID))}
	if !slices.Contains(known, own) {
		known = append(slices.Clip(known), own)
	}
	recorded := false
	for _, key := range known {
		record := &v1alpha1.PodAttachment{}
		err := h.cfg.Live.Get(ctx, key, record)
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return false, fmt.Errorf("read PodAttachment %s: %w", key, err)
		case holderOf(record, l.Holder.Interface).Same(l.Holder):
			recorded = true
			named := h.namedBy(record)
			if i := slices.IndexFunc(named, func(n block.Loss) bool {
				return n.Domain == l.Domain && n.Addr == l.Addr && n.Holder.Same(l.Holder)
			}); i >= 0 {
				l.Node = named[i].Node
				return true, nil
			}
		}
	}
	if recorded {
		return false, nil
	}
	p := &corev1.Pod{}
	err := h.cfg.Live.Get(ctx, types.NamespacedName{Namespace: l.Holder.Namespace, Name: l.Holder.Pod}, p)
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("read pod %s/%s: %w", l.Holder.Namespace, l.Holder.Pod, err)
	}
	return err == nil && string(p.UID) == l.Holder.PodUID && pod.Holds(p), nil
}

// namedBy returns the addresses of our pools that a record names, as losses; none for a
// record whose interfaces are being released.
func (h *Healer) namedBy(record *v1alpha1.PodAttachment) []block.Loss {
	if !pod.MayHold(record) {
		return nil
	}
	var out []block.Loss
	for _, i := range record.Spec.Interfaces {
		if i.Domain == "" {
			continue // from another IPAM
		}
		for _, cidr := range i.Addresses {
			p, err := netip.ParsePrefix(cidr)
			if err != nil {
				continue // no block has it
			}
			out = append(out, block.Loss{Holder: holderOf(record, i.Name), Domain: i.Domain, Addr: p.Addr(), Claim: i.Claim, Node: h.node(record, i)})
		}
	}
	return out
}

// node returns the node that the block of an interface is routed to; empty for none. If
// the pool no longer exists, a link-local gateway means that the block is routed.
func (h *Healer) node(record *v1alpha1.PodAttachment, i v1alpha1.Interface) string {
	routed, known := h.cfg.Routed(i.Pool)
	if !known {
		routed = slices.ContainsFunc(i.Gateways, func(gw string) bool {
			a, err := netip.ParseAddr(gw)
			return err == nil && a.IsLinkLocalUnicast()
		})
	}
	if !routed {
		return ""
	}
	return record.Spec.NodeName
}

// holderOf returns the holder of an interface's addresses.
func holderOf(record *v1alpha1.PodAttachment, iface string) ipam.Holder {
	of := pod.HolderOf(record)
	return ipam.Holder{PodUID: string(of.UID), Interface: iface, Namespace: of.Namespace, Pod: of.Name, Node: record.Spec.NodeName}
}
