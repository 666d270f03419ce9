package ipclaim

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"fairlead.dev/fairlead/internal/run"
)

// referenceInterval is the interval of the checks for the kind of IPAMClaims while the
// cluster does not have it, and something needs it.
const referenceInterval = 10 * time.Second

// References are the IPAMClaims of the cluster, watched from the first Get on. A cluster
// without pods that reference one has no such watch.
type References struct {
	// Cache has the IPAMClaims.
	Cache ctrlcache.Cache

	need   sync.Once
	needed chan struct{}

	mu     sync.Mutex
	unread error // why they are not all known; nil if they are
	// changed is called with each IPAMClaim that comes, changes or goes, and added when
	// one may have come.
	changed func(types.NamespacedName)
	added   func()
}

// NewReferences returns References that know nothing yet.
func NewReferences(c ctrlcache.Cache) *References {
	return &References{
		Cache: c, needed: make(chan struct{}), unread: errors.New("IPAMClaims are still being listed"),
		changed: func(types.NamespacedName) {}, added: func() {},
	}
}

// Get reads an IPAMClaim, never from the API server. Errors: those of the cache, a NoMatch
// error if the cluster has no IPAMClaims, any other until they have been listed.
func (r *References) Get(ctx context.Context, key types.NamespacedName) (*unstructured.Unstructured, error) {
	r.need.Do(func() { close(r.needed) })
	r.mu.Lock()
	unread := r.unread
	r.mu.Unlock()
	if unread != nil {
		return nil, unread
	}
	o := newReference()
	if err := r.Cache.Get(ctx, key, o); err != nil {
		return nil, err
	}
	return o, nil
}

// newReference returns an IPAMClaim without content.
func newReference() *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetAPIVersion(ipamClaimVersion)
	o.SetKind(ipamClaimKind)
	return o
}

// OnAdded has f called when an IPAMClaim may have come for which a pod waits.
func (r *References) OnAdded(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.added = f
}

// Watch has changed called with each IPAMClaim that comes, changes or goes. It returns nil
// at once, and watches until ctx ends.
func (r *References) Watch(ctx context.Context, changed func(types.NamespacedName)) error {
	r.mu.Lock()
	r.changed = changed
	r.mu.Unlock()
	go r.watch(ctx)
	return nil
}

// watch connects the informer when something needs it, and tries again while the kind does
// not exist: it may be installed later.
func (r *References) watch(ctx context.Context) {
	select {
	case <-r.needed:
	case <-ctx.Done():
		return
	}
	tick := time.NewTicker(referenceInterval)
	defer tick.Stop()
	for logged := false; ; {
		err := r.observe(ctx)
		if err == nil {
			return
		}
		r.setUnread(err)
		if !logged {
			logged = true
			log.FromContext(ctx).Error(err, "pods that reference IPAMClaims wait", "every", referenceInterval)
			r.wake() // the events of these pods have this reason
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (r *References) setUnread(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unread = err
}

func (r *References) wake() {
	r.mu.Lock()
	added := r.added
	r.mu.Unlock()
	added()
}

// observe watches the IPAMClaims, and returns nil when all have been read or ctx ends. It
// fails if the kind does not exist.
func (r *References) observe(ctx context.Context) error {
	informer, err := r.Cache.GetInformer(ctx, newReference(), ctrlcache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watch IPAMClaims: %w", err)
	}
	r.mu.Lock()
	changed := r.changed
	r.mu.Unlock()
	fed, err := run.Observe(informer, func(was, is *unstructured.Unstructured) {
		changed(client.ObjectKeyFromObject(is))
		if was == nil {
			r.wake()
		}
	}, func(o *unstructured.Unstructured) { changed(client.ObjectKeyFromObject(o)) })
	if err != nil {
		return fmt.Errorf("watch IPAMClaims: %w", err)
	}
	select {
	case <-fed.HasSyncedChecker().Done():
	case <-ctx.Done():
		return nil
	}
	r.setUnread(nil)
	r.wake()
	return nil
}
