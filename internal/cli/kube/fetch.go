package kube

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// ControllerName is the name of the controller's Lease, and the reporter of its events.
const ControllerName = "fairlead-controller"

// Snapshot holds the objects that were read, in no order. Lists that were not requested
// are empty.
type Snapshot struct {
	Now         time.Time
	Lease       *coordinationv1.Lease // nil if there is none
	Installed   Installation
	Nodes       []v1alpha1.NodeNetwork
	Pools       []v1alpha1.IPPool
	Pods        []corev1.Pod // scheduled and not finished, unless Wanted.Pod names one
	Attachments []v1alpha1.PodAttachment
	Events      []eventsv1.Event // the controller's warnings
	// Foreign are NetworkAttachmentDefinitions whose addresses another plugin gives.
	Foreign map[types.NamespacedName]bool

	Blocks       []v1alpha1.IPBlock
	Reservations []v1alpha1.IPReservation
	Clouds       []v1alpha1.Cloud // by name
	Claims       []v1alpha1.IPClaim
}

// Wanted selects the objects to read.
type Wanted struct {
	Lease     bool   // and the programs beside it
	System    string // namespace to search first for the Lease
	Pools     bool
	Pods      bool   // and the objects that explain their state
	Nodes     bool   // NodeNetworks; implied by pods
	Records   bool   // PodAttachments; implied by pods
	Namespace string // of pods and PodAttachments; empty for all
	Pod       string // the name of the only pod to read, in any phase; empty for all
	Addresses bool   // blocks, reservations and claims
	Clouds    bool
}

// Snapshot reads the wanted objects concurrently. Of several errors it returns the first
// in the order of the steps, which is the most useful: if a server has no pods, a hint at
// missing CRDs would mislead.
func (c *Connection) Snapshot(ctx context.Context, w Wanted) (Snapshot, error) {
	api, server, err := c.Client()
	if err != nil {
		return Snapshot{}, err
	}
	r := &reader{api: api, server: server, snap: Snapshot{Now: time.Now()}}
	steps := []struct {
		ask  bool
		read func(context.Context) error
	}{
		{w.Pods, func(ctx context.Context) error { return r.readPods(ctx, w.Namespace, w.Pod) }},
		{w.Pods || w.Records, func(ctx context.Context) error { return r.readAttachments(ctx, w.Namespace) }},
		{w.Pods || w.Nodes, r.readNodes},
		{w.Pools, r.readPools},
		{w.Addresses, r.readBlocks},
		{w.Addresses, r.readReservations},
		{w.Addresses, r.readClaims},
		{w.Clouds, r.readClouds},
		{w.Lease, func(ctx context.Context) error { return r.readSystem(ctx, w.System) }},
	}
	errs := make([]error, len(steps))
	var reading sync.WaitGroup
	for i, step := range steps {
		if step.ask {
			reading.Go(func() { errs[i] = step.read(ctx) })
		}
	}
	reading.Wait()
	if err := cmp.Or(errs...); err != nil {
		return Snapshot{}, err
	}
	if w.Pods && slices.ContainsFunc(r.snap.Nodes, func(n v1alpha1.NodeNetwork) bool { return otherDefault(&n) }) {
		if err := r.readForeign(ctx); err != nil {
			return Snapshot{}, err
		}
	}
	if without := WithoutRecord(r.snap); len(without.Here) > 0 {
		if err := r.readEvents(ctx, w.Namespace); err != nil {
			return Snapshot{}, err
		}
	}
	return r.snap, nil
}

// reader fills a Snapshot. Methods that run concurrently write different fields.
type reader struct {
	api    client.Reader
	server string
	snap   Snapshot
}

// readSystem reads the Lease, and the programs from its namespace.
func (r *reader) readSystem(ctx context.Context, namespace string) error {
	if err := r.readLease(ctx, namespace); err != nil {
		return err
	}
	if r.snap.Lease != nil {
		namespace = r.snap.Lease.Namespace
	}
	return r.readPrograms(ctx, namespace)
}

// readLease reads the Lease from the given namespace, otherwise from any namespace.
func (r *reader) readLease(ctx context.Context, namespace string) error {
	lease := &coordinationv1.Lease{}
	err := r.api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: ControllerName}, lease)
	if err == nil {
		r.snap.Lease = lease
		return nil
	}
	if !apierrors.IsNotFound(err) {
		return explain(err, r.server, "leases")
	}
	var found coordinationv1.LeaseList
	named := client.MatchingFieldsSelector{Selector: fields.OneTermEqualSelector("metadata.name", ControllerName)}
	if err := r.api.List(ctx, &found, named); err != nil {
		return explain(err, r.server, "leases")
	}
	r.snap.Lease = newest(found.Items)
	return nil
}

// newest returns the Lease with the latest renewal; nil if there is none.
func newest(leases []coordinationv1.Lease) *coordinationv1.Lease {
	var out *coordinationv1.Lease
	for i := range leases {
		if out == nil || Renewed(&leases[i]).After(Renewed(out)) {
			out = &leases[i]
		}
	}
	return out
}

// Renewed returns the time of the last renewal of a Lease, zero if there is none.
func Renewed(l *coordinationv1.Lease) time.Time {
	if l.Spec.RenewTime == nil {
		return time.Time{}
	}
	return l.Spec.RenewTime.Time
}

func (r *reader) readPools(ctx context.Context) error {
	var list v1alpha1.IPPoolList
	if err := r.api.List(ctx, &list); err != nil {
		return explain(err, r.server, "ippools.fairlead.dev")
	}
	r.snap.Pools = list.Items
	return nil
}

func (r *reader) readBlocks(ctx context.Context) error {
	var list v1alpha1.IPBlockList
	if err := r.api.List(ctx, &list); err != nil {
		return explain(err, r.server, "ipblocks.fairlead.dev")
	}
	r.snap.Blocks = list.Items
	return nil
}

func (r *reader) readReservations(ctx context.Context) error {
	var list v1alpha1.IPReservationList
	if err := r.api.List(ctx, &list); err != nil {
		return explain(err, r.server, "ipreservations.fairlead.dev")
	}
	r.snap.Reservations = list.Items
	return nil
}

func (r *reader) readClaims(ctx context.Context) error {
	var list v1alpha1.IPClaimList
	if err := r.api.List(ctx, &list); err != nil {
		return explain(err, r.server, "ipclaims.fairlead.dev")
	}
	r.snap.Claims = list.Items
	return nil
}

// readClouds reads the Clouds. A cluster with the CRDs of an earlier release has none, and a
// user without the right to read them sees none.
func (r *reader) readClouds(ctx context.Context) error {
	var list v1alpha1.CloudList
	err := r.api.List(ctx, &list)
	if err != nil && !missing(err) && !apierrors.IsForbidden(err) {
		return explain(err, r.server, "clouds.fairlead.dev")
	}
	slices.SortFunc(list.Items, func(a, b v1alpha1.Cloud) int { return cmp.Compare(a.Name, b.Name) })
	r.snap.Clouds = list.Items
	return nil
}

func (r *reader) readNodes(ctx context.Context) error {
	var list v1alpha1.NodeNetworkList
	if err := r.api.List(ctx, &list); err != nil {
		return explain(err, r.server, "nodenetworks.fairlead.dev")
	}
	r.snap.Nodes = list.Items
	return nil
}

// readPods reads one pod by name, otherwise all pods that can have a network. The server
// filters out unscheduled and finished pods.
func (r *reader) readPods(ctx context.Context, namespace, name string) error {
	selected := client.MatchingFieldsSelector{Selector: fields.AndSelectors(
		fields.OneTermNotEqualSelector("spec.nodeName", ""),
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)),
	)}
	if name != "" {
		selected.Selector = fields.OneTermEqualSelector("metadata.name", name)
	}
	var list corev1.PodList
	if err := r.api.List(ctx, &list, selected, client.InNamespace(namespace)); err != nil {
		return explain(err, r.server, "pods")
	}
	r.snap.Pods = list.Items
	return nil
}

func (r *reader) readAttachments(ctx context.Context, namespace string) error {
	var list v1alpha1.PodAttachmentList
	if err := r.api.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return explain(err, r.server, "podattachments.fairlead.dev")
	}
	r.snap.Attachments = list.Items
	return nil
}

// readEvents reads the controller's warnings, which explain why pods have no record. A
// user without the right to read events sees the pods without the reason.
func (r *reader) readEvents(ctx context.Context, namespace string) error {
	ours := client.MatchingFieldsSelector{Selector: fields.AndSelectors(
		fields.OneTermEqualSelector("reportingController", ControllerName),
		fields.OneTermEqualSelector("type", corev1.EventTypeWarning),
	)}
	var list eventsv1.EventList
	err := r.api.List(ctx, &list, ours, client.InNamespace(namespace))
	if err != nil && !apierrors.IsForbidden(err) {
		return explain(err, r.server, "events")
	}
	r.snap.Events = list.Items
	return nil
}
