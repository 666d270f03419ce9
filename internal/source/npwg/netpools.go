package npwg

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// observePools takes in IPPools: a change of one may open or close it to networks,
// have one written again that somebody deletes, or end one that is of no use any more.
func (n *Networks) observePools(ctx context.Context) (cache.ResourceEventHandlerRegistration, error) {
	informer, err := n.cfg.Informers.GetInformer(ctx, &v1alpha1.IPPool{}, ctrlcache.BlockUntilSynced(false))
	if err != nil {
		return nil, fmt.Errorf("watch IPPools: %w", err)
	}
	return informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { n.observePool(o.(*v1alpha1.IPPool), true) },
		UpdateFunc: func(before, o any) {
			was, is := before.(*v1alpha1.IPPool), o.(*v1alpha1.IPPool)
			n.observePool(is, was.Generation != is.Generation || !maps.Equal(was.Labels, is.Labels))
		},
		DeleteFunc: func(o any) { n.forgetPool(lastShown(o).(*v1alpha1.IPPool)) },
	})
}

// observePool takes in a pool as it is now; news are more than its status.
func (n *Networks) observePool(o *v1alpha1.IPPool, news bool) {
	p := newKnownPool(o)
	n.mu.Lock()
	n.pools[o.Name] = p
	n.mu.Unlock()
	n.poolChanged(p, news)
}

func (n *Networks) forgetPool(o *v1alpha1.IPPool) {
	n.mu.Lock()
	delete(n.pools, o.Name)
	n.mu.Unlock()
	n.poolChanged(newKnownPool(o), true)
	if namespace := o.Labels[v1alpha1.LabelNetworkNamespace]; namespace != "" {
		n.requeue(func(key types.NamespacedName, _ *network) bool { return key.Namespace == namespace })
	}
}

// poolChanged has those looked at that a pool concerns: its namespace, or, when a
// person wrote it, all networks.
func (n *Networks) poolChanged(p knownPool, news bool) {
	if namespace := p.writtenFor(); namespace != "" {
		n.queue.Add(types.NamespacedName{Namespace: namespace})
		return
	}
	if news {
		n.requeue(func(types.NamespacedName, *network) bool { return true })
	}
}

// observeNamespaces takes in the labels of namespaces, by which pools are opened.
func (n *Networks) observeNamespaces(ctx context.Context) (cache.ResourceEventHandlerRegistration, error) {
	informer, err := n.cfg.Informers.GetInformer(ctx, &corev1.Namespace{}, ctrlcache.BlockUntilSynced(false))
	if err != nil {
		return nil, fmt.Errorf("watch Namespaces: %w", err)
	}
	see := func(o any) {
		namespace := o.(*corev1.Namespace)
		n.mu.Lock()
		was, ok := n.labels[namespace.Name]
		n.labels[namespace.Name] = namespace.Labels
		n.mu.Unlock()
		if !ok || !maps.Equal(was, namespace.Labels) {
			n.requeue(func(key types.NamespacedName, _ *network) bool { return key.Namespace == namespace.Name })
		}
	}
	return informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    see,
		UpdateFunc: func(_, o any) { see(o) },
		DeleteFunc: func(o any) {
			n.mu.Lock()
			defer n.mu.Unlock()
			delete(n.labels, lastShown(o).(*corev1.Namespace).Name)
		},
	})
}

// lastShown is the object of a delete event, also of one that the watch missed.
func lastShown(o any) any {
	if missed, ok := o.(cache.DeletedFinalStateUnknown); ok {
		return missed.Obj
	}
	return o
}

// Run writes the pools that networks need, and deletes those that are of no use any
// more, until ctx ends, each while this process leads, which while waits for.
func (n *Networks) Run(ctx context.Context, while func(context.Context, func(context.Context) error) error) error {
	stop := context.AfterFunc(ctx, n.queue.ShutDown)
	defer stop()
	work, ctx := errgroup.WithContext(ctx)
	work.Go(func() error { return n.told.Start(ctx) })
	work.Go(func() error { n.work(ctx, while); return nil })
	return work.Wait()
}

// work looks at what is in the queue until that is shut down.
func (n *Networks) work(ctx context.Context, while func(context.Context, func(context.Context) error) error) {
	for {
		key, shutdown := n.queue.Get()
		if shutdown {
			return
		}
		var again time.Duration
		err := while(ctx, func(ctx context.Context) (err error) {
			again, err = n.provide(ctx, key)
			return err
		})
		switch {
		case err != nil && ctx.Err() == nil:
			log.FromContext(ctx).Error(err, "the pools of a network could not be brought to where they should be, will be tried again", "network", key)
			n.queue.AddRateLimited(key)
		case again > 0:
			n.queue.Forget(key)
			n.queue.AddAfter(key, again)
		default:
			n.queue.Forget(key)
		}
		n.queue.Done(key)
	}
}

// remarks are what a person should know of a network, by the reason of the event.
type remarks map[string]string

func (r remarks) add(reason, format string, args ...any) {
	if r[reason] != "" {
		r[reason] += "; "
	}
	r[reason] += fmt.Sprintf(format, args...)
}

// say makes each remark a warning on the network, and ends those that are not so any
// more.
func (n *Networks) say(of corev1.ObjectReference, r remarks) {
	for _, reason := range []string{eventNetworkInvalid, eventNetworkDiffers, eventRangeShared, eventPoolFailed, eventPoolLimit} {
		if note := r[reason]; note != "" {
			n.told.Tell(of, reason, reason, "ReadNetwork", note)
		} else {
			n.told.Over(of, reason)
		}
	}
}

// provide brings the pools of one network to where they should be, and says on it what
// a person should know. A network that is gone, or a key without a name, stands for
// what is of no use in the namespace any more. again is when to look once more; zero
// when something will tell.
func (n *Networks) provide(ctx context.Context, key types.NamespacedName) (again time.Duration, err error) {
	n.mu.Lock()
	known, ready := n.m[key], n.unread == nil
	n.mu.Unlock()
	if !ready {
		return 0, nil // all are looked at when all are known
	}
	again, err = n.tidy(ctx, key.Namespace)
	if known == nil {
		n.told.Forget(key)
		return again, err
	}
	r := remarks{}
	if known.err != nil {
		r.add(eventNetworkInvalid, "pods cannot be attached: %v", known.err)
	}
	if len(known.Warnings) > 0 {
		r.add(eventNetworkDiffers, "not as the configuration says: %s", strings.Join(known.Warnings, "; "))
		log.FromContext(ctx).Info("network is not served as its configuration says", "network", key, "warnings", known.Warnings)
	}
	if known.Whereabouts != nil {
		err = errors.Join(err, n.provideReach(ctx, key, known, r))
	}
	n.say(known.object, r)
	return again, err
}

// provideReach writes the pools of a network with the configuration of whereabouts.
func (n *Networks) provideReach(ctx context.Context, key types.NamespacedName, known *network, r remarks) error {
	n.mu.Lock()
	reach, err := n.reachOf(key.Namespace, known.Whereabouts)
	shared, others := n.sharedWith(key, known)
	n.mu.Unlock()
	if err != nil {
		r.add(eventNetworkInvalid, "pods cannot be attached: %v", err)
		return nil // it is told; a change of the network or of a pool brings it back
	}
	if len(reach.own) > 0 && shared != "" {
		r.add(eventRangeShared, "range %s: a network of another namespace has addresses of it too, in an address space of its own: on one link an address could be given twice; "+
			"an IPPool whose spec.networkNamespaceSelector selects both namespaces gives them one", shared)
		log.FromContext(ctx).Info("networks of several namespaces have the same addresses, each in a domain of its own", "network", key, "others", others)
	}
	return n.writePools(ctx, key, reach.own, r)
}

// sharedWith are the networks of other namespaces with addresses of the same ranges,
// and such a range; empty when there is none. n.mu is held.
func (n *Networks) sharedWith(key types.NamespacedName, known *network) (shared string, others []types.NamespacedName) {
	for other, o := range n.m {
		if other.Namespace == key.Namespace {
			continue
		}
		if text := sharedRange(known, o); text != "" {
			others = append(others, other)
			if shared == "" || text < shared {
				shared = text
			}
		}
	}
	slices.SortFunc(others, func(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) })
	return shared, others
}

// sharedRange is the first range of a network that another one has addresses of too;
// empty when there is none.
func sharedRange(a, b *network) string {
	if a == nil || b == nil || a.Whereabouts == nil || b.Whereabouts == nil {
		return ""
	}
	for _, r := range a.Whereabouts.Ranges {
		for _, s := range b.Whereabouts.Ranges {
			if r.Prefix.Overlaps(s.Prefix) {
				return r.Prefix.String()
			}
		}
	}
	return ""
}

// writePools writes the pools that a network needs and has not, as long as its
// namespace may have more.
func (n *Networks) writePools(ctx context.Context, key types.NamespacedName, own []v1alpha1.IPPool, r remarks) error {
	var errs []error
	for i := range own {
		pool := newKnownPool(own[i].DeepCopy())
		n.mu.Lock()
		has, ok := n.pools[pool.Name]
		count := len(n.written(key.Namespace))
		if !ok && count < n.cfg.MaxPools {
			n.pools[pool.Name] = pool // before it is written: the informer may show sooner that it is, or is gone
		}
		n.mu.Unlock()
		switch {
		case ok && has.writtenFor() == key.Namespace:
			continue
		case ok:
			r.add(eventPoolFailed, "IPPool %s is there, and was not written for it: the operator has to delete it", pool.Name)
			continue
		case count >= n.cfg.MaxPools:
			r.add(eventPoolLimit, "IPPool %s is not written: for the networks of namespace %s there are %d, the most that a namespace may have (networkPoolsPerNamespace): "+
				"delete networks, or ask the operator for pools", pool.Name, key.Namespace, count)
			log.FromContext(ctx).Info("a namespace has as many pools for networks as it may have", "network", key, "pools", count)
			return errors.Join(errs...)
		}
		if err := n.cfg.Client.Create(ctx, pool.DeepCopy()); err != nil {
			n.mu.Lock()
			if n.pools[pool.Name].IPPool == pool.IPPool {
				delete(n.pools, pool.Name)
			}
			n.mu.Unlock()
			if !apierrors.IsAlreadyExists(err) {
				r.add(eventPoolFailed, "IPPool %s could not be written: %v", pool.Name, err)
				errs = append(errs, fmt.Errorf("write IPPool %s: %w", pool.Name, err))
			}
		}
	}
	return errors.Join(errs...)
}

// written are the pools that were written for networks of a namespace, by name. n.mu
// is held.
func (n *Networks) written(namespace string) []knownPool {
	var out []knownPool
	for _, p := range n.pools {
		if p.writtenFor() == namespace {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b knownPool) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// tidy deletes the pools that were written for networks of a namespace, that none of
// them needs any more, and of which nothing is in use.
func (n *Networks) tidy(ctx context.Context, namespace string) (again time.Duration, err error) {
	var errs []error
	for _, p := range n.needless(namespace) {
		vacant, later, err := n.cfg.Vacant(ctx, p.IPPool)
		if err != nil {
			errs = append(errs, fmt.Errorf("look whether IPPool %s is in use: %w", p.Name, err))
			continue
		}
		if !vacant {
			again = soonest(again, later)
			continue
		}
		err = n.cfg.Client.Delete(ctx, p.DeepCopy(), client.Preconditions{UID: &p.UID, ResourceVersion: &p.ResourceVersion})
		switch {
		case apierrors.IsConflict(err): // its status was written: it is looked at again
		case client.IgnoreNotFound(err) != nil:
			errs = append(errs, fmt.Errorf("delete IPPool %s, which no network needs any more: %w", p.Name, err))
		default:
			log.FromContext(ctx).Info("deleted an IPPool that no network needs any more", "pool", p.Name, "namespace", namespace)
		}
	}
	return again, errors.Join(errs...)
}

// soonest is the earlier of two times to look again; zero is never.
func soonest(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// needless are the pools of a namespace's networks that none of them draws from.
func (n *Networks) needless(namespace string) []knownPool {
	n.mu.Lock()
	defer n.mu.Unlock()
	written := n.written(namespace)
	if len(written) == 0 {
		return nil
	}
	needed := map[string]bool{}
	for key, known := range n.m {
		if key.Namespace != namespace || known.Whereabouts == nil {
			continue
		}
		if reach, err := n.reachOf(namespace, known.Whereabouts); err == nil {
			for _, name := range reach.pools {
				needed[name] = true
			}
		}
	}
	return slices.DeleteFunc(written, func(p knownPool) bool { return needed[p.Name] || p.DeletionTimestamp != nil })
}
