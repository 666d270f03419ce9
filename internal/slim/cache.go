// Package slim has the controller's caches. They keep only the used fields of each
// object. Pods, whose objects are by far the largest, are read without decoding their other
// fields first. If a pod has an unexpected format, client-go decodes it.
package slim

import (
	"fmt"
	"io"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// NewCache returns a controller-runtime cache of slim objects, for
// manager.Options.NewCache. Its start does not wait for the PodAttachments.
func NewCache(config *rest.Config, options cache.Options) (cache.Cache, error) {
	standard := serializer.WithoutConversionCodecFactory{CodecFactory: serializer.NewCodecFactory(options.Scheme)}
	kept := new(pods)
	podList, err := newLister(config, options.HTTPClient, corev1.SchemeGroupVersion, "pods", kept.codecs(standard), kept.readList)
	if err != nil {
		return nil, err
	}
	options.NewInformer = func(lw toolscache.ListerWatcher, o runtime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
		if _, ok := o.(*corev1.Pod); ok {
			lw = podList
		}
		return toolscache.NewSharedIndexInformer(lw, o, resync, indexers)
	}
	options.DefaultTransform = slimOther
	options.ByObject = map[client.Object]cache.ByObject{
		&corev1.Pod{}:             {Transform: kept.slim},
		&v1alpha1.PodAttachment{}: {Transform: new(attachments).slim},
		&corev1.Node{}:            {Transform: slimNode},
		&corev1.Namespace{}:       {Transform: slimNamespace},
	}
	all, err := cache.New(config, options)
	if err != nil {
		return nil, err
	}
	late, err := cache.New(config, options)
	if err != nil {
		return nil, err
	}
	return lateCache{Cache: all, late: late}, nil
}

// newLister returns a ListerWatcher of a resource in all namespaces. codecs decode
// events, read decodes lists.
func newLister(config *rest.Config, http *http.Client, gv schema.GroupVersion, resource string, codecs runtime.NegotiatedSerializer,
	read func(io.Reader) (*internalversion.List, error),
) (toolscache.ListerWatcher, error) {
	c, err := restClient(config, http, gv, codecs)
	if err != nil {
		return nil, fmt.Errorf("prepare to watch %s: %w", resource, err)
	}
	standard := toolscache.NewFilteredListWatchFromClient(c, resource, metav1.NamespaceAll, func(*metav1.ListOptions) {})
	return lister{standard, c, resource, read}, nil
}

func restClient(config *rest.Config, http *http.Client, gv schema.GroupVersion, codecs runtime.NegotiatedSerializer) (*rest.RESTClient, error) {
	config = rest.CopyConfig(config)
	config.GroupVersion, config.APIPath, config.NegotiatedSerializer = &gv, "/apis", codecs
	if gv.Group == "" {
		config.APIPath, config.ContentType = "/api", runtime.ContentTypeProtobuf
	}
	return rest.RESTClientForConfigAndClient(config, http)
}
