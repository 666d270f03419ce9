package fabric

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/openstack/cloud"
	"fairlead.dev/fairlead/internal/run"
)

// Run compares all nodes with the cloud at the begin of a term, and then every Interval.
func (f *Fabric) Run(ctx context.Context) error {
	f.begin()
	if !f.connect(ctx) {
		return nil
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		if err := f.compare(ctx); err != nil && ctx.Err() == nil {
			logr.FromContextOrDiscard(ctx).Error(err, "cannot compare the nodes with the cloud, will be tried again", "after", Interval)
		}
		f.opened()
		timer.Reset(Interval)
	}
}

// connect connects to the cloud if this process has not done it in an earlier term. It
// returns false if ctx ends first.
func (f *Fabric) connect(ctx context.Context) bool {
	for wait := run.RetryFirst; f.Calls == (Calls{}); wait = min(2*wait, Interval) {
		calls, err := f.Connect(ctx)
		if err == nil {
			f.Calls = calls
			break
		}
		if ctx.Err() == nil {
			logr.FromContextOrDiscard(ctx).Error(err, "no connection to OpenStack: ports of new nodes get no pairs, will be tried again", "after", wait)
		}
		if !run.Sleep(ctx, wait) {
			return false
		}
	}
	return true
}

// begin forgets what an earlier term of this process knew.
func (f *Fabric) begin() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.done = map[string]string{}
	select {
	case <-f.compared:
		f.compared = make(chan struct{})
	default: // reconciles wait for it already
	}
}

// doubtGroup has the group compared again.
func (f *Fabric) doubtGroup() {
	f.grouping.Lock()
	defer f.grouping.Unlock()
	f.group, f.pods = cloud.Group{}, nil
}

// opened lets Reconcile begin.
func (f *Fabric) opened() {
	f.mu.Lock()
	defer f.mu.Unlock()
	select {
	case <-f.compared:
	default:
		close(f.compared)
	}
}

// compare reads the ports of all nodes by one list, the router and the group, and has the
// nodes reconciled whose entries differ.
func (f *Fabric) compare(ctx context.Context) error {
	s, err := f.read(ctx)
	if err != nil {
		return err
	}
	f.doubtGroup()
	ports, err := f.portsOf(ctx, s)
	if err != nil {
		return err
	}
	var routes []cloud.Route
	if f.Router != "" && slices.ContainsFunc(s.networks, func(nn v1alpha1.NodeNetwork) bool { return len(recordOf(&nn).Routed) > 0 }) {
		router, err := f.Routers.Router(ctx, f.Router)
		if err != nil && !errors.Is(err, cloud.ErrNotFound) {
			return fmt.Errorf("router %s: %w", f.Router, err)
		}
		routes = router.Routes
	}
	for i := range s.networks {
		if err := f.compareNode(ctx, s, &s.networks[i], ports, routes); err != nil {
			return err
		}
	}
	if f.Remove {
		return f.removeGroup(ctx, s)
	}
	return nil
}

// portsOf returns the recorded ports of all nodes, by ID.
func (f *Fabric) portsOf(ctx context.Context, s state) (map[string]cloud.Port, error) {
	var q cloud.PortQuery
	for i := range s.networks {
		if id := recordOf(&s.networks[i]).Port; id != "" {
			q.IDs = append(q.IDs, id)
		}
	}
	out := map[string]cloud.Port{}
	if len(q.IDs) == 0 {
		return out, nil
	}
	found, err := f.Ports.Ports(ctx, q)
	for _, p := range found {
		out[p.ID] = p
	}
	return out, err
}

// compareNode compares the entries of one node. A node that has all of them is done.
func (f *Fabric) compareNode(ctx context.Context, s state, nn *v1alpha1.NodeNetwork, ports map[string]cloud.Port, routes []cloud.Route) error {
	node := &corev1.Node{}
	if err := f.Client.Get(ctx, client.ObjectKeyFromObject(nn), node); apierrors.IsNotFound(err) {
		node = nil
	} else if err != nil {
		return err
	}
	w := f.wantsOf(s, nn, node)
	record := recordOf(nn)
	port, has := ports[record.Port]
	ready := meta.IsStatusConditionTrue(record.Conditions, v1alpha1.ConditionFabricReady)
	if has && ready && !w.leaves {
		group, err := f.completeGroup(ctx, w.pods)
		if err != nil {
			return err
		}
		if !port.PortSecurity {
			w.pairs, group = nil, ""
		}
		plan := planPort(port, record, w.pairs, group)
		add, remove, kept, _ := planRoutes(routes, w.routes, record.Routes)
		same := slices.Equal(texts(plan.pairs), record.Pairs) && slices.Equal(kept, record.Routes) && slices.Equal(destinations(w.routes), record.Routed)
		if same && !plan.changes() && len(add)+len(remove) == 0 {
			f.setDone(nn.Name, f.wantsOf(s, nn, node).key())
			return nil
		}
		f.Metrics.drifted(plan.added + plan.removed + len(add) + len(remove))
	}
	if w.leaves && nn.Spec.Fabric == nil {
		return nil
	}
	f.setDone(nn.Name, "")
	select {
	case f.drifted <- event.GenericEvent{Object: nn}:
	case <-ctx.Done():
	}
	return nil
}

// removeGroup removes the cluster's own group, or its rules from the configured group,
// once no node's port has an entry.
func (f *Fabric) removeGroup(ctx context.Context, s state) error {
	for i := range s.networks {
		if s.networks[i].Spec.Fabric != nil {
			return nil
		}
	}
	if f.Group != "" {
		g, err := f.openGroup(ctx)
		if err != nil {
			return err
		}
		return f.changeRules(ctx, g, []netip.Prefix{})
	}
	all, err := f.Groups.Groups(ctx)
	if err != nil {
		return err
	}
	for _, g := range all {
		if g.Name != f.groupName() {
			continue
		}
		if err := f.Groups.DeleteGroup(ctx, g.ID); err != nil && !errors.Is(err, cloud.ErrInUse) {
			return fmt.Errorf("security group %s: %w", g.ID, err)
		}
	}
	return nil
}
