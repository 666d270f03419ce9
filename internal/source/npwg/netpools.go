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
	"fairlead.dev/fairlead/internal/run"
)

// observePools watches IPPools. A changed pool may open or close to networks. A pool that
// was written for a network may be deleted by hand, and is written again, or may not be
// needed any more.
func (n *Networks) observePools(ctx context.Context) (cache.ResourceEventHandlerRegistration, error) {
	informer, err := n.cfg.Informers.GetInformer(ctx, &v1alpha1.IPPool{}, ctrlcache.BlockUntilSynced(false))
	if err != nil {
		return nil, fmt.Errorf("watch IPPools: %w", err)
	}
	return run.Observe(informer, func(was, is *v1alpha1.IPPool) {
		n.observePool(is, was == nil || was.Generation != is.Generation || !maps.Equal(was.Labels, is.Labels))
	}, n.forgetPool)
}

// observePool stores a pool as it is now; news is true unless only its status changed.
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

// poolChanged enqueues the networks that a pool concerns: those of the namespace that it
// was written for, or all if a person wrote it.
func (n *Networks) poolChanged(p knownPool, news bool) {
	if namespace := p.writtenFor(); namespace != "" {
		n.queue.Add(types.NamespacedName{Namespace: namespace})
		return
	}
	if news {
		n.requeue(func(types.NamespacedName, *network) bool { return true })
	}
}

// observeNamespaces watches the labels of namespaces, by which pools are opened.
func (n *Networks) observeNamespaces(ctx context.Context) (cache.ResourceEventHandlerRegistration, error) {
	informer, err := n.cfg.Informers.GetInformer(ctx, &corev1.Namespace{}, ctrlcache.BlockUntilSynced(false))
	if err != nil {
		return nil, fmt.Errorf("watch Namespaces: %w", err)
	}
	return run.Observe(informer, func(_, namespace *corev1.Namespace) {
		n.mu.Lock()
		was, ok := n.labels[namespace.Name]
		n.labels[namespace.Name] = namespace.Labels
		n.mu.Unlock()
		if !ok || !maps.Equal(was, namespace.Labels) {
			n.requeue(func(key types.NamespacedName, _ *network) bool { return key.Namespace == namespace.Name })
		}
	}, func(namespace *corev1.Namespace) {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.labels, namespace.Name)
	})
}

// Run writes the pools that networks need, and deletes those that are not needed any
// more, until ctx ends. It does each step within while, which waits until this process
// leads.
func (n *Networks) Run(ctx context.Context, while func(context.Context, func(context.Context) error) error) error {
	stop := context.AfterFunc(ctx, n.queue.ShutDown)
	defer stop()
	work, ctx := errgroup.WithContext(ctx)
	work.Go(func() error { return n.warnings.Start(ctx) })
	work.Go(func() error { n.work(ctx, while); return nil })
	return work.Wait()
}

// work handles the keys in the queue until it is shut down.
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
			log.FromContext(ctx).Error(err, "cannot write or delete the pools of a network, trying again", "network", key)
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

// remarks are the texts that a person should know about a network, by the reason of the
// event.
type remarks map[string]string

func (r remarks) add(reason, format string, args ...any) {
	if r[reason] != "" {
		r[reason] += "; "
	}
	r[reason] += fmt.Sprintf(format, args...)
}

// post makes each remark a warning on the network, and ends the warnings without a
// remark.
func (n *Networks) post(of corev1.ObjectReference, r remarks) {
	for _, reason := range []string{eventNetworkInvalid, eventNetworkDiffers, eventRangeShared, eventPoolFailed, eventPoolLimit} {
		if note := r[reason]; note != "" {
			n.warnings.Tell(of, reason, reason, "ReadNetwork", note)
		} else {
			n.warnings.Over(of, reason)
		}
	}
}

// provide writes the pools of one network and deletes those that its namespace does not
// need any more. It posts warnings on the network. For a network that is gone, or a key
// without a name, it only deletes. again is the time until the next try; zero if an event
// will follow.
func (n *Networks) provide(ctx context.Context, key types.NamespacedName) (again time.Duration, err error) {
	n.mu.Lock()
	known, ready := n.m[key], n.unread == nil
	n.mu.Unlock()
	if !ready {
		return 0, nil // all are enqueued when all are known
	}
	again, err = n.tidy(ctx, key.Namespace)
	if known == nil {
		n.warnings.Forget(key)
		return again, err
	}
	r := remarks{}
	if known.err != nil {
		r.add(eventNetworkInvalid, "pods cannot be attached: %v", known.err)
	}
	if known.Refused != nil && n.cfg.Attaching {
		r.add(eventNetworkInvalid, "pods cannot be attached: %v", known.Refused)
	}
	if len(known.Warnings) > 0 {
		r.add(eventNetworkDiffers, "not served as configured: %s", strings.Join(known.Warnings, "; "))
		log.FromContext(ctx).Info("network is not served as configured", "network", key, "warnings", known.Warnings)
	}
	if known.Whereabouts != nil {
		err = errors.Join(err, n.provideReach(ctx, key, known, r))
	}
	n.post(known.object, r)
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
		return nil // the remark reports it; a change of the network or of a pool enqueues it again
	}
	if len(reach.own) > 0 && shared != "" {
		r.add(eventRangeShared, "range %s: a network of another namespace has addresses of it too, in an address space of its own: on one link an address could be given twice; "+
			"an IPPool whose spec.networkNamespaceSelector selects both namespaces gives them one", shared)
		log.FromContext(ctx).Info("networks of several namespaces have the same addresses, each in a domain of its own", "network", key, "others", others)
	}
	return n.writePools(ctx, key, reach.own, r)
}

// sharedWith returns the networks of other namespaces whose ranges overlap with those of
// a network, and one of its ranges that does; empty if there is none. n.mu is held.
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

// sharedRange returns the first range of network a that overlaps with a range of b; empty
// if none does.
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

// writePools writes the missing pools of a network, as long as its namespace may have
// more.
func (n *Networks) writePools(ctx context.Context, key types.NamespacedName, own []v1alpha1.IPPool, r remarks) error {
	var errs []error
	for i := range own {
		pool := newKnownPool(own[i].DeepCopy())
		n.mu.Lock()
		has, ok := n.pools[pool.Name]
		count := len(n.written(key.Namespace))
		if !ok && count < n.cfg.MaxPools {
			n.pools[pool.Name] = pool // before the write: its event may come before the reply
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

// written returns the pools that were written for networks of a namespace, sorted by
// name. n.mu is held.
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

// tidy deletes the pools that were written for networks of a namespace, if no network
// needs them any more and none of their addresses is in use.
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
		case apierrors.IsConflict(err): // its status was written: its event enqueues it again
		case client.IgnoreNotFound(err) != nil:
			errs = append(errs, fmt.Errorf("delete IPPool %s, which no network needs any more: %w", p.Name, err))
		default:
			log.FromContext(ctx).Info("deleted an IPPool that no network needs any more", "pool", p.Name, "namespace", namespace)
		}
	}
	return again, errors.Join(errs...)
}

// soonest returns the earlier of two times to try again; zero is never.
func soonest(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// needless returns the pools written for a namespace's networks from which none of them
// draws.
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
