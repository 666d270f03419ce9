package controller

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/nad"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/internal/whereabouts"
)

// lookAgain is how often it is looked whether there are
// NetworkAttachmentDefinitions in the cluster, while there are none.
const lookAgain = 10 * time.Second

// Event reasons about a NetworkAttachmentDefinition.
const (
	eventNetworkInvalid = "NetworkInvalid"
	eventNetworkDiffers = "NetworkDiffers"
	eventPoolFailed     = "PoolNotWritten"
)

// Networks is what the informer has shown of NetworkAttachmentDefinitions, read
// once: the source "npwg". It also writes the IPPools of networks with the
// configuration of whereabouts, which name ranges and no pools.
type Networks struct {
	informers ctrlcache.Informers
	client    client.Client
	events    events.EventRecorder
	flat      []byte
	queue     workqueue.TypedRateLimitingInterface[types.NamespacedName]

	mu     sync.Mutex
	m      map[types.NamespacedName]*network
	unread error // why they are not all known yet
	again  func()
}

// network is one definition, parsed.
type network struct {
	nad.Network
	err   error
	pools []v1alpha1.IPPool
	// object is for events about it.
	object *unstructured.Unstructured
}

// NewNetworks returns an empty set. flat is the content of a flat file of
// whereabouts, and may be empty.
func NewNetworks(informers ctrlcache.Informers, c client.Client, recorder events.EventRecorder, flat []byte) *Networks {
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](firstRetry, lastRetry)
	return &Networks{
		informers: informers, client: c, events: recorder, flat: flat,
		queue:  workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[types.NamespacedName]{Name: "networks"}),
		m:      map[types.NamespacedName]*network{},
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
	var out []pod.Interface
	for _, s := range selected {
		known, err := n.get(types.NamespacedName{Namespace: s.Namespace, Name: s.Name})
		if err != nil {
			return nil, fmt.Errorf("interface %s on network %s of annotation %s: %w", s.Interface, s.Network(), pod.AnnotationNetworks, err)
		}
		if known.Served() {
			out = append(out, wantedOf(s, known))
		}
	}
	return out, nil
}

// Chosen implements Config.Chosen: a network with addresses from Fairlead gives the
// default interface those, and one with another IPAM makes it nobody's concern here.
// Of a network whose configuration is a file on the nodes nothing is known; it has
// the addresses of the default network.
func (n *Networks) Chosen(s pod.Selection) ([]pod.Interface, error) {
	known, err := n.get(types.NamespacedName{Namespace: s.Namespace, Name: s.Name})
	switch {
	case err != nil:
		return nil, fmt.Errorf("network %s of annotation %s: %w", s.Network(), pod.AnnotationDefaultNetwork, err)
	case known.IPAM == "":
		return []pod.Interface{pod.Default(true)}, nil
	case !known.Served():
		return nil, nil
	}
	w := wantedOf(s, known)
	w.Default = true
	return []pod.Interface{w}, nil
}

// wantedOf says what a pod wants of a network.
func wantedOf(s pod.Selection, n *network) pod.Interface {
	w := pod.Interface{Name: s.Interface, Network: s.Network(), AddressOnly: true, Addresses: s.Addresses, MAC: s.MAC, Pools: n.Pools}
	c := n.Whereabouts
	if c == nil {
		return w
	}
	w.EachPool, w.Routes, w.DNS = true, c.Routes, c.DNS
	for _, p := range n.pools {
		w.Pools = append(w.Pools, p.Name)
	}
	if c.Gateway != (netip.Addr{}) {
		w.Gateways = []string{c.Gateway.String()}
	}
	return w
}

// get returns a network. It fails with driver.ErrNotFound, driver.ErrInvalid and
// driver.ErrUnavailable.
func (n *Networks) get(key types.NamespacedName) (*network, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	got, ok := n.m[key]
	switch {
	case !ok && n.unread != nil:
		return nil, fmt.Errorf("%w: %w", driver.ErrUnavailable, n.unread)
	case !ok:
		return nil, fmt.Errorf("%w: there is no NetworkAttachmentDefinition %s: create it, or correct the pod's annotation", driver.ErrNotFound, key)
	case got.err != nil:
		return nil, fmt.Errorf("%w: NetworkAttachmentDefinition %s: %w", driver.ErrInvalid, key, got.err)
	}
	return got, nil
}

// Watch implements Config.Retry: pods that wait are tried again when a network
// comes or changes. It returns at once, and watches until ctx ends.
func (n *Networks) Watch(ctx context.Context, again func()) error {
	n.mu.Lock()
	n.again = again
	n.mu.Unlock()
	go n.watch(ctx)
	return nil
}

// watch waits for the kind to be there: who installs it may come later.
func (n *Networks) watch(ctx context.Context) {
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	told := false
	for {
		err := n.observeAll(ctx)
		if err == nil {
			return
		}
		if meta.IsNoMatchError(err) {
			err = errors.New("the cluster has no NetworkAttachmentDefinitions: their CustomResourceDefinition, network-attachment-definitions.k8s.cni.cncf.io, is not installed")
		}
		n.setUnread(err)
		if !told && ctx.Err() == nil {
			log.FromContext(ctx).Error(err, "pods with further networks have to wait", "every", lookAgain)
			told = true
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

// observeAll connects the informer. It fails when the kind is not there.
func (n *Networks) observeAll(ctx context.Context) error {
	kind := &unstructured.Unstructured{}
	kind.SetGroupVersionKind(nad.Kind)
	informer, err := n.informers.GetInformer(ctx, kind, ctrlcache.BlockUntilSynced(false))
	if err != nil {
		return err
	}
	if err := n.observePools(ctx); err != nil {
		return err
	}
	fed, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { n.observe(o.(*unstructured.Unstructured)) },
		UpdateFunc: func(_, o any) { n.observe(o.(*unstructured.Unstructured)) },
		DeleteFunc: func(o any) { n.forget(client.ObjectKeyFromObject(last(o).(*unstructured.Unstructured))) },
	})
	if err != nil {
		return fmt.Errorf("watch NetworkAttachmentDefinitions: %w", err)
	}
	select {
	case <-fed.HasSyncedChecker().Done():
		n.setUnread(nil)
		n.wake()
	case <-ctx.Done():
	}
	return nil
}

// observePools has a pool written again that somebody deletes.
func (n *Networks) observePools(ctx context.Context) error {
	informer, err := n.informers.GetInformer(ctx, &v1alpha1.IPPool{}, ctrlcache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watch IPPools: %w", err)
	}
	_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: func(any) {
		n.mu.Lock()
		defer n.mu.Unlock()
		for key, known := range n.m {
			if len(known.pools) > 0 {
				n.queue.Add(key)
			}
		}
	}})
	return err
}

// observe takes in a definition as it is now.
func (n *Networks) observe(o *unstructured.Unstructured) {
	key := client.ObjectKeyFromObject(o)
	got := &network{object: o}
	config, _, err := unstructured.NestedString(o.Object, "spec", "config")
	if err == nil {
		got.Network, err = nad.Parse(config, n.flat)
	}
	if got.err = err; got.Whereabouts != nil {
		got.pools = whereabouts.Pools(*got.Whereabouts)
	}
	n.mu.Lock()
	n.m[key] = got
	n.mu.Unlock()
	n.queue.Add(key)
	n.wake()
}

func (n *Networks) forget(key types.NamespacedName) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.m, key)
}

func (n *Networks) wake() {
	n.mu.Lock()
	again := n.again
	n.mu.Unlock()
	again()
}

// Run writes the pools that networks need until ctx ends, each while this process
// leads, which while waits for. They are kept when the network goes: pods may have
// addresses of them.
func (n *Networks) Run(ctx context.Context, while func(context.Context, func(context.Context) error) error) error {
	stop := context.AfterFunc(ctx, n.queue.ShutDown)
	defer stop()
	for {
		key, shutdown := n.queue.Get()
		if shutdown {
			return nil
		}
		err := while(ctx, func(ctx context.Context) error { return n.provide(ctx, key) })
		if err != nil && ctx.Err() == nil {
			log.FromContext(ctx).Error(err, "the pools of a network could not be written, will be tried again", "network", key)
			n.queue.AddRateLimited(key)
		} else {
			n.queue.Forget(key)
		}
		n.queue.Done(key)
	}
}

// provide writes the pools of one network, and says on it what a person should
// know.
func (n *Networks) provide(ctx context.Context, key types.NamespacedName) error {
	n.mu.Lock()
	known := n.m[key]
	n.mu.Unlock()
	if known == nil {
		return nil
	}
	tell := func(reason, format string, args ...any) {
		n.events.Eventf(known.object, nil, corev1.EventTypeWarning, reason, "ReadNetwork", "%s", clip(fmt.Sprintf(format, args...)))
	}
	if known.err != nil {
		tell(eventNetworkInvalid, "pods cannot be attached: %v", known.err)
		return nil //nolint:nilerr // it was told; trying again does not mend a configuration
	}
	if len(known.Warnings) > 0 {
		// In one: events that differ in their text alone become the first of them.
		tell(eventNetworkDiffers, "not as the configuration says: %s", strings.Join(known.Warnings, "; "))
	}
	for _, w := range known.Warnings {
		log.FromContext(ctx).Info("network is not served as its configuration says", "network", key, "warning", w)
	}
	var errs []error
	for i := range known.pools {
		pool := known.pools[i].DeepCopy()
		if err := n.client.Create(ctx, pool); err != nil && !apierrors.IsAlreadyExists(err) {
			tell(eventPoolFailed, "IPPool %s could not be written: %v", pool.Name, err)
			errs = append(errs, fmt.Errorf("write IPPool %s: %w", pool.Name, err))
		}
	}
	return errors.Join(errs...)
}
