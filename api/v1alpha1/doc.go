// Package v1alpha1 holds the resources of the API group fairlead.dev: what the
// controller, the node daemon and people tell each other. It holds types,
// their constants and the generated manifests, and no behaviour.
//
// +kubebuilder:object:generate=true
// +groupName=fairlead.dev
package v1alpha1
