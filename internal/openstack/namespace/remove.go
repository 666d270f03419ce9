package namespace

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/openstack/cloud"
)

// portsRetry is the time between two tries to remove a network with ports.
const portsRetry = 10 * time.Second

// remove removes the networks of a deleted record: after all ports the interface of the
// router, then subnets and network. A port is never deleted here: that of a pod is released
// when the node has let go of it, and that of another program stays.
func (n *Networks) remove(ctx context.Context, c *cloud.Cloud, o *v1alpha1.NamespaceNetwork) (ctrl.Result, error) {
	name := n.cloudNameOf(o)
	found, err := c.NetworksNamed(ctx, o.Spec.Project, name)
	if err != nil {
		return ctrl.Result{}, err
	}
	for _, f := range found {
		n.removing(f.ID)
		ports, err := c.Ports(ctx, cloud.PortQuery{Network: f.ID})
		if err != nil {
			return ctrl.Result{}, err
		}
		if left := inTheWay(ports); len(left) > 0 {
			return ctrl.Result{RequeueAfter: portsRetry}, n.setCondition(ctx, o, metav1.Condition{
				Type: v1alpha1.ConditionNetworkReady, Status: metav1.ConditionFalse, Reason: reasonPortsLeft,
				Message: fmt.Sprintf("the network is removed when its last port is gone: ports=%d, as port %s of %q with the name %.64q", len(left), left[0].ID, left[0].DeviceOwner, left[0].Name),
			})
		}
		if err := n.removeNetwork(ctx, c, o, f, name); err != nil {
			return ctrl.Result{}, err
		}
	}
	before := o.DeepCopy()
	controllerutil.RemoveFinalizer(o, v1alpha1.NamespaceNetworkFinalizer)
	err = n.cfg.Client.Patch(ctx, o, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	return ctrl.Result{}, client.IgnoreNotFound(err)
}

// removeNetwork removes a network without ports of pods.
func (n *Networks) removeNetwork(ctx context.Context, c *cloud.Cloud, o *v1alpha1.NamespaceNetwork, network cloud.Network, name string) error {
	all, err := c.Subnets(ctx, network.ID)
	if err != nil {
		return err
	}
	own := ownSubnets(name, all)
	router := o.Status.Router
	if router == "" && len(own) > 0 {
		switch r, err := c.Routers.Router(ctx, o.Spec.Router); {
		case err == nil:
			router = r.ID
		case !errors.Is(err, cloud.ErrNotFound):
			return fmt.Errorf("router %q: %w", o.Spec.Router, err)
		}
	}
	for _, s := range slices.Backward(own) {
		if router != "" {
			if err := c.Routers.Disconnect(ctx, router, s.ID); err != nil {
				return fmt.Errorf("router %s: %w", router, err)
			}
		}
		if err := c.DeleteSubnet(ctx, s.ID); err != nil {
			return fmt.Errorf("subnet %s: %w", s.Prefix, err)
		}
	}
	return c.DeleteNetwork(ctx, network.ID)
}
