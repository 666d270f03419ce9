package gc

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"fairlead.dev/fairlead/internal/driver"
)

// seenTwice returns the orphans of a driver that are due: those that the last pass found too,
// or all if the driver needs no second look. Config.Waiting gets the others whose pods are
// gone.
func (c *Collector) seenTwice(ctx context.Context, name string, found []driver.Ref) []driver.Ref {
	if !c.cfg.Drivers[name].Collect.SecondLook {
		return found
	}
	var due, waiting []driver.Ref
	seen := map[driver.Owner]bool{}
	for _, ref := range found {
		seen[ref.Owner] = true
		if c.orphans[name][ref.Owner] {
			due = append(due, ref)
			continue
		}
		holds, err := c.podHolds(ctx, holderOf(ref))
		if err != nil {
			log.FromContext(ctx).Error(err, "cannot tell if the pod of an interface is gone", "driver", name)
		}
		if !holds && err == nil {
			waiting = append(waiting, ref)
		}
	}
	c.orphans[name] = seen
	if c.cfg.Waiting != nil {
		c.cfg.Waiting(name, waiting)
	}
	return due
}
