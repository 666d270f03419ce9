package native

import (
	"context"
	"slices"
	"time"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/ipam/block"
	"fairlead.dev/fairlead/internal/nad"
	"fairlead.dev/fairlead/internal/whereabouts"
)

// Parts returns the driver's parts without those that run in the background: Assemble in
// package upkeep adds them.
func (d *Driver) Parts() driver.Parts {
	return driver.Parts{
		Driver:   d,
		Networks: driver.Networks{Types: []string{nad.Type, whereabouts.Type}, Read: Read, Origin: origin},
		Run:      driver.Run{Wake: d.wake, Awaited: awaited},
		Evidence: driver.Evidence{GivenSince: d.givenSince, ReclaimAfter: ReclaimAfter},
		Collect:  driver.Collect{Held: d.Of, Surplus: driver.ByAddress},
	}
}

// wake is driver.Run.Wake. Beside that of Pools it has pods tried again that found no
// address left, when released addresses may be taken again.
func (d *Driver) wake(ctx context.Context, w driver.Wake) error {
	d.starved.mu.Lock()
	d.starved.wakes = append(d.starved.wakes, w.Pods)
	d.starved.mu.Unlock()
	return d.pools.Wake(ctx, w)
}

// awaited is driver.Run.Awaited. A claim has one holder, so its next pod waits for the
// release of the last. The next pod of a virtual machine has another name than the last
// pod, so no event of its own name wakes it. A MAC is awaited likewise.
func awaited(gone v1alpha1.Interface) bool { return gone.Claim != "" || gone.MAC != "" }

// givenSince is driver.Evidence.GivenSince, as far as the store knows. The moment is known to
// the second, so the order of two events within that second is unknown. Only an address
// held for a claim can be taken again so soon. Without a claim, givenSince is therefore
// true only from the next second on.
func (d *Driver) givenSince(o driver.Owner, i v1alpha1.Interface, moment time.Time) bool {
	if i.Claim == "" {
		moment = moment.Add(time.Second)
	}
	return slices.ContainsFunc(d.store.Held(HolderOf(o)), func(l block.Lease) bool { return !l.Since.Before(moment) })
}

// origin is driver.Networks.Origin.
func origin(i v1alpha1.Interface) string {
	if i.Pool != "" {
		return "pool " + i.Pool
	}
	return "domain " + i.Domain
}
