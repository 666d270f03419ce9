// Package gc finds what nothing explains: interfaces that a driver holds for a
// pod without a PodAttachment, PodAttachments that outlived everything, and
// addresses that a pod has beside those that its PodAttachment names. What a node
// may have plugged it does not take back itself: it writes the missing record down
// again and asks for its deletion, so that the one release path, with the node's
// own word in it, does the rest.
package gc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/pod"
)

// Config of the collector.
type Config struct {
	// Client reads from caches and writes.
	Client client.Client
	// Live reads from the API server: nothing is done on a cache's word.
	Live client.Reader
	// Drivers by name.
	Drivers driver.Table
	// Interval between two passes.
	Interval time.Duration
	// Namespace takes the record of a pod whose own namespace is gone.
	Namespace string
	// Synced reports whether all records are known; the first pass waits for it.
	Synced func() bool
	// Busy reports whether pods wait for their networks. The first pass lets them go
	// before it, for a minute at most; nil when none do.
	Busy func() bool
	// Now measures durations, from what this process saw; time.Now when nil.
	Now func() time.Time
}

// Collector runs passes.
type Collector struct {
	cfg Config
	// halves that the last pass saw, by driver, with when one saw them first.
	halves map[string]map[half]time.Time
}

// New returns a collector.
func New(cfg Config) *Collector {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Collector{cfg: cfg, halves: map[string]map[half]time.Time{}}
}

// busyFor bounds how long the first pass waits for pods, and before for the drivers.
const busyFor = time.Minute

// Run makes a pass at once and then at each interval until ctx ends. It may be run
// again then: nothing is remembered from one pass to the next.
func (c *Collector) Run(ctx context.Context) error {
	if !cache.WaitForCacheSync(ctx.Done(), c.cfg.Synced) {
		return nil
	}
	c.await(ctx, c.known)
	if c.cfg.Busy != nil {
		c.await(ctx, func() bool { return !c.cfg.Busy() })
	}
	tick := time.NewTicker(c.cfg.Interval)
	defer tick.Stop()
	for {
		if n, err := c.Pass(ctx); err != nil && ctx.Err() == nil {
			log.FromContext(ctx).Error(err, "garbage collection pass failed in part", "collected", n)
		} else if n > 0 {
			log.FromContext(ctx).Info("garbage collected", "collected", n)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// known reports whether all drivers know what they hold.
func (c *Collector) known() bool {
	for _, d := range c.cfg.Drivers {
		if !d.Knows() {
			return false
		}
	}
	return true
}

// await waits for a condition, though not for ever: for drivers, and for pods that wait
// for a leader that has just begun. A pass looks at every address there is.
func (c *Collector) await(ctx context.Context, over func() bool) {
	ctx, cancel := context.WithTimeout(ctx, busyFor)
	defer cancel()
	cache.WaitForCacheSync(ctx.Done(), over)
}

// Pass looks once, and returns how many things it set on their way out.
func (c *Collector) Pass(ctx context.Context) (int, error) {
	var records v1alpha1.PodAttachmentList
	if err := c.cfg.Client.List(ctx, &records, client.UnsafeDisableDeepCopy); err != nil {
		return 0, fmt.Errorf("read attachments from cache: %w", err)
	}
	recorded := make(map[pod.Key]*v1alpha1.PodAttachment, len(records.Items))
	for i := range records.Items {
		recorded[pod.HolderOf(&records.Items[i])] = &records.Items[i]
	}
	var (
		errs  []error
		count int
	)
	note := func(acted bool, err error) {
		errs = append(errs, err)
		if acted {
			count++
		}
	}
	orphans := map[pod.Key]*orphan{}
	for _, name := range slices.Sorted(maps.Keys(c.cfg.Drivers)) {
		if !c.cfg.Drivers[name].Knows() {
			continue // the next pass looks again
		}
		found, halves, err := c.unexplained(ctx, name, recorded)
		if err != nil {
			errs = append(errs, fmt.Errorf("list what driver %s holds: %w", name, err))
			continue
		}
		for _, ref := range found {
			of := holderOf(ref)
			if orphans[of] == nil {
				orphans[of] = &orphan{pod: pod.Identity{Key: of}}
			}
			orphans[of].add(name, ref)
		}
		for _, ref := range c.settledOf(name, halves, recorded) {
			note(c.giveBack(ctx, name, ref, recorded[holderOf(ref)]))
		}
	}
	for _, o := range sorted(orphans) {
		note(c.writeDown(ctx, o))
	}
	for i := range records.Items {
		note(c.sweep(ctx, &records.Items[i]))
	}
	return count, errors.Join(errs...)
}

// Left sets on its way out what drivers, by name, hold for a pod that has no record and is
// gone, as a pass would.
func (c *Collector) Left(ctx context.Context, of pod.Identity, held map[string][]driver.Ref) error {
	o := &orphan{pod: of}
	for _, name := range slices.Sorted(maps.Keys(held)) {
		for _, ref := range held[name] {
			o.add(name, ref)
		}
	}
	if len(o.parts) == 0 {
		return nil
	}
	_, err := c.writeDown(ctx, o)
	return err
}

// holderOf is the pod that has something, as it was taken.
func holderOf(ref driver.Ref) pod.Key {
	return pod.Key{Namespace: ref.Namespace, Name: ref.PodName, UID: ref.PodUID}
}

// orphan is everything that drivers hold for a pod that has no record.
type orphan struct {
	pod   pod.Identity
	parts []part
}

// part is an interface that a driver, by name, holds.
type part struct {
	driver string
	ref    driver.Ref
}

// add adds what a driver holds. A record names an interface once per driver and domain:
// where the pod has moved from one driver to another, the later driver's is left to the
// pass after the record is gone.
func (o *orphan) add(name string, ref driver.Ref) {
	moved := func(p part) bool { return p.driver != name && p.ref.Interface.Name == ref.Interface.Name }
	if slices.ContainsFunc(o.parts, moved) {
		return
	}
	o.parts = append(o.parts, part{name, ref})
	if o.pod.Node == "" {
		o.pod.Node = ref.NodeName
	}
}

// sorted are orphans by the names of their pods.
func sorted(orphans map[pod.Key]*orphan) []*orphan {
	return slices.SortedFunc(maps.Values(orphans), func(a, b *orphan) int {
		return cmp.Or(cmp.Compare(a.pod.Namespace, b.pod.Namespace), cmp.Compare(a.pod.Name, b.pod.Name), cmp.Compare(a.pod.UID, b.pod.UID))
	})
}

// unexplained subtracts the records from what a driver holds: left are the interfaces of
// pods without one, and those of others of which a part could be given back that theirs
// does not name.
func (c *Collector) unexplained(ctx context.Context, name string, recorded map[pod.Key]*v1alpha1.PodAttachment) (orphans, halves []driver.Ref, err error) {
	d := c.cfg.Drivers[name]
	for ref, err := range d.Driver.List(ctx) {
		if err != nil {
			return nil, nil, err
		}
		record := recorded[holderOf(ref)]
		if record == nil {
			orphans = append(orphans, ref)
			continue
		}
		if d.Surplus == nil {
			continue
		}
		if _, ok := d.Surplus(ref.Interface, record.Spec.Interfaces); ok {
			halves = append(halves, ref)
		}
	}
	return orphans, halves, nil
}

// writeDown gives an orphan whose pod is gone its record, and asks for the
// record's deletion. The node then says whether it holds anything of it. What was
// released meanwhile is not written down: somebody else may have it by then.
func (c *Collector) writeDown(ctx context.Context, o *orphan) (bool, error) {
	if lives, err := c.lives(ctx, o.pod.Key); err != nil || lives {
		return false, err // it is on its way to its record
	}
	parts, never := writable(o)
	for _, p := range never {
		if err := c.forgo(ctx, p); err != nil {
			return false, err
		}
	}
	left, unsure := c.confirmed(ctx, parts)
	if len(left) == 0 {
		return len(never) > 0, unsure
	}
	node, err := c.nodeUID(ctx, o.pod.Node)
	if err != nil {
		return len(never) > 0, errors.Join(unsure, err)
	}
	record := pod.Record(o.pod, left)
	record.Spec.NodeUID = node
	written, err := c.leave(ctx, record)
	return written, errors.Join(unsure, err)
}

// leave writes the record of a pod that is gone, and asks for its deletion.
func (c *Collector) leave(ctx context.Context, record *v1alpha1.PodAttachment) (bool, error) {
	of := record.Pod()
	err := c.cfg.Client.Create(ctx, record)
	if apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		record = pod.Elsewhere(record, c.cfg.Namespace)
		err = c.cfg.Client.Create(ctx, record)
	}
	if apierrors.IsAlreadyExists(err) {
		return false, nil // the cache was behind
	}
	if err != nil {
		return false, fmt.Errorf("write down what pod %s left: %w", of, err)
	}
	if err := c.cfg.Client.Delete(ctx, record, client.Preconditions{UID: &record.UID}); client.IgnoreNotFound(err) != nil {
		return true, fmt.Errorf("delete the record of what pod %s left: %w", of, err)
	}
	return true, nil
}

// nodeUID is the UID of a Node, by the API server's word; empty when there is none.
func (c *Collector) nodeUID(ctx context.Context, name string) (types.UID, error) {
	if name == "" {
		return "", nil
	}
	node := &corev1.Node{}
	if err := c.cfg.Live.Get(ctx, client.ObjectKey{Name: name}, node); client.IgnoreNotFound(err) != nil {
		return "", fmt.Errorf("read Node %s: %w", name, err)
	}
	return node.UID, nil
}

// lives says whether a pod may be using what it has, by the API server's word.
func (c *Collector) lives(ctx context.Context, of pod.Key) (bool, error) {
	if of.Namespace == "" || of.Name == "" {
		return false, nil // there is no such pod
	}
	live := &corev1.Pod{}
	err := c.cfg.Live.Get(ctx, client.ObjectKey{Namespace: of.Namespace, Name: of.Name}, live)
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("read pod %s/%s: %w", of.Namespace, of.Name, err)
	}
	return err == nil && pod.KeyOf(live) == of && pod.Holds(live), nil
}

// maxAddresses is how many addresses an interface of a record may have.
const maxAddresses = 16

// confirmed returns the interfaces that drivers still hold, on their backends' word. What
// the cache has of records and what a driver lists come by different ways: a record that
// is gone from the one may be of what the other still has. Of a driver whose backend does
// not answer it returns nothing, beside the error, and what the others have.
func (c *Collector) confirmed(ctx context.Context, parts []part) ([]v1alpha1.Interface, error) {
	byDriver := map[string][]v1alpha1.Interface{}
	failed := map[string]error{}
	for _, p := range parts {
		if failed[p.driver] != nil {
			continue
		}
		i, err := c.cfg.Drivers[p.driver].Driver.Confirm(ctx, p.ref)
		switch {
		case errors.Is(err, driver.ErrNotFound):
		case err != nil:
			failed[p.driver] = fmt.Errorf("confirm interface %s of pod %s/%s: %w", p.ref.Interface.Name, p.ref.Namespace, p.ref.PodName, err)
			delete(byDriver, p.driver)
		default:
			// What a record has no room for is found again when it is gone.
			i.Addresses = i.Addresses[:min(len(i.Addresses), maxAddresses)]
			byDriver[p.driver] = append(byDriver[p.driver], i)
		}
	}
	var left []v1alpha1.Interface
	for _, name := range slices.Sorted(maps.Keys(byDriver)) {
		left = append(left, byDriver[name]...)
	}
	return left, errors.Join(slices.Collect(maps.Values(failed))...)
}

// sweep deletes a record that was released and that nobody asked to go.
func (c *Collector) sweep(ctx context.Context, record *v1alpha1.PodAttachment) (bool, error) {
	if record.DeletionTimestamp != nil || slices.Contains(record.Finalizers, v1alpha1.ReleaseFinalizer) {
		return false, nil
	}
	err := c.cfg.Client.Delete(ctx, record, client.Preconditions{UID: &record.UID, ResourceVersion: &record.ResourceVersion})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("delete released record %s: %w", klog.KObj(record), err)
	}
	return true, nil
}
