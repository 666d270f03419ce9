package fabric

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/openstack/cloud"
)

// tries is the number of attempts to change a port that others change at the same time.
const tries = 3

// errKube means that a record could not be written.
var errKube = errors.New("the record cannot be written")

// change brings the cloud into the wanted state of a node. Each addition is recorded first,
// and a record is dropped last.
type change struct {
	fabric *Fabric
	nn     *v1alpha1.NodeNetwork
	record v1alpha1.Fabric
	wants  wants
	taken  map[string]string

	off, coarse bool
}

// recordOf returns a copy of the record of a node.
func recordOf(nn *v1alpha1.NodeNetwork) v1alpha1.Fabric {
	if nn.Spec.Fabric == nil {
		return v1alpha1.Fabric{}
	}
	return *nn.Spec.Fabric.DeepCopy()
}

// make does all steps. A failure of the port does not stop the routes.
func (c *change) make(ctx context.Context) error {
	return errors.Join(c.makePort(ctx), c.makeRoutes(ctx))
}

func (c *change) makePort(ctx context.Context) error {
	group := ""
	var failed error
	if !c.wants.leaves {
		// Without the rules the pairs are of no use, but they do no harm either.
		group, failed = c.fabric.completeGroup(ctx, c.wants.pods)
	}
	port, err := c.findPort(ctx)
	if err != nil || port.ID == "" {
		return errors.Join(failed, err)
	}
	before := c.record
	for try := 1; ; try++ {
		err := c.changePort(ctx, port, before, group)
		if !errors.Is(err, cloud.ErrChanged) || try == tries {
			return errors.Join(failed, err)
		}
		if port, err = c.fabric.Ports.Port(ctx, port.ID); err != nil {
			return err
		}
	}
}

// findPort returns the node's port, without an ID if nothing is left to do for it.
func (c *change) findPort(ctx context.Context) (cloud.Port, error) {
	if c.record.Port != "" {
		port, err := c.fabric.Ports.Port(ctx, c.record.Port)
		if !errors.Is(err, cloud.ErrNotFound) {
			return port, err
		}
		c.record.Port, c.record.Pairs, c.record.Group = "", nil, "" // they went with the port
	}
	if c.wants.leaves {
		return cloud.Port{}, nil
	}
	p, err := MachinePort(ctx, c.fabric.Ports, c.wants.machine, c.wants.addresses)
	return unlessTaken(p, err, c.taken)
}

// changePort records and makes the change of a port. before is the record without what
// earlier tries of this change added to it: a pair that came to the port meanwhile is
// another's.
func (c *change) changePort(ctx context.Context, port cloud.Port, before v1alpha1.Fabric, group string) error {
	pairs := c.wants.pairs
	if !port.PortSecurity {
		pairs, group, c.off = nil, "", true
	}
	plan := planPort(port, before, pairs, group)
	c.coarse = plan.coarse
	if plan.changes() {
		c.record.Port, c.record.Pairs = port.ID, texts(plan.before)
		if plan.group != "" {
			c.record.Group = plan.group
		}
		if err := c.save(ctx); err != nil {
			return err
		}
		if _, err := c.fabric.Ports.UpdatePort(ctx, port.ID, port.Revision, plan.change); err != nil {
			return fmt.Errorf("port %s: %w", port.ID, err)
		}
		c.fabric.Metrics.changed("port", plan.added, plan.removed)
	}
	c.record.Port, c.record.Pairs, c.record.Group = port.ID, texts(plan.pairs), plan.group
	return nil
}

// makeRoutes makes the routes to the blocks of the node. Other nodes use a route after it
// was made, and no longer when it is about to be removed.
func (c *change) makeRoutes(ctx context.Context) error {
	c.record.Routed = stillRouted(c.record.Routed, c.wants.routes)
	if len(c.wants.routes) == 0 && len(c.record.Routes) == 0 {
		return nil
	}
	select {
	case c.fabric.routing <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-c.fabric.routing }()
	router, err := c.openRouter(ctx)
	if err != nil || router.ID == "" {
		return err
	}
	add, remove, record, before := planRoutes(router.Routes, c.wants.routes, c.record.Routes)
	if len(add)+len(remove) > 0 {
		c.record.Router, c.record.Routes = router.ID, before
		if err := c.save(ctx); err != nil {
			return err
		}
	}
	if err := c.changeRoutes(ctx, router.ID, add, remove); err != nil {
		return fmt.Errorf("router %s: %w", router.ID, err)
	}
	c.fabric.Metrics.changed("route", len(add), len(remove))
	c.record.Router, c.record.Routes, c.record.Routed = router.ID, record, destinations(c.wants.routes)
	if len(record) == 0 {
		c.record.Router = ""
	}
	return nil
}

// changeRoutes adds routes before it removes others: a wider route often replaces two
// narrow ones, and no packet is lost meanwhile. It removes first if there is no room.
func (c *change) changeRoutes(ctx context.Context, router string, add, remove []cloud.Route) error {
	f := c.fabric
	if len(add) > 0 {
		err := f.Routers.AddRoutes(ctx, router, add)
		if errors.Is(err, cloud.ErrLimit) && len(remove) > 0 {
			if err = f.Routers.RemoveRoutes(ctx, router, remove); err == nil {
				err, remove = f.Routers.AddRoutes(ctx, router, add), nil
			}
		}
		if err != nil {
			return err
		}
	}
	if len(remove) == 0 {
		return nil
	}
	return f.Routers.RemoveRoutes(ctx, router, remove)
}

// openRouter returns the router of the routes, without an ID if it is gone with them. It
// removes the routes of a router that was configured before.
func (c *change) openRouter(ctx context.Context) (cloud.Router, error) {
	name := c.fabric.Router
	if len(c.wants.routes) == 0 {
		name = c.record.Router
	}
	router, err := c.fabric.Routers.Router(ctx, name)
	if errors.Is(err, cloud.ErrNotFound) && len(c.wants.routes) == 0 {
		c.record.Router, c.record.Routes = "", nil
		return cloud.Router{}, nil
	}
	if err != nil {
		return cloud.Router{}, fmt.Errorf("router %s: %w", name, err)
	}
	if c.record.Router == "" || c.record.Router == router.ID {
		return router, nil
	}
	var old []cloud.Route
	for _, text := range c.record.Routes {
		if r, ok := parseRoute(text); ok {
			old = append(old, r)
		}
	}
	c.record.Routed = nil
	if err := c.save(ctx); err != nil {
		return cloud.Router{}, err
	}
	if err := c.fabric.Routers.RemoveRoutes(ctx, c.record.Router, old); err != nil && !errors.Is(err, cloud.ErrNotFound) {
		return cloud.Router{}, fmt.Errorf("router %s: %w", c.record.Router, err)
	}
	c.record.Router, c.record.Routes = "", nil
	return router, nil
}

// save writes the record and the finalizer, if they differ from those in the cluster. A
// record that another leader has changed is not overwritten.
func (c *change) save(ctx context.Context) error {
	after := c.nn.DeepCopy()
	after.Spec.Fabric = c.record.DeepCopy()
	controllerutil.AddFinalizer(after, v1alpha1.FabricFinalizer)
	return c.patch(ctx, after)
}

func (c *change) patch(ctx context.Context, after *v1alpha1.NodeNetwork) error {
	if equality.Semantic.DeepEqual(after, c.nn) {
		return nil
	}
	if !c.nn.DeletionTimestamp.IsZero() && !controllerutil.ContainsFinalizer(c.nn, v1alpha1.FabricFinalizer) {
		return nil // a deleted object gets no new finalizer, and nothing is recorded in it
	}
	before := client.MergeFromWithOptions(c.nn, client.MergeFromWithOptimisticLock{})
	if err := c.fabric.Client.Patch(ctx, after, before); err != nil {
		return fmt.Errorf("%w: NodeNetwork %s: %w", errKube, c.nn.Name, err)
	}
	c.nn = after
	return nil
}

// conclude writes the final record and the condition. news is true if the condition has
// another reason than before.
func (c *change) conclude(ctx context.Context, condition metav1.Condition) (news bool, err error) {
	had := meta.FindStatusCondition(c.record.Conditions, condition.Type)
	news = had == nil || had.Reason != condition.Reason
	meta.SetStatusCondition(&c.record.Conditions, condition)
	return news, c.save(ctx)
}

// forget drops the record of a node that leaves.
func (c *change) forget(ctx context.Context) error {
	after := c.nn.DeepCopy()
	after.Spec.Fabric = nil
	controllerutil.RemoveFinalizer(after, v1alpha1.FabricFinalizer)
	return client.IgnoreNotFound(c.patch(ctx, after))
}

// completeGroup makes the security group have the rules for the pods, and returns the ID
// of the group that the ports get; empty if they have it already by the operator.
func (f *Fabric) completeGroup(ctx context.Context, pods []netip.Prefix) (string, error) {
	f.grouping.Lock()
	defer f.grouping.Unlock()
	own := f.Group == ""
	if f.group.ID == "" || !slices.Equal(f.pods, pods) {
		g, err := f.openGroup(ctx)
		if err != nil {
			return "", err
		}
		if err := f.changeRules(ctx, g, pods); err != nil {
			return "", err
		}
		f.group, f.pods = g, slices.Clone(pods)
	}
	if own {
		return f.group.ID, nil
	}
	return "", nil
}

func (f *Fabric) openGroup(ctx context.Context) (cloud.Group, error) {
	if f.Group == "" {
		g, err := f.Groups.CreateGroup(ctx, "", f.groupName(), "packets of pods of the cluster "+f.Cluster)
		if err != nil {
			return g, fmt.Errorf("security group %s: %w", f.groupName(), err)
		}
		return g, nil
	}
	g, err := f.Groups.Group(ctx, f.Group)
	if err != nil {
		return g, fmt.Errorf("security group %s: %w", f.Group, err)
	}
	return g, nil
}

func (f *Fabric) groupName() string { return "fairlead-" + f.Cluster + "-fabric" }

// mark is the description of the rules of this cluster.
func (f *Fabric) mark() string { return "fairlead:cluster=" + f.Cluster + " fabric" }

func (f *Fabric) changeRules(ctx context.Context, g cloud.Group, pods []netip.Prefix) error {
	add, remove := planRules(g.Rules, pods, f.mark())
	if len(add) > 0 {
		if _, err := f.Rules.AddRules(ctx, g.ID, add); err != nil {
			return fmt.Errorf("rules of security group %s: %w", g.ID, err)
		}
	}
	for _, id := range remove {
		if err := f.Rules.DeleteRule(ctx, id); err != nil {
			return fmt.Errorf("rule %s of security group %s: %w", id, g.ID, err)
		}
	}
	f.Metrics.changed("rule", len(add), len(remove))
	return nil
}
