package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/echo"
	"fairlead.dev/fairlead/internal/netdev/host"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/node/apiserver"
)

// hook is called at each step of a fake: "attach", "attached" (after it), "detach",
// "detached", "enter", "links", "patch", "patched", "filter", "forget". what names the
// object of the step. An error fails the step; the hook may block, or end the goroutine
// as a kill of the daemon would.
type hook func(ctx context.Context, step, what string) error

// fakeHost is the host part of a kernel.
type fakeHost struct {
	kernel  *fakeKernel
	mu      sync.Mutex
	uplink  host.Uplink
	err     error // of Uplink
	fail    error // of ApplyHost
	applied []host.State
	looks   int // calls of Uplink
	notify  func(addresses bool)
	lost    bool         // the uplink is gone
	watches []time.Time  // when WatchHost was called
	broken  chan error   // ends WatchHost
	echoes  int          // requests of Echoes
	dropped []netip.Addr // sources whose echo requests are dropped
	chains  []string     // forward chains with policy drop
	reads   int          // calls of DropPolicies
}

func (h *fakeHost) DropPolicies() ([]string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reads++
	return h.chains, h.fail
}

func (h *fakeHost) Uplink(context.Context, string) (host.Uplink, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.looks++
	return h.uplink, h.err
}

func (h *fakeHost) ApplyHost(_ context.Context, want host.State) ([]string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.applied = append(h.applied, want)
	return nil, h.fail
}

func (h *fakeHost) WatchHost(ctx context.Context, notify func(bool)) error {
	h.mu.Lock()
	h.notify = notify
	h.watches = append(h.watches, time.Now())
	h.mu.Unlock()
	select {
	case err := <-h.broken:
		return err
	case <-ctx.Done():
		return nil
	}
}

// Probe answers all requests but those from the addresses in h.dropped.
func (h *fakeHost) Probe(_ context.Context, all []echo.Request, _ time.Duration) ([]echo.Answer, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.echoes += len(all)
	out := make([]echo.Answer, len(all))
	for i, e := range all {
		if !slices.Contains(h.dropped, e.From) {
			out[i] = echo.Answered
		}
	}
	return out, nil
}

// LinkState returns the state of the uplink.
func (h *fakeHost) LinkState(name string) (link.State, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if name == h.uplink.Name && !h.lost {
		return link.State{Index: 1, Up: true}, nil
	}
	return link.State{}, fmt.Errorf("%s: %w", name, link.ErrNoLink)
}

// fakeAPI is an API server with PodAttachments, NodeNetworks and pods.
type fakeAPI struct {
	mu          sync.Mutex
	version     int
	attachments map[types.NamespacedName]*v1alpha1.PodAttachment
	networks    map[string]*v1alpha1.NodeNetwork
	pods        map[types.NamespacedName]*metav1.PartialObjectMetadata
	writes      map[types.NamespacedName][]string // each as state/sandbox
	reads       int
	netWrites   int
	reports     []*eventsv1.Event
	down        error
	hook        hook
	events      *apiserver.Events // nil without a watch
}

func newFakeAPI() *fakeAPI {
	return &fakeAPI{
		attachments: map[types.NamespacedName]*v1alpha1.PodAttachment{},
		networks:    map[string]*v1alpha1.NodeNetwork{},
		pods:        map[types.NamespacedName]*metav1.PartialObjectMetadata{},
		writes:      map[types.NamespacedName][]string{},
	}
}

func (a *fakeAPI) setHook(h hook) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.hook = h
}

// setDown makes every call fail with err; nil ends this.
func (a *fakeAPI) setDown(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.down = err
}

// mute silences the watch until unmute is called.
func (a *fakeAPI) mute() (unmute func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	events := a.events
	a.events = nil
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.events = events
	}
}

func (a *fakeAPI) bump() string {
	a.version++
	return strconv.Itoa(a.version)
}

// putPod makes a pod, in place of an earlier pod of the same name.
func (a *fakeAPI) putPod(name, uid string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pods[types.NamespacedName{Namespace: "ns", Name: name}] = &metav1.PartialObjectMetadata{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(uid)},
	}
}

// put writes a PodAttachment as the controller does, and notifies the watch.
func (a *fakeAPI) put(pa *v1alpha1.PodAttachment) *v1alpha1.PodAttachment {
	a.mu.Lock()
	pa = pa.DeepCopy()
	pa.ResourceVersion = a.bump()
	a.attachments[apiserver.KeyOf(pa)] = pa
	a.mu.Unlock()
	a.tell(pa)
	return pa
}

// change changes a PodAttachment as the controller does.
func (a *fakeAPI) change(key types.NamespacedName, f func(*v1alpha1.PodAttachment)) {
	a.mu.Lock()
	pa := a.attachments[key].DeepCopy()
	f(pa)
	pa.ResourceVersion = a.bump()
	a.attachments[key] = pa
	a.mu.Unlock()
	a.tell(pa)
}

// restore sets a PodAttachment back, as a restore of etcd from a backup does: the
// versions begin again where they were. A watch that has seen no newer version does not
// report it.
func (a *fakeAPI) restore(pa *v1alpha1.PodAttachment) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version, _ = strconv.Atoi(pa.ResourceVersion)
	a.attachments[apiserver.KeyOf(pa)] = pa
}

// remove removes the last finalizer.
func (a *fakeAPI) remove(key types.NamespacedName) {
	a.mu.Lock()
	pa := a.attachments[key]
	delete(a.attachments, key)
	events := a.events
	a.mu.Unlock()
	if pa != nil && events != nil {
		events.Deleted(pa)
	}
}

func (a *fakeAPI) get(key types.NamespacedName) *v1alpha1.PodAttachment {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.attachments[key]
}

func (a *fakeAPI) written(key types.NamespacedName) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.writes[key])
}

func (a *fakeAPI) tell(pa *v1alpha1.PodAttachment) {
	a.mu.Lock()
	events := a.events
	a.mu.Unlock()
	if events != nil {
		events.Updated(pa)
	}
}

// step calls the hook outside the lock.
func (a *fakeAPI) step(ctx context.Context, step, what string) error {
	a.mu.Lock()
	h, down := a.hook, a.down
	a.mu.Unlock()
	if h != nil {
		if err := h(ctx, step, what); err != nil {
			return err
		}
	}
	return down
}

func (a *fakeAPI) PatchAttachment(ctx context.Context, key types.NamespacedName, patch []byte) (*v1alpha1.PodAttachment, error) {
	if err := a.step(ctx, "patch", key.String()); err != nil {
		return nil, err
	}
	a.mu.Lock()
	old := a.attachments[key]
	resource := schema.GroupResource{Group: "fairlead.dev", Resource: "podattachments"}
	var meta struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
	}
	err := json.Unmarshal(patch, &meta)
	switch {
	case err != nil:
	case old == nil:
		err = apierrors.NewNotFound(resource, key.Name)
	case meta.Metadata.ResourceVersion != old.ResourceVersion:
		err = apierrors.NewConflict(resource, key.Name, errors.New("the object has been modified"))
	}
	if err != nil {
		a.mu.Unlock()
		return nil, err
	}
	pa := old.DeepCopy()
	if err := merge(pa, patch); err != nil {
		a.mu.Unlock()
		return nil, err
	}
	pa.ResourceVersion = a.bump()
	a.attachments[key] = pa
	a.writes[key] = append(a.writes[key], string(pa.Status.Sandbox.State)+"/"+pa.Status.Sandbox.ID)
	a.mu.Unlock()
	a.tell(pa)
	return pa, a.step(ctx, "patched", key.String())
}

func (a *fakeAPI) PatchNetwork(ctx context.Context, name string, patch []byte) (*v1alpha1.NodeNetwork, error) {
	if err := a.step(ctx, "patchNetwork", name); err != nil {
		return nil, err
	}
	a.mu.Lock()
	nn := a.networks[name].DeepCopy()
	err := merge(nn, patch)
	nn.ResourceVersion = a.bump()
	a.networks[name] = nn
	a.netWrites++
	events := a.events
	a.mu.Unlock()
	if events != nil {
		events.NetworksChanged()
	}
	return nn, err
}

func (a *fakeAPI) putNetwork(nn *v1alpha1.NodeNetwork) {
	a.mu.Lock()
	nn = nn.DeepCopy()
	nn.ResourceVersion = a.bump()
	a.networks[nn.Name] = nn
	events := a.events
	a.mu.Unlock()
	if events != nil {
		events.NetworksChanged()
	}
}

func (a *fakeAPI) Pod(ctx context.Context, key types.NamespacedName) (*metav1.PartialObjectMetadata, error) {
	if err := a.step(ctx, "pod", key.String()); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.reads++
	pod := a.pods[key]
	if pod == nil {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, key.Name)
	}
	return pod, nil
}

func (a *fakeAPI) CreateEvent(ctx context.Context, e *eventsv1.Event) error {
	if err := a.step(ctx, "event", e.Regarding.Name); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.reports = append(a.reports, e)
	return nil
}

// Watch reports every existing object, then each change.
func (a *fakeAPI) Watch(ctx context.Context, e apiserver.Events) error {
	a.mu.Lock()
	a.events = &e
	all := slices.Collect(maps.Values(a.attachments))
	a.mu.Unlock()
	for _, pa := range all {
		e.Updated(pa)
	}
	e.NetworksChanged()
	e.Synced()
	<-ctx.Done()
	return nil
}

func (a *fakeAPI) Networks(context.Context) ([]v1alpha1.NodeNetwork, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []v1alpha1.NodeNetwork
	for _, nn := range a.networks {
		out = append(out, *nn)
	}
	return out, nil
}
