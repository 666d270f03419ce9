package bugreport

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// hidden replaces a value.
const hidden = "(hidden)"

// ourAnnotations begin the names of the annotations whose values are shown: those that
// Fairlead reads.
var ourAnnotations = []string{
	"fairlead.dev/", "k8s.v1.cni.cncf.io/", "v1.multus-cni.io/", "k8s.ovn.org/", "openstack.org/",
	"kubernetes.io/ingress-bandwidth", "kubernetes.io/egress-bandwidth", "deprecated.daemonset.template.generation",
}

// redact removes from an object the values that may be secret and are not needed: the
// environment, arguments and probes of containers, annotations of other programs, and who
// wrote which field. A Secret, which no list asks for, loses its data.
func redact(o *unstructured.Unstructured) {
	o.SetManagedFields(nil)
	annotations := o.GetAnnotations()
	for name := range annotations {
		if !slices.ContainsFunc(ourAnnotations, func(ours string) bool { return strings.HasPrefix(name, ours) }) {
			annotations[name] = hidden
		}
	}
	o.SetAnnotations(annotations)
	switch o.GetKind() {
	case "Secret":
		unstructured.RemoveNestedField(o.Object, "data")
		unstructured.RemoveNestedField(o.Object, "stringData")
	case "Pod":
		redactPod(o.Object, "spec")
	case "Deployment", "DaemonSet":
		unstructured.RemoveNestedField(o.Object, "spec", "template", "metadata", "annotations")
		redactPod(o.Object, "spec", "template", "spec")
	}
}

// redactPod removes from the specification of a pod what its containers are told.
func redactPod(o map[string]any, path ...string) {
	for _, kind := range []string{"initContainers", "containers", "ephemeralContainers"} {
		at := append(slices.Clone(path), kind)
		containers, ok, err := unstructured.NestedSlice(o, at...)
		if !ok || err != nil {
			continue
		}
		for _, c := range containers {
			container, ok := c.(map[string]any)
			if !ok {
				continue
			}
			for _, field := range []string{"env", "envFrom", "command", "args", "lifecycle", "livenessProbe", "readinessProbe", "startupProbe"} {
				delete(container, field)
			}
		}
		_ = unstructured.SetNestedSlice(o, containers, at...) // it was read there
	}
}
