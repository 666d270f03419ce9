package pod

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// AnnotationNetworks is the annotation that lists further networks of a pod (NPWG
// multi-network specification 1.3, section 4.1).
const AnnotationNetworks = "k8s.v1.cni.cncf.io/networks"

// AnnotationDefaultNetwork is the annotation with which Multus uses another network than
// the cluster's for the pod's default interface.
const AnnotationDefaultNetwork = "v1.multus-cni.io/default-network"

// AnnotationPrimaryClaim is the annotation with which KubeVirt's ipam-extensions name the
// IPAMClaim of a pod's default interface. They write it beside AnnotationDefaultNetwork, or
// alone.
const AnnotationPrimaryClaim = "k8s.ovn.org/primary-udn-ipamclaim"

// defaultNamespace is the namespace of a network that this annotation names without a
// namespace. It is the default of Multus' option multusNamespace.
const defaultNamespace = "kube-system"

// maxNetworks is the number of interfaces that a PodAttachment may have in addition to
// the default.
const maxNetworks = 31

// Selection is one element of the annotation: a network, and the properties of the pod's
// interface on it.
type Selection struct {
	// Namespace and Name of the NetworkAttachmentDefinition.
	Namespace, Name string
	// Interface is the name inside the pod: the requested name, otherwise net1, net2, ...
	// by its place, as in Multus.
	Interface string
	// Named is true if the pod requested the name.
	Named bool
	// Addresses that the pod requests.
	Addresses []netip.Addr
	// Prefixes are these addresses with the prefix lengths in the annotation. An address
	// without a length has that of a single address.
	Prefixes []netip.Prefix
	// MAC that the pod requests, in lower case; empty for any.
	MAC string
	// ClaimReference names the IPAMClaim whose addresses the pod requests; empty if it
	// names none.
	ClaimReference string
	// DeviceID names the device of the network's resource that the pod requests; empty for
	// any.
	DeviceID string
	// CNIArgs is a JSON object for the plugins of the network; empty if there is none.
	CNIArgs string
	// PortMappings of the interface.
	PortMappings []PortMapping
	// Bandwidth of the interface; nil if it has no limit.
	Bandwidth *Bandwidth
	// DefaultRoute is true if the pod's default route is on this interface. At most one
	// element has it.
	DefaultRoute bool
	// Gateways of this default route, at most one per family; empty if the element names
	// none.
	Gateways []netip.Addr
	// InfinibandGUID that the pod requests, in lower case; empty for any.
	InfinibandGUID string
}

// Network returns the network's name: namespace/name.
func (s Selection) Network() string { return s.Namespace + "/" + s.Name }

// Networks returns the elements of the annotation k8s.v1.cni.cncf.io/networks, in either
// form: "[namespace/]name[@interface],...", or a JSON list. An error names the
// annotation, the element and the accepted form.
func Networks(p *corev1.Pod) ([]Selection, error) {
	text, _, err := annotation(p, AnnotationNetworks)
	if err != nil {
		return nil, err
	}
	if text = strings.TrimSpace(text); text == "" {
		return nil, nil
	}
	elements, err := selections(text)
	if err != nil {
		return nil, fmt.Errorf("annotation %s: %w", AnnotationNetworks, err)
	}
	if len(elements) > maxNetworks {
		return nil, fmt.Errorf("annotation %s: %d networks: at most %d", AnnotationNetworks, len(elements), maxNetworks)
	}
	out := make([]Selection, 0, len(elements))
	withRoute := -1
	for i, e := range elements {
		s, err := e.read(p.Namespace, i)
		if err == nil && s.DefaultRoute && withRoute >= 0 {
			err = fmt.Errorf("default-route: element %d has it as well: at most one element may have it", withRoute)
		}
		if err != nil {
			return nil, fmt.Errorf("annotation %s: element %d: %w", AnnotationNetworks, i, err)
		}
		if s.DefaultRoute {
			withRoute = i
		}
		out = append(out, s)
	}
	return out, nil
}

// Chosen returns the network that a pod selects for its default interface by the
// annotation v1.multus-cni.io/default-network; ok is false if the pod has no such
// annotation or it is empty. The annotation has the same forms as the annotation for
// further networks, but may name addresses beside an IPAMClaim: KubeVirt's ipam-extensions
// write a machine's static addresses here and not into the claim. An error names the annotation, the value and the accepted form.
func Chosen(p *corev1.Pod) (s Selection, ok bool, err error) {
	text, _, err := annotation(p, AnnotationDefaultNetwork)
	if err != nil {
		return Selection{}, false, err
	}
	if text = strings.TrimSpace(text); text == "" {
		return Selection{}, false, nil
	}
	elements, err := selections(text)
	if err == nil && len(elements) != 1 {
		err = fmt.Errorf("%q names %d networks: must name one", text, len(elements))
	}
	if err == nil {
		claim := elements[0].ClaimReference
		elements[0].ClaimReference = ""
		s, err = elements[0].read(defaultNamespace, 0)
		s.ClaimReference = claim
	}
	if err != nil {
		return Selection{}, false, fmt.Errorf("annotation %s: %w", AnnotationDefaultNetwork, err)
	}
	s.Interface, s.Named = v1alpha1.DefaultInterface, false // the annotation cannot rename it
	return s, true, nil
}

// selections parses the text of an annotation.
func selections(text string) ([]selection, error) {
	if strings.HasPrefix(text, "[") {
		var raws []json.RawMessage
		err := json.Unmarshal([]byte(text), &raws)
		out := make([]selection, len(raws))
		for i := range raws {
			if err = out[i].decode(raws[i]); err != nil {
				err = fmt.Errorf("element %d: %w", i, err)
				break
			}
		}
		if err != nil {
			return nil, fmt.Errorf(`must be a list as [{"name":"net-a"}]: %w`, err)
		}
		return out, nil
	}
	if strings.Count(text, ",") > maxNetworks {
		return nil, fmt.Errorf("more than %d networks: at most that", maxNetworks)
	}
	var out []selection
	for item := range strings.SplitSeq(text, ",") {
		item, iface, named := strings.Cut(strings.TrimSpace(item), "@")
		if named && iface == "" {
			return nil, fmt.Errorf("%q names no interface behind @: write it as net-a@eth1", item)
		}
		s := selection{Name: item, Interface: iface}
		if namespace, name, ok := strings.Cut(item, "/"); ok {
			s.Namespace, s.Name = namespace, name
			if namespace == "" {
				return nil, fmt.Errorf("%q names no namespace before /: write it as blue/net-a", item)
			}
		}
		out = append(out, s)
	}
	return out, nil
}

// read validates one element. namespace is the default namespace, index the element's
// place.
func (e selection) read(namespace string, index int) (Selection, error) {
	s := Selection{Namespace: e.Namespace, Name: e.Name, Interface: e.Interface}
	if s.Namespace == "" {
		s.Namespace = namespace
	}
	if s.Interface == "" {
		s.Interface = e.InterfaceRequest
	}
	s.Named = s.Interface != ""
	if !s.Named {
		s.Interface = fmt.Sprintf("net%d", index+1)
	}
	switch {
	case len(validation.IsDNS1123Subdomain(s.Name)) > 0:
		return s, fmt.Errorf("name: %q: must be that of a NetworkAttachmentDefinition", s.Name)
	case len(validation.IsDNS1123Label(s.Namespace)) > 0:
		return s, fmt.Errorf("namespace: %q: must be a namespace", s.Namespace)
	case !interfaceName.MatchString(s.Interface):
		return s, fmt.Errorf("interface: %q: has 1 to 15 of a-z, A-Z, 0-9, '_', '.', '-', and begins with a letter or digit", s.Interface)
	case slices.Contains(kernelNames, s.Interface):
		return s, fmt.Errorf("interface: %q: must be none of %s, which the kernel uses itself", s.Interface, strings.Join(kernelNames, ", "))
	}
	return s, s.properties(e)
}
