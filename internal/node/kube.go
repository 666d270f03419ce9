package node

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// callTimeout bounds one call to the API server.
const callTimeout = 15 * time.Second

// Kube is the API server, and what it says of this node, kept in memory.
type Kube struct {
	node   string
	client client.Client
	cache  cache.Cache
}

// NewKube returns the API server as a node sees it: the PodAttachments of its
// own, and every NodeNetwork. Nothing is asked before it is used, so that the
// daemon starts while the API server is away. failed is told of every watch
// that could not be started or went on with an error; nil tells nobody.
func NewKube(cfg *rest.Config, nodeName string, failed toolscache.WatchErrorHandlerWithContext) (*Kube, error) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("register the API types: %w", err)
	}
	if err := errors.Join(corev1.AddToScheme(scheme), eventsv1.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("register the core types: %w", err)
	}
	web, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to Kubernetes: %w", err)
	}
	mapper := kinds()
	c, err := client.New(cfg, client.Options{HTTPClient: web, Scheme: scheme, Mapper: mapper})
	if err != nil {
		return nil, fmt.Errorf("connect to Kubernetes: %w", err)
	}
	watched, err := newCache(cfg, web, scheme, mapper, nodeName, failed)
	if err != nil {
		return nil, err
	}
	return &Kube{node: nodeName, client: c, cache: watched}, nil
}

// kinds is what discovery would answer. The daemon knows its kinds, and does
// not ask.
func kinds() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper(nil)
	m.Add(v1alpha1.GroupVersion.WithKind("PodAttachment"), meta.RESTScopeNamespace)
	m.Add(v1alpha1.GroupVersion.WithKind("NodeNetwork"), meta.RESTScopeRoot)
	m.Add(corev1.SchemeGroupVersion.WithKind("Pod"), meta.RESTScopeNamespace)
	m.Add(eventsv1.SchemeGroupVersion.WithKind("Event"), meta.RESTScopeNamespace)
	return m
}

// PatchAttachment merges a patch into the status of a PodAttachment.
func (k *Kube) PatchAttachment(ctx context.Context, key types.NamespacedName, patch []byte) (*v1alpha1.PodAttachment, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	pa := &v1alpha1.PodAttachment{}
	pa.Namespace, pa.Name = key.Namespace, key.Name
	if err := k.client.Status().Patch(ctx, pa, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return nil, err
	}
	pa.ManagedFields = nil
	return pa, nil
}

// PatchNetwork merges a patch into the status of a NodeNetwork.
func (k *Kube) PatchNetwork(ctx context.Context, name string, patch []byte) (*v1alpha1.NodeNetwork, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	nn := &v1alpha1.NodeNetwork{}
	nn.Name = name
	if err := k.client.Status().Patch(ctx, nn, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return nil, err
	}
	nn.ManagedFields = nil
	return nn, nil
}

// Pod reads the metadata of a pod from the API server.
func (k *Kube) Pod(ctx context.Context, key types.NamespacedName) (*metav1.PartialObjectMetadata, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	pod := &metav1.PartialObjectMetadata{}
	pod.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
	if err := k.client.Get(ctx, key, pod); err != nil {
		return nil, err
	}
	return pod, nil
}

// CreateEvent writes an event.
func (k *Kube) CreateEvent(ctx context.Context, e *eventsv1.Event) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return k.client.Create(ctx, e)
}

// Networks lists every NodeNetwork, from memory. The objects must not be
// changed.
func (k *Kube) Networks(ctx context.Context) ([]v1alpha1.NodeNetwork, error) {
	var list v1alpha1.NodeNetworkList
	if err := k.cache.List(ctx, &list); err != nil {
		return nil, err
	}
	return list.Items, nil
}

// Watch tells of every PodAttachment of the node and of changes among the
// NodeNetworks until ctx ends.
func (k *Kube) Watch(ctx context.Context, e Events) error {
	attachments, err := k.cache.GetInformer(ctx, &v1alpha1.PodAttachment{}, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watch PodAttachments: %w", err)
	}
	seen, err := attachments.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
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
	networks, err := k.cache.GetInformer(ctx, &v1alpha1.NodeNetwork{}, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watch NodeNetworks: %w", err)
	}
	read, err := networks.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
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
	go after(ctx, seen, e.Synced)
	go after(ctx, read, e.NetworksChanged) // also when there is none
	return k.cache.Start(ctx)
}

// isNews tells whether a change to a NodeNetwork matters on this node: of others
// only where they are and what leads there, not how they fare.
func (k *Kube) isNews(before, after *v1alpha1.NodeNetwork) bool {
	return after.Name == k.node || before.UID != after.UID ||
		!slices.Equal(before.Spec.Blocks, after.Spec.Blocks) ||
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

func newCache(cfg *rest.Config, web *http.Client, scheme *runtime.Scheme, mapper meta.RESTMapper, nodeName string, failed toolscache.WatchErrorHandlerWithContext) (cache.Cache, error) {
	shared := true
	c, err := cache.New(cfg, cache.Options{
		HTTPClient: web, Scheme: scheme, Mapper: mapper,
		ReaderFailOnMissingInformer: true,
		DefaultTransform:            cache.TransformStripManagedFields(),
		// Nobody here changes what it reads, so nothing is copied.
		DefaultUnsafeDisableDeepCopy: &shared,
		DefaultWatchErrorHandler:     failed,
		ByObject: map[client.Object]cache.ByObject{
			&v1alpha1.PodAttachment{}: {Field: fields.OneTermEqualSelector("spec.nodeName", nodeName)},
			&v1alpha1.NodeNetwork{}:   {},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("connect to Kubernetes: %w", err)
	}
	return c, nil
}
