package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/pod"
)

// outline returns an interface without the fields that its driver fills in.
func (r *Attachments) outline(w *pod.Interface) v1alpha1.Interface {
	i := v1alpha1.Interface{
		Name: w.Name, Network: w.Network, Driver: r.driverOf(w), Default: w.Default,
		Binding: v1alpha1.Binding{AddressOnly: &v1alpha1.AddressOnlyBinding{}}, // a valid stand-in for the driver's binding
	}
	complete(&i, w)
	return i
}

// wanted returns the interfaces that a pod asks for. An error that has no driver sentinel
// becomes driver.ErrInvalid.
func (r *Attachments) wanted(p *corev1.Pod) ([]pod.Interface, error) {
	every, err := r.defaultInterface(p)
	var wanted []pod.Interface
	if err == nil {
		wanted, err = pod.Interfaces(p, every, r.Sources)
	}
	if err != nil && driver.Result(err) == "Unknown" {
		err = fmt.Errorf("%w: %w", driver.ErrInvalid, err)
	}
	return wanted, err
}

// defaultInterface returns the interface that every pod gets: the default one; none if
// another plugin obtains it. A pod may choose another network for it, by the annotation of
// Multus, where Fairlead attaches the pod or another plugin makes the interface.
func (r *Attachments) defaultInterface(p *corev1.Pod) ([]pod.Interface, error) {
	if r.DefaultDriver == "" {
		return nil, r.chosenOfOthers(p)
	}
	s, chosen, err := pod.Chosen(p)
	switch {
	case err == nil && !chosen && r.DefaultNetwork.Name != "" && r.attaches(p):
		return r.choose(p, r.DefaultNetwork, "defaultNetwork.network")
	case err == nil && !chosen:
		return []pod.Interface{pod.Default(r.DefaultAddressOnly)}, nil
	case !r.DefaultAddressOnly && !r.attaches(p):
		return nil, fmt.Errorf("annotation %s: %q chooses the network of the default interface, which Fairlead makes here and Multus would make again: remove the annotation, and ask for that network by %s",
			pod.AnnotationDefaultNetwork, p.Annotations[pod.AnnotationDefaultNetwork], pod.AnnotationNetworks)
	case err != nil:
		return nil, err
	case r.Chosen == nil:
		return nil, fmt.Errorf("annotation %s: %q is not read, and the pod would get an address of another network: put npwg into the controller's multiVIFSources",
			pod.AnnotationDefaultNetwork, p.Annotations[pod.AnnotationDefaultNetwork])
	}
	for _, a := range []string{v1alpha1.AnnotationPools, v1alpha1.AnnotationAddresses, v1alpha1.AnnotationClaim} {
		if _, ok := p.Annotations[a]; ok {
			return nil, fmt.Errorf("annotation %s is for the cluster's default network, and %s chooses %s: name pools in that network, and ask for addresses with \"ips\"",
				a, pod.AnnotationDefaultNetwork, s.Network())
		}
	}
	return r.choose(p, s, "annotation "+pod.AnnotationDefaultNetwork)
}

// choose returns the interfaces for the network of the default interface. by names the
// origin of the choice.
func (r *Attachments) choose(p *corev1.Pod, s pod.Selection, by string) ([]pod.Interface, error) {
	chosen, err := r.Chosen(p, s)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", by, err)
	}
	return chosen, nil
}

// attaches reports whether Fairlead makes the interfaces of a pod on further networks.
func (r *Attachments) attaches(p *corev1.Pod) bool { return r.Attaches != nil && r.Attaches(p) }

// chosenOfOthers fails if a pod chooses a network for its default interface whose
// addresses are Fairlead's, in a cluster whose default interface Fairlead does not serve.
// All other choices are left to Multus.
func (r *Attachments) chosenOfOthers(p *corev1.Pod) error {
	s, chosen, err := pod.Chosen(p)
	if err != nil || !chosen || r.Chosen == nil {
		return nil //nolint:nilerr // Multus reads it too and reports the error
	}
	got, err := r.Chosen(p, s)
	if err != nil || len(got) == 0 || got[0].Network == v1alpha1.DefaultNetwork {
		return nil //nolint:nilerr // Multus reports a network that does not exist
	}
	return fmt.Errorf("annotation %s: network %s has its addresses from Fairlead, which serves no default interface here: choose another network, or have the operator set defaultNetwork.binding: addressOnly",
		pod.AnnotationDefaultNetwork, s.Network())
}

// request returns the request for one interface, with the parts of the pod and the
// network that its driver reads. The addresses that a pod asks for by its annotation
// are those of its default interface. Errors: driver.ErrInvalid.
func (r *Attachments) request(ctx context.Context, p *corev1.Pod, asks *driver.Request, w *pod.Interface) (*driver.Request, error) {
	d, err := r.driverNamed(r.driverOf(w))
	if err != nil {
		return nil, fmt.Errorf("interface %s on network %s: %w", w.Name, w.Network, err)
	}
	out := *asks
	out.Owner, out.Network, out.Default, out.AddressOnly, out.Binding = ownerOf(p, w.Name), w.Network, w.Default, w.AddressOnly, w.Binding
	out.NoDefaultRoute = w.OwnGateways && len(w.Gateways) == 0
	out.NetworkLabels = r.labelsOfNetwork(ctx, w)
	if !w.Annotated() {
		out.Addresses = w.Addresses
	}
	out.MAC = w.MAC
	out.Writable = func(i v1alpha1.Interface) error {
		complete(&i, w)
		return i.Validate()
	}
	if d.Read != nil {
		if out.Asks, err = d.Read(p, w); err != nil {
			return nil, err
		}
	}
	return &out, nil
}

// labelsOfNetwork returns the labels of the namespace of a further network's definition;
// nil if they are not known, and for the default network.
func (r *Attachments) labelsOfNetwork(ctx context.Context, w *pod.Interface) map[string]string {
	namespace, _, further := strings.Cut(w.Network, "/")
	if !further {
		return nil
	}
	return r.labelsOf(ctx, &corev1.Namespace{}, namespace)
}

// complete adds the fields of an interface that its network sets and not its driver.
func complete(i *v1alpha1.Interface, w *pod.Interface) {
	if len(w.Gateways) > 0 || w.OwnGateways {
		i.Gateways = w.Gateways
	}
	if len(w.Routes) > 0 {
		i.Routes = append(slices.Clip(i.Routes), w.Routes...)
	}
	if w.MAC != "" {
		i.MAC = w.MAC
	}
	if w.DNS != nil {
		i.DNS = w.DNS
	}
	if w.MTU != 0 {
		i.MTU = w.MTU
	}
	i.Chain = w.Chain
}

// describe returns the part of the requests that is the same for every interface: the
// labels. Its addresses are those that the pod asks for on the default network.
func (r *Attachments) describe(ctx context.Context, p *corev1.Pod) (*driver.Request, error) {
	addresses, err := pod.Addresses(p)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", driver.ErrInvalid, err)
	}
	namespace := &corev1.Namespace{}
	return &driver.Request{
		Addresses:            addresses,
		PodLabels:            known(p.Labels),
		NamespaceLabels:      r.labelsOf(ctx, namespace, p.Namespace),
		NamespaceAnnotations: pod.KeptOfNamespace(namespace.Annotations),
		NodeLabels:           r.labelsOf(ctx, &corev1.Node{}, p.Spec.NodeName),
	}, nil
}

// labelsOf reads labels from the caches; nil if they do not have the object.
func (r *Attachments) labelsOf(ctx context.Context, o client.Object, name string) map[string]string {
	if err := r.Client.Get(ctx, client.ObjectKey{Name: name}, o, client.UnsafeDisableDeepCopy); err != nil {
		return nil // not known yet: its event brings the pod back
	}
	return known(o.GetLabels())
}

// known returns an empty map for nil: the labels are known and there are none.
func known(labels map[string]string) map[string]string {
	if labels == nil {
		return map[string]string{}
	}
	return labels
}

// driverOf returns the name of an interface's driver: that of its network, or the default
// one.
func (r *Attachments) driverOf(w *pod.Interface) string {
	if w.Driver == "" {
		return r.DefaultDriver
	}
	return w.Driver
}

// driverNamed returns the driver of that name. Errors: driver.ErrInvalid.
func (r *Attachments) driverNamed(name string) (driver.Parts, error) {
	d, ok := r.Drivers[name]
	if !ok {
		return driver.Parts{}, fmt.Errorf("%w: no driver is named %q: must be one of %s", driver.ErrInvalid, name, r.Drivers.Names())
	}
	return d, nil
}

// ownerOf returns the owner that an interface of a pod is obtained for.
func ownerOf(p *corev1.Pod, name string) driver.Owner {
	return driver.Owner{
		PodUID:    p.UID,
		Interface: name,
		Namespace: p.Namespace,
		PodName:   p.Name,
		NodeName:  p.Spec.NodeName,
	}
}
