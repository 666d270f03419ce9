package npwg

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/nad"
	"fairlead.dev/fairlead/internal/pod"
)

// absent is a cluster without NetworkAttachmentDefinitions.
type absent struct{ ctrlcache.Informers }

func (absent) GetInformer(context.Context, client.Object, ...ctrlcache.InformerGetOption) (ctrlcache.Informer, error) {
	return nil, &meta.NoKindMatchError{GroupKind: nad.Kind.GroupKind()}
}

func TestWithoutNetworkAttachmentDefinitions(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	n := New(Config{Informers: absent{}})
	cancel()
	n.watch(ctx) // tries once
	p := &corev1.Pod{}
	p.Namespace, p.Annotations = "web", map[string]string{pod.AnnotationNetworks: "blue"}
	if _, err := n.Source(&corev1.Pod{}); err != nil {
		t.Errorf("a pod without further networks: %v", err)
	}
	if _, err := n.Source(p); driver.Result(err) != "Unavailable" || !strings.Contains(err.Error(), "is not installed") {
		t.Errorf("error %v", err)
	}
	n.setUnread(nil)
	if _, err := n.Source(p); driver.Result(err) != "NotFound" || !strings.Contains(err.Error(), "web/blue") {
		t.Errorf("error %v", err)
	}
}
