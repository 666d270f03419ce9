package kube

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/nad"
	"fairlead.dev/fairlead/internal/pod"
)

// Resource is a resource that Watch reads, by its name for people.
type Resource string

// The resources.
const (
	Pods             Resource = "pods"
	PodAttachments   Resource = "podattachments.fairlead.dev"
	NodeNetworks     Resource = "nodenetworks.fairlead.dev"
	IPPools          Resource = "ippools.fairlead.dev"
	IPBlocks         Resource = "ipblocks.fairlead.dev"
	IPReservations   Resource = "ipreservations.fairlead.dev"
	PortPools        Resource = resourcePortPools
	Networks         Resource = "network-attachment-definitions.k8s.cni.cncf.io"
	ControllerEvents Resource = "events of " + ControllerName
	NodeEvents       Resource = "events of " + nodeReporter
)

// nodeReporter is the reporter of the events of nodes.
const nodeReporter = "fairlead.dev/node"

// Sink gets the objects of the resources that Watch reads, by several goroutines.
type Sink interface {
	Put(Resource, client.Object)
	Remove(Resource, client.Object)
	// Replace hands over all objects of a resource.
	Replace(Resource, []client.Object)
	// Refused reports why a resource cannot be read at present.
	Refused(Resource, error)
}

// ErrForbidden means that the user may not read a resource.
var ErrForbidden = errors.New("not permitted")

// ErrMissing means that the API server does not have a resource.
var ErrMissing = errors.New("not in this cluster")

// watched are the resources with an empty object and list of each.
var watched = []struct {
	resource   Resource
	object     client.Object
	list       client.ObjectList
	namespaced bool
	selected   string // field selector
}{
	{Pods, &corev1.Pod{}, &corev1.PodList{}, true, "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"},
	{PodAttachments, &v1alpha1.PodAttachment{}, &v1alpha1.PodAttachmentList{}, true, ""},
	{NodeNetworks, &v1alpha1.NodeNetwork{}, &v1alpha1.NodeNetworkList{}, false, ""},
	{IPPools, &v1alpha1.IPPool{}, &v1alpha1.IPPoolList{}, false, ""},
	{IPBlocks, &v1alpha1.IPBlock{}, &v1alpha1.IPBlockList{}, false, ""},
	{IPReservations, &v1alpha1.IPReservation{}, &v1alpha1.IPReservationList{}, false, ""},
	{PortPools, &v1alpha1.PortPool{}, &v1alpha1.PortPoolList{}, false, ""},
	{Networks, networkObject(), &unstructured.UnstructuredList{Object: networkObject().Object}, true, ""},
	{ControllerEvents, &eventsv1.Event{}, &eventsv1.EventList{}, true, "reportingController=" + ControllerName},
	{NodeEvents, &eventsv1.Event{}, &eventsv1.EventList{}, true, "reportingController=" + nodeReporter},
}

func networkObject() *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(nad.Kind)
	return o
}

// Watch reads all resources until ctx ends, with the rights of the user. A namespace limits
// the resources that have one; empty for all. A resource that cannot be read is tried again
// with growing pauses.
func (c *Connection) Watch(ctx context.Context, namespace string, to Sink) error {
	cfg, err := c.config()
	if err != nil {
		return err
	}
	cfg.Timeout = 0 // a watch lasts
	options, err := kinds()
	if err != nil {
		return err
	}
	log.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard()) // the sink gets the errors
	api, err := client.NewWithWatch(cfg, options)
	if err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	var running sync.WaitGroup
	for _, w := range watched {
		within := ""
		if w.namespaced {
			within = namespace
		}
		f := feed{api, w.resource, w.list, within, fields.ParseSelectorOrDie(w.selected), to}
		reflector := toolscache.NewReflectorWithOptions(f.listWatch(), w.object, f, toolscache.ReflectorOptions{Name: string(w.resource)})
		running.Go(func() { reflector.RunWithContext(ctx) })
	}
	running.Wait()
	return nil
}

// Server returns the address of the API server.
func (c *Connection) Server() (string, error) {
	cfg, err := c.config()
	if err != nil {
		return "", err
	}
	return cfg.Host, nil
}

// feed reads one resource. It implements toolscache.ReflectorStore.
type feed struct {
	api       client.WithWatch
	resource  Resource
	list      client.ObjectList
	namespace string
	selected  fields.Selector
	to        Sink
}

// listWatch returns the requests of the feed, which report their errors to the sink.
func (f feed) listWatch() *toolscache.ListWatch {
	return &toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, raw metav1.ListOptions) (runtime.Object, error) {
			list, _ := f.list.DeepCopyObject().(client.ObjectList)
			err := f.api.List(ctx, list, f.options(raw))
			f.report(ctx, err, true)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, raw metav1.ListOptions) (watch.Interface, error) {
			list, _ := f.list.DeepCopyObject().(client.ObjectList)
			w, err := f.api.Watch(ctx, list, f.options(raw))
			f.report(ctx, err, false)
			return w, err
		},
	}
}

func (f feed) options(raw metav1.ListOptions) *client.ListOptions {
	return &client.ListOptions{Namespace: f.namespace, FieldSelector: f.selected, Limit: raw.Limit, Continue: raw.Continue, Raw: &raw}
}

// report reports the error of a request. The error of a watch may be that the server does
// not have the way in which it was asked; a list follows then, unless the cause is permanent.
func (f feed) report(ctx context.Context, err error, list bool) {
	switch {
	case err == nil || ctx.Err() != nil:
	case apierrors.IsForbidden(err):
		f.to.Refused(f.resource, fmt.Errorf("%w: %w", ErrForbidden, err))
	case missing(err):
		f.to.Refused(f.resource, fmt.Errorf("%w: %w", ErrMissing, err))
	case list:
		f.to.Refused(f.resource, err)
	}
}

// Add implements toolscache.ReflectorStore.
func (f feed) Add(o any) error {
	if object, ok := o.(client.Object); ok {
		f.to.Put(f.resource, kept(object))
	}
	return nil
}

// Update implements toolscache.ReflectorStore.
func (f feed) Update(o any) error { return f.Add(o) }

// Delete implements toolscache.ReflectorStore.
func (f feed) Delete(o any) error {
	if object, ok := o.(client.Object); ok {
		f.to.Remove(f.resource, object)
	}
	return nil
}

// Replace implements toolscache.ReflectorStore.
func (f feed) Replace(list []any, _ string) error {
	all := make([]client.Object, 0, len(list))
	for _, o := range list {
		if object, ok := o.(client.Object); ok {
			all = append(all, kept(object))
		}
	}
	f.to.Replace(f.resource, all)
	return nil
}

// Resync implements toolscache.ReflectorStore.
func (f feed) Resync() error { return nil }

// kept removes from an object the fields that no view shows.
func kept(o client.Object) client.Object {
	o.SetManagedFields(nil)
	p, ok := o.(*corev1.Pod)
	if !ok {
		return o
	}
	slim := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.Namespace, Name: p.Name, UID: p.UID, ResourceVersion: p.ResourceVersion,
			CreationTimestamp: p.CreationTimestamp, DeletionTimestamp: p.DeletionTimestamp,
		},
		Spec:   corev1.PodSpec{NodeName: p.Spec.NodeName, HostNetwork: p.Spec.HostNetwork},
		Status: corev1.PodStatus{Phase: p.Status.Phase, Conditions: p.Status.Conditions},
	}
	for key, value := range p.Annotations {
		if value, ok := pod.Kept([]byte(key), []byte(value)); ok {
			metav1.SetMetaDataAnnotation(&slim.ObjectMeta, key, value)
		}
	}
	return slim
}
