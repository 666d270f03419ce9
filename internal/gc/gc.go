// Package gc finds interfaces that a driver holds for a pod without a PodAttachment,
// PodAttachments that are released but not deleted, and addresses of a pod that its
// PodAttachment does not name. It does not release an interface that a node may have
// plugged. Instead it writes the missing PodAttachment again and deletes it: the normal
// release path, which waits for the node's acknowledgement, does the rest. In this package
// a record is a PodAttachment.
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
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/pod"
)

// Config of the collector.
type Config struct {
	// Client reads from caches and writes.
	Client client.Client
	// Live reads from the API server: a cache alone is no reason to release anything.
	Live client.Reader
	// Drivers by name.
	Drivers driver.Table
	// Interval between two passes.
	Interval time.Duration
	// Namespace gets the records of pods whose own namespace is gone.
	Namespace string
	// Synced reports whether all records are in the cache. The first pass waits for it.
	Synced func() bool
	// Busy reports whether pods wait for their networks. The first pass waits until none
	// do, for busyFor at most. Nil: no pods wait.
	Busy func() bool
	// Waiting gets, after each pass, the interfaces of a driver with SecondLook that the next
	// pass collects. May be nil.
	Waiting func(driverName string, refs []driver.Ref)
	// Now is the clock for durations that this process has observed; nil is time.Now.
	Now func() time.Time
}

// Collector runs garbage collection passes.
type Collector struct {
	cfg Config
	// surplus is what the last pass saw, by driver, with the time when a pass first saw it.
	surplus map[string]map[surplusKey]time.Time
	// orphans are the owners that the last pass found without a record, by driver.
	orphans map[string]map[driver.Owner]bool
}

// New returns a collector.
func New(cfg Config) *Collector {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Collector{cfg: cfg, surplus: map[string]map[surplusKey]time.Time{}, orphans: map[string]map[driver.Owner]bool{}}
}

// busyFor is the longest time that the first pass waits for the drivers, and again for pods.
const busyFor = time.Minute

// Run makes a pass at once, then one per interval until ctx ends, and returns nil. It may
// then be run again. A pass remembers from earlier passes only when they first saw a surplus,
// and which orphans they found.
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

// known reports whether all drivers are synced and ready.
func (c *Collector) known() bool {
	for _, d := range c.cfg.Drivers {
		if !d.Knows() {
			return false
		}
	}
	return true
}

// await waits until done returns true, for busyFor at most. The first pass gives way to
// pods that wait for a new leader, since a pass reads every address.
func (c *Collector) await(ctx context.Context, done func() bool) {
	ctx, cancel := context.WithTimeout(ctx, busyFor)
	defer cancel()
	cache.WaitForCacheSync(ctx.Done(), done)
}

// Pass runs one garbage collection. It returns on how many surpluses, pods without a record
// and released records it acted. It goes on after an error, and returns all errors joined.
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
			continue // a later pass collects for this driver
		}
		found, withSurplus, err := c.unexplained(ctx, name, recorded)
		if err != nil {
			errs = append(errs, fmt.Errorf("list the interfaces of driver %s: %w", name, err))
			continue
		}
		for _, ref := range c.seenTwice(ctx, name, found) {
			of := holderOf(ref)
			if orphans[of] == nil {
				orphans[of] = &orphan{pod: pod.Identity{Key: of}}
			}
			orphans[of].add(name, ref)
		}
		for _, ref := range c.due(name, withSurplus, recorded) {
			note(c.releaseSurplus(ctx, name, ref, recorded[holderOf(ref)]))
		}
	}
	for _, o := range sorted(orphans) {
		note(c.record(ctx, o))
	}
	for i := range records.Items {
		note(c.sweep(ctx, &records.Items[i]))
	}
	return count, errors.Join(errs...)
}

// Left collects, as a pass would, the interfaces that drivers hold for a pod that is gone
// and has no record. held has the interfaces by the names of the drivers.
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
	_, err := c.record(ctx, o)
	return err
}

// holderOf returns the pod that holds an interface, as in the driver's Owner.
func holderOf(ref driver.Ref) pod.Key {
	return pod.Key{Namespace: ref.Namespace, Name: ref.PodName, UID: ref.PodUID}
}

// orphan has the interfaces that drivers hold for a pod without a record.
type orphan struct {
	pod   pod.Identity
	parts []part
}

// part is an interface and the name of the driver that holds it.
type part struct {
	driver string
	ref    driver.Ref
}

// add adds an interface of a driver. A record has one interface of a name. A pod that was
// given addresses of two domains, or by two drivers, for one interface has two of that name:
// add leaves the second out, and a pass after the deletion of the record collects it.
func (o *orphan) add(name string, ref driver.Ref) {
	sameName := func(p part) bool { return p.ref.Interface.Name == ref.Interface.Name }
	if slices.ContainsFunc(o.parts, sameName) {
		return
	}
	o.parts = append(o.parts, part{name, ref})
	if o.pod.Node == "" {
		o.pod.Node = ref.NodeName
	}
}

// sorted returns orphans sorted by their pods.
func sorted(orphans map[pod.Key]*orphan) []*orphan {
	return slices.SortedFunc(maps.Values(orphans), func(a, b *orphan) int {
		return cmp.Or(cmp.Compare(a.pod.Namespace, b.pod.Namespace), cmp.Compare(a.pod.Name, b.pod.Name), cmp.Compare(a.pod.UID, b.pod.UID))
	})
}

// unexplained subtracts the records from the interfaces that a driver holds. It returns the
// interfaces of pods without a record, and the interfaces with a surplus: what the pod's
// record does not name and that can be released alone.
func (c *Collector) unexplained(ctx context.Context, name string, recorded map[pod.Key]*v1alpha1.PodAttachment) (orphans, withSurplus []driver.Ref, err error) {
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
		if slices.Contains(record.Spec.Plug, ref.Interface.Name) {
			continue
		}
		if _, ok := d.Collect.SurplusOf(ref.Interface, record.Spec.Interfaces); ok {
			withSurplus = append(withSurplus, ref)
		}
	}
	return orphans, withSurplus, nil
}

// record writes the record of an orphan whose pod is gone, and deletes it. The node then
// acknowledges that it does not hold the interfaces. An interface that was released in the
// meantime is left out: another pod may have its addresses. record reports whether it wrote
// a record.
func (c *Collector) record(ctx context.Context, o *orphan) (bool, error) {
	if holds, err := c.podHolds(ctx, o.pod.Key); err != nil || holds {
		return false, err // the controller is about to write the record of an existing pod
	}
	left, unsure := c.confirmed(ctx, o.parts)
	if len(left) == 0 {
		return false, unsure
	}
	node, err := c.nodeUID(ctx, o.pod.Node)
	if err != nil {
		return false, errors.Join(unsure, err)
	}
	record := pod.Record(o.pod, left)
	record.Spec.NodeUID = node
	written, err := c.createAndDelete(ctx, record)
	return written, errors.Join(unsure, err)
}

// createAndDelete creates the record of a pod that is gone, in Config.Namespace if the pod's
// own namespace is gone too, and deletes it: the finalizer keeps it until the interfaces are
// released. It returns false if the record exists already.
func (c *Collector) createAndDelete(ctx context.Context, record *v1alpha1.PodAttachment) (bool, error) {
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
		return false, fmt.Errorf("create the record of pod %s, which is gone: %w", of, err)
	}
	if err := c.cfg.Client.Delete(ctx, record, client.Preconditions{UID: &record.UID}); client.IgnoreNotFound(err) != nil {
		return true, fmt.Errorf("delete the record of pod %s, which is gone: %w", of, err)
	}
	return true, nil
}

// nodeUID reads the UID of a Node from the API server; empty if there is no such Node.
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

// podHolds reads a pod from the API server and reports whether it may still use its
// interfaces.
func (c *Collector) podHolds(ctx context.Context, of pod.Key) (bool, error) {
	if of.Namespace == "" || of.Name == "" {
		return false, nil // no pod has such a key
	}
	live := &corev1.Pod{}
	err := c.cfg.Live.Get(ctx, client.ObjectKey{Namespace: of.Namespace, Name: of.Name}, live)
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("read pod %s/%s: %w", of.Namespace, of.Name, err)
	}
	return err == nil && pod.KeyOf(live) == of && pod.Holds(live), nil
}

// maxAddresses is the largest number of addresses of an interface in a record.
const maxAddresses = 16

// confirmed returns the interfaces that drivers still hold according to their backends. The
// cache of records and the list of a driver may be of different times: the cache may miss a
// record whose released interface the driver still lists. If a backend does not answer,
// confirmed returns the error and the interfaces of the other drivers only.
func (c *Collector) confirmed(ctx context.Context, parts []part) ([]v1alpha1.Interface, error) {
	byDriver := map[string][]v1alpha1.Interface{}
	failed := map[string]error{}
	for _, p := range parts {
		if failed[p.driver] != nil {
			continue
		}
		i, err := c.cfg.Drivers[p.driver].Driver.Confirm(ctx, p.ref)
		switch {
		case errors.Is(err, fault.ErrNotFound):
		case err != nil:
			failed[p.driver] = fmt.Errorf("confirm interface %s of pod %s/%s: %w", p.ref.Interface.Name, p.ref.Namespace, p.ref.PodName, err)
			delete(byDriver, p.driver)
		default:
			// A pass after the deletion of the record finds the other addresses.
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

// sweep deletes a record that is released, since it has no finalizer, but not being
// deleted. It reports whether it did.
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
