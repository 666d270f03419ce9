package gc

import (
	"context"
	"fmt"
	"slices"
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
	// surplusFor is how long this process has to see a record and a surplus before it
	// releases the surplus. By then any other process that was obtaining interfaces for
	// the pod has found the record.
	surplusFor = time.Minute
	// releaseTimeout is the longest time between the read of the record and the write
	// that releases the surplus.
	releaseTimeout = 5 * time.Second
)

// surplusKey identifies the addresses of a pod's interface that its record does not name.
type surplusKey struct {
	record types.UID
	// addresses are the interface, domain and addresses, as text.
	addresses string
}

// due returns the interfaces with a surplus that this process has seen for surplusFor.
// It remembers when it first saw the others, and forgets those that are gone.
func (c *Collector) due(driverName string, withSurplus []driver.Ref, recorded map[pod.Key]*v1alpha1.PodAttachment) []driver.Ref {
	now, seen := c.cfg.Now(), map[surplusKey]time.Time{}
	var out []driver.Ref
	for _, ref := range withSurplus {
		record := recorded[holderOf(ref)]
		surplus, _ := c.cfg.Drivers[driverName].Collect.SurplusOf(ref.Interface, record.Spec.Interfaces)
		key := surplusKey{record.UID, fmt.Sprint(surplus.Name, surplus.Domain, surplus.Addresses)}
		since, ok := c.surplus[driverName][key]
		if !ok {
			since = now
		}
		if seen[key] = since; now.Sub(since) >= surplusFor {
			out = append(out, ref)
		}
	}
	c.surplus[driverName] = seen
	return out
}

// releaseSurplus releases the part of an interface that the pod's record does not name: an
// address of one family from a pool that had no address of the other left, or an interface
// that the pod no longer requests. It reports whether it did.
//
// This is safe. A pod has one record, so while it exists no other record can name the
// surplus. The controller adds an interface to a record only after spec.plug has named it,
// and from then on it is no surplus. No node plugs an interface that its record does not
// name, so no acknowledgement is needed. releaseSurplus first reads the record from the API
// server. It releases nothing while the record is being deleted: the pod may get another
// afterwards.
func (c *Collector) releaseSurplus(ctx context.Context, driverName string, ref driver.Ref, cached *v1alpha1.PodAttachment) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
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
	surplus, ok := d.Collect.SurplusOf(ref.Interface, record.Spec.Interfaces)
	if !ok || record.UID != cached.UID || pod.HolderOf(record) != holderOf(ref) || record.DeletionTimestamp != nil || slices.Contains(record.Spec.Plug, surplus.Name) {
		return false, nil
	}
	ref.Interface = surplus
	if err := d.Driver.Release(ctx, ref); err != nil {
		return false, fmt.Errorf("release %v, which PodAttachment %s does not name: %w", ref.Interface.Addresses, klog.KObj(cached), err)
	}
	return true, nil
}
