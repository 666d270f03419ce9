package namespace

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/openstack/cloud"
)

// Config of the networks of namespaces.
type Config struct {
	// Client reads from caches, and writes.
	Client client.Client
	// Live reads from the API server.
	Live client.Reader
	// Connect returns the connection to the cloud, which it makes if there is none.
	Connect func(ctx context.Context) (*cloud.Cloud, error)
	// Events gets why a network is not made or removed.
	Events events.EventRecorder
	// Cluster names this cluster among all that use the same cloud.
	Cluster string
	// Project of the networks, unless a pod's namespace names one; empty for that of the
	// credentials.
	Project string
	// Served selects the namespaces that have a network of their own; nil for none.
	Served labels.Selector
	// Asked confines them to those that ask for it (v1alpha1.LabelNetwork).
	Asked bool
	// SubnetPools are the IDs or names of subnet pools, one per family.
	SubnetPools []string
	// Router is the ID or name of the router of all networks.
	Router string
	// Interval is the time between two comparisons of the records with the cloud.
	Interval time.Duration
}

// Networks makes and removes the networks. It is safe for concurrent use.
type Networks struct {
	cfg Config
	// creates shares one create among all pods of a namespace.
	creates singleflight.Group
	mu      sync.Mutex
	changed []func()
	removed []func(network string)
}

// New returns the networks of a configuration. SetupWithManager starts the work on them.
func New(cfg Config) *Networks { return &Networks{cfg: cfg} }

// OnChange registers a function that is called whenever pods may get on that wait for a
// network.
func (n *Networks) OnChange(changed func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.changed = append(n.changed, changed)
}

// OnRemoval registers a function that is called with the ID of a network before it is
// removed, until its last port is gone: ports that no pod has are deleted for it.
func (n *Networks) OnRemoval(removed func(network string)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.removed = append(n.removed, removed)
}

func (n *Networks) removing(network string) {
	n.mu.Lock()
	all := slices.Clone(n.removed)
	n.mu.Unlock()
	for _, f := range all {
		f(network)
	}
}

func (n *Networks) wake() {
	n.mu.Lock()
	all := slices.Clone(n.changed)
	n.mu.Unlock()
	for _, f := range all {
		f()
	}
}

// Network returns the ID of a namespace's own network; empty if the namespace has none. It
// answers from caches. It has the network made if there is none yet, in a project if one is
// given. Errors: fault.ErrUnavailable and fault.ErrExhausted while there is no network,
// with the reason; fault.ErrInvalid if the namespace asks for a network and may not have its own.
func (n *Networks) Network(ctx context.Context, namespace, project string) (string, error) {
	ns := &corev1.Namespace{}
	if err := n.cfg.Client.Get(ctx, client.ObjectKey{Name: namespace}, ns, client.UnsafeDisableDeepCopy); err != nil {
		return "", fmt.Errorf("%w: namespace %s is not known yet: %w", fault.ErrUnavailable, namespace, err)
	}
	owns, err := n.cfg.owns(ns)
	if err != nil || !owns {
		return "", err
	}
	o, err := n.record(ctx, ns)
	if apierrors.IsNotFound(err) {
		if _, err, _ = n.creates.Do(recordName(ns.Name, ns.UID), func() (any, error) {
			return nil, n.create(ctx, ns.Name, ns.UID, project)
		}); err != nil {
			return "", err
		}
		return "", fmt.Errorf("%w: the network of namespace %s is being made", fault.ErrUnavailable, namespace)
	}
	if err != nil {
		return "", err
	}
	ready := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionNetworkReady)
	switch {
	case o.DeletionTimestamp != nil:
		return "", fmt.Errorf("%w: the network of namespace %s is being removed: NamespaceNetwork %s was deleted, and its last port has to go before there is another network", fault.ErrUnavailable, namespace, o.Name)
	case ready == nil:
		return "", fmt.Errorf("%w: the network of namespace %s is being made", fault.ErrUnavailable, namespace)
	case ready.Status == metav1.ConditionTrue && o.Status.Network != "":
		return o.Status.Network, nil
	case ready.Reason == reasonExhausted:
		return "", fmt.Errorf("%w: the network of namespace %s: %s", fault.ErrExhausted, namespace, ready.Message)
	}
	return "", fmt.Errorf("%w: the network of namespace %s: %s", fault.ErrUnavailable, namespace, ready.Message)
}

// owns reports whether a namespace has a network of its own. A namespace that asks for it in
// vain gets no other network in its place: its pods would share a network unexpectedly.
// Errors: fault.ErrInvalid.
func (c Config) owns(ns *corev1.Namespace) (bool, error) {
	asks, labelled := ns.Labels[v1alpha1.LabelNetwork]
	if labelled && asks != v1alpha1.NetworkOwn {
		return false, fmt.Errorf("%w: label %s of namespace %s: %q: must be %q", fault.ErrInvalid, v1alpha1.LabelNetwork, ns.Name, asks, v1alpha1.NetworkOwn)
	}
	if c.Served != nil && c.Served.Matches(labels.Set(ns.Labels)) {
		return labelled || !c.Asked, nil
	}
	if labelled {
		return false, fmt.Errorf("%w: label %s of namespace %s asks for a network of its own, which the namespace may not have: remove the label, or ask the operator to select the namespace (openstack.namespaceNetworks of fairlead-controller)",
			fault.ErrInvalid, v1alpha1.LabelNetwork, ns.Name)
	}
	return false, nil
}

// record reads the record of a namespace from the cache. Errors: NotFound of the API,
// fault.ErrUnavailable.
func (n *Networks) record(ctx context.Context, ns *corev1.Namespace) (*v1alpha1.NamespaceNetwork, error) {
	o := &v1alpha1.NamespaceNetwork{}
	err := n.cfg.Client.Get(ctx, client.ObjectKey{Name: recordName(ns.Name, ns.UID)}, o, client.UnsafeDisableDeepCopy)
	switch {
	case apierrors.IsNotFound(err):
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("%w: read NamespaceNetwork %s: %w", fault.ErrUnavailable, recordName(ns.Name, ns.UID), err)
	case o.Spec.Namespace != ns.Name || o.Spec.NamespaceUID != string(ns.UID):
		return nil, fmt.Errorf("%w: NamespaceNetwork %s is that of another namespace, %s with UID %s: it has to go first", fault.ErrUnavailable, o.Name, o.Spec.Namespace, o.Spec.NamespaceUID)
	}
	return o, nil
}

// create creates the record of a namespace; nil if it exists. Kubernetes deletes it when the
// namespace is gone, also if it was gone before. Errors: fault.ErrUnavailable.
func (n *Networks) create(ctx context.Context, namespace string, uid types.UID, project string) error {
	o := &v1alpha1.NamespaceNetwork{
		ObjectMeta: metav1.ObjectMeta{
			Name: recordName(namespace, uid), Finalizers: []string{v1alpha1.NamespaceNetworkFinalizer},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Namespace", Name: namespace, UID: uid}},
		},
		Spec: v1alpha1.NamespaceNetworkSpec{
			Namespace: namespace, NamespaceUID: string(uid), Project: project, SubnetPools: n.cfg.SubnetPools, Router: n.cfg.Router,
		},
	}
	if err := n.cfg.Client.Create(ctx, o); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("%w: create NamespaceNetwork %s: %w", fault.ErrUnavailable, o.Name, err)
	}
	return nil
}

// Failed has a namespace's network extended or made again, if the cause is that it had no
// address for a port or was not found. It returns the error for the pod. Any other cause is
// returned as it is.
func (n *Networks) Failed(ctx context.Context, namespace string, cause error) error {
	c := metav1.Condition{Type: v1alpha1.ConditionNetworkFull, Status: metav1.ConditionTrue, Reason: reasonNoAddressLeft, Message: "another subnet is being added"}
	switch {
	case errors.Is(cause, cloud.ErrFull):
	case errors.Is(cause, cloud.ErrNotFound):
		c = metav1.Condition{Type: v1alpha1.ConditionNetworkReady, Status: metav1.ConditionFalse, Reason: reasonChecking, Message: "a pod did not find it: it is made again if it is gone"}
	default:
		return cause
	}
	ns := &corev1.Namespace{}
	if err := n.cfg.Client.Get(ctx, client.ObjectKey{Name: namespace}, ns, client.UnsafeDisableDeepCopy); err != nil {
		return cause
	}
	o, err := n.record(ctx, ns)
	if err != nil {
		return cause
	}
	if has := meta.FindStatusCondition(o.Status.Conditions, c.Type); has != nil && has.Status == c.Status {
		c.Message = has.Message // it is known, and perhaps why it is not mended
	} else if err := n.setCondition(ctx, o.DeepCopy(), c); client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
		return errors.Join(cause, err)
	}
	return fmt.Errorf("%w; the network of namespace %s: %s", cause, namespace, c.Message)
}
