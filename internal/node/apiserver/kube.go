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
)

// Events is who a Source tells.
type Events struct {
	// Updated is called for a PodAttachment of this node that is new or changed.
	Updated func(*v1alpha1.PodAttachment)
	// Deleted is called for one that is gone.
	Deleted func(*v1alpha1.PodAttachment)
	// Synced is called once, after Updated was called for all there were.
	Synced func()
	// NetworksChanged is called when the NodeNetworks can be listed, and after
	// each change among them.
	NetworksChanged func()
}

// callTimeout bounds one call to the API server.
const callTimeout = 15 * time.Second

// The resources of our own, as the API server names them.
const (
	attachmentResource = "podattachments"
	networkResource    = "nodenetworks"
)

// Kube is the API server, and what it says of this node, kept in memory. It is
// made of client-go's parts that know no types: those that do, and all that is
// built on them, would be most of the daemon.
type Kube struct {
	node string
	// ours serves this project's API, events that of events.
	ours, events rest.Interface
	metadata     metadata.Interface
	// Nobody changes what these hold, so nothing of it is copied.
	attachments, networks toolscache.SharedIndexInformer
}

// NewKube returns the API server as a node sees it: the PodAttachments of its
// own, and every NodeNetwork. Nothing is asked before it is used, so that the
// daemon starts while the API server is away. failed is told of every watch
// that could not be started or went on with an error; nil tells nobody.
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

// clientFor returns a client of one version of one group, whose types register
// adds.
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

// inform returns what keeps the objects of a resource in memory, those that a
// selector chooses, once it runs.
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

// stripManagedFields drops what nobody here reads, before it is kept in memory.
func stripManagedFields(o any) (any, error) {
	if m, err := meta.Accessor(o); err == nil {
		m.SetManagedFields(nil)
	}
	return o, nil
}

// PatchAttachment merges a patch into the status of a PodAttachment.
func (k *Kube) PatchAttachment(ctx context.Context, key types.NamespacedName, patch []byte) (*v1alpha1.PodAttachment, error) {
	pa := &v1alpha1.PodAttachment{}
	if err := k.patchStatus(ctx, attachmentResource, key, patch, pa); err != nil {
		return nil, err
	}
	pa.ManagedFields = nil
	return pa, nil
}

// PatchNetwork merges a patch into the status of a NodeNetwork.
func (k *Kube) PatchNetwork(ctx context.Context, name string, patch []byte) (*v1alpha1.NodeNetwork, error) {
	nn := &v1alpha1.NodeNetwork{}
	if err := k.patchStatus(ctx, networkResource, types.NamespacedName{Name: name}, patch, nn); err != nil {
		return nil, err
	}
	nn.ManagedFields = nil
	return nn, nil
}

// patchStatus merges a patch into the status of an object, and reads into what
// came of it.
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

// Networks lists every NodeNetwork, from memory, as soon as all were read. The
// objects must not be changed.
func (k *Kube) Networks(ctx context.Context) ([]v1alpha1.NodeNetwork, error) {
	select {
	case <-k.networks.HasSyncedChecker().Done():
	case <-ctx.Done():
		return nil, fmt.Errorf("NodeNetworks were not read from the API server yet: %w", context.Cause(ctx))
	}
	kept := k.networks.GetStore().List()
	all := make([]v1alpha1.NodeNetwork, len(kept))
	for i, o := range kept {
		all[i] = *o.(*v1alpha1.NodeNetwork)
	}
	return all, nil
}

// Watch tells of every PodAttachment of the node and of changes among the
// NodeNetworks until ctx ends. It is called once.
func (k *Kube) Watch(ctx context.Context, e Events) error {
	seen, err := k.attachments.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { e.Updated(o.(*v1alpha1.PodAttachment)) },
		UpdateFunc: func(_, o any) { e.Updated(o.(*v1alpha1.PodAttachment)) },
		DeleteFunc: func(o any) {
			if gone, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			e.Deleted(o.(*v1alpha1.PodAttachment))
		},
	})
	if err != nil {
		return fmt.Errorf("watch PodAttachments: %w", err)
	}
	read, err := k.networks.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { e.NetworksChanged() },
		UpdateFunc: func(before, after any) {
			if k.isNews(before.(*v1alpha1.NodeNetwork), after.(*v1alpha1.NodeNetwork)) {
				e.NetworksChanged()
			}
		},
		DeleteFunc: func(any) { e.NetworksChanged() },
	})
	if err != nil {
		return fmt.Errorf("watch NodeNetworks: %w", err)
	}
	var g sync.WaitGroup
	g.Go(func() { k.attachments.RunWithContext(ctx) })
	g.Go(func() { k.networks.RunWithContext(ctx) })
	g.Go(func() { after(ctx, seen, e.Synced) })
	g.Go(func() { after(ctx, read, e.NetworksChanged) }) // also when there is none
	g.Wait()
	return nil
}

// isNews tells whether a change to a NodeNetwork matters on this node: of others
// only where they are and what leads there, not how they fare.
func (k *Kube) isNews(before, after *v1alpha1.NodeNetwork) bool {
	return after.Name == k.node || before.UID != after.UID ||
		!slices.Equal(before.Spec.Blocks, after.Spec.Blocks) ||
		(before.Spec.Underlay == nil) != (after.Spec.Underlay == nil) || !slices.Equal(before.Spec.Underlay, after.Spec.Underlay) ||
		!slices.Equal(before.Status.Addresses, after.Status.Addresses) ||
		!equality.Semantic.DeepEqual(before.Status.Tunnel, after.Status.Tunnel)
}

// after calls f when all that was there at the beginning was told.
func after(ctx context.Context, told toolscache.ResourceEventHandlerRegistration, f func()) {
	select {
	case <-told.HasSyncedChecker().Done():
		f()
	case <-ctx.Done():
	}
}
