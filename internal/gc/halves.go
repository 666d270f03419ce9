package gc

import (
	"context"
	"fmt"
	"net/netip"
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
	// settled is for how long this process must have seen a record and what it does
	// not name before that is given back: whoever was obtaining interfaces for the pod
	// beside the one that wrote it has found the record by then.
	settled = time.Minute
	// giveBackTimeout bounds the time between the look at the record and the
	// write that gives back.
	giveBackTimeout = 5 * time.Second
)

// unnamed are the addresses of an interface, of our own pools, that a pod's
// record does not name.
func unnamed(held v1alpha1.Interface, record *v1alpha1.PodAttachment) []string {
	if held.Domain == "" {
		return nil // from elsewhere: there an interface is one thing
	}
	var out []string
	for _, cidr := range held.Addresses {
		if p, err := netip.ParsePrefix(cidr); err == nil && !names(record, held, p.Addr()) {
			out = append(out, cidr)
		}
	}
	return out
}

// names says whether a record names an address of an interface that is held.
func names(record *v1alpha1.PodAttachment, held v1alpha1.Interface, a netip.Addr) bool {
	return slices.ContainsFunc(record.Spec.Interfaces, func(i v1alpha1.Interface) bool {
		return i.Name == held.Name && i.Domain == held.Domain && slices.ContainsFunc(i.Addresses, func(cidr string) bool {
			p, err := netip.ParsePrefix(cidr)
			return err == nil && p.Addr() == a
		})
	})
}

// half is what a pod has beside what its record names.
type half struct {
	record types.UID
	// what is the interface, and its addresses that the record does not name.
	what string
}

// settledOf are the halves that this process has seen for a while. It notes when it saw
// the others first, and forgets those that are no more.
func (c *Collector) settledOf(driverName string, halves []driver.Ref, recorded map[pod.Key]*v1alpha1.PodAttachment) []driver.Ref {
	now, seen := c.cfg.Now(), map[half]time.Time{}
	var out []driver.Ref
	for _, ref := range halves {
		record := recorded[holderOf(ref)]
		h := half{record.UID, fmt.Sprint(ref.Interface.Name, ref.Interface.Domain, unnamed(ref.Interface, record))}
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

// giveBack gives addresses back that a pod has beside those that its record
// names: half of what it needed, of a pool that lost the other half to somebody
// else, or an interface that it does not ask for any more. A record is written
// once and there is one of a pod: while it is there nobody can write another that
// names them. And no node plugs what its record does not name, so its word is not
// needed. The record is read again first, and one that is leaving is waited for:
// after it the pod may get another.
func (c *Collector) giveBack(ctx context.Context, d driver.Driver, ref driver.Ref, cached *v1alpha1.PodAttachment) (bool, error) {
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
	ref.Interface.Addresses = unnamed(ref.Interface, record)
	if record.UID != cached.UID || pod.HolderOf(record) != holderOf(ref) || record.DeletionTimestamp != nil || len(ref.Interface.Addresses) == 0 {
		return false, nil
	}
	if err := d.Release(ctx, ref); err != nil {
		return false, fmt.Errorf("give back %v, which PodAttachment %s does not name: %w", ref.Interface.Addresses, klog.KObj(cached), err)
	}
	return true, nil
}
