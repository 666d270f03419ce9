// Package npwg finds the interfaces that pods ask for on NetworkAttachmentDefinitions
// (NPWG multi-network specification 1.3). It also writes the IPPools of networks with the
// configuration of whereabouts, which names ranges and no pools.
package npwg

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/nad"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/internal/run"
	"fairlead.dev/fairlead/internal/warn"
	"fairlead.dev/fairlead/internal/whereabouts"
)

// kindInterval is the interval of the checks for NetworkAttachmentDefinitions while the
// cluster does not have that kind.
const kindInterval = 10 * time.Second

// Pauses between two tries to write the pools of a network: the first, doubling up to the
// last.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = 30 * time.Second
)

// Event reasons about a NetworkAttachmentDefinition.
const (
	eventNetworkInvalid = "NetworkInvalid"
	eventNetworkDiffers = "NetworkDiffers"
	eventRangeShared    = "RangeShared"
	eventPoolFailed     = "PoolNotWritten"
	eventPoolLimit      = "PoolLimit"
)

// Config of Networks.
type Config struct {
	Informers ctrlcache.Informers
	Client    client.Client
	// FlatFile is the content of a flat file of whereabouts, and may be empty.
	FlatFile []byte
	// Namespace of the controller. Its networks may draw from every pool that other
	// plugins may use, except the default network's (isOpen).
	Namespace string
	// Warnings are the events on NetworkAttachmentDefinitions.
	Warnings warn.Config
	// DefaultPools are the default network's IPPools.
	DefaultPools []string
	// Drivers names the driver of a network by its ipam.type.
	Drivers map[string]string
	// PluginDrivers names the driver of a network by the type of its plugin, and
	// AnnotationDrivers that of a network without a configuration by an annotation, where
	// Fairlead attaches the pods. The driver alone reads such a network.
	PluginDrivers, AnnotationDrivers map[string]string
	// Attaches reports whether Fairlead makes the interfaces of a pod on networks; another
	// program makes them if not. Nil: always another program.
	Attaches func(p *corev1.Pod) bool
	// Attaching is true if Fairlead attaches most pods: an event on a network that it does
	// not serve names the reason.
	Attaching bool
	// Open lists the parts of the nodes that networks may use.
	Open []Opening
	// Isolated confines pods to networks of their own namespace, of Namespace and of
	// Shared.
	Isolated bool
	Shared   []string
	// MaxPools is how many IPPools are written for the networks of one namespace.
	MaxPools int
	// Vacant reports whether no address of an IPPool is taken, kept or cooling down. If
	// not, again is the time until the next check; zero if the pool's status changes
	// first.
	Vacant func(ctx context.Context, o *v1alpha1.IPPool) (vacant bool, again time.Duration, err error)
}

// Networks holds the NetworkAttachmentDefinitions of the cluster, parsed once: the source
// "npwg". It also writes the IPPools of networks with the configuration of whereabouts,
// which names ranges and no pools.
type Networks struct {
	cfg      Config
	warnings *warn.Teller
	queue    workqueue.TypedRateLimitingInterface[types.NamespacedName]

	mu sync.Mutex
	m  map[types.NamespacedName]*network
	// pools and the labels of namespaces, as in the informers.
	pools  map[string]knownPool
	labels map[string]map[string]string
	unread error // why not all networks are known yet; nil if they are
	again  func()
}

// network is one definition, parsed.
type network struct {
	nad.Network
	// driver is named by the annotation fairlead.dev/driver, otherwise by the type or
	// another annotation; empty if none names one.
	driver string
	// annotated is true if the annotation fairlead.dev/driver names it.
	annotated bool
	// settings are those that only the driver reads; nil if the network is read here.
	settings *pod.Settings
	err      error
	// object refers to the definition in events.
	object corev1.ObjectReference
}

// New returns an empty set.
func New(cfg Config) *Networks {
	if cfg.Attaches == nil {
		cfg.Attaches = func(*corev1.Pod) bool { return false }
	}
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](firstPause, lastPause)
	return &Networks{
		cfg: cfg, warnings: warn.New(cfg.Warnings),
		queue:  workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[types.NamespacedName]{Name: "networks"}),
		m:      map[types.NamespacedName]*network{},
		pools:  map[string]knownPool{},
		labels: map[string]map[string]string{},
		unread: errors.New("NetworkAttachmentDefinitions are still being listed"),
		again:  func() {},
	}
}

// Source implements pod.Source.
func (n *Networks) Source(p *corev1.Pod) ([]pod.Interface, error) {
	selected, err := pod.Networks(p)
	if err != nil {
		return nil, err
	}
	return n.Selected(p, selected)
}

// Selected implements Selected of the controller's Config: it returns the interfaces of a pod
// for networks that it selects, in order.
func (n *Networks) Selected(p *corev1.Pod, selected []pod.Selection) ([]pod.Interface, error) {
	var out []pod.Interface
	for _, s := range selected {
		w, served, err := n.wanted(p, s)
		if err != nil {
			return nil, fmt.Errorf("interface %s on network %s of annotation %s: %w", s.Interface, s.Network(), pod.AnnotationNetworks, err)
		}
		if served {
			out = append(out, w)
		}
	}
	return out, nil
}

// Chosen implements Chosen of the controller's Config. If Fairlead attaches the pod, it
// makes the default interface on the network. Otherwise the network's plugin makes it:
// if the network has addresses from Fairlead, the default interface gets those. If it has
// another IPAM, Fairlead serves no interface. If its configuration is a file on the nodes,
// nothing is known of it, and the interface gets addresses of the default network.
func (n *Networks) Chosen(p *corev1.Pod, s pod.Selection) ([]pod.Interface, error) {
	attaches := n.cfg.Attaches(p)
	known, err := n.get(keyOfNetwork(s))
	if err == nil && !attaches && known.IPAM == "" && !known.annotated {
		w := pod.Default(true)
		w.ClaimReference = s.ClaimReference
		return []pod.Interface{w}, nil
	}
	s.DefaultRoute = s.DefaultRoute || attaches
	w, served, err := n.wanted(p, s)
	if err != nil {
		return nil, fmt.Errorf("network %s: %w", s.Network(), err)
	}
	if !served {
		return nil, nil
	}
	w.Default, w.AddressOnly, w.DefaultRoute = true, !attaches, false
	return []pod.Interface{w}, nil
}

func keyOfNetwork(s pod.Selection) types.NamespacedName {
	return types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
}

// wanted returns the interface that a pod asks for on a network. served is false if
// another program makes it and the network's addresses are not Fairlead's. Where Fairlead
// is only the network's IPAM, the plugin of the network makes the interface.
func (n *Networks) wanted(p *corev1.Pod, s pod.Selection) (w pod.Interface, served bool, err error) {
	if n.cfg.Isolated && !slices.Contains(append(n.cfg.Shared, p.Namespace, n.cfg.Namespace), s.Namespace) {
		return w, false, fmt.Errorf("%w: pods of namespace %s may not use networks of namespace %s: networks.isolated is true, and networks.sharedNamespaces has %q: use a network of the pod's own namespace",
			fault.ErrInvalid, p.Namespace, s.Namespace, n.cfg.Shared)
	}
	if n.cfg.Attaches(p) {
		w, err = n.attached(s)
		return w, err == nil, err
	}
	known, err := n.get(keyOfNetwork(s))
	if err != nil || !known.Served() && !known.annotated {
		return pod.Interface{}, false, err
	}
	w = pod.Interface{Name: s.Interface, Network: s.Network(), Driver: known.driver, AddressOnly: known.Served(), Addresses: s.Addresses, MAC: s.MAC, Pools: known.Pools, ClaimReference: s.ClaimReference}
	c := known.Whereabouts
	if c == nil {
		return w, true, nil
	}
	if w.Pools, err = n.poolsOf(s.Namespace, c); err != nil {
		return pod.Interface{}, false, err
	}
	w.EachPool, w.Routes, w.DNS = true, c.Routes, c.DNS
	if c.Gateway != (netip.Addr{}) {
		w.Gateways = []string{c.Gateway.String()}
	}
	return w, true, nil
}

// poolsOf returns the pools that a network of a namespace draws from. Errors:
// fault.ErrInvalid; fault.ErrUnavailable while the pools are not known or not written
// yet.
func (n *Networks) poolsOf(namespace string, c *whereabouts.Config) ([]string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.unread != nil {
		return nil, fmt.Errorf("%w: %w", fault.ErrUnavailable, n.unread)
	}
	reach, err := n.reachOf(namespace, c)
	if err != nil {
		return nil, err
	}
	for i := range reach.own {
		has, ok := n.pools[reach.own[i].Name]
		if !ok || has.writtenFor() != namespace {
			return nil, fmt.Errorf("%w: IPPool %s is not written for it yet; an event on the network says why if it stays so", fault.ErrUnavailable, reach.own[i].Name)
		}
	}
	return reach.pools, nil
}

// get returns a network. Errors: fault.ErrNotFound, fault.ErrInvalid and
// fault.ErrUnavailable.
func (n *Networks) get(key types.NamespacedName) (*network, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	got, ok := n.m[key]
	switch {
	case !ok && n.unread != nil:
		return nil, fmt.Errorf("%w: %w", fault.ErrUnavailable, n.unread)
	case !ok:
		return nil, fmt.Errorf("%w: there is no NetworkAttachmentDefinition %s: create it, or correct the pod's annotation", fault.ErrNotFound, key)
	case got.err != nil:
		return nil, fmt.Errorf("%w: NetworkAttachmentDefinition %s: %w", fault.ErrInvalid, key, got.err)
	}
	return got, nil
}

// Watch implements Retry of the controller's Config: it calls again whenever a network is
// added or changes. It returns nil at once, and watches until ctx ends.
func (n *Networks) Watch(ctx context.Context, again func()) error {
	n.mu.Lock()
	n.again = again
	n.mu.Unlock()
	go n.watch(ctx)
	return nil
}

// watch connects the informers, and tries again every kindInterval while the kind does not
// exist: it may be installed later.
func (n *Networks) watch(ctx context.Context) {
	tick := time.NewTicker(kindInterval)
	defer tick.Stop()
	logged := false
	for {
		err := n.observeAll(ctx)
		if err == nil {
			return
		}
		if meta.IsNoMatchError(err) {
			err = errors.New("the cluster has no NetworkAttachmentDefinitions: their CustomResourceDefinition, network-attachment-definitions.k8s.cni.cncf.io, is not installed: apply deploy/networks.yaml, or install Multus")
		}
		n.setUnread(err)
		if !logged && ctx.Err() == nil {
			log.FromContext(ctx).Error(err, "pods with further networks wait", "every", kindInterval)
			logged = true
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (n *Networks) setUnread(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.unread = err
}

// observeAll watches networks, pools and namespaces, and returns nil when all have been
// read or ctx ends. It fails if the kind of networks does not exist, or a watch cannot be
// set up.
func (n *Networks) observeAll(ctx context.Context) error {
	kind := &unstructured.Unstructured{}
	kind.SetGroupVersionKind(nad.Kind)
	informer, err := n.cfg.Informers.GetInformer(ctx, kind, ctrlcache.BlockUntilSynced(false))
	if err != nil {
		return err
	}
	pools, err := n.observePools(ctx)
	if err != nil {
		return err
	}
	namespaces, err := n.observeNamespaces(ctx)
	if err != nil {
		return err
	}
	networks, err := run.Observe(informer, func(_, is *unstructured.Unstructured) { n.observe(is) },
		func(o *unstructured.Unstructured) { n.forget(client.ObjectKeyFromObject(o)) })
	if err != nil {
		return fmt.Errorf("watch NetworkAttachmentDefinitions: %w", err)
	}
	for _, fed := range []cache.ResourceEventHandlerRegistration{pools, namespaces, networks} {
		select {
		case <-fed.HasSyncedChecker().Done():
		case <-ctx.Done():
			return nil
		}
	}
	n.setUnread(nil)
	n.requeue(func(types.NamespacedName, *network) bool { return true })
	n.wake()
	return nil
}

// observe stores a definition as it is now.
func (n *Networks) observe(o *unstructured.Unstructured) {
	key := client.ObjectKeyFromObject(o)
	got := &network{object: corev1.ObjectReference{
		APIVersion: o.GetAPIVersion(), Kind: o.GetKind(), Namespace: key.Namespace, Name: key.Name, UID: o.GetUID(),
	}}
	config, _, err := unstructured.NestedString(o.Object, "spec", "config")
	if err == nil {
		got.Network, err = nad.ParseWithResource(config, n.cfg.FlatFile, o.GetAnnotations()[nad.AnnotationResource])
	}
	got.err = err
	n.cfg.nameDriver(got, o.GetAnnotations())
	n.mu.Lock()
	n.m[key] = got
	n.mu.Unlock()
	n.queue.Add(key)
	// The networks that share a range with it have to be warned too.
	n.requeue(func(other types.NamespacedName, o *network) bool {
		return other.Namespace != key.Namespace && sharedRange(got, o) != ""
	})
	n.wake()
}

// nameDriver sets the driver of a network, and the settings if only the driver reads them.
func (c *Config) nameDriver(got *network, annotations map[string]string) {
	empty := got.Type == "" && got.IPAM == "" && got.Refused == nil
	byType := c.PluginDrivers[got.Type]
	got.driver, got.annotated = annotations[v1alpha1.AnnotationDriver]
	switch {
	case got.annotated:
	case byType != "":
		got.driver = byType
	case empty:
		got.driver = c.byAnnotation(annotations)
	default:
		got.driver = c.Drivers[got.IPAM]
	}
	switch {
	case got.driver == "":
	case empty:
		got.settings = &pod.Settings{Annotations: annotations}
	case got.driver == byType && len(got.Plugins) == 1:
		got.settings = &pod.Settings{Type: got.Type, Plugin: got.Plugins[0], Annotations: annotations}
	case got.driver == byType && len(got.Plugins) > 1:
		got.Refused = fmt.Errorf("plugins: %d elements: must be one, because no plugin is executed for an interface of driver %s", len(got.Plugins), got.driver)
	}
}

// byAnnotation returns the driver that an annotation of a network names; the first by the
// name of the annotation.
func (c *Config) byAnnotation(annotations map[string]string) string {
	for _, a := range slices.Sorted(maps.Keys(c.AnnotationDrivers)) {
		if _, ok := annotations[a]; ok {
			return c.AnnotationDrivers[a]
		}
	}
	return ""
}

func (n *Networks) forget(key types.NamespacedName) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.m, key)
	n.warnings.Forget(key)
	n.queue.Add(key)
}

// requeue enqueues the chosen networks with the configuration of whereabouts.
func (n *Networks) requeue(which func(types.NamespacedName, *network) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for key, known := range n.m {
		if known.Whereabouts != nil && which(key, known) {
			n.queue.Add(key)
		}
	}
}

func (n *Networks) wake() {
	n.mu.Lock()
	again := n.again
	n.mu.Unlock()
	again()
}
