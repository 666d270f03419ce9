package upkeep

import (
	"context"
	"fmt"
	"time"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver/native"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/ipam/block"
)

// Vacancy says which pools are of no use to anybody.
type Vacancy struct {
	Store *block.Store
	// Synced reports whether the store knows all that is taken.
	Synced func() bool
}

// Vacant says whether none of a pool's addresses is taken, kept, or resting; then the
// blocks of its ranges in which nobody has an address are gone too. Otherwise again is
// when to ask; zero when something in the pool is taken or kept, which its status shows
// first. It fails with driver.ErrUnavailable.
func (v *Vacancy) Vacant(ctx context.Context, o *v1alpha1.IPPool) (vacant bool, again time.Duration, err error) {
	if !v.Synced() || v.Store.Behind() {
		return false, native.StatusDelay, nil
	}
	pool, err := native.Parse(o)
	if err != nil {
		return false, 0, nil //nolint:nilerr // nothing can be said of it; its status tells why
	}
	if c := v.Store.Counts(pool.Pool); c.Allocated+c.Held > 0 {
		return false, 0, nil
	}
	rest, err := v.Store.DropVacant(ctx, pool.Pool)
	if err != nil {
		return false, 0, fmt.Errorf("pool %s: %w", o.Name, native.Translate(err))
	}
	if rest {
		return false, max(pool.Cooldown(), ipam.DefaultCooldown), nil
	}
	return true, 0, nil
}
