package heal

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
	"fairlead.dev/fairlead/internal/ipam/audit"
)

const (
	// apart is how long the second look of an audit comes after the first: what was on
	// its way then has arrived.
	apart = 30 * time.Second
	// firstAudit is how long a leader works before its first audit.
	firstAudit = time.Minute
)

// AuditConfig of an Auditor.
type AuditConfig struct {
	// Read returns the cluster as caches have it.
	Read func(ctx context.Context) (audit.Cluster, error)
	// Count is told how many findings there are of an invariant.
	Count func(invariant string, findings int)
	// Interval between two audits.
	Interval time.Duration
	// Synced reports whether the caches have everything.
	Synced func() bool
}

// Auditor audits the cluster now and then while this process leads. It reads caches only.
type Auditor struct {
	cfg AuditConfig

	mu       sync.Mutex
	known    bool
	findings []audit.Finding
	// told when an audit has found something else than the one before.
	told []func()
}

// NewAuditor returns an Auditor.
func NewAuditor(cfg AuditConfig) *Auditor { return &Auditor{cfg: cfg} }

// OnResult has a function called each time that an audit comes to another result.
func (a *Auditor) OnResult(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.told = append(a.told, f)
}

// Run audits until ctx ends: in each term of this process as the leader.
func (a *Auditor) Run(ctx context.Context) error {
	if !toolscache.WaitForCacheSync(ctx.Done(), a.cfg.Synced) {
		return nil
	}
	for wait := min(firstAudit, a.cfg.Interval); pause(ctx, wait); wait = a.cfg.Interval {
		if err := a.Pass(ctx); err != nil && ctx.Err() == nil {
			log.FromContext(ctx).Error(err, "audit failed")
		}
	}
	a.learn(nil, false)
	return nil
}

// Pass audits once. A finding counts when a second look agrees.
func (a *Auditor) Pass(ctx context.Context) error {
	report, err := a.look(ctx)
	if err != nil {
		return err
	}
	if len(report.Findings) > 0 {
		if !pause(ctx, apart) {
			return nil
		}
		second, err := a.look(ctx)
		if err != nil {
			return err
		}
		report = audit.Confirm(report, second)
	}
	for _, f := range report.Findings {
		log.FromContext(ctx).Info("audit found something", "invariant", f.Invariant, "domain", f.Domain, "address", f.Address, "what", f.What, "evidence", f.Evidence)
	}
	a.learn(report.Findings, true)
	return nil
}

func (a *Auditor) look(ctx context.Context) (audit.Report, error) {
	c, err := a.cfg.Read(ctx)
	if err != nil {
		return audit.Report{}, err
	}
	c.Now = time.Now()
	return audit.Look(c), nil
}

// learn keeps what was found, until the next audit.
func (a *Auditor) learn(findings []audit.Finding, known bool) {
	a.mu.Lock()
	var told []func()
	if a.known != known || !slices.Equal(a.findings, findings) {
		told = slices.Clone(a.told)
	}
	a.findings, a.known = findings, known
	a.mu.Unlock()
	for _, f := range told {
		f()
	}
	for _, invariant := range []string{audit.OneHolder, audit.Explained, audit.AddsUp} {
		n := 0
		for _, f := range findings {
			if f.Invariant == invariant {
				n++
			}
		}
		a.cfg.Count(invariant, n)
	}
}

// Of returns what the last audit found that is about a pool or its addresses; known is
// false before there was one. What is about addresses of its domain that no range of any
// pool has is shown by those who ask for the domain: `fairlead ipam audit`.
func (a *Auditor) Of(p *ipam.Pool) (found []audit.Finding, known bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(a.findings), func(f audit.Finding) bool { return !about(f, p) }), a.known
}

// about says whether a finding concerns a pool: an address in its ranges, a block in
// which it has some, or the pool itself.
func about(f audit.Finding, p *ipam.Pool) bool {
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
