package ui

import (
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cli/kube"
	"fairlead.dev/fairlead/internal/pod"
)

// maxEvents is the number of events on the page.
const maxEvents = 100

// podRow returns the row of a pod; nil if Fairlead has nothing to do with it.
func (m *Model) podRow(key pod.Key, foreign map[types.NamespacedName]bool) any {
	p, _ := m.objects[kube.Pods][types.NamespacedName{Namespace: key.Namespace, Name: key.Name}].(*corev1.Pod)
	if p != nil && p.UID != key.UID {
		p = nil
	}
	if record := m.records[key]; record != nil {
		return m.views.Pod(record, p, nil)
	}
	if p == nil || !pod.Wants(p) || !m.listed[kube.PodAttachments] {
		return nil
	}
	node, _ := m.objects[kube.NodeNetworks][types.NamespacedName{Name: p.Spec.NodeName}].(*v1alpha1.NodeNetwork)
	snap := kube.Snapshot{Foreign: foreign}
	if node == nil || snap.NotOurs(p, node) {
		return nil
	}
	return m.views.Pod(nil, p, m.warnings[p.UID])
}

// foreign returns the networks whose addresses another plugin gives.
func (m *Model) foreign() map[types.NamespacedName]bool {
	out := map[types.NamespacedName]bool{}
	for name, o := range m.objects[kube.Networks] {
		u, ok := o.(*unstructured.Unstructured)
		if !ok {
			continue
		}
		if n, err := kube.NetworkOf(u); err == nil && !n.Served() {
			out[name] = true
		}
	}
	return out
}

func (m *Model) nodeRows() map[string]any {
	out := map[string]any{}
	for name, o := range m.objects[kube.NodeNetworks] {
		if n, ok := o.(*v1alpha1.NodeNetwork); ok {
			out[name.Name] = m.views.Node(n)
		}
	}
	return out
}

func (m *Model) portPoolRows() map[string]any {
	out := map[string]any{}
	for name, o := range m.objects[kube.PortPools] {
		if p, ok := o.(*v1alpha1.PortPool); ok {
			out[name.Name] = m.views.PortPool(p)
		}
	}
	return out
}

// poolRows returns the pools, with their maps at a time unless blocks or reservations cannot
// be read.
func (m *Model) poolRows(now time.Time) map[string]any {
	var snap *kube.Snapshot
	if m.listed[kube.IPBlocks] && m.listed[kube.IPReservations] {
		snap = m.addresses(now)
	}
	out := map[string]any{}
	m.cooling = false
	for name, o := range m.objects[kube.IPPools] {
		if p, ok := o.(*v1alpha1.IPPool); ok {
			view, cooling := m.views.Pool(p, snap)
			out[name.Name], m.cooling = view, m.cooling || cooling
		}
	}
	return out
}

// addresses returns a snapshot with the blocks and reservations.
func (m *Model) addresses(now time.Time) *kube.Snapshot {
	snap := &kube.Snapshot{Now: now}
	for _, o := range m.objects[kube.IPBlocks] {
		if b, ok := o.(*v1alpha1.IPBlock); ok {
			snap.Blocks = append(snap.Blocks, *b)
		}
	}
	for _, o := range m.objects[kube.IPReservations] {
		if r, ok := o.(*v1alpha1.IPReservation); ok {
			snap.Reservations = append(snap.Reservations, *r)
		}
	}
	return snap
}

// networkView is the default network, or the network of a NetworkAttachmentDefinition.
type networkView struct {
	Name string `json:"name"`
	// Type of the first plugin, or the driver of the default network.
	Type string `json:"type,omitempty"`
	// Interfaces of pods on the network.
	Interfaces int `json:"interfaces"`
	// Problem is the reason why the configuration cannot be read or served.
	Problem string `json:"problem,omitempty"`
}

// networkRows returns the networks that are defined, and those that pods have.
func (m *Model) networkRows() map[string]any {
	views := map[string]*networkView{}
	of := func(name string) *networkView {
		if views[name] == nil {
			views[name] = &networkView{Name: name}
		}
		return views[name]
	}
	if m.listed[kube.PodAttachments] {
		of(v1alpha1.DefaultNetwork)
	}
	for name, o := range m.objects[kube.Networks] {
		u, ok := o.(*unstructured.Unstructured)
		if !ok {
			continue
		}
		v := of(name.String())
		n, err := kube.NetworkOf(u)
		v.Type = n.Type
		if err = errors.Join(err, n.Refused); err != nil {
			v.Problem = err.Error()
		}
	}
	for _, record := range m.records {
		for _, i := range record.Spec.Interfaces {
			v := of(i.Network)
			v.Interfaces++
			if i.Network == v1alpha1.DefaultNetwork {
				v.Type = max(v.Type, i.Driver) // any, but always the same
			}
		}
	}
	out := map[string]any{}
	for name, v := range views {
		out[name] = v
	}
	return out
}

// eventView is an event of the controller or of a node.
type eventView struct {
	At        time.Time `json:"at"`
	Warning   bool      `json:"warning"`
	Reason    string    `json:"reason"`
	Kind      string    `json:"kind"` // of the object
	Namespace string    `json:"namespace,omitempty"`
	Name      string    `json:"name"`
	Note      string    `json:"note"`
}

func viewOf(e *eventsv1.Event) eventView {
	return eventView{
		At: kube.Seen(e).UTC(), Warning: e.Type == corev1.EventTypeWarning, Reason: e.Reason, Note: e.Note,
		Kind: e.Regarding.Kind, Namespace: e.Regarding.Namespace, Name: e.Regarding.Name,
	}
}

// eventRows returns the last events.
func (m *Model) eventRows() map[string]any {
	var all []*eventsv1.Event
	for _, r := range []kube.Resource{kube.ControllerEvents, kube.NodeEvents} {
		for _, o := range m.objects[r] {
			if e, ok := o.(*eventsv1.Event); ok {
				all = append(all, e)
			}
		}
	}
	slices.SortFunc(all, func(a, b *eventsv1.Event) int { return kube.Seen(b).Compare(kube.Seen(a)) })
	out := map[string]any{}
	for _, e := range all[:min(len(all), maxEvents)] {
		out[e.Namespace+"/"+e.Name] = viewOf(e)
	}
	return out
}

// resourceView is whether a resource can be read.
type resourceView struct {
	State   string `json:"state"`
	Message string `json:"message,omitempty"`
}

// States of a resource.
const (
	resourceListed    = "Listed"
	resourceLoading   = "Loading"
	resourceForbidden = "Forbidden"
	resourceMissing   = "Missing"
	resourceFailing   = "Failing"
)

func (m *Model) resourceRows() map[string]any {
	out := map[string]any{}
	for _, r := range resources {
		v := resourceView{State: resourceLoading}
		err := m.refused[r]
		switch {
		case errors.Is(err, kube.ErrForbidden):
			v.State = resourceForbidden
		case errors.Is(err, kube.ErrMissing):
			v.State = resourceMissing
		case err != nil:
			v.State = resourceFailing
		case m.listed[r]:
			v.State = resourceListed
		}
		if err != nil {
			v.Message = err.Error()
		}
		out[string(r)] = v
	}
	return out
}
