// Package heal keeps blocks true to what pods have. Blocks are objects that people can
// delete, edit or put back to an older state; what living PodAttachments name is then
// taken again for the pods that have it, and until that is done it is handed out to
// nobody. It never takes anything from another holder.
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
	// settle is how long what looks like a loss may be the informers' of two kinds not
	// having shown the same moment. Nothing depends on it: a loss is withheld at once.
	settle = time.Second
	// lastRetry is the longest pause between two tries.
	lastRetry = 30 * time.Second
	// atOnce is how many losses are looked into at a time.
	atOnce = 16
)

// Config of a Healer.
type Config struct {
	// Client reads from caches.
	Client client.Reader
	// Live reads from the API server: what has the air of a loss may be a release that
	// a cache has not shown yet.
	Live client.Reader
	// Store of the blocks.
	Store *block.Store
	// Routed says whether the blocks of a pool are routed to nodes, and whether the
	// pool is known.
	Routed func(pool string) (routed, known bool)
	// Synced reports whether the store knows all blocks.
	Synced func() bool
}

// Healer heals blocks while this process leads.
type Healer struct {
	cfg Config
	// watching is true from when records that appear are looked at, healed from when
	// all that there were have been.
	watching, healed atomic.Bool

	mu sync.Mutex
	// told when all records have been looked at.
	told []func()
	// refused are the holders and addresses that could not be brought together, and why.
	refused map[refusal]string
}

// refusal is a loss that could not be given back.
type refusal struct {
	holder ipam.Holder
	domain string
	addr   netip.Addr
}

// New returns a Healer.
func New(cfg Config) *Healer { return &Healer{cfg: cfg, refused: map[refusal]string{}} }

// Healed reports whether everything that living records name is taken, or withheld until
// it is. Before that no address may be handed out.
func (h *Healer) Healed() bool { return h.healed.Load() }

// OnHealed has a function called each time that Healed becomes true.
func (h *Healer) OnHealed(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.told = append(h.told, f)
}

// Watch looks at each record that appears. One may have been written by a leader that
// was about to end when its addresses were lost.
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

// Appeared looks at a record that has appeared.
func (h *Healer) Appeared(record *v1alpha1.PodAttachment) {
	if h.watching.Load() {
		h.check(record)
	}
}

// Run looks at all records, and heals until ctx ends: once in each term of this process as
// the leader.
func (h *Healer) Run(ctx context.Context) error {
	defer h.End()
	if err := h.Begin(ctx); err != nil || ctx.Err() != nil {
		return err
	}
	h.heal(ctx)
	return nil
}

// Begin compares all records with the blocks, in memory: what a block does not say is
// withheld from now on, and Healed is true. A reader of the late cache of records waits
// until it has all.
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
		log.FromContext(ctx).Info("blocks do not have addresses that PodAttachments name: they are withheld and looked into", "addresses", missing)
	}
	h.healed.Store(true)
	h.mu.Lock()
	told := slices.Clone(h.told)
	h.mu.Unlock()
	for _, f := range told {
		f()
	}
	return nil
}

// End is for a process that leads no more: what was lost is forgotten, and the next term
// begins anew.
func (h *Healer) End() {
	h.healed.Store(false)
	h.watching.Store(false)
	h.cfg.Store.Guard(false)
}

// check tells the store what a record names, and returns how much of that blocks do not
// say.
func (h *Healer) check(record *v1alpha1.PodAttachment) int {
	missing := 0
	for _, l := range h.named(record) {
		if h.cfg.Store.Miss(l) {
			missing++
		}
	}
	return missing
}

// heal heals whenever there is something to heal.
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
			log.FromContext(ctx).V(1).Info("not everything is healed, trying again", "err", err.Error(), "after", delay.String())
		}
	}
}

// pause reports whether a time has passed before ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// Heal looks into what was lost, once: what its holder still has is taken for him again,
// the rest goes back like any other that is given back. Blocks that were deleted are made anew. An error
// says that something is left to do.
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
			err := h.one(ctx, l, known[l.Holder.PodUID])
			mu.Lock()
			defer mu.Unlock()
			if errs = append(errs, err); block.Refused(err) {
				refused[refusal{l.Holder, l.Domain, l.Addr}] = err.Error()
			}
		})
	}
	all.Wait()
	h.tell(ctx, refused)
	return errors.Join(errs...)
}

// known are the names of the records in the cache by the UID of their pods.
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

// tell logs what could not be given back, once.
func (h *Healer) tell(ctx context.Context, refused map[refusal]string) {
	for l, why := range refused {
		if h.refused[l] != why {
			log.FromContext(ctx).Error(errors.New(why), "an address is named by a living PodAttachment and cannot be given back to its pod, trying again",
				"domain", l.domain, "address", l.addr.String(), "holder", l.holder.String())
		}
	}
	h.refused = refused
}

// one looks into a loss.
func (h *Healer) one(ctx context.Context, l block.Loss, known []types.NamespacedName) error {
	has, err := h.still(ctx, &l, known)
	switch {
	case err != nil:
		return err
	case !has:
		return h.rest(ctx, l)
	}
	if err := h.cfg.Store.Restore(ctx, l); err != nil {
		return fmt.Errorf("take %s of domain %s for %s again: %w", l.Addr, l.Domain, l.Holder, err)
	}
	log.FromContext(ctx).Info("a block had lost an address of a pod, which has it again", "domain", l.Domain, "address", l.Addr.String(), "holder", l.Holder.String())
	return nil
}

// rest ends a loss whose holder does not have the address any more. He may have had it a
// moment ago: it rests as after any pod, which is written where the block says nothing of
// it.
func (h *Healer) rest(ctx context.Context, l block.Loss) error {
	if l.Unsaid() {
		err := h.cfg.Store.Restore(ctx, l)
		if err == nil {
			err = h.cfg.Store.Free(ctx, l.Holder, l.Domain, []netip.Addr{l.Addr})
		}
		if err != nil && !block.Refused(err) {
			return fmt.Errorf("let %s of domain %s rest, which %s had: %w", l.Addr, l.Domain, l.Holder, err)
		}
	}
	h.cfg.Store.Absolve(l)
	return nil
}

// still asks the API server whether a holder still has what was lost: a record of his
// says so, or he lives and his record is still to come. By a record it is known to which
// node the block is routed, should it have to be made anew.
func (h *Healer) still(ctx context.Context, l *block.Loss, known []types.NamespacedName) (bool, error) {
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
			named := h.named(record)
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

// named is what a record says that its pod has, of our own pools; nothing for a record
// that is being given back.
func (h *Healer) named(record *v1alpha1.PodAttachment) []block.Loss {
	if !pod.MayHold(record) {
		return nil
	}
	var out []block.Loss
	for _, i := range record.Spec.Interfaces {
		if i.Domain == "" {
			continue // from elsewhere
		}
		for _, cidr := range i.Addresses {
			p, err := netip.ParsePrefix(cidr)
			if err != nil {
				continue // no block can have it
			}
			out = append(out, block.Loss{Holder: holderOf(record, i.Name), Domain: i.Domain, Addr: p.Addr(), Claim: i.Claim, Node: h.node(record, i)})
		}
	}
	return out
}

// node is the node to which the block of an interface is routed; empty for none. Where
// the pool is not there any more, the gateway says so: such nodes have link-local ones.
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

// holderOf is who has an interface of a record.
func holderOf(record *v1alpha1.PodAttachment, iface string) ipam.Holder {
	of := pod.HolderOf(record)
	return ipam.Holder{PodUID: string(of.UID), Interface: iface, Namespace: of.Namespace, Pod: of.Name, Node: record.Spec.NodeName}
}
