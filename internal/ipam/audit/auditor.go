package audit

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"fairlead.dev/fairlead/internal/ipam"
)

const (
	// confirmDelay is the time between the two looks of an audit. Changes that were
	// under way at the first look are complete at the second.
	confirmDelay = 30 * time.Second
	// firstAudit is the time from the start of a leader's term to its first audit.
	firstAudit = time.Minute
)

// AuditorConfig is the configuration of an Auditor.
type AuditorConfig struct {
	// Read returns a snapshot of the cluster from caches.
	Read func(ctx context.Context) (Cluster, error)
	// Count is called with the number of findings for each invariant.
	Count func(invariant string, findings int)
	// Interval is the time between two audits.
	Interval time.Duration
	// Synced reports whether the caches are complete.
	Synced func() bool
}

// Auditor audits the cluster at intervals while this process leads. It reads caches
// only.
type Auditor struct {
	cfg AuditorConfig

	mu       sync.Mutex
	known    bool
	findings []Finding
	// onResult are called when an audit's findings differ from those of the previous
	// audit.
	onResult []func()
}

// NewAuditor returns an Auditor.
func NewAuditor(cfg AuditorConfig) *Auditor { return &Auditor{cfg: cfg} }

// OnResult adds a function that is called each time that the findings change.
func (a *Auditor) OnResult(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.onResult = append(a.onResult, f)
}

// Run audits until ctx ends. It is called for each term of this process as the leader.
func (a *Auditor) Run(ctx context.Context) error {
	if !toolscache.WaitForCacheSync(ctx.Done(), a.cfg.Synced) {
		return nil
	}
	for wait := min(firstAudit, a.cfg.Interval); pause(ctx, wait); wait = a.cfg.Interval {
		if err := a.Pass(ctx); err != nil && ctx.Err() == nil {
			log.FromContext(ctx).Error(err, "audit failed")
		}
	}
	a.record(nil, false)
	return nil
}

// Pass audits once. A finding counts only if a second look confirms it. Pass returns an
// error if the caches cannot be read.
func (a *Auditor) Pass(ctx context.Context) error {
	report, err := a.look(ctx)
	if err != nil {
		return err
	}
	if len(report.Findings) > 0 {
		if !pause(ctx, confirmDelay) {
			return nil
		}
		second, err := a.look(ctx)
		if err != nil {
			return err
		}
		report = Confirm(report, second)
	}
	for _, f := range report.Findings {
		log.FromContext(ctx).Info("audit finding", "invariant", f.Invariant, "domain", f.Domain, "address", f.Address, "what", f.What, "evidence", f.Evidence)
	}
	a.record(report.Findings, true)
	return nil
}

func (a *Auditor) look(ctx context.Context) (Report, error) {
	c, err := a.cfg.Read(ctx)
	if err != nil {
		return Report{}, err
	}
	c.Now = time.Now()
	return Look(c), nil
}

// record records the findings until the next audit.
func (a *Auditor) record(findings []Finding, known bool) {
	a.mu.Lock()
	var changed []func()
	if a.known != known || !slices.Equal(a.findings, findings) {
		changed = slices.Clone(a.onResult)
	}
	a.findings, a.known = findings, known
	a.mu.Unlock()
	for _, f := range changed {
		f()
	}
	for _, invariant := range []string{OneHolder, Explained, AddsUp} {
		n := 0
		for _, f := range findings {
			if f.Invariant == invariant {
				n++
			}
		}
		a.cfg.Count(invariant, n)
	}
}

// Of returns the findings of the last audit that concern a pool or its addresses. known
// is false before the first audit. Findings about addresses of the domain that are in
// no pool's ranges are only in the output of `fairlead ipam audit`.
func (a *Auditor) Of(p *ipam.Pool) (found []Finding, known bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(a.findings), func(f Finding) bool { return !about(f, p) }), a.known
}

// about reports whether a finding concerns a pool: it names an address in the pool's
// ranges, a block with such an address, or the pool itself.
func about(f Finding, p *ipam.Pool) bool {
	if name, ok := strings.CutPrefix(f.Address, "pool "); ok {
		return name == p.Name()
	}
	if f.Domain != p.Domain() {
		return false
	}
	if addr, err := netip.ParseAddr(f.Address); err == nil {
		return p.Covers(addr)
	}
	block, err := netip.ParsePrefix(f.Address)
	return err != nil || ipam.BlockOf(block.Addr()) == block && slices.ContainsFunc(ipam.Addrs(block), p.Covers)
}
