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
	var (
		pods         corev1.PodList
		records      v1alpha1.PodAttachmentList
		nodes        v1alpha1.NodeNetworkList
		pools        v1alpha1.IPPoolList
		blocks       v1alpha1.IPBlockList
		reservations v1alpha1.IPReservationList
		claims       v1alpha1.IPClaimList
	)
	within := client.InNamespace(w.Namespace)
	steps := []struct {
		ask  bool
		read func(context.Context) error
	}{
		{w.Pods, r.list("pods", &pods, within, podsNamed(w.Pod))},
		{w.Pods || w.Records, r.list("podattachments.fairlead.dev", &records, within)},
		{w.Pods || w.Nodes, r.list("nodenetworks.fairlead.dev", &nodes)},
		{w.Pools, r.list("ippools.fairlead.dev", &pools)},
		{w.Addresses, r.list("ipblocks.fairlead.dev", &blocks)},
		{w.Addresses, r.list("ipreservations.fairlead.dev", &reservations)},
		{w.Addresses, r.list("ipclaims.fairlead.dev", &claims)},
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
	r.snap.Pods, r.snap.Attachments, r.snap.Nodes, r.snap.Pools = pods.Items, records.Items, nodes.Items, pools.Items
	r.snap.Blocks, r.snap.Reservations, r.snap.Claims = blocks.Items, reservations.Items, claims.Items
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

// list returns the step that lists a resource.
func (r *reader) list(resource string, to client.ObjectList, options ...client.ListOption) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := r.api.List(ctx, to, options...); err != nil {
			return explain(err, r.server, resource)
		}
		return nil
	}
}

// podsNamed selects one pod by name, otherwise all pods that can have a network. The server
// filters out unscheduled and finished pods.
func podsNamed(name string) client.ListOption {
	if name != "" {
		return client.MatchingFieldsSelector{Selector: fields.OneTermEqualSelector("metadata.name", name)}
	}
	return client.MatchingFieldsSelector{Selector: fields.AndSelectors(
		fields.OneTermNotEqualSelector("spec.nodeName", ""),
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)),
	)}
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

// Seen returns the time at which an event happened last.
func Seen(e *eventsv1.Event) time.Time {
	switch {
	case e.Series != nil:
		return e.Series.LastObservedTime.Time
	case e.EventTime.IsZero():
		return cmp.Or(e.DeprecatedLastTimestamp.Time, e.CreationTimestamp.Time)
	}
	return e.EventTime.Time
}
