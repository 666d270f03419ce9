package main

import (
	"context"
	"fmt"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/config"
	"fairlead.dev/fairlead/test/cluster"
	"fairlead.dev/fairlead/test/kubeclient"
	"fairlead.dev/fairlead/test/lab"
)

const (
	// namespace is the namespace of all objects that have one.
	namespace = "bench"
	// leaseName is the Lease by which controllers elect their leader.
	leaseName = "fairlead-controller"
	// annotationNetworks selects the further networks of a pod.
	annotationNetworks = "k8s.v1.cni.cncf.io/networks"
	// rawGroup is the group of a kind that equals PodAttachment, and that no controller
	// of ours uses: the baseline creates its objects.
	rawGroup = "bench.fairlead.dev"
)

// workers returns how many writes the controller has in progress at once by default. The
// baseline has as many clients.
func workers() int { return config.DefaultController().Workers }

// rawAttachment is an object that costs the API server what a PodAttachment
// costs: the same schema and fields, in another group.
type rawAttachment struct{ v1alpha1.PodAttachment }

// DeepCopyObject implements runtime.Object.
func (r *rawAttachment) DeepCopyObject() runtime.Object {
	return &rawAttachment{*r.DeepCopy()}
}

type rawAttachmentList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []rawAttachment `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (r *rawAttachmentList) DeepCopyObject() runtime.Object {
	out := &rawAttachmentList{TypeMeta: r.TypeMeta, ListMeta: *r.DeepCopy()}
	for i := range r.Items {
		out.Items = append(out.Items, rawAttachment{*r.Items[i].DeepCopy()})
	}
	return out
}

// kube is the bench's client of the cluster.
type kube struct {
	path string // the kubeconfig
	rest *rest.Config
	// It reads from the API server, not from a cache.
	client.WithWatch
}

func connect(kubeconfig string) (*kube, error) {
	cfg, c, err := kubeclient.Connect(kubeconfig)
	if err != nil {
		return nil, err
	}
	raw, scheme := schema.GroupVersion{Group: rawGroup, Version: v1alpha1.GroupVersion.Version}, c.Scheme()
	scheme.AddKnownTypeWithName(raw.WithKind("PodAttachment"), &rawAttachment{})
	scheme.AddKnownTypeWithName(raw.WithKind("PodAttachmentList"), &rawAttachmentList{})
	metav1.AddToGroupVersion(scheme, raw)
	return &kube{path: kubeconfig, rest: cfg, WithWatch: c}, nil
}

// install creates the objects that the measurements need.
func (k *kube) install(ctx context.Context) error {
	crds, err := v1alpha1.CRDs()
	if err != nil {
		return err
	}
	for _, crd := range crds {
		if crd.Spec.Names.Kind == "PodAttachment" {
			crds = append(crds, rawCRD(crd))
		}
	}
	for _, crd := range crds {
		if err := k.Create(ctx, crd.DeepCopy()); err != nil {
			return fmt.Errorf("install %s: %w", crd.Name, err)
		}
	}
	served, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	if err := cluster.AwaitServed(served, k, crds...); err != nil {
		return err
	}
	for _, object := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "default"}},
		&v1alpha1.IPPool{
			ObjectMeta: metav1.ObjectMeta{Name: "default"},
			Spec: v1alpha1.IPPoolSpec{
				Ranges: []string{"10.244.0.0/16"}, Placement: v1alpha1.PlacementPerNode,
				MaxBlocksPerNode: 1000, // few nodes have all pods here
			},
		},
	} {
		// Kubernetes creates the service account as well, but later.
		if err := k.Create(ctx, object); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create %T %s: %w", object, object.GetName(), err)
		}
	}
	return nil
}

// rawCRD returns the definition of the kind that equals PodAttachment.
func rawCRD(crd *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.CustomResourceDefinition {
	raw := crd.DeepCopy()
	raw.Spec.Group = rawGroup
	raw.Name = strings.TrimSuffix(crd.Name, crd.Spec.Group) + rawGroup
	raw.Spec.Names.ShortNames, raw.Spec.Names.Categories = nil, nil
	return raw
}

// pod creates a pod of further networks that is bound to a node. Nothing runs in it.
func (k *kube) pod(ctx context.Context, name, node string, networks ...string) (*corev1.Pod, error) {
	pod := lab.NewPod(namespace, name, node, nil)
	if len(networks) > 0 {
		pod.Annotations = map[string]string{annotationNetworks: strings.Join(networks, ",")}
	}
	if err := k.Create(ctx, pod); err != nil {
		return nil, fmt.Errorf("create pod %s: %w", name, err)
	}
	return pod, nil
}

func (k *kube) lease(ctx context.Context) (*coordinationv1.Lease, error) {
	lease := &coordinationv1.Lease{}
	return lease, k.Get(ctx, client.ObjectKey{Namespace: namespace, Name: leaseName}, lease)
}

func holder(lease *coordinationv1.Lease) string {
	if lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}
