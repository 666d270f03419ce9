package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/run"
)

// Events has the callbacks of Watch.
type Events struct {
	// Updated is called with a new or changed PodAttachment of this node.
	Updated func(*v1alpha1.PodAttachment)
	// Deleted is called with a PodAttachment of this node that was deleted.
	Deleted func(*v1alpha1.PodAttachment)
	// Synced is called once, after Updated was called for each PodAttachment of the first
	// list.
	Synced func()
	// NetworksChanged is called when the NodeNetworks can be listed, and after each
	// change that matters to this node.
	NetworksChanged func()
}

// callTimeout is the longest duration of one call to the API server.
const callTimeout = 15 * time.Second

// The names of Fairlead's resources in the API.
const (
	attachmentResource = "podattachments"
	networkResource    = "nodenetworks"
)

// Kube is a client of the API server, with a cache of the PodAttachments of this node and
// of every NodeNetwork. It uses the parts of client-go without generated types. The typed
// clients, and the libraries built on them, would make up most of the daemon.
type Kube struct {
	node string
	// ours is the client of Fairlead's API group, events that of events.k8s.io.
	ours, events rest.Interface
	metadata     metadata.Interface
	// The cached objects are never changed, so none is copied.
	attachments, networks toolscache.SharedIndexInformer
}

// NewKube returns the client of the node nodeName. It makes no calls, so the daemon starts
// while the API server is away. failed is called when a watch cannot be started or ends
// with an error; it may be nil.
func NewKube(cfg *rest.Config, nodeName string, failed toolscache.WatchErrorHandlerWithContext) (*Kube, error) {
	web, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to Kubernetes: %w", err)
	}
	k := &Kube{node: nodeName}
	k.ours, err = clientFor(cfg, web, v1alpha1.GroupVersion, v1alpha1.AddToScheme)
	if err != nil {
		return nil, err
	}
	k.events, err = clientFor(cfg, web, eventsv1.SchemeGroupVersion, eventsv1.AddToScheme)
	if err != nil {
		return nil, err
	}
	k.metadata, err = metadata.NewForConfigAndClient(cfg, web)
	if err != nil {
		return nil, fmt.Errorf("connect to Kubernetes: %w", err)
	}
	own := fields.OneTermEqualSelector("spec.nodeName", nodeName)
	k.attachments, err = inform(k.ours, attachmentResource, own, &v1alpha1.PodAttachment{}, failed)
	if err != nil {
		return nil, err
	}
	k.networks, err = inform(k.ours, networkResource, fields.Everything(), &v1alpha1.NodeNetwork{}, failed)
	if err != nil {
		return nil, err
	}
	return k, nil
}

// clientFor returns a client of one version of one API group. register adds the types of
// the group to a scheme.
func clientFor(cfg *rest.Config, web *http.Client, gv schema.GroupVersion, register func(*runtime.Scheme) error) (rest.Interface, error) {
	scheme := runtime.NewScheme()
	if err := register(scheme); err != nil {
		return nil, fmt.Errorf("register the types of %s: %w", gv, err)
	}
	cfg = rest.CopyConfig(cfg)
	cfg.APIPath, cfg.GroupVersion = "/apis", &gv
	cfg.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	c, err := rest.RESTClientForConfigAndClient(cfg, web)
	if err != nil {
		return nil, fmt.Errorf("connect to Kubernetes for %s: %w", gv, err)
	}
	return c, nil
}

// inform returns an informer, which is to be run, of the objects of a resource that match
// a field selector.
func inform(c rest.Interface, resource string, which fields.Selector, example runtime.Object, failed toolscache.WatchErrorHandlerWithContext) (toolscache.SharedIndexInformer, error) {
	lw := toolscache.NewListWatchFromClient(c, resource, metav1.NamespaceAll, which)
	i := toolscache.NewSharedIndexInformer(lw, example, 0, toolscache.Indexers{})
	err := i.SetTransform(stripManagedFields)
	if failed != nil {
		err = errors.Join(err, i.SetWatchErrorHandlerWithContext(failed))
	}
	if err != nil {
		return nil, fmt.Errorf("prepare to watch %s: %w", resource, err)
	}
	return i, nil
}

// stripManagedFields removes the managed fields, which the daemon does not use, before an
// object is cached.
func stripManagedFields(o any) (any, error) {
	if m, err := meta.Accessor(o); err == nil {
		m.SetManagedFields(nil)
	}
	return o, nil
}

// PatchAttachment applies a merge patch to the status of a PodAttachment and returns the
// result, without managed fields.
func (k *Kube) PatchAttachment(ctx context.Context, key types.NamespacedName, patch []byte) (*v1alpha1.PodAttachment, error) {
	pa := &v1alpha1.PodAttachment{}
	if err := k.patchStatus(ctx, attachmentResource, key, patch, pa); err != nil {
		return nil, err
	}
	pa.ManagedFields = nil
	return pa, nil
}

// PatchNetwork applies a merge patch to the status of a NodeNetwork and returns the result,
// without managed fields.
func (k *Kube) PatchNetwork(ctx context.Context, name string, patch []byte) (*v1alpha1.NodeNetwork, error) {
	nn := &v1alpha1.NodeNetwork{}
	if err := k.patchStatus(ctx, networkResource, types.NamespacedName{Name: name}, patch, nn); err != nil {
		return nil, err
	}
	nn.ManagedFields = nil
	return nn, nil
}

// patchStatus applies a merge patch to the status of an object and decodes the result.
func (k *Kube) patchStatus(ctx context.Context, resource string, key types.NamespacedName, patch []byte, into runtime.Object) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return k.ours.Patch(types.MergePatchType).
		NamespaceIfScoped(key.Namespace, key.Namespace != "").Resource(resource).Name(key.Name).SubResource("status").
		Body(patch).Do(ctx).Into(into)
}

// Pod reads the metadata of a pod from the API server.
func (k *Kube) Pod(ctx context.Context, key types.NamespacedName) (*metav1.PartialObjectMetadata, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return k.metadata.Resource(corev1.SchemeGroupVersion.WithResource("pods")).Namespace(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
}

// CreateEvent writes an event.
func (k *Kube) CreateEvent(ctx context.Context, e *eventsv1.Event) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return k.events.Post().Namespace(e.Namespace).Resource("events").Body(e).Do(ctx).Error()
}

// Networks returns every NodeNetwork from the cache. It waits until the cache is filled;
// if ctx ends first, the error is the cause of ctx. The objects must not be changed.
func (k *Kube) Networks(ctx context.Context) ([]v1alpha1.NodeNetwork, error) {
	select {
	case <-k.networks.HasSyncedChecker().Done():
	case <-ctx.Done():
		return nil, fmt.Errorf("NodeNetworks have not been read from the API server yet: %w", context.Cause(ctx))
	}
	cached := k.networks.GetStore().List()
	all := make([]v1alpha1.NodeNetwork, len(cached))
	for i, o := range cached {
		all[i] = *o.(*v1alpha1.NodeNetwork)
	}
	return all, nil
}

// Watch calls e for every PodAttachment of the node and for changes of NodeNetworks until
// ctx ends. It must be called only once.
func (k *Kube) Watch(ctx context.Context, e Events) error {
	seen, err := run.Observe(k.attachments, func(_, is *v1alpha1.PodAttachment) { e.Updated(is) }, e.Deleted)
	if err != nil {
		return fmt.Errorf("watch PodAttachments: %w", err)
	}
	read, err := run.Observe(k.networks, func(was, is *v1alpha1.NodeNetwork) {
		if was == nil || k.isRelevant(was, is) {
			e.NetworksChanged()
		}
	}, func(*v1alpha1.NodeNetwork) { e.NetworksChanged() })
	if err != nil {
		return fmt.Errorf("watch NodeNetworks: %w", err)
	}
	var g sync.WaitGroup
	g.Go(func() { k.attachments.RunWithContext(ctx) })
	g.Go(func() { k.networks.RunWithContext(ctx) })
	g.Go(func() { whenSynced(ctx, seen, e.Synced) })
	g.Go(func() { whenSynced(ctx, read, e.NetworksChanged) }) // also if there is no NodeNetwork
	g.Wait()
	return nil
}

// isRelevant reports whether a change to a NodeNetwork matters to this node. Of other nodes
// only the data matters by which their pods are reached, not the conditions.
func (k *Kube) isRelevant(before, after *v1alpha1.NodeNetwork) bool {
	return after.Name == k.node || before.UID != after.UID ||
		!slices.Equal(before.Spec.Blocks, after.Spec.Blocks) ||
		(before.Spec.Underlay == nil) != (after.Spec.Underlay == nil) || !slices.Equal(before.Spec.Underlay, after.Spec.Underlay) ||
		!slices.Equal(before.Spec.Fabric.InEffect(), after.Spec.Fabric.InEffect()) ||
		!slices.Equal(before.Status.Addresses, after.Status.Addresses) ||
		!slices.Equal(before.Status.Dropped, after.Status.Dropped) ||
		!equality.Semantic.DeepEqual(before.Status.Tunnel, after.Status.Tunnel)
}

// whenSynced calls f after the handler has been called for each object of the first list.
func whenSynced(ctx context.Context, handler toolscache.ResourceEventHandlerRegistration, f func()) {
	select {
	case <-handler.HasSyncedChecker().Done():
		f()
	case <-ctx.Done():
	}
}
