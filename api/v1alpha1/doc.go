// Package v1alpha1 has the resources of the API group fairlead.dev, by which the
// controller, the node daemon and people communicate. It has types, their constants, the
// generated manifests, and the validation of a PodAttachment; nothing that reads or
// writes a cluster.
//
// +kubebuilder:object:generate=true
// +groupName=fairlead.dev
package v1alpha1
