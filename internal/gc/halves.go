package gc

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/pod"
)

const (
	// settled is for how long this process must have seen a record and what it does
	// not name before that is given back: whoever was obtaining interfaces for the pod
	// beside the one that wrote it has found the record by then.
	settled = time.Minute
	// giveBackTimeout bounds the time between the look at the record and the
	// write that gives back.
	giveBackTimeout = 5 * time.Second
)

// half is what a pod has beside what its record names.
type half struct {
	record types.UID
	// what is the part of an interface that the record does not name.
	what string
}

// settledOf are the halves that this process has seen for a while. It notes when it saw
// the others first, and forgets those that are no more.
func (c *Collector) settledOf(driverName string, halves []driver.Ref, recorded map[pod.Key]*v1alpha1.PodAttachment) []driver.Ref {
	now, seen := c.cfg.Now(), map[half]time.Time{}
	var out []driver.Ref
	for _, ref := range halves {
		record := recorded[holderOf(ref)]
		surplus, _ := c.cfg.Drivers[driverName].Surplus(ref.Interface, record.Spec.Interfaces)
		h := half{record.UID, fmt.Sprint(surplus.Name, surplus.Domain, surplus.Addresses)}
		since, ok := c.halves[driverName][h]
		if !ok {
			since = now
		}
		if seen[h] = since; now.Sub(since) >= settled {
			out = append(out, ref)
		}
	}
	c.halves[driverName] = seen
	return out
}

// giveBack gives back what a pod has of an interface beside what its record
// names: half of what it needed, of a pool that lost the other half to somebody
// else, or an interface that it does not ask for any more. A record is written
// once and there is one of a pod: while it is there nobody can write another that
// names them. And no node plugs what its record does not name, so its word is not
// needed. The record is read again first, and one that is leaving is waited for:
// after it the pod may get another.
func (c *Collector) giveBack(ctx context.Context, driverName string, ref driver.Ref, cached *v1alpha1.PodAttachment) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, giveBackTimeout)
	defer cancel()
	record := &v1alpha1.PodAttachment{}
	err := c.cfg.Live.Get(ctx, client.ObjectKeyFromObject(cached), record)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read PodAttachment %s: %w", klog.KObj(cached), err)
	}
	d := c.cfg.Drivers[driverName]
	surplus, ok := d.Surplus(ref.Interface, record.Spec.Interfaces)
	if !ok || record.UID != cached.UID || pod.HolderOf(record) != holderOf(ref) || record.DeletionTimestamp != nil {
		return false, nil
	}
	ref.Interface = surplus
	if err := d.Driver.Release(ctx, ref); err != nil {
		return false, fmt.Errorf("give back %v, which PodAttachment %s does not name: %w", ref.Interface.Addresses, klog.KObj(cached), err)
	}
	return true, nil
}
