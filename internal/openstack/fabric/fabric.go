package fabric

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/openstack/cloud"
)

// Interval is the time between two comparisons of all nodes with the cloud, and until a
// node is tried again whose port the cloud refuses to change.
const Interval = 5 * time.Minute

// Reasons of the condition Ready of NodeNetworkSpec.Fabric.
const (
	// ReasonReady: the cloud carries packets of the node's pods.
	ReasonReady = "Ready"
	// ReasonCoarse: the pairs are those of the pools, since those of the blocks do not fit.
	ReasonCoarse = "PairsOfPools"
	// ReasonOff: the port has no port security, so nothing is needed.
	ReasonOff = "PortSecurityOff"
	// ReasonNoPort: the node's port is not certain.
	ReasonNoPort = "NoPort"
	// ReasonForbidden: the credentials may not change the port, the group or the router.
	ReasonForbidden = "Forbidden"
	// ReasonLimit: a limit of the cloud: pairs of a port, rules, routes of a router.
	ReasonLimit = "Limit"
	// ReasonFailed: the cloud refuses the change for another reason.
	ReasonFailed = "Failed"
)

// Ports are the calls about ports.
type Ports interface {
	Ports(ctx context.Context, q cloud.PortQuery) ([]cloud.Port, error)
	Port(ctx context.Context, id string) (cloud.Port, error)
	UpdatePort(ctx context.Context, id string, revision int, ch cloud.PortChange) (cloud.Port, error)
}

// Routers are the calls about routers.
type Routers interface {
	Router(ctx context.Context, idOrName string) (cloud.Router, error)
	AddRoutes(ctx context.Context, router string, routes []cloud.Route) error
	RemoveRoutes(ctx context.Context, router string, routes []cloud.Route) error
}

// Groups are the calls about security groups.
type Groups interface {
	Groups(ctx context.Context) ([]cloud.Group, error)
	Group(ctx context.Context, idOrName string) (cloud.Group, error)
	CreateGroup(ctx context.Context, project, name, description string) (cloud.Group, error)
	DeleteGroup(ctx context.Context, id string) error
}

// Rules are the calls about the rules of security groups.
type Rules interface {
	AddRules(ctx context.Context, group string, rules []cloud.Rule) ([]cloud.Rule, error)
	DeleteRule(ctx context.Context, id string) error
}

// Calls are the calls to the cloud.
type Calls struct {
	Ports   Ports
	Routers Routers
	Groups  Groups
	Rules   Rules
}

// Config has the settings and dependencies of a Fabric.
type Config struct {
	Client client.Client
	// Connect connects to the cloud. It is called until it succeeds.
	Connect func(ctx context.Context) (Calls, error)
	Events  events.EventRecorder
	Metrics *Metrics
	// Cluster is the name of the cluster in the cloud.
	Cluster string
	// PerBlock gives a port the pairs of the node's blocks, not of the pools.
	PerBlock bool
	// Router is the ID or name of the router between the nodes' subnets; empty for none.
	Router string
	// Group is the ID or name of a security group that the nodes' ports have already. It
	// gets the rules. If it is empty, a group of the cluster's own is added to the ports.
	Group string
	// Remove takes everything back.
	Remove bool
}

// Fabric keeps the entries of the cloud for each node.
type Fabric struct {
	Config
	// Calls is set before compared is closed.
	Calls
	// drifted are the nodes whose entries differ from the record.
	drifted chan event.GenericEvent

	mu sync.Mutex
	// done has what the cloud has for a node, as a key of its wants. It saves the calls for
	// events that change nothing.
	done map[string]string
	// apart is true if the nodes were last in different subnets.
	apart bool
	// compared is closed when the first comparison of this term has ended.
	compared chan struct{}

	// routing is full during the calls about the router. Neutron with OVN loses routes that
	// two calls add at the same time: its database has both, the network only one.
	routing chan struct{}

	grouping sync.Mutex // held during calls about the group
	// group is the security group that was last made complete, and pods its prefixes.
	group cloud.Group
	pods  []netip.Prefix
}

// New returns a Fabric. SetupWithManager registers it.
func New(c Config) *Fabric {
	return &Fabric{Config: c, drifted: make(chan event.GenericEvent, 1024), done: map[string]string{}, compared: make(chan struct{}), routing: make(chan struct{}, 1)}
}

// wants is what the cloud needs for a node.
type wants struct {
	machine   string
	addresses []netip.Addr
	pairs     [][]netip.Prefix // sets, the preferred one first; nil for none
	routes    []cloud.Route
	pods      []netip.Prefix // of the whole cluster, for the security group
	leaves    bool           // everything of the node is removed
}

func (w wants) key() string {
	return fmt.Sprint(w.machine, w.addresses, w.pairs, w.routes, w.pods, w.leaves)
}

// state is the cluster as one reconcile sees it.
type state struct {
	networks []v1alpha1.NodeNetwork
	pools    []netip.Prefix
}

func (f *Fabric) read(ctx context.Context) (state, error) {
	var pools v1alpha1.IPPoolList
	var networks v1alpha1.NodeNetworkList
	if err := errors.Join(f.Client.List(ctx, &pools), f.Client.List(ctx, &networks)); err != nil {
		return state{}, err
	}
	s := state{networks: networks.Items}
	for i := range pools.Items {
		if pools.Items[i].Spec.Placement != v1alpha1.PlacementPerNode {
			continue
		}
		if p, err := ofPool(&pools.Items[i]); err == nil { // the pool's status has the error
			s.pools = append(s.pools, p...)
		}
	}
	return s, nil
}

// wantsOf returns what the cloud needs for a node. node is nil if it is gone.
func (f *Fabric) wantsOf(s state, nn *v1alpha1.NodeNetwork, node *corev1.Node) wants {
	w := wants{leaves: f.Remove || node == nil || !nn.DeletionTimestamp.IsZero()}
	if w.leaves {
		return w
	}
	w.machine = MachineID(node.Spec.ProviderID)
	w.addresses = addressesOf(nn, w.machine)
	blocks := aggregate(parse(nn.Spec.Blocks))
	all := aggregate(slices.Concat(s.pools, blocks))
	w.pairs = [][]netip.Prefix{all}
	if f.PerBlock {
		w.pairs = [][]netip.Prefix{blocks, all}
	}
	w.pods = slices.Clone(s.pools)
	for i := range s.networks {
		w.pods = append(w.pods, parse(s.networks[i].Spec.Blocks)...)
	}
	w.pods = aggregate(w.pods)
	if f.Router != "" && apart(s.networks) {
		for _, b := range blocks {
			for _, a := range w.addresses {
				if a.Is4() == b.Addr().Is4() {
					w.routes = append(w.routes, cloud.Route{Destination: b, NextHop: a})
					break
				}
			}
		}
	}
	return w
}

// apart reports whether nodes that stay are in different subnets, by their confirmed
// addresses.
func apart(all []v1alpha1.NodeNetwork) bool {
	first := map[bool]netip.Prefix{}
	for i := range all {
		if !all[i].DeletionTimestamp.IsZero() {
			continue
		}
		networks := parse(all[i].Spec.Underlay)
		for _, p := range parse(all[i].Status.Addresses) {
			if !slices.ContainsFunc(networks, func(n netip.Prefix) bool { return n.Contains(p.Addr()) }) {
				continue
			}
			is4 := p.Addr().Is4()
			if had, ok := first[is4]; ok && had != p.Masked() {
				return true
			}
			first[is4] = p.Masked()
		}
	}
	return false
}

// Reconcile brings the cloud into the wanted state of a node.
func (f *Fabric) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if err := f.waitCompared(ctx); err != nil {
		return ctrl.Result{}, err
	}
	nn := &v1alpha1.NodeNetwork{}
	gone := f.Client.Get(ctx, req.NamespacedName, nn)
	if client.IgnoreNotFound(gone) != nil {
		return ctrl.Result{}, gone
	}
	s, err := f.read(ctx)
	if err != nil {
		return ctrl.Result{}, err
	}
	f.tellOthers(ctx, s)
	if gone != nil {
		f.setDone(req.Name, "")
		return ctrl.Result{}, nil //nolint:nilerr // it is not found
	}
	node := &corev1.Node{}
	if err := f.Client.Get(ctx, req.NamespacedName, node); apierrors.IsNotFound(err) {
		node = nil
	} else if err != nil {
		return ctrl.Result{}, err
	}
	w := f.wantsOf(s, nn, node)
	if f.isDone(req.Name, w.key()) {
		return ctrl.Result{}, nil
	}
	run := &change{fabric: f, nn: nn, record: recordOf(nn), wants: w, taken: takenBy(s.networks, req.Name)}
	return f.outcome(ctx, run, run.make(ctx))
}

// tellOthers has all nodes reconciled when the first one is in another subnet, or the last
// one no longer: all routes depend on it.
func (f *Fabric) tellOthers(ctx context.Context, s state) {
	now := f.Router != "" && apart(s.networks)
	f.mu.Lock()
	same := f.apart == now
	f.apart = now
	f.mu.Unlock()
	if same {
		return
	}
	for i := range s.networks {
		select {
		case f.drifted <- event.GenericEvent{Object: &s.networks[i]}:
		case <-ctx.Done():
			return
		}
	}
}

// outcome writes the condition that follows from a change, and returns when the node is
// tried again.
func (f *Fabric) outcome(ctx context.Context, run *change, failed error) (ctrl.Result, error) {
	c := conditionOf(run, failed)
	passing := errors.Is(failed, cloud.ErrUnavailable) || errors.Is(failed, cloud.ErrChanged) || errors.Is(failed, cloud.ErrTaken) || errors.Is(failed, errKube)
	if run.wants.leaves && failed == nil {
		return ctrl.Result{}, run.forget(ctx)
	}
	if passing {
		return ctrl.Result{}, fmt.Errorf("node %s: %w", run.nn.Name, failed)
	}
	news, err := run.conclude(ctx, c)
	if err != nil {
		return ctrl.Result{}, err
	}
	if news && failed != nil {
		f.Events.Eventf(run.nn, nil, corev1.EventTypeWarning, "FabricFailed", "Reconcile", "%s", strings.ToValidUTF8(c.Message[:min(len(c.Message), 1000)], ""))
	}
	if failed != nil {
		return ctrl.Result{RequeueAfter: Interval}, nil //nolint:nilerr // the condition has the error
	}
	f.setDone(run.nn.Name, run.wants.key())
	return ctrl.Result{}, nil
}

// conditionOf returns the condition Ready after a change.
func conditionOf(run *change, failed error) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionFabricReady, Status: metav1.ConditionTrue, Reason: ReasonReady, Message: "the cloud lets the node's pods send and receive with their own addresses"}
	switch {
	case failed == nil && run.off:
		c.Reason, c.Message = ReasonOff, "the port has no port security, so it needs no pairs"
	case failed == nil && run.coarse:
		c.Reason = ReasonCoarse
		c.Message = fmt.Sprintf("the node's blocks need more allowed address pairs than the port has room for (%d), so it has those of the pools", maxPairs)
	case failed == nil:
	default:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, ReasonFailed, failed.Error()
		for err, reason := range map[error]string{ErrNoPort: ReasonNoPort, cloud.ErrForbidden: ReasonForbidden, cloud.ErrLimit: ReasonLimit, cloud.ErrQuota: ReasonLimit} {
			if errors.Is(failed, err) {
				c.Reason = reason
			}
		}
	}
	return c
}

// takenBy returns the nodes of all recorded ports but those of one node.
func takenBy(all []v1alpha1.NodeNetwork, but string) map[string]string {
	out := map[string]string{}
	for i := range all {
		if f := all[i].Spec.Fabric; f != nil && f.Port != "" && all[i].Name != but {
			out[f.Port] = all[i].Name
		}
	}
	return out
}

func (f *Fabric) waitCompared(ctx context.Context) error {
	f.mu.Lock()
	compared := f.compared
	f.mu.Unlock()
	select {
	case <-compared:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (f *Fabric) isDone(node, key string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.done[node] == key
}

func (f *Fabric) setDone(node, key string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if key == "" {
		delete(f.done, node)
		return
	}
	f.done[node] = key
}
