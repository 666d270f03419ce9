package upkeep

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlcontroller "sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver/native"
	"fairlead.dev/fairlead/internal/ipam/block"
)

// emptyRetry is the time between two attempts to drop the blocks of a deleted node, until
// their last address is free.
const emptyRetry = 10 * time.Second

// blockIdle is how long a block of a node has to be idle before it is given back. A restart
// of all pods, or the pause between two jobs, is shorter.
const blockIdle = 5 * time.Minute

// Nodes writes one NodeNetwork per served node. All nodes watch the NodeNetworks, so that
// no node has to watch IPBlocks.
type Nodes struct {
	Client client.Client
	Store  *block.Store
	// Served selects the nodes that get a NodeNetwork.
	Served labels.Selector
	// DefaultNetwork is NodeNetworkSpec.DefaultNetwork of every node.
	DefaultNetwork string
	// Underlay are the only networks in which nodes have addresses. If it is empty, the
	// addresses of the Node objects alone count.
	Underlay []netip.Prefix
}

// blockNodeIndex is the cache's index of blocks by the node to which they are routed.
const blockNodeIndex = "spec.node"

// SetupWithManager registers the reconciler.
func (r *Nodes) SetupWithManager(ctx context.Context, mgr ctrl.Manager, lead native.Lead) error {
	if err := mgr.GetFieldIndexer().IndexField(ctx, &v1alpha1.IPBlock{}, blockNodeIndex, nodeOf); err != nil {
		return fmt.Errorf("index blocks by node: %w", err)
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("nodenetworks").
		For(&corev1.Node{}, builder.WithPredicates(predicate.Or(predicate.LabelChangedPredicate{}, addressesChanged()))).
		Owns(&v1alpha1.NodeNetwork{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.IPBlock{}, r.BlockEvents()).
		WithOptions(ctrlcontroller.Options{MaxConcurrentReconciles: 8}).
		Complete(lead(r))
}

// BlockEvents enqueues the node of a block at once if the block is created or deleted, and
// after native.StatusDelay if its slots change: it may become idle. Slots may change many
// times a second, and without the delay the cache may not show the last write of the
// NodeNetwork yet, which would be repeated.
func (*Nodes) BlockEvents() handler.EventHandler {
	now := native.EnqueueAfter(0, nodeOf)
	return handler.Funcs{CreateFunc: now.Create, UpdateFunc: native.Later(nodeOf).Update, DeleteFunc: now.Delete}
}

// nodeOf returns the node to which a block is routed; nil if it is routed to none.
func nodeOf(o client.Object) []string {
	if node := o.(*v1alpha1.IPBlock).Spec.Node; node != "" {
		return []string{node}
	}
	return nil
}

// Reconcile writes the blocks that are routed to one node into its NodeNetwork, and gives
// back the blocks that have been idle for blockIdle.
func (r *Nodes) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	node := &corev1.Node{}
	if err := r.Client.Get(ctx, req.NamespacedName, node); apierrors.IsNotFound(err) {
		return r.gone(ctx, req.Name)
	} else if err != nil {
		return ctrl.Result{}, err
	}
	if !r.Served.Matches(labels.Set(node.Labels)) {
		return ctrl.Result{}, nil
	}
	blocks, sure, err := r.blocksOf(ctx, node.Name)
	if err != nil {
		return ctrl.Result{}, err
	}
	if err := r.write(ctx, node, blocks); err != nil {
		return ctrl.Result{}, err
	}
	again, err := r.Store.DropIdle(ctx, node.Name, blockIdle)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("give back idle blocks of node %s: %w", node.Name, err)
	}
	if !sure {
		again = native.StatusDelay
	}
	return ctrl.Result{RequeueAfter: again}, nil
}

// write creates or updates the NodeNetwork of a node.
func (r *Nodes) write(ctx context.Context, node *corev1.Node, blocks []string) error {
	addresses := addressesOf(node)
	want := v1alpha1.NodeNetworkSpec{
		Blocks: blocks, Summary: v1alpha1.OneLine(blocks, native.MaxSummary), DefaultNetwork: r.DefaultNetwork, Underlay: confirmed(addresses, r.Underlay),
	}
	for _, a := range addresses[:min(len(addresses), maxConfirmed)] {
		want.NodeAddresses = append(want.NodeAddresses, a.String())
	}
	have := &v1alpha1.NodeNetwork{}
	if err := r.Client.Get(ctx, client.ObjectKeyFromObject(node), have); apierrors.IsNotFound(err) {
		return r.create(ctx, node, want)
	} else if err != nil {
		return err
	}
	if sameSpec(have.Spec, want) {
		return nil
	}
	after := have.DeepCopy()
	after.Spec, after.Spec.Fabric = want, have.Spec.Fabric
	if err := r.Client.Patch(ctx, after, client.MergeFrom(have)); err != nil {
		return fmt.Errorf("write spec of NodeNetwork %s: %w", node.Name, err)
	}
	return nil
}

// blocksOf returns the blocks that are routed to a node according to the cache or the
// store. sure is true if both agree. The cache may show a new block before the store knows
// the outcome of its create, and no other event comes until the block changes again. The
// store may also learn later than the cache that a block is gone.
func (r *Nodes) blocksOf(ctx context.Context, node string) (blocks []string, sure bool, err error) {
	var list v1alpha1.IPBlockList
	if err := r.Client.List(ctx, &list, client.MatchingFields{blockNodeIndex: node}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, false, fmt.Errorf("list the blocks of node %s: %w", node, err)
	}
	cached, stored := map[string]bool{}, map[string]bool{}
	for i := range list.Items {
		cached[list.Items[i].Spec.CIDR] = true
	}
	for _, b := range r.Store.NodeBlocks(node) {
		stored[b.String()] = true
	}
	sure = maps.Equal(cached, stored)
	maps.Copy(cached, stored)
	return append([]string{}, slices.Sorted(maps.Keys(cached))...), sure, nil
}

// sameSpec reports whether two specs are equal. An empty Underlay, which confirms no
// address, differs from an absent one, which an earlier version of the controller wrote.
func sameSpec(a, b v1alpha1.NodeNetworkSpec) bool {
	return slices.Equal(a.Blocks, b.Blocks) && a.Summary == b.Summary && a.DefaultNetwork == b.DefaultNetwork &&
		(a.Underlay == nil) == (b.Underlay == nil) && slices.Equal(a.Underlay, b.Underlay) && slices.Equal(a.NodeAddresses, b.NodeAddresses)
}

func (r *Nodes) create(ctx context.Context, node *corev1.Node, spec v1alpha1.NodeNetworkSpec) error {
	err := r.Client.Create(ctx, &v1alpha1.NodeNetwork{
		ObjectMeta: metav1.ObjectMeta{
			Name: node.Name,
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "v1",
				Kind:       "Node",
				Name:       node.Name,
				UID:        node.UID,
				Controller: new(true),
			}},
		},
		Spec: spec,
	})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create NodeNetwork %s: %w", node.Name, err)
	}
	return nil
}

// gone gives the blocks of a deleted node back to the domain once they are empty. The
// NodeNetwork is garbage-collected through its owner reference.
func (r *Nodes) gone(ctx context.Context, node string) (ctrl.Result, error) {
	if len(r.Store.NodeBlocks(node)) == 0 {
		return ctrl.Result{}, nil
	}
	if err := r.Store.DropEmpty(ctx, node); err != nil {
		return ctrl.Result{}, fmt.Errorf("drop blocks of node %s, which is gone: %w", node, err)
	}
	if len(r.Store.NodeBlocks(node)) == 0 {
		return ctrl.Result{}, nil
	}
	return ctrl.Result{RequeueAfter: emptyRetry}, nil
}
