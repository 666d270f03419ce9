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

// outline is what is known of an interface before a driver is asked.
func (r *Attachments) outline(w *pod.Interface) v1alpha1.Interface {
	i := v1alpha1.Interface{
		Name: w.Name, Network: w.Network, Driver: r.driverOf(w), Default: w.Default,
		Binding: v1alpha1.Binding{AddressOnly: &v1alpha1.AddressOnlyBinding{}}, // the driver's own is valid
	}
	complete(&i, w)
	return i
}

// wanted lists what a pod asks for. Whatever is wrong with it is ErrInvalid,
// unless the source knows better.
func (r *Attachments) wanted(p *corev1.Pod) ([]pod.Interface, error) {
	every, err := r.every(p)
	var wanted []pod.Interface
	if err == nil {
		wanted, err = pod.Interfaces(p, every, r.Sources)
	}
	if err != nil && driver.Result(err) == "Unknown" {
		err = fmt.Errorf("%w: %w", driver.ErrInvalid, err)
	}
	return wanted, err
}

// every is what a pod gets without asking: its default interface. Where another
// plugin makes that, Multus lets the pod choose another network for it.
func (r *Attachments) every(p *corev1.Pod) ([]pod.Interface, error) {
	if r.DefaultDriver == "" {
		return nil, r.chosenOfOthers(p)
	}
	s, chosen, err := pod.Chosen(p)
	switch {
	case err == nil && !chosen:
		return []pod.Interface{pod.Default(r.DefaultAddressOnly)}, nil
	case !r.DefaultAddressOnly:
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
	return r.Chosen(s)
}

// chosenOfOthers refuses a choice for the default interface, where that is somebody
// else's, that would have its address from here. All other choices are no concern of
// Fairlead's.
func (r *Attachments) chosenOfOthers(p *corev1.Pod) error {
	s, chosen, err := pod.Chosen(p)
	if err != nil || !chosen || r.Chosen == nil {
		return nil //nolint:nilerr // Multus reads it, and says what is wrong
	}
	got, err := r.Chosen(s)
	if err != nil || len(got) == 0 || got[0].Network == v1alpha1.DefaultNetwork {
		return nil //nolint:nilerr // Multus says that the network is not there
	}
	return fmt.Errorf("annotation %s: network %s has its addresses from Fairlead, which serves no default interface here: choose another network, or have the operator set defaultNetwork.binding: addressOnly",
		pod.AnnotationDefaultNetwork, s.Network())
}

// request is the request for one interface, with what its driver reads in the pod and
// the network. The addresses that a pod asks for on the default network hold nowhere
// else. It fails with driver.ErrInvalid.
func (r *Attachments) request(ctx context.Context, p *corev1.Pod, asks *driver.Request, w *pod.Interface) (*driver.Request, error) {
	d, err := r.driverNamed(r.driverOf(w))
	if err != nil {
		return nil, fmt.Errorf("interface %s on network %s: %w", w.Name, w.Network, err)
	}
	out := *asks
	out.Owner, out.Network, out.Default, out.AddressOnly = ownerOf(p, w.Name), w.Network, w.Default, w.AddressOnly
	out.NetworkLabels = r.labelsOfNetwork(ctx, w)
	if w.Network != v1alpha1.DefaultNetwork {
		out.Addresses = w.Addresses
	}
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

// labelsOfNetwork are those of the namespace that a further network's definition is
// in; nil when it is not known, and for the default network.
func (r *Attachments) labelsOfNetwork(ctx context.Context, w *pod.Interface) map[string]string {
	namespace, _, further := strings.Cut(w.Network, "/")
	if !further {
		return nil
	}
	return r.labelsOf(ctx, &corev1.Namespace{}, namespace)
}

// complete adds what the network, and not its driver, says of an interface.
func complete(i *v1alpha1.Interface, w *pod.Interface) {
	if len(w.Gateways) > 0 {
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
}

// describe fills in what drivers choose by, the same for every interface but
// for the addresses, which a pod asks for on the default network.
func (r *Attachments) describe(ctx context.Context, p *corev1.Pod) (*driver.Request, error) {
	addresses, err := pod.Addresses(p)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", driver.ErrInvalid, err)
	}
	return &driver.Request{
		Addresses:       addresses,
		PodLabels:       known(p.Labels),
		NamespaceLabels: r.labelsOf(ctx, &corev1.Namespace{}, p.Namespace),
		NodeLabels:      r.labelsOf(ctx, &corev1.Node{}, p.Spec.NodeName),
	}, nil
}

// labelsOf reads labels from the caches; nil when they do not have the object.
func (r *Attachments) labelsOf(ctx context.Context, o client.Object, name string) map[string]string {
	if err := r.Client.Get(ctx, client.ObjectKey{Name: name}, o, client.UnsafeDisableDeepCopy); err != nil {
		return nil // not known yet: its event brings the pod back
	}
	return known(o.GetLabels())
}

// known are labels that are known, also when there are none.
func known(labels map[string]string) map[string]string {
	if labels == nil {
		return map[string]string{}
	}
	return labels
}

// driverOf names the driver of an interface: that of its network, or of the default one.
func (r *Attachments) driverOf(w *pod.Interface) string {
	if w.Driver == "" {
		return r.DefaultDriver
	}
	return w.Driver
}

// driverNamed returns the driver of that name. It fails with driver.ErrInvalid.
func (r *Attachments) driverNamed(name string) (driver.Parts, error) {
	d, ok := r.Drivers[name]
	if !ok {
		return driver.Parts{}, fmt.Errorf("%w: no driver is named %q: must be one of %s", driver.ErrInvalid, name, r.Drivers.Names())
	}
	return d, nil
}

// ownerOf is who an interface of a pod is obtained for.
func ownerOf(p *corev1.Pod, name string) driver.Owner {
	return driver.Owner{
		PodUID:    p.UID,
		Interface: name,
		Namespace: p.Namespace,
		PodName:   p.Name,
		NodeName:  p.Spec.NodeName,
	}
}
