package v1alpha1

import (
	"embed"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

// GroupVersion is the API group and version of every type in this package.
var GroupVersion = schema.GroupVersion{Group: "fairlead.dev", Version: "v1alpha1"}

// AddToScheme registers the types of this package with a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion,
		&PodAttachment{}, &PodAttachmentList{},
		&IPPool{}, &IPPoolList{},
		&IPBlock{}, &IPBlockList{},
		&NodeNetwork{}, &NodeNetworkList{},
		&IPReservation{}, &IPReservationList{},
		&IPClaim{}, &IPClaimList{},
		&NamespaceNetwork{}, &NamespaceNetworkList{},
		&Cloud{}, &CloudList{},
		&PortPool{}, &PortPoolList{},
	)
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}

//go:embed crd/fairlead.dev_*.yaml
var crds embed.FS

// CRDs returns the generated CustomResourceDefinitions. Tests, the demo and an
// installation load the same ones.
func CRDs() ([]*apiextensionsv1.CustomResourceDefinition, error) {
	files, err := crds.ReadDir("crd")
	if err != nil {
		return nil, fmt.Errorf("list embedded CRDs: %w", err)
	}
	var out []*apiextensionsv1.CustomResourceDefinition
	for _, f := range files {
		crd, err := readCRD(f.Name())
		if err != nil {
			return nil, err
		}
		out = append(out, crd)
	}
	return out, nil
}

func readCRD(file string) (*apiextensionsv1.CustomResourceDefinition, error) {
	raw, err := crds.ReadFile("crd/" + file)
	if err != nil {
		return nil, fmt.Errorf("read embedded CRD %s: %w", file, err)
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(raw, crd); err != nil {
		return nil, fmt.Errorf("decode embedded CRD %s: %w", file, err)
	}
	return crd, nil
}
