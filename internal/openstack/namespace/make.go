package namespace

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/openstack/cloud"
)

// Reconcile makes the network of one record, as far as it is not there already. It removes
// the network of a deleted record.
func (n *Networks) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	o := &v1alpha1.NamespaceNetwork{}
	if err := n.cfg.Client.Get(ctx, req.NamespacedName, o); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !slices.Contains(o.Finalizers, v1alpha1.NamespaceNetworkFinalizer) {
		return ctrl.Result{}, nil // nothing of it is left, or the finalizer was taken off by hand
	}
	c, err := n.cfg.Connect(ctx)
	if err == nil && o.DeletionTimestamp != nil {
		var again ctrl.Result
		if again, err = n.remove(ctx, c, o); err == nil {
			return again, nil
		}
	} else if err == nil {
		err = n.make(ctx, c, o)
	}
	if apierrors.IsConflict(err) {
		return ctrl.Result{RequeueAfter: firstRetry}, nil // the cache was behind, or another leads too
	}
	if err != nil {
		return ctrl.Result{}, n.failed(ctx, o, fmt.Errorf("network of namespace %s: %w", o.Spec.Namespace, err))
	}
	return ctrl.Result{}, nil
}

// make makes the missing parts of a network, in the order in which it is recorded.
func (n *Networks) make(ctx context.Context, c *cloud.Cloud, o *v1alpha1.NamespaceNetwork) error {
	name := n.cloudNameOf(o)
	if err := n.makeNetwork(ctx, c, o, name); err != nil {
		return err
	}
	own, err := n.makeSubnets(ctx, c, o, name)
	if err != nil {
		return err
	}
	for _, s := range own {
		if err := c.Routers.Connect(ctx, o.Status.Router, s.ID); err != nil {
			return fmt.Errorf("router %q: %w", o.Spec.Router, err)
		}
	}
	subnets, summary := recorded(own)
	return n.write(ctx, o, func(s *v1alpha1.NamespaceNetworkStatus) {
		s.Subnets, s.Summary = subnets, summary
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: v1alpha1.ConditionNetworkReady, Status: metav1.ConditionTrue, Reason: reasonMade, Message: "pods can have ports in it"})
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: v1alpha1.ConditionNetworkFull, Status: metav1.ConditionFalse, Reason: reasonAddressesLeft})
	})
}

func (n *Networks) cloudNameOf(o *v1alpha1.NamespaceNetwork) string {
	return cloudName(n.cfg.Cluster, o.Spec.Namespace, types.UID(o.Spec.NamespaceUID))
}

// makeNetwork adopts or creates the network, and records it with the router. Only the network
// that is recorded gets subnets. A lost reply, or two leaders at once, leave further networks of
// the same name, which are deleted.
func (n *Networks) makeNetwork(ctx context.Context, c *cloud.Cloud, o *v1alpha1.NamespaceNetwork, name string) error {
	found, err := c.NetworksNamed(ctx, o.Spec.Project, name)
	if err != nil {
		return err
	}
	at := max(0, slices.IndexFunc(found, func(f cloud.Network) bool { return f.ID == o.Status.Network }))
	if len(found) == 0 {
		made, err := c.CreateNetwork(ctx, o.Spec.Project, name)
		if err != nil {
			return err
		}
		found = append(found, made)
	}
	router := o.Status.Router
	if router == "" {
		r, err := c.Routers.Router(ctx, o.Spec.Router)
		if err != nil {
			return fmt.Errorf("router %q: %w", o.Spec.Router, err)
		}
		router = r.ID
	}
	if found[at].ID != o.Status.Network || router != o.Status.Router {
		if err := n.write(ctx, o, func(s *v1alpha1.NamespaceNetworkStatus) {
			s.Network, s.Router = found[at].ID, router
			meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: v1alpha1.ConditionNetworkReady, Status: metav1.ConditionFalse, Reason: reasonMaking, Message: "it has no subnets yet"})
		}); err != nil {
			return err
		}
	}
	for _, f := range found {
		if f.ID == o.Status.Network {
			continue
		}
		if err := c.DeleteNetwork(ctx, f.ID); err != nil {
			return fmt.Errorf("network %s, which is a second one of this namespace: %w", f.ID, err)
		}
	}
	return nil
}

// makeSubnets creates the missing subnets, and one of each full family, and returns all.
func (n *Networks) makeSubnets(ctx context.Context, c *cloud.Cloud, o *v1alpha1.NamespaceNetwork, name string) ([]cloud.Subnet, error) {
	all, err := c.Subnets(ctx, o.Status.Network)
	if err != nil {
		return nil, err
	}
	own := ownSubnets(name, all)
	var used map[string]uint64
	if meta.IsStatusConditionTrue(o.Status.Conditions, v1alpha1.ConditionNetworkFull) {
		ports, err := c.Ports(ctx, cloud.PortQuery{Network: o.Status.Network})
		if err != nil {
			return nil, err
		}
		used = usedBy(ports, own)
	}
	pools := make([]cloud.SubnetPool, len(o.Spec.SubnetPools))
	for i, p := range o.Spec.SubnetPools {
		if pools[i], err = c.SubnetPool(ctx, p); err != nil {
			return nil, fmt.Errorf("subnet pool %q: %w", p, err)
		}
	}
	specs, err := missing(name, pools, own, used)
	if err != nil {
		return nil, err
	}
	for _, spec := range specs {
		spec.Network, spec.Project = o.Status.Network, o.Spec.Project
		s, err := c.CreateSubnet(ctx, spec)
		if errors.Is(err, cloud.ErrFull) {
			return nil, fmt.Errorf("subnet pool %s has no prefix left: %w", spec.Pool, err)
		}
		if err != nil {
			return nil, err
		}
		own = append(own, s)
	}
	return ownSubnets(name, own), nil
}
