package controller

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/internal/run"
	"fairlead.dev/fairlead/internal/warn"
)

// Ensurer gives pods their network: it obtains every interface that a pod asks for, and
// writes and changes the record that names them.
type Ensurer struct {
	client   client.Client
	live     client.Reader
	drivers  driver.Table
	nodes    nodes
	turns    Turns
	metrics  *Metrics
	memory   *memory
	warnings *warn.Teller
	requests requests
	selected func(p *corev1.Pod, add []pod.Selection) ([]pod.Interface, error) // Config.Selected
}

// ensure obtains every interface that a pod asks for and creates the record with all of
// them. It may be interrupted anywhere: drivers know the owner of each interface that
// they gave, so the next run adopts what this run obtained.
func (e *Ensurer) ensure(ctx context.Context, s *observed) (ctrl.Result, error) {
	p := s.pod
	if !s.served || s.current != nil || !pod.Wants(p) {
		return ctrl.Result{}, nil
	}
	e.memory.hasNode(s.key)
	if left := e.memory.creationLeft(s.key, p.UID); left > 0 {
		return ctrl.Result{RequeueAfter: left}, nil // the record is written and not in the cache yet
	}
	if e.mustWait(p) {
		return ctrl.Result{}, nil
	}
	if err := e.obtainAndRecord(ctx, p); err != nil {
		return ctrl.Result{}, e.reportFailure(p, err)
	}
	e.endWait(s.key)
	e.metrics.ensures.WithLabelValues(driver.Result(nil)).Inc()
	return ctrl.Result{}, nil
}

// reportFailure reports why a pod has no network: in an event on the pod without the
// details that its owner may not see, and in the returned error, which is logged, with
// them.
func (e *Ensurer) reportFailure(p *corev1.Pod, err error) error {
	var names []string // of the interfaces that it may have; none if no driver was asked
	if wanted, err := e.requests.wanted(p); err == nil {
		for i := range wanted {
			names = append(names, wanted[i].Name)
		}
	}
	e.memory.wait(p, names)
	e.metrics.ensures.WithLabelValues(driver.Result(err)).Inc()
	e.warnings.Tell(podReference(p), "", reasonOf(err), "EnsureNetwork", "no network yet: "+err.Error())
	return fmt.Errorf("give pod %s its network: %w", klog.KObj(p), detailed(err))
}

// obtainAndRecord obtains all interfaces of a pod and writes the record. If the write
// fails, the pod keeps the interfaces: another leader may have adopted them and be
// writing the same record, and no read could rule that out. The next try adopts them. If
// the pod goes meanwhile, garbage collection finds them.
func (e *Ensurer) obtainAndRecord(ctx context.Context, p *corev1.Pod) error {
	attaches := e.requests.rules.Attached(p)
	wanted, err := e.requests.wanted(p)
	if err != nil || len(wanted) == 0 {
		return err
	}
	interfaces, err := e.obtain(ctx, p, wanted, nil)
	if err != nil {
		return err
	}
	if attaches != e.requests.rules.Attached(p) {
		return fmt.Errorf("%w: the label %s of Node %s changes at this moment", fault.ErrUnavailable, v1alpha1.LabelAttachedBy, p.Spec.NodeName)
	}
	record := pod.Record(pod.IdentityOf(p), interfaces)
	record.OwnerReferences = []metav1.OwnerReference{pod.OwnerOf(p)}
	if attaches {
		record.Labels = map[string]string{v1alpha1.LabelAttachedBy: v1alpha1.AttachedByFairlead}
	}
	node := &corev1.Node{}
	if e.client.Get(ctx, client.ObjectKey{Name: p.Spec.NodeName}, node, client.UnsafeDisableDeepCopy) == nil {
		record.Spec.NodeUID = node.UID
	}
	if err := e.write(ctx, p, record); err != nil {
		return fmt.Errorf("write PodAttachment %s: %w", klog.KObj(record), err)
	}
	return nil
}

// write creates a pod's record. A record that exists already is a success if it is the
// pod's: the cache was behind, or the reply to an earlier create was lost.
func (e *Ensurer) write(ctx context.Context, p *corev1.Pod, record *v1alpha1.PodAttachment) error {
	key := client.ObjectKeyFromObject(p)
	e.memory.beginCreation(key, p.UID)
	err := e.turns.do(ctx, func() error { return e.client.Create(ctx, record) })
	if apierrors.IsAlreadyExists(err) {
		err = e.checkExisting(ctx, p, record)
	}
	if err != nil {
		e.memory.endCreation(key, p.UID)
		return err
	}
	if slices.Contains(e.memory.namesOf(podOf(record)), record.Name) {
		e.memory.endCreation(key, p.UID) // its event may have come before begin
	}
	log.FromContext(ctx).V(run.LevelPod).Info("attachment written", "pod", klog.KObj(p), "addresses", record.Spec.Summary.Addresses, "node", p.Spec.NodeName)
	return nil
}

// checkExisting reads the record that exists already and returns nil if it is this pod's;
// fault.ErrConflict if it belongs to another pod; any other error if it cannot be read.
func (e *Ensurer) checkExisting(ctx context.Context, p *corev1.Pod, record *v1alpha1.PodAttachment) error {
	existing := &v1alpha1.PodAttachment{}
	if err := e.live.Get(ctx, client.ObjectKeyFromObject(record), existing); err != nil {
		return fmt.Errorf("it exists and cannot be read: %w", err)
	}
	if pod.Of(existing) != pod.KeyOf(p) {
		return fmt.Errorf("%w: the name is taken by the record of another pod, %s with UID %s: delete this pod, so that its successor has another",
			fault.ErrConflict, existing.Pod(), existing.OwnUID())
	}
	return nil
}

// obtain asks a driver for each wanted interface of a pod whose record has others already,
// or none. If one fails, the pod keeps the interfaces that it obtained before: another
// leader may have found them and be writing the record, and giving them back would take
// them from it. The next try adopts them, and the record is written when all interfaces are
// there.
//
// Networks and pools are asked in the order of their names, not of the pod's annotation,
// so that two pods never wait for each other in a circle.
func (e *Ensurer) obtain(ctx context.Context, p *corev1.Pod, wanted []pod.Interface, has []v1alpha1.Interface) ([]v1alpha1.Interface, error) {
	asks, err := e.requests.describe(ctx, p)
	if err != nil {
		return nil, err
	}
	interfaces := make([]v1alpha1.Interface, len(wanted))
	requests := make([]*driver.Request, len(wanted))
	for i := range wanted {
		w := &wanted[i]
		interfaces[i] = e.requests.outline(w)
		if requests[i], err = e.requests.request(ctx, p, asks, w); err != nil {
			return nil, err
		}
	}
	if err := pod.Writable(p, slices.Concat(has, interfaces)); err != nil {
		return nil, fmt.Errorf("%w: its PodAttachment cannot be written: %w", fault.ErrInvalid, err)
	}
	for _, i := range byNetwork(wanted) {
		w := &wanted[i]
		a, err := e.drivers[interfaces[i].Driver].Driver.Ensure(ctx, requests[i])
		if err != nil {
			return nil, fmt.Errorf("interface %s on network %s: %w", w.Name, w.Network, err)
		}
		interfaces[i] = a.Interface
		complete(&interfaces[i], w)
	}
	return interfaces, nil
}

// byNetwork returns the indexes of wanted in the order of the networks' names, and of the
// pools' names on the same network.
func byNetwork(wanted []pod.Interface) []int {
	places := make([]int, len(wanted))
	for i := range places {
		places[i] = i
	}
	slices.SortStableFunc(places, func(a, b int) int {
		return cmp.Or(strings.Compare(wanted[a].Network, wanted[b].Network), slices.Compare(wanted[a].Pools, wanted[b].Pools))
	})
	return places
}

// mustWait reports whether a pod gets nothing yet. Until all records have been read, the
// interfaces that they name are unknown, and the pod's drivers may not know all that is
// taken. The pod is enqueued when both are known.
func (e *Ensurer) mustWait(p *corev1.Pod) bool {
	over := func() bool { return !e.memory.reading.Load() && e.knows(p) }
	if over() {
		return false
	}
	e.memory.wait(p, nil)
	return !over() // the waiting pods may have been enqueued before the add
}

// knows reports whether the drivers of a pod's interfaces know all addresses and ports in
// use. If the pod's annotations cannot be read, the driver of the default network
// decides.
func (e *Ensurer) knows(p *corev1.Pod) bool {
	unknown := map[string]bool{}
	for name, d := range e.drivers {
		if !d.Knows() {
			unknown[name] = true
		}
	}
	if len(unknown) == 0 {
		return true
	}
	wanted, err := e.requests.wanted(p)
	if err != nil {
		return !unknown[e.requests.defaultDriver]
	}
	return !slices.ContainsFunc(wanted, func(w pod.Interface) bool { return unknown[e.requests.driverOf(&w)] })
}

// endWait notes that a pod of a name does not wait any more. The warnings about its hot plug stay.
func (e *Ensurer) endWait(key types.NamespacedName) {
	if e.memory.endWait(key) {
		e.warnings.Forget(key, "")
	}
}

// nodeCacheLag is how long a new Node may be missing from the cache when its first pods
// appear. After that the pods get an event that the Node does not exist.
const nodeCacheLag = 5 * time.Second

// eventNodeUnknown is posted on a pod that is bound to a node that does not exist.
const eventNodeUnknown = "NodeUnknown"

// awaitItsNode lets a pod wait whose Node does not exist or is not in the cache yet. The
// Node's event brings the pod back at once. Any other pod that is not served waits for
// nothing.
func (e *Ensurer) awaitItsNode(ctx context.Context, s *observed) (ctrl.Result, error) {
	key, p := s.key, s.pod
	switch {
	case s.served:
		return ctrl.Result{}, nil
	case p == nil || s.current != nil || !pod.Wants(p):
		if s.current != nil {
			e.endWait(key)
		}
		e.memory.hasNode(key) // giveBackUnrecorded gives back its interfaces
		return ctrl.Result{}, nil
	}
	if w := e.memory.waiterOf(key); w == nil || w.pod != pod.IdentityOf(p) {
		e.memory.wait(p, nil) // before the Node is read: a later event finds the pod here
	}
	if known, served := e.nodes.of(ctx, p); known {
		e.endWait(key)
		e.memory.hasNode(key)
		if served {
			return ctrl.Result{RequeueAfter: time.Millisecond}, nil // the Node has come just now
		}
		return ctrl.Result{}, nil
	}
	if left := nodeCacheLag - e.memory.withoutNode(key); left > 0 {
		return ctrl.Result{RequeueAfter: left}, nil
	}
	e.warnings.Tell(podReference(p), "", eventNodeUnknown, "EnsureNetwork", fmt.Sprintf(
		"no network yet: there is no Node %q: the pod gets its addresses when there is one; delete it when there will be none", p.Spec.NodeName))
	return ctrl.Result{}, nil
}

// requests turns what pods ask for into requests to drivers.
type requests struct {
	from          client.Reader
	drivers       driver.Table
	defaultDriver string // Config.DefaultDriver
	rules         pod.Rules
}

// outline returns an interface without the fields that its driver fills in.
func (r requests) outline(w *pod.Interface) v1alpha1.Interface {
	i := v1alpha1.Interface{
		Name: w.Name, Network: w.Network, Driver: r.driverOf(w), Default: w.Default,
		Binding: v1alpha1.Binding{AddressOnly: &v1alpha1.AddressOnlyBinding{}}, // a valid stand-in for the driver's binding
	}
	complete(&i, w)
	return i
}

// wanted returns the interfaces that a pod asks for. An error that has no driver sentinel
// becomes fault.ErrInvalid.
func (r requests) wanted(p *corev1.Pod) ([]pod.Interface, error) {
	wanted, err := r.rules.Interfaces(p)
	if err != nil && driver.Result(err) == "Unknown" {
		err = fmt.Errorf("%w: %w", fault.ErrInvalid, err)
	}
	return wanted, err
}

// request returns the request for one interface, with the parts of the pod and the
// network that its driver reads. The addresses that a pod asks for by its annotation
// are those of its default interface. Errors: fault.ErrInvalid.
func (r requests) request(ctx context.Context, p *corev1.Pod, asks *driver.Request, w *pod.Interface) (*driver.Request, error) {
	d, err := r.drivers.Named(r.driverOf(w))
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
	if d.Networks.Read != nil {
		if out.Asks, err = d.Networks.Read(p, w); err != nil {
			return nil, err
		}
	}
	return &out, nil
}

// labelsOfNetwork returns the labels of the namespace of a further network's definition;
// nil if they are not known, and for the default network.
func (r requests) labelsOfNetwork(ctx context.Context, w *pod.Interface) map[string]string {
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
func (r requests) describe(ctx context.Context, p *corev1.Pod) (*driver.Request, error) {
	addresses, err := pod.Addresses(p)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", fault.ErrInvalid, err)
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
func (r requests) labelsOf(ctx context.Context, o client.Object, name string) map[string]string {
	if err := r.from.Get(ctx, client.ObjectKey{Name: name}, o, client.UnsafeDisableDeepCopy); err != nil {
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
func (r requests) driverOf(w *pod.Interface) string {
	if w.Driver == "" {
		return r.defaultDriver
	}
	return w.Driver
}

// ownerOf returns the owner that an interface of a pod is obtained for.
func ownerOf(p *corev1.Pod, name string) driver.Owner {
	return driver.Owner{PodUID: p.UID, Interface: name, Namespace: p.Namespace, PodName: p.Name, NodeName: p.Spec.NodeName}
}
