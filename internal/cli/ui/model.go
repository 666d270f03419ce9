package ui

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cli/kube"
	"fairlead.dev/fairlead/internal/pod"
)

// Views returns objects as the other commands describe them. Each result is written as JSON.
type Views struct {
	// Pod describes a pod by its record; without one, by the pod itself and the controller's
	// last warning about it, or nil.
	Pod  func(record *v1alpha1.PodAttachment, p *corev1.Pod, warning *eventsv1.Event) any
	Node func(*v1alpha1.NodeNetwork) any
	// Pool describes a pool; with the blocks and reservations of a snapshot, also its map.
	// Cooling is true if an address of it cools.
	Pool     func(*v1alpha1.IPPool, *kube.Snapshot) (view any, cooling bool)
	PortPool func(*v1alpha1.PortPool) any
	// Explain returns the steps of a pod, false if there is neither a pod nor a record.
	Explain func(snap kube.Snapshot, namespace, name string) (any, bool)
}

// The kinds of rows.
const (
	kindNode     = "node"
	kindPod      = "pod"
	kindPool     = "pool"
	kindNetwork  = "network"
	kindPortPool = "portpool"
	kindEvent    = "event"
	kindResource = "resource"
)

// Change is a row that is new or has changed. Row is nil if the row is gone.
type Change struct {
	Kind string          `json:"kind"`
	ID   string          `json:"id"`
	Row  json.RawMessage `json:"row,omitempty"`
}

// Model has the objects of a cluster, and the rows that the page has of them. It is not safe
// for concurrent use.
type Model struct {
	views   Views
	objects map[kube.Resource]map[types.NamespacedName]client.Object
	// records by the pod that each belongs to.
	records map[pod.Key]*v1alpha1.PodAttachment
	// warnings are the controller's last ones, by the UID of the pod.
	warnings map[types.UID]*eventsv1.Event
	refused  map[kube.Resource]error
	listed   map[kube.Resource]bool

	// rows are those of the last call of Changes, as JSON, by kind and ID.
	rows map[string]map[string]string
	// dirty are the resources that changed since, and dirtyPods the pods.
	dirty     map[kube.Resource]bool
	dirtyPods map[pod.Key]bool
	// allPods is true if the pods without a record may have changed.
	allPods bool
	// cooling is true if the page has an address that cools.
	cooling bool
}

// NewModel returns a model without objects.
func NewModel(views Views) *Model {
	m := &Model{
		views: views, objects: map[kube.Resource]map[types.NamespacedName]client.Object{},
		records: map[pod.Key]*v1alpha1.PodAttachment{}, warnings: map[types.UID]*eventsv1.Event{},
		refused: map[kube.Resource]error{}, listed: map[kube.Resource]bool{},
		rows: map[string]map[string]string{}, dirty: map[kube.Resource]bool{}, dirtyPods: map[pod.Key]bool{},
	}
	for _, r := range resources {
		m.objects[r], m.dirty[r] = map[types.NamespacedName]client.Object{}, true
	}
	return m
}

// resources are all that the page shows.
var resources = []kube.Resource{
	kube.NodeNetworks, kube.Pods, kube.PodAttachments, kube.IPPools, kube.IPBlocks, kube.IPReservations,
	kube.Networks, kube.PortPools, kube.ControllerEvents, kube.NodeEvents,
}

// Put adds or replaces an object.
func (m *Model) Put(r kube.Resource, o client.Object) {
	m.forget(r, m.objects[r][client.ObjectKeyFromObject(o)])
	m.objects[r][client.ObjectKeyFromObject(o)] = o
	m.note(r, o)
	m.touch(r)
}

// Remove removes an object.
func (m *Model) Remove(r kube.Resource, o client.Object) {
	m.forget(r, m.objects[r][client.ObjectKeyFromObject(o)])
	delete(m.objects[r], client.ObjectKeyFromObject(o))
	m.touch(r)
}

// Replace replaces all objects of a resource.
func (m *Model) Replace(r kube.Resource, all []client.Object) {
	for _, o := range m.objects[r] {
		m.forget(r, o)
	}
	clear(m.objects[r])
	for _, o := range all {
		m.objects[r][client.ObjectKeyFromObject(o)] = o
		m.note(r, o)
	}
	m.listed[r] = true
	delete(m.refused, r)
	m.allPods = true
	m.touch(r)
}

// touch records that objects of a resource changed. A node decides whether its pods without
// a record wait, and a network whether they are Fairlead's.
func (m *Model) touch(r kube.Resource) {
	m.dirty[r] = true
	m.allPods = m.allPods || r == kube.NodeNetworks || r == kube.Networks
}

// Refused records why a resource cannot be read. Its objects are dropped if the user may not
// see them any more.
func (m *Model) Refused(r kube.Resource, err error) {
	if errors.Is(err, kube.ErrForbidden) || errors.Is(err, kube.ErrMissing) {
		m.Replace(r, nil)
		m.listed[r] = false
	}
	m.refused[r], m.dirty[r] = err, true
}

// Unread returns the resources that were neither read nor refused until now.
func (m *Model) Unread() []kube.Resource {
	var out []kube.Resource
	for _, r := range resources {
		err := m.refused[r]
		if !m.listed[r] && !errors.Is(err, kube.ErrForbidden) && !errors.Is(err, kube.ErrMissing) {
			out = append(out, r)
		}
	}
	return out
}

// forget removes an object from the indices, and note adds it.
func (m *Model) forget(r kube.Resource, o client.Object) {
	switch o := o.(type) {
	case *corev1.Pod:
		m.dirtyPods[pod.KeyOf(o)] = true
	case *v1alpha1.PodAttachment:
		m.dirtyPods[pod.Of(o)] = true
		if m.records[pod.Of(o)] == o {
			delete(m.records, pod.Of(o))
		}
	case *eventsv1.Event:
		m.dirtyPods[keyOfEvent(o)] = r == kube.ControllerEvents || m.dirtyPods[keyOfEvent(o)]
		if m.warnings[o.Regarding.UID] == o {
			delete(m.warnings, o.Regarding.UID)
		}
	}
}

func (m *Model) note(r kube.Resource, o client.Object) {
	switch o := o.(type) {
	case *corev1.Pod:
		m.dirtyPods[pod.KeyOf(o)] = true
	case *v1alpha1.PodAttachment:
		m.dirtyPods[pod.Of(o)] = true
		m.records[pod.Of(o)] = o
	case *eventsv1.Event:
		last := m.warnings[o.Regarding.UID]
		if r == kube.ControllerEvents && o.Type == corev1.EventTypeWarning && (last == nil || !kube.Seen(last).After(kube.Seen(o))) {
			m.warnings[o.Regarding.UID], m.dirtyPods[keyOfEvent(o)] = o, true
		}
	}
}

func keyOfEvent(e *eventsv1.Event) pod.Key {
	return pod.Key{Namespace: e.Regarding.Namespace, Name: e.Regarding.Name, UID: e.Regarding.UID}
}

// Changes returns the rows that changed since the last call, in no order. later is true if
// rows will change with the time alone: addresses cool.
func (m *Model) Changes(now time.Time) (changes []Change, later bool) {
	if m.allPods {
		for _, o := range m.objects[kube.Pods] {
			if p, ok := o.(*corev1.Pod); ok && m.records[pod.KeyOf(p)] == nil {
				m.dirtyPods[pod.KeyOf(p)] = true
			}
		}
	}
	foreign := m.foreign()
	for key := range m.dirtyPods {
		changes = m.set(changes, kindPod, fmt.Sprintf("%s/%s/%s", key.Namespace, key.Name, key.UID), m.podRow(key, foreign))
	}
	for _, part := range []struct {
		kind string
		of   []kube.Resource
		rows func() map[string]any
	}{
		{kindResource, resources, m.resourceRows},
		{kindNode, []kube.Resource{kube.NodeNetworks}, m.nodeRows},
		{kindNetwork, []kube.Resource{kube.PodAttachments, kube.Networks}, m.networkRows},
		{kindPortPool, []kube.Resource{kube.PortPools}, m.portPoolRows},
		{kindEvent, []kube.Resource{kube.ControllerEvents, kube.NodeEvents}, m.eventRows},
		{kindPool, []kube.Resource{kube.IPPools, kube.IPBlocks, kube.IPReservations}, func() map[string]any { return m.poolRows(now) }},
	} {
		if part.kind == kindPool && m.cooling || m.changed(part.of...) {
			changes = m.setAll(changes, part.kind, part.rows())
		}
	}
	clear(m.dirty)
	clear(m.dirtyPods)
	m.allPods = false
	return changes, m.cooling
}

func (m *Model) changed(of ...kube.Resource) bool {
	return slices.ContainsFunc(of, func(r kube.Resource) bool { return m.dirty[r] })
}

// All returns all rows of the last call of Changes, in the order of kind and ID.
func (m *Model) All() []Change {
	var out []Change
	for _, kind := range slices.Sorted(maps.Keys(m.rows)) {
		for _, id := range slices.Sorted(maps.Keys(m.rows[kind])) {
			out = append(out, Change{kind, id, json.RawMessage(m.rows[kind][id])})
		}
	}
	return out
}

// setAll sets all rows of a kind, and removes the others.
func (m *Model) setAll(changes []Change, kind string, rows map[string]any) []Change {
	for id := range m.rows[kind] {
		if _, stays := rows[id]; !stays {
			changes = m.set(changes, kind, id, nil)
		}
	}
	for id, row := range rows {
		changes = m.set(changes, kind, id, row)
	}
	return changes
}

// set sets a row, and appends it to changes if it differs. Nil removes the row.
func (m *Model) set(changes []Change, kind, id string, row any) []Change {
	last, had := m.rows[kind][id]
	if row == nil {
		if had {
			delete(m.rows[kind], id)
			changes = append(changes, Change{Kind: kind, ID: id})
		}
		return changes
	}
	text, err := json.Marshal(row)
	if err != nil { // no view has a value that JSON lacks
		text = []byte("{}")
	}
	if had && last == string(text) {
		return changes
	}
	if m.rows[kind] == nil {
		m.rows[kind] = map[string]string{}
	}
	m.rows[kind][id] = string(text)
	return append(changes, Change{kind, id, text})
}

// Story returns the story of a pod, nil if there is neither a pod nor a record.
func (m *Model) Story(namespace, name string, now time.Time) *Story {
	snap := kube.Snapshot{Now: now, Foreign: m.foreign()}
	for _, o := range m.objects[kube.NodeNetworks] {
		if n, ok := o.(*v1alpha1.NodeNetwork); ok {
			snap.Nodes = append(snap.Nodes, *n)
		}
	}
	if p, ok := m.objects[kube.Pods][types.NamespacedName{Namespace: namespace, Name: name}].(*corev1.Pod); ok {
		snap.Pods = append(snap.Pods, *p)
	}
	for key, record := range m.records {
		if key.Namespace == namespace && key.Name == name {
			snap.Attachments = append(snap.Attachments, *record)
		}
	}
	var told []*eventsv1.Event
	for _, r := range []kube.Resource{kube.ControllerEvents, kube.NodeEvents} {
		for _, o := range m.objects[r] {
			e, ok := o.(*eventsv1.Event)
			if !ok || e.Regarding.Namespace != namespace || e.Regarding.Name != name {
				continue
			}
			told = append(told, e)
			if r == kube.ControllerEvents && e.Type == corev1.EventTypeWarning {
				snap.Events = append(snap.Events, *e)
			}
		}
	}
	explained, ok := m.views.Explain(snap, namespace, name)
	if !ok {
		return nil
	}
	return &Story{Explained: explained, Moments: moments(snap, told)}
}
