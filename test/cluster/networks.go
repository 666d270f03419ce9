package cluster

import (
	"context"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// NetworkDefinition returns the CRD of NetworkAttachmentDefinitions (NPWG multi-network
// specification 1.3). It stays in the cluster.
func NetworkDefinition() *apiextensionsv1.CustomResourceDefinition {
	const group, plural = "k8s.cni.cncf.io", "network-attachment-definitions"
	text := apiextensionsv1.JSONSchemaProps{Type: "string"}
	spec := apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"config": text}}
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: plural + "." + group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{
				Plural: plural, Singular: "network-attachment-definition", Kind: "NetworkAttachmentDefinition", ShortNames: []string{"net-attach-def"},
				ListKind: "NetworkAttachmentDefinitionList",
			},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": spec},
				}},
			}},
		},
	}
}

// Networks installs the CRD of NetworkAttachmentDefinitions.
func (c *Cluster) Networks() {
	c.tb.Helper()
	crd := NetworkDefinition()
	if err := installCRD(c.tb.Context(), c.Client, crd.DeepCopy()); err != nil {
		c.tb.Fatalf("CRD %s: %v", crd.Name, err)
	}
	ctx, cancel := context.WithTimeout(c.tb.Context(), cleanupTimeout)
	defer cancel()
	if err := AwaitServed(ctx, c.Client, crd); err != nil {
		c.tb.Fatal(err)
	}
}

// Network creates a NetworkAttachmentDefinition with a network configuration. It is
// removed at the end of the test.
func (c *Cluster) Network(name, config string) *unstructured.Unstructured {
	c.tb.Helper()
	c.Networks()
	o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"config": config}}}
	o.SetAPIVersion("k8s.cni.cncf.io/v1")
	o.SetKind("NetworkAttachmentDefinition")
	o.SetNamespace(c.Namespace)
	o.SetName(name)
	if err := c.Client.Create(c.tb.Context(), o); err != nil {
		c.tb.Fatalf("creating NetworkAttachmentDefinition %s: %v", name, err)
	}
	c.cleanup(func(ctx context.Context) {
		if err := client.IgnoreNotFound(c.Client.Delete(ctx, o)); err != nil {
			c.tb.Errorf("deleting NetworkAttachmentDefinition %s: %v", name, err)
		}
	})
	return o
}
