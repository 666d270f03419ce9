package audit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/ipam/block"
	"fairlead.dev/fairlead/internal/pod"
)

const (
	// firstRetry and lastRetry are the shortest and the longest pause between two attempts.
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
	// RefusedRetry is the pause between two attempts to take refused addresses again. An
	// address that another holder gives back rests for longer (ipam.MinCooldown).
	RefusedRetry = 3 * time.Second
	// atOnce is how many addresses are restored at the same time.
	atOnce = 16
)

// CompareConfig of a Comparer.
type CompareConfig struct {
	// Client reads from caches.
	Client client.Reader
	// Live reads from the API server. An apparent loss may be a release that the cache
	// has not shown yet.
	Live client.Reader
	// Store has the blocks.
	Store Store
	// Routed reports whether the blocks of a pool are routed to nodes, and whether the
	// pool is known.
	Routed func(pool string) (routed, known bool)
	// Withhold replaces the addresses that no pod gets: those that a record names, and that
	// another holder has or may have just given back.
	Withhold func([]*ipam.Reservation)
	// Synced reports whether the store knows all blocks.
	Synced func() bool
}

// Store has the blocks.
type Store interface {
	// Held returns the addresses of a holder, from memory.
	Held(h ipam.Holder) []block.Lease
	// Restore takes an address again for its holder. An address of another holder is left
	// alone, but for one of beside, which shares it.
	Restore(ctx context.Context, l block.Lease, beside []ipam.Holder, node string) error
}

// Comparer compares the PodAttachments with the blocks at the start of each term of this
// process as the leader: blocks may be gone with their CRD, and etcd or a backup may have
// brought back an older state. If a living PodAttachment names an address and its block does
// not, the address is taken again for the pod. No address is handed out before. If another
// holder has the address, the audit reports it, and the address is taken again when that
// holder has given it back. Until then no other pod gets it.
type Comparer struct {
	cfg      CompareConfig
	compared atomic.Bool

	mu sync.Mutex
	// onCompared are called when all records have been compared.
	onCompared []func()
	// withheld are the lost addresses that no pod gets, by domain.
	withheld map[string][]netip.Addr
}

// NewComparer returns a Comparer.
func NewComparer(cfg CompareConfig) *Comparer { return &Comparer{cfg: cfg} }

// Compared reports whether every address that a living record named at the start of the term
// is taken. No address may be handed out before.
func (c *Comparer) Compared() bool { return c.compared.Load() }

// OnCompared adds a function that is called each time that Compared becomes true.
func (c *Comparer) OnCompared(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.onCompared = append(c.onCompared, f)
}

// Run compares until no lost address is left, and waits for the end of ctx. It is called once
// in each term of this process as the leader.
func (c *Comparer) Run(ctx context.Context) error {
	defer c.End()
	if !toolscache.WaitForCacheSync(ctx.Done(), c.cfg.Synced) {
		return nil
	}
	delay := time.Duration(0)
	var namespaces []string // all, until the first comparison is complete
	for {
		refused, err := c.compare(ctx, namespaces)
		switch {
		case err != nil:
			delay = min(max(firstRetry, 2*delay), lastRetry)
			if ctx.Err() == nil {
				log.FromContext(ctx).Error(err, "cannot compare PodAttachments and blocks", "again in", delay.String(), "addresses are handed out", c.Compared())
			}
		case len(refused) == 0:
			<-ctx.Done()
			return nil
		default:
			delay, namespaces = RefusedRetry, namespacesOf(refused)
		}
		if !pause(ctx, delay) {
			return nil
		}
	}
}

// End ends the term of a leader.
func (c *Comparer) End() { c.compared.Store(false) }

// Compare compares all records with the blocks, and restores what the blocks lack. It returns
// how many lost addresses cannot be taken now. It returns an error if the
// API server does not answer. If the cache of records is filled late, the List in it waits
// until the cache is complete.
func (c *Comparer) Compare(ctx context.Context) (refused int, err error) {
	all, err := c.compare(ctx, nil)
	return len(all), err
}

// compare is Compare for the records of some namespaces, all if there are none. It returns the
// lost addresses that were not taken.
func (c *Comparer) compare(ctx context.Context, namespaces []string) (refused []lost, err error) {
	records, err := c.read(ctx, namespaces)
	if err != nil {
		return nil, fmt.Errorf("read attachments from cache: %w", err)
	}
	var (
		mu     sync.Mutex
		errs   []error
		all    sync.WaitGroup
		places = make(chan struct{}, atOnce)
		shared = claimed(records)
	)
	for i := range records {
		if r := &records[i]; len(c.missing(r)) > 0 {
			places <- struct{}{}
			all.Go(func() {
				left, err := c.restore(ctx, r, shared)
				mu.Lock()
				defer mu.Unlock()
				errs, refused = append(errs, err), append(refused, left...)
				<-places
			})
		}
	}
	all.Wait()
	c.withhold(refused)
	if err := errors.Join(append(errs, ctx.Err())...); err != nil {
		return refused, err
	}
	if c.compared.Swap(true) {
		return refused, nil
	}
	c.mu.Lock()
	callbacks := slices.Clone(c.onCompared)
	c.mu.Unlock()
	for _, f := range callbacks {
		f()
	}
	return refused, nil
}

// withhold has no pod get the lost addresses that were not taken. Addresses of an earlier call
// that are not among them may be handed out again.
func (c *Comparer) withhold(left []lost) {
	by := map[string][]netip.Addr{}
	for _, l := range left {
		by[l.Domain] = append(by[l.Domain], l.Addr)
	}
	var reservations []*ipam.Reservation
	for domain, addrs := range by {
		slices.SortFunc(addrs, netip.Addr.Compare)
		reservations = append(reservations, ipam.Reserve(domain, addrs))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !maps.EqualFunc(by, c.withheld, slices.Equal) {
		c.withheld = by
		c.cfg.Withhold(reservations)
	}
}

// read returns the records of some namespaces, all if there are none. Launchers of one virtual
// machine are in one namespace.
func (c *Comparer) read(ctx context.Context, namespaces []string) (all []v1alpha1.PodAttachment, err error) {
	if len(namespaces) == 0 {
		namespaces = []string{metav1.NamespaceAll}
	}
	for _, namespace := range namespaces {
		var records v1alpha1.PodAttachmentList
		if err := c.cfg.Client.List(ctx, &records, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
			return nil, err
		}
		all = append(records.Items, all...)
	}
	return all, nil
}

// namespacesOf returns the namespaces of the records that name some addresses, each once.
func namespacesOf(refused []lost) (all []string) {
	for _, l := range refused {
		all = append(all, l.Holder.Namespace)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// claimed collects the addresses that records name for a claim. The two launchers of a virtual
// machine that migrates name one address for one claim.
func claimed(records []v1alpha1.PodAttachment) *namings {
	out := &namings{first: map[named]naming{}, more: map[named][]naming{}}
	for i := range records {
		r := &records[i]
		for _, iface := range r.Spec.Interfaces {
			if iface.Claim == "" || iface.Domain == "" || !pod.MayHold(r) {
				continue
			}
			for _, addr := range addressesOf(iface) {
				out.add(iface.Domain, addr, naming{r, iface.Name})
			}
		}
	}
	return out
}

// restore takes the addresses again that a record names and the blocks lack. It returns those
// that were not taken. That another holder has one is no error.
func (c *Comparer) restore(ctx context.Context, cached *v1alpha1.PodAttachment, shared *namings) (left []lost, err error) {
	record := &v1alpha1.PodAttachment{}
	switch err := c.cfg.Live.Get(ctx, client.ObjectKeyFromObject(cached), record); {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return c.missing(cached), err
	}
	var errs []error
	for _, n := range c.missing(record) {
		logger := log.FromContext(ctx).WithValues("domain", n.Domain, "address", n.Addr.String(), "holder", n.Holder.String())
		var beside []ipam.Holder
		for _, by := range shared.more[named{n.Domain, n.Addr}] {
			beside = append(beside, holderOf(by.record, by.iface))
		}
		switch err := c.cfg.Store.Restore(ctx, n.Lease, beside, n.node); {
		case err == nil:
			logger.Info("restored an address that its block had lost")
			continue
		case errors.Is(err, fault.ErrConflict), errors.Is(err, fault.ErrInvalid), apierrors.IsInvalid(err):
			if !c.Compared() { // logged once in a term
				logger.Error(err, "cannot give a lost address back to its pod yet", "tried every", RefusedRetry.String())
			}
		default:
			errs = append(errs, fmt.Errorf("take %s of domain %s for %s again: %w", n.Addr, n.Domain, n.Holder, err))
		}
		left = append(left, n)
	}
	return left, errors.Join(errs...)
}

// lost is an address that a record names and the blocks lack.
type lost struct {
	block.Lease
	// node is the node that the address's block is routed to; empty for none.
	node string
}

// missing returns the addresses of our pools that a record names and the blocks lack; none
// for a record whose interfaces are being released.
func (c *Comparer) missing(record *v1alpha1.PodAttachment) (out []lost) {
	if !pod.MayHold(record) {
		return nil
	}
	for _, i := range record.Spec.Interfaces {
		if i.Domain == "" {
			continue // from another IPAM
		}
		h := holderOf(record, i.Name)
		h.Node = record.Spec.NodeName
		held := c.cfg.Store.Held(h)
		for _, cidr := range i.Addresses {
			p, err := netip.ParsePrefix(cidr)
			if err != nil {
				continue // no block has it
			}
			l := block.Lease{Holder: h, Domain: i.Domain, Addr: p.Addr(), Claim: i.Claim}
			if !slices.ContainsFunc(held, func(o block.Lease) bool { return o.Domain == l.Domain && o.Addr == l.Addr }) {
				out = append(out, lost{l, c.node(record, i)})
			}
		}
	}
	return out
}

// node returns the node that the block of an interface is routed to; empty for none. If
// the pool no longer exists, a link-local gateway means that the block is routed.
func (c *Comparer) node(record *v1alpha1.PodAttachment, i v1alpha1.Interface) string {
	routed, known := c.cfg.Routed(i.Pool)
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

// pause waits, and returns false if ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
