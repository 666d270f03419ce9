package sim

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// key names one object of the API.
type key struct {
	kind string
	types.NamespacedName
}

func (k key) String() string {
	return k.kind + " " + strings.TrimPrefix(k.NamespacedName.String(), "/")
}

// The kinds that the simulated API serves.
const (
	kindPod      = "Pod"
	kindNode     = "Node"
	kindRecord   = "PodAttachment"
	kindBlock    = "IPBlock"
	kindPool     = "IPPool"
	kindClaim    = "IPClaim"
	kindReserved = "IPReservation"
	kindNetwork  = "NodeNetwork"
)

func kindOf(o any) string {
	switch o.(type) {
	case *corev1.Pod, *corev1.PodList:
		return kindPod
	case *corev1.Node, *corev1.NodeList:
		return kindNode
	case *v1alpha1.PodAttachment, *v1alpha1.PodAttachmentList:
		return kindRecord
	case *v1alpha1.IPBlock, *v1alpha1.IPBlockList:
		return kindBlock
	case *v1alpha1.IPPool, *v1alpha1.IPPoolList:
		return kindPool
	case *v1alpha1.IPClaim, *v1alpha1.IPClaimList:
		return kindClaim
	case *v1alpha1.IPReservation, *v1alpha1.IPReservationList:
		return kindReserved
	case *v1alpha1.NodeNetwork, *v1alpha1.NodeNetworkList:
		return kindNetwork
	}
	return fmt.Sprintf("%T", o)
}

func keyOf(o client.Object) key { return key{kindOf(o), client.ObjectKeyFromObject(o)} }

// objectSet has objects by kind and name.
type objectSet map[string]map[types.NamespacedName]client.Object

func (s objectSet) put(o client.Object) {
	k := keyOf(o)
	if s[k.kind] == nil {
		s[k.kind] = map[types.NamespacedName]client.Object{}
	}
	s[k.kind][k.NamespacedName] = o
}

func (s objectSet) get(k key) client.Object { return s[k.kind][k.NamespacedName] }

func (s objectSet) remove(k key) { delete(s[k.kind], k.NamespacedName) }

// list returns the objects of a kind that want accepts, sorted by name.
func (s objectSet) list(kind string, want func(client.Object) bool) []client.Object {
	var out []client.Object
	for _, o := range s[kind] {
		if want == nil || want(o) {
			out = append(out, o)
		}
	}
	slices.SortFunc(out, func(a, b client.Object) int {
		return cmp.Or(strings.Compare(a.GetName(), b.GetName()), strings.Compare(a.GetNamespace(), b.GetNamespace()))
	})
	return out
}

func (s objectSet) clone() objectSet {
	out := objectSet{}
	for kind, m := range s {
		out[kind] = maps.Clone(m)
	}
	return out
}

// event is one line of a watch.
type event struct {
	obj     client.Object
	deleted bool
}

// apiServer keeps objects as an API server does: one resource version that grows over all
// of them, compare-and-swap, finalizers, a log per kind. A stored object never changes
// again, so it is handed out without a copy. Only the scheduler calls it.
type apiServer struct {
	version int64
	objects objectSet
	log     map[string][]event
	// now is the API server's clock.
	now func() time.Time
	// changed is called for every change; old is nil for a new object, and obj is nil for
	// a deleted one.
	changed func(old, obj client.Object)
	// blind accepts updates of blocks whatever their resourceVersion (BlindUpdates).
	blind bool
}

func newAPI(now func() time.Time) *apiServer {
	return &apiServer{objects: objectSet{}, log: map[string][]event{}, now: now, changed: func(client.Object, client.Object) {}}
}

func copyOf[T client.Object](o T) T { return o.DeepCopyObject().(T) }

func (a *apiServer) get(k key) (client.Object, error) {
	o := a.objects.get(k)
	if o == nil {
		return nil, apierrors.NewNotFound(resource(k), k.Name)
	}
	return o, nil
}

func (a *apiServer) list(kind string) []client.Object { return a.objects.list(kind, nil) }

func (a *apiServer) create(o client.Object) (client.Object, error) {
	k := keyOf(o)
	if a.objects.get(k) != nil {
		return nil, apierrors.NewAlreadyExists(resource(k), k.Name)
	}
	if record, ok := o.(*v1alpha1.PodAttachment); ok {
		if err := record.Spec.Validate(); err != nil {
			return nil, apierrors.NewInvalid(v1alpha1.GroupVersion.WithKind(k.kind).GroupKind(), k.Name, field.ErrorList{field.Invalid(field.NewPath("spec"), "", err.Error())})
		}
	}
	o = copyOf(o)
	a.version++
	if o.GetUID() == "" {
		o.SetUID(types.UID(fmt.Sprintf("%08x-0000-4000-8000-%012x", a.version, a.version)))
	}
	o.SetCreationTimestamp(metav1.NewTime(a.now()))
	return a.store(nil, o), nil
}

// update replaces an object with its status.
func (a *apiServer) update(o client.Object) (client.Object, error) {
	k := keyOf(o)
	old, err := a.get(k)
	if err != nil {
		return nil, err
	}
	blind := a.blind && k.kind == kindBlock
	if !blind && (o.GetResourceVersion() != old.GetResourceVersion() || o.GetUID() != old.GetUID()) {
		return nil, apierrors.NewConflict(resource(k), k.Name, errors.New("the object has been modified"))
	}
	o = copyOf(o)
	o.SetUID(old.GetUID())
	a.version++
	return a.store(old, o), nil
}

// patch merges (RFC 7396) into the status or into everything but the status.
func (a *apiServer) patch(k key, data []byte, status bool) (client.Object, error) {
	old, err := a.get(k)
	if err != nil {
		return nil, err
	}
	var patch, doc map[string]any
	if err := json.Unmarshal(data, &patch); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if meta, ok := patch["metadata"].(map[string]any); ok {
		if v, ok := meta["resourceVersion"]; ok && v != old.GetResourceVersion() {
			return nil, apierrors.NewConflict(resource(k), k.Name, errors.New("the object has been modified"))
		}
	}
	if status {
		patch = map[string]any{"status": patch["status"]}
	} else {
		delete(patch, "status")
	}
	before, err := json.Marshal(old)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(before, &doc); err != nil {
		return nil, err
	}
	merge(doc, patch)
	after, err := json.Marshal(doc)
	if err != nil {
		return nil, err
	}
	out := copyOf(old)
	clearObject(out)
	if err := json.NewDecoder(bytes.NewReader(after)).Decode(out); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	a.version++
	return a.store(old, out), nil
}

func merge(doc, patch map[string]any) {
	for field, v := range patch {
		sub, isMap := v.(map[string]any)
		have, wasMap := doc[field].(map[string]any)
		switch {
		case v == nil:
			delete(doc, field)
		case isMap && wasMap:
			merge(have, sub)
		case isMap:
			fresh := map[string]any{}
			merge(fresh, sub)
			doc[field] = fresh
		default:
			doc[field] = v
		}
	}
}

// remove deletes an object, or marks one that has finalizers.
func (a *apiServer) remove(k key, pre *metav1.Preconditions) error {
	old, err := a.get(k)
	if err != nil {
		return err
	}
	if pre != nil && (pre.UID != nil && *pre.UID != old.GetUID() || pre.ResourceVersion != nil && *pre.ResourceVersion != old.GetResourceVersion()) {
		return apierrors.NewConflict(resource(k), k.Name, errors.New("the preconditions do not hold"))
	}
	switch {
	case len(old.GetFinalizers()) == 0:
		a.version++
		a.drop(old)
	case old.GetDeletionTimestamp() == nil:
		a.markDeleted(old)
	}
	return nil
}

// markDeleted sets the deletion timestamp of an object with finalizers, or of a pod with
// a grace period.
func (a *apiServer) markDeleted(old client.Object) {
	o := copyOf(old)
	o.SetDeletionTimestamp(&metav1.Time{Time: a.now()})
	a.version++
	a.store(old, o)
}

func (a *apiServer) store(old, o client.Object) client.Object {
	if old != nil && o.GetDeletionTimestamp() != nil && len(o.GetFinalizers()) == 0 && kindOf(o) != kindPod {
		a.drop(old)
		return o
	}
	o.SetResourceVersion(strconv.FormatInt(a.version, 10))
	k := keyOf(o)
	a.objects.put(o)
	a.log[k.kind] = append(a.log[k.kind], event{obj: o})
	a.changed(old, o)
	return o
}

func (a *apiServer) drop(old client.Object) {
	last := copyOf(old)
	last.SetResourceVersion(strconv.FormatInt(a.version, 10))
	k := keyOf(old)
	a.objects.remove(k)
	a.log[k.kind] = append(a.log[k.kind], event{obj: last, deleted: true})
	a.changed(old, nil)
}

// snapshot returns a backup of etcd. The revision is not part of it: a restore raises the
// revision (etcdutl --bump-revision).
func (a *apiServer) snapshot() objectSet { return a.objects.clone() }

// restore replaces all objects by a snapshot. Watches start anew.
func (a *apiServer) restore(objects objectSet) {
	a.objects = objects.clone()
	a.version += 1000
	a.log = map[string][]event{}
	for kind := range a.objects {
		for _, o := range a.list(kind) {
			a.log[kind] = append(a.log[kind], event{obj: o})
		}
	}
}

func resource(k key) schema.GroupResource {
	return schema.GroupResource{Group: "fairlead.dev", Resource: strings.ToLower(k.kind) + "s"}
}
