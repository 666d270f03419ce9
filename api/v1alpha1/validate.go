package v1alpha1

import (
	"sync"

	"fairlead.dev/fairlead/api/v1alpha1/form"
)

// Validate returns nil if the API server accepts the spec in a new PodAttachment, otherwise
// a form.InvalidError.
func (s *PodAttachmentSpec) Validate() error { return specForm().Validate("spec", s) }

// Validate returns nil if the API server accepts the interface in a PodAttachment,
// otherwise a form.InvalidError.
func (i *Interface) Validate() error {
	return specForm().Field("interfaces").Items().Validate("interface", i)
}

// specForm returns the form of PodAttachmentSpec.
var specForm = sync.OnceValue(func() *form.Form {
	crd, err := readCRD("fairlead.dev_podattachments.yaml")
	if err != nil {
		panic(err) // it is embedded
	}
	spec := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
	return form.Of(&spec)
})
