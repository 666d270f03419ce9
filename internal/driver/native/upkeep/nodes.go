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

// emptyRetry is how often the blocks of a node that is gone are looked at,
// until their last address is free.
const emptyRetry = 10 * time.Second

// blockIdle is how long a block of a node must have been idle until it goes back. A
// restart of all pods, or the pause between two jobs, is shorter.
const blockIdle = 5 * time.Minute

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
	// Underlay are the only networks in which nodes have addresses; empty leaves
	// that to the Node objects.
	Underlay []netip.Prefix
}

// blockNodeIndex finds the blocks that are routed to a node, in the cache.
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

// BlockEvents looks at the node of a block at once when the block comes or goes,
// and a little later when what is taken of it changes: then it may be idle some time.
// In a storm that is many times a second, and what is looked at then may not
// show the last write yet, which would be made again.
func (*Nodes) BlockEvents() handler.EventHandler {
	now := native.EnqueueAfter(0, nodeOf)
	return handler.Funcs{CreateFunc: now.Create, UpdateFunc: native.Later(nodeOf).Update, DeleteFunc: now.Delete}
}

// nodeOf is the node to which a block is routed, if it is to one.
func nodeOf(o client.Object) []string {
	if node := o.(*v1alpha1.IPBlock).Spec.Node; node != "" {
		return []string{node}
	}
	return nil
}

// Reconcile makes one node's NodeNetwork list the blocks that are routed to it, and
// gives back those that it has not used for a while.
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

// write brings a NodeNetwork to where it should be.
func (r *Nodes) write(ctx context.Context, node *corev1.Node, blocks []string) error {
	want := v1alpha1.NodeNetworkSpec{
		Blocks: blocks, Summary: v1alpha1.OneLine(blocks, native.MaxSummary), DefaultNetwork: r.DefaultNetwork, Underlay: confirmed(node.Status.Addresses, r.Underlay),
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
	after.Spec = want
	if err := r.Client.Patch(ctx, after, client.MergeFrom(have)); err != nil {
		return fmt.Errorf("write spec of NodeNetwork %s: %w", node.Name, err)
	}
	return nil
}

// blocksOf lists the blocks that are routed to a node: those in the cache, whose
// events bring the node here, and those that only the store knows of. A block
// that is being made may be in the cache before the store has heard the answer
// to its create, and no other event comes then until it changes again; of one that
// is gone the store may hear later than the cache. sure says that both agree.
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

// sameSpec tells whether there is nothing to write. An empty underlay confirms
// nothing; where there is none, a controller before this version wrote it.
func sameSpec(a, b v1alpha1.NodeNetworkSpec) bool {
	return slices.Equal(a.Blocks, b.Blocks) && a.Summary == b.Summary && a.DefaultNetwork == b.DefaultNetwork &&
		(a.Underlay == nil) == (b.Underlay == nil) && slices.Equal(a.Underlay, b.Underlay)
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
