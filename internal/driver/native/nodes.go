package native

import (
	"context"
	"fmt"
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
	"fairlead.dev/fairlead/internal/ipam/block"
)

// emptyRetry is how often the blocks of a node that is gone are looked at,
// until their last address is free.
const emptyRetry = 30 * time.Second

// Nodes keeps one NodeNetwork per node that is served: the few words about a
// node that all others read, so that no node ever watches IPBlocks.
type Nodes struct {
	Client client.Client
	Store  *block.Store
	// Served nodes.
	Served labels.Selector
	// DefaultNetwork is what NodeNetworks say of it: DefaultNetworkOther, or
	// empty.
	DefaultNetwork string
}

// blockNodeIndex finds the blocks that are routed to a node, in the cache.
const blockNodeIndex = "spec.node"

// SetupWithManager registers the reconciler.
func (r *Nodes) SetupWithManager(ctx context.Context, mgr ctrl.Manager, lead Lead) error {
	if err := mgr.GetFieldIndexer().IndexField(ctx, &v1alpha1.IPBlock{}, blockNodeIndex, nodeOf); err != nil {
		return fmt.Errorf("index blocks by node: %w", err)
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("nodenetworks").
		For(&corev1.Node{}, builder.WithPredicates(predicate.LabelChangedPredicate{})).
		Owns(&v1alpha1.NodeNetwork{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.IPBlock{}, blockEvents()).
		WithOptions(ctrlcontroller.Options{MaxConcurrentReconciles: 8}).
		Complete(lead(r))
}

// blockEvents looks at the node of a block at once when the block comes or goes,
// and a little later when what is taken of it changes: only a node that is gone
// cares. In a storm that is many times a second, and what is looked at then may not
// show the last write yet, which would be made again.
func blockEvents() handler.EventHandler {
	now := enqueueAfter(0, nodeOf)
	return handler.Funcs{CreateFunc: now.Create, UpdateFunc: later(nodeOf).Update, DeleteFunc: now.Delete}
}

// nodeOf is the node to which a block is routed, if it is to one.
func nodeOf(o client.Object) []string {
	if node := o.(*v1alpha1.IPBlock).Spec.Node; node != "" {
		return []string{node}
	}
	return nil
}

// Reconcile makes one node's NodeNetwork list the blocks that are routed to it.
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
	blocks, err := r.blocksOf(ctx, node.Name)
	if err != nil {
		return ctrl.Result{}, err
	}
	have := &v1alpha1.NodeNetwork{}
	if err := r.Client.Get(ctx, req.NamespacedName, have); apierrors.IsNotFound(err) {
		return ctrl.Result{}, r.create(ctx, node, blocks)
	} else if err != nil {
		return ctrl.Result{}, err
	}
	if slices.Equal(have.Spec.Blocks, blocks) && have.Spec.DefaultNetwork == r.DefaultNetwork {
		return ctrl.Result{}, nil
	}
	after := have.DeepCopy()
	after.Spec.Blocks, after.Spec.DefaultNetwork = blocks, r.DefaultNetwork
	if err := r.Client.Patch(ctx, after, client.MergeFrom(have)); err != nil {
		return ctrl.Result{}, fmt.Errorf("write spec of NodeNetwork %s: %w", node.Name, err)
	}
	return ctrl.Result{}, nil
}

// blocksOf lists the blocks that are routed to a node: those in the cache, whose
// events bring the node here, and those that only the store knows of. A block
// that is being made may be in the cache before the store has heard the answer
// to its create, and no other event comes then until it changes again.
func (r *Nodes) blocksOf(ctx context.Context, node string) ([]string, error) {
	var list v1alpha1.IPBlockList
	if err := r.Client.List(ctx, &list, client.MatchingFields{blockNodeIndex: node}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list the blocks of node %s: %w", node, err)
	}
	blocks := []string{}
	for i := range list.Items {
		blocks = append(blocks, list.Items[i].Spec.CIDR)
	}
	for _, b := range r.Store.NodeBlocks(node) {
		blocks = append(blocks, b.String())
	}
	slices.Sort(blocks)
	return slices.Compact(blocks), nil
}

func (r *Nodes) create(ctx context.Context, node *corev1.Node, blocks []string) error {
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
		Spec: v1alpha1.NodeNetworkSpec{Blocks: blocks, DefaultNetwork: r.DefaultNetwork},
	})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create NodeNetwork %s: %w", node.Name, err)
	}
	return nil
}

// gone gives the blocks of a deleted node back to the domain as they empty.
// Its NodeNetwork is collected through its owner reference.
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
