package cli

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

// controllerName is the name of the controller's Lease, and the reporter of its events.
const controllerName = "fairlead-controller"

// snapshot holds the objects that were read, in no order. Lists that were not requested
// are empty.
type snapshot struct {
	now         time.Time
	lease       *coordinationv1.Lease // nil if there is none
	installed   installation
	nodes       []v1alpha1.NodeNetwork
	pools       []v1alpha1.IPPool
	pods        []corev1.Pod // scheduled and not finished, unless wanted.pod names one
	attachments []v1alpha1.PodAttachment
	events      []eventsv1.Event // the controller's warnings
	// foreign are NetworkAttachmentDefinitions whose addresses another plugin gives.
	foreign map[types.NamespacedName]bool

	blocks       []v1alpha1.IPBlock
	reservations []v1alpha1.IPReservation
	claims       []v1alpha1.IPClaim
}

// wanted selects the objects to read.
type wanted struct {
	lease     bool   // and the programs beside it
	system    string // namespace to search first for the Lease
	pools     bool
	pods      bool   // and the objects that explain their state
	records   bool   // PodAttachments; implied by pods
	namespace string // of pods and PodAttachments; empty for all
	pod       string // the name of the only pod to read, in any phase; empty for all
	addresses bool   // blocks, reservations and claims
}

// snapshot reads the wanted objects concurrently. Of several errors it returns the first
// in the order of the steps, which is the most useful: if a server has no pods, a hint at
// missing CRDs would mislead.
func (c *connection) snapshot(ctx context.Context, w wanted) (snapshot, error) {
	api, server, err := c.client()
	if err != nil {
		return snapshot{}, err
	}
	r := &reader{api: api, server: server, snap: snapshot{now: time.Now()}}
	steps := []struct {
		ask  bool
		read func(context.Context) error
	}{
		{w.pods, func(ctx context.Context) error { return r.readPods(ctx, w.namespace, w.pod) }},
		{w.pods || w.records, func(ctx context.Context) error { return r.readAttachments(ctx, w.namespace) }},
		{w.pods, r.readNodes},
		{w.pools, r.readPools},
		{w.addresses, r.readBlocks},
		{w.addresses, r.readReservations},
		{w.addresses, r.readClaims},
		{w.lease, func(ctx context.Context) error { return r.readSystem(ctx, w.system) }},
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
		return snapshot{}, err
	}
	if w.pods && slices.ContainsFunc(r.snap.nodes, func(n v1alpha1.NodeNetwork) bool { return otherDefault(&n) }) {
		if err := r.readForeign(ctx); err != nil {
			return snapshot{}, err
		}
	}
	if without := withoutRecord(r.snap); len(without.here) > 0 {
		if err := r.readEvents(ctx, w.namespace); err != nil {
			return snapshot{}, err
		}
	}
	return r.snap, nil
}

// reader fills a snapshot. Methods that run concurrently write different fields.
type reader struct {
	api    client.Reader
	server string
	snap   snapshot
}

// readSystem reads the Lease, and the programs from its namespace.
func (r *reader) readSystem(ctx context.Context, namespace string) error {
	if err := r.readLease(ctx, namespace); err != nil {
		return err
	}
	if r.snap.lease != nil {
		namespace = r.snap.lease.Namespace
	}
	return r.readPrograms(ctx, namespace)
}

// readLease reads the Lease from the given namespace, otherwise from any namespace.
func (r *reader) readLease(ctx context.Context, namespace string) error {
	lease := &coordinationv1.Lease{}
	err := r.api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: controllerName}, lease)
	if err == nil {
		r.snap.lease = lease
		return nil
	}
	if !apierrors.IsNotFound(err) {
		return explain(err, r.server, "leases")
	}
	var found coordinationv1.LeaseList
	named := client.MatchingFieldsSelector{Selector: fields.OneTermEqualSelector("metadata.name", controllerName)}
	if err := r.api.List(ctx, &found, named); err != nil {
		return explain(err, r.server, "leases")
	}
	r.snap.lease = newest(found.Items)
	return nil
}

// newest returns the Lease with the latest renewal; nil if there is none.
func newest(leases []coordinationv1.Lease) *coordinationv1.Lease {
	var out *coordinationv1.Lease
	for i := range leases {
		if out == nil || renewed(&leases[i]).After(renewed(out)) {
			out = &leases[i]
		}
	}
	return out
}

func renewed(l *coordinationv1.Lease) time.Time {
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
	r.snap.pools = list.Items
	return nil
}

func (r *reader) readBlocks(ctx context.Context) error {
	var list v1alpha1.IPBlockList
	if err := r.api.List(ctx, &list); err != nil {
		return explain(err, r.server, "ipblocks.fairlead.dev")
	}
	r.snap.blocks = list.Items
	return nil
}

func (r *reader) readReservations(ctx context.Context) error {
	var list v1alpha1.IPReservationList
	if err := r.api.List(ctx, &list); err != nil {
		return explain(err, r.server, "ipreservations.fairlead.dev")
	}
	r.snap.reservations = list.Items
	return nil
}

func (r *reader) readClaims(ctx context.Context) error {
	var list v1alpha1.IPClaimList
	if err := r.api.List(ctx, &list); err != nil {
		return explain(err, r.server, "ipclaims.fairlead.dev")
	}
	r.snap.claims = list.Items
	return nil
}

func (r *reader) readNodes(ctx context.Context) error {
	var list v1alpha1.NodeNetworkList
	if err := r.api.List(ctx, &list); err != nil {
		return explain(err, r.server, "nodenetworks.fairlead.dev")
	}
	r.snap.nodes = list.Items
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
	r.snap.pods = list.Items
	return nil
}

func (r *reader) readAttachments(ctx context.Context, namespace string) error {
	var list v1alpha1.PodAttachmentList
	if err := r.api.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return explain(err, r.server, "podattachments.fairlead.dev")
	}
	r.snap.attachments = list.Items
	return nil
}

// readEvents reads the controller's warnings, which explain why pods have no record. A
// user without the right to read events sees the pods without the reason.
func (r *reader) readEvents(ctx context.Context, namespace string) error {
	ours := client.MatchingFieldsSelector{Selector: fields.AndSelectors(
		fields.OneTermEqualSelector("reportingController", controllerName),
		fields.OneTermEqualSelector("type", corev1.EventTypeWarning),
	)}
	var list eventsv1.EventList
	err := r.api.List(ctx, &list, ours, client.InNamespace(namespace))
	if err != nil && !apierrors.IsForbidden(err) {
		return explain(err, r.server, "events")
	}
	r.snap.events = list.Items
	return nil
}
