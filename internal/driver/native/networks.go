package native

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/ipam"
)

// networks are the networks that may draw from a pool, by the namespace of their
// NetworkAttachmentDefinition.
type networks struct {
	// writtenFor is the namespace for whose networks the controller wrote the pool;
	// empty for a pool that a person wrote.
	writtenFor string
	// match selects namespaces; nil for none.
	match labels.Selector
}

// selectorOf parses a selector of the spec. The error names its field.
func selectorOf(field string, spec *metav1.LabelSelector) (labels.Selector, error) {
	out, err := metav1.LabelSelectorAsSelector(spec)
	if err != nil {
		return nil, &ipam.FieldError{Field: field, Value: metav1.FormatLabelSelector(spec), Problem: "is not a label selector: " + err.Error()}
	}
	return out, nil
}

// admit returns nil if the network of a request may draw from the pool. Networks of the
// namespace own may draw from every pool. Errors: fault.ErrNotFound if the network may
// not, fault.ErrUnavailable if the labels of its namespace are not known yet.
func (n networks) admit(r *request, own string) error {
	namespace, _, further := strings.Cut(r.Network, "/")
	switch {
	case !further && n.writtenFor == "":
		return nil
	case !further:
		return fmt.Errorf("%w: it serves further networks only", fault.ErrNotFound)
	case namespace == own || namespace == n.writtenFor:
		return nil
	case n.match == nil:
		return fmt.Errorf("%w: it is open to no network of namespace %s: the operator opens it by spec.networkNamespaceSelector", fault.ErrNotFound, namespace)
	case r.NetworkLabels == nil:
		return fmt.Errorf("%w: the labels of namespace %s are not known yet", fault.ErrUnavailable, namespace)
	case !n.match.Matches(labels.Set(r.NetworkLabels)):
		return fmt.Errorf("%w: it is open to no network of namespace %s: its labels do not match spec.networkNamespaceSelector (%s)", fault.ErrNotFound, namespace, n.match)
	}
	return nil
}
