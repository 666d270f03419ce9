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

// Vacancy reports which pools are unused.
type Vacancy struct {
	Store *block.Store
	// Synced reports whether the store knows all taken addresses.
	Synced func() bool
}

// Vacant reports whether no address of a pool is taken, held or cooling. Before it returns
// true, it deletes the shared blocks of the pool without such an address. Otherwise again
// is the time until the next call is worthwhile. It is 0 if the spec is invalid or an
// address is taken or held: the status of the pool changes first. Errors:
// fault.ErrUnavailable.
func (v *Vacancy) Vacant(ctx context.Context, o *v1alpha1.IPPool) (vacant bool, again time.Duration, err error) {
	if !v.Synced() || v.Store.Behind() {
		return false, native.StatusDelay, nil
	}
	pool, err := native.Parse(o)
	if err != nil {
		return false, 0, nil //nolint:nilerr // the status of the pool has the error
	}
	if c := v.Store.Counts(pool.Pool); c.Allocated+c.Held > 0 {
		return false, 0, nil
	}
	rest, err := v.Store.DropVacant(ctx, pool.Pool)
	if err != nil {
		return false, 0, fmt.Errorf("pool %s: %w", o.Name, err)
	}
	if rest {
		return false, max(pool.Cooldown(), ipam.DefaultCooldown), nil
	}
	return true, 0, nil
}
