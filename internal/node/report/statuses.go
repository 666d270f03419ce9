package report

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/node/apiserver"
	"fairlead.dev/fairlead/internal/node/ledger"
	"fairlead.dev/fairlead/internal/run"
	"fairlead.dev/fairlead/internal/warn"
)

// ackWriters is the number of statuses that are written in parallel.
const ackWriters = 16

// AckDelay is the delay between the end of an ADD and the write of its status. The answers
// to this ADD, and to those of other pods that start at the same time, go first.
const AckDelay = 100 * time.Millisecond

// recheckLost is the time between two checks of a sandbox that has lost an address.
const recheckLost = time.Minute

// tellEndedAfter is the time from the end of a sandbox until the status of its PodAttachment
// tells it. The runtime usually makes another sandbox in less, and the PodAttachment of a
// pod that ends is usually deleted in less.
const tellEndedAfter = time.Minute

// The reasons of conditions that are false when no sandbox holds the interfaces.
const (
	reasonNeverPlugged = "NeverPlugged"
	reasonUnplugged    = "Unplugged"
)

// API has the writes to the API server.
type API interface {
	// PatchAttachment applies a merge patch to the status of a PodAttachment and
	// returns the result.
	PatchAttachment(ctx context.Context, key types.NamespacedName, patch []byte) (*v1alpha1.PodAttachment, error)
	// CreateEvent writes an event.
	CreateEvent(ctx context.Context, e *eventsv1.Event) error
}

// Statuses writes into the status of PodAttachments whether their interfaces are plugged.
// It derives the status from all records each time, so repeated and missed calls do no
// harm. A failed write is retried for ever.
type Statuses struct {
	Config
	queue workqueue.TypedRateLimitingInterface[types.NamespacedName]

	mu sync.Mutex
	// gone has the names of interfaces whose links are gone, by container ID.
	gone map[string][]string
}

// Config has what Statuses works with.
type Config struct {
	API        API
	Registry   *apiserver.Registry
	Ledger     *ledger.Ledger
	Namespaces Namespaces
	// Events tell that interfaces of a running pod are gone, when its status has the reason.
	Events *warn.Teller
	// Took gets the duration of each write, in seconds, and Failed counts failed writes.
	Took   prometheus.Observer
	Failed prometheus.Counter
}

// Namespaces are the network namespaces of sandboxes (plug.Namespaces).
type Namespaces interface {
	// Open opens the namespace at a path. Errors: link.ErrNotNamespace if there is none.
	Open(path string) (*link.Namespace, error)
	// Inspect reads all interfaces of a namespace, by name.
	Inspect(ctx context.Context, ns *link.Namespace) (map[string]plug.Inspected, error)
	// Holding returns the path of a namespace that has one of the addresses, empty if there is
	// none.
	Holding(ctx context.Context, addrs []netip.Addr) (path string, err error)
}

// NewStatuses returns a writer of statuses, which writes while Run runs.
func NewStatuses(c Config) *Statuses {
	return &Statuses{Config: c, queue: NewQueue[types.NamespacedName]("statuses")}
}

// Enqueue queues a PodAttachment, whose status is written if it has changed.
func (a *Statuses) Enqueue(key types.NamespacedName) { a.queue.Add(key) }

// EnqueueSoon is Enqueue after AckDelay. Encoding and sending a status competes with
// answers to the runtime for the processor.
func (a *Statuses) EnqueueSoon(key types.NamespacedName) { a.queue.AddAfter(key, AckDelay) }

// SetGone takes the names of the interfaces that are gone from sandboxes that still have
// others, by container ID, and queues the PodAttachments for which they have changed.
// records are all sandboxes.
func (a *Statuses) SetGone(gone map[string][]string, records []*ledger.Record) {
	a.mu.Lock()
	before := a.gone
	a.gone = gone
	a.mu.Unlock()
	for _, rec := range records {
		if !slices.Equal(before[rec.ContainerID], gone[rec.ContainerID]) {
			a.Enqueue(rec.AttachmentKey())
		}
	}
}

// Gone returns the names that SetGone last took for a sandbox.
func (a *Statuses) Gone(containerID string) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.gone[containerID]
}

// Losses returns the number of pods with the reason InterfacesGone in their status.
func (a *Statuses) Losses() (n int) {
	for _, key := range a.Registry.Keys() {
		pa := a.Registry.Get(key)
		if pa == nil || pa.DeletionTimestamp != nil {
			continue
		}
		if is := meta.FindStatusCondition(pa.Status.Conditions, v1alpha1.ConditionReady); is != nil && is.Reason == v1alpha1.ReasonInterfacesGone {
			n++
		}
	}
	return n
}

// Run writes until ctx ends. It must be started after the records have been adopted.
func (a *Statuses) Run(ctx context.Context) error {
	RunQueue(ctx, a.queue, ackWriters, func(ctx context.Context, key types.NamespacedName) error {
		err := a.acknowledge(ctx, key)
		switch {
		case err == nil, ctx.Err() != nil, apierrors.IsConflict(err):
		case apierrors.IsNotFound(err):
			err = nil // the registry removes it at the watch event
		default:
			a.Failed.Inc()
			logr.FromContextOrDiscard(ctx).Error(err, "status was not written, will be tried again", "podAttachment", key)
		}
		return err
	})
	return nil
}

// acknowledge writes one status if it has changed. After a conflict the newer object
// arrives by the watch, which queues it. The retry covers an object that arrived before
// the conflict.
func (a *Statuses) acknowledge(ctx context.Context, key types.NamespacedName) error {
	pa := a.Registry.Get(key)
	if pa == nil {
		return nil
	}
	v, rec := a.Ledger.ChangeOf(pa)
	if now := a.Registry.Get(key); now == nil || now.UID != pa.UID {
		a.Ledger.Drop(pa.UID) // it may have been deleted before ChangeOf noted its change
		return nil
	}
	switch v {
	case ledger.SetAttached:
		return a.writePlugged(ctx, pa, rec)
	case ledger.SetDetached:
		if inUse, err := a.migratedInUse(ctx, pa); inUse || err != nil {
			return err
		}
		return a.writeUnplugged(ctx, pa)
	case ledger.SetEnded:
		return a.writeEnded(ctx, pa)
	case ledger.TellDamaged:
		return a.writeDamaged(ctx, pa, rec)
	case ledger.Keep:
	}
	return nil
}

// writeDamaged writes whether the sandbox of the status, whose record is damaged, equals the
// spec of its PodAttachment. The rest of the status stays: it knows more than the record. A status
// that names no sandbox gets that of the record.
func (a *Statuses) writeDamaged(ctx context.Context, pa *v1alpha1.PodAttachment, rec *ledger.Record) error {
	if pa.Status.Sandbox == nil {
		return a.Write(ctx, pa, v1alpha1.Sandbox{ID: rec.ContainerID, BootID: rec.BootID, State: v1alpha1.SandboxAttached}, plugged, plugged)
	}
	has := meta.FindStatusCondition(pa.Status.Conditions, v1alpha1.ConditionReady)
	why := ledger.TellOutdated(pa)
	ready := plugged
	switch {
	case why != "":
		ready = not(v1alpha1.ReasonInterfacesMissing, why)
	case has == nil || !ledger.IsOutdated(has.Message):
		return nil
	}
	if has != nil && has.Status == ready.Status && has.Message == ready.Message {
		return nil
	}
	return a.Write(ctx, pa, *pa.Status.Sandbox, plugged, ready)
}

// writeEnded writes that the sandbox of a PodAttachment that is not being deleted has ended,
// when that is so for tellEndedAfter. The status still names the sandbox: the controller
// concludes from it whether the addresses may be in use. The sandbox of a migration has no
// record, and its status stays.
func (a *Statuses) writeEnded(ctx context.Context, pa *v1alpha1.PodAttachment) error {
	has := meta.FindStatusCondition(pa.Status.Conditions, v1alpha1.ConditionAttached)
	if has == nil || has.Status != metav1.ConditionTrue || has.Reason == v1alpha1.ReasonImported {
		return nil
	}
	if left := tellEndedAfter - a.Ledger.EndedFor(pa.UID); left > 0 {
		a.queue.AddAfter(apiserver.KeyOf(pa), left)
		return nil
	}
	s := *pa.Status.Sandbox
	ready := not(v1alpha1.ReasonInterfacesGone, fmt.Sprintf("no interface of sandbox %s is left on this node, and the runtime has not made another sandbox: if the pod still runs, delete it", s.ID))
	return a.Write(ctx, pa, s, unplugged(s.ID), ready)
}

// writeUnplugged writes that no sandbox holds the interfaces, or ever will. A sandbox may have
// ended before its status was written.
func (a *Statuses) writeUnplugged(ctx context.Context, pa *v1alpha1.PodAttachment) error {
	id, ended := a.Ledger.LastEnd(pa.UID)
	at := metav1.NewMicroTime(ended)
	s := v1alpha1.Sandbox{ID: id, BootID: a.Ledger.BootID, State: v1alpha1.SandboxDetached, DetachedAt: &at}
	if old := pa.Status.Sandbox; old != nil {
		s.ID, s.AttachedAt = old.ID, old.AttachedAt
	}
	no := unplugged(s.ID)
	return a.Write(ctx, pa, s, no, no)
}

// plugged is the condition of a PodAttachment whose sandbox has its interfaces.
var plugged = metav1.Condition{Status: metav1.ConditionTrue, Reason: "Plugged", Message: "plugged in the sandbox that status.sandbox names"}

// not returns a condition that is false.
func not(reason, message string) metav1.Condition {
	return metav1.Condition{Status: metav1.ConditionFalse, Reason: reason, Message: message}
}

// unplugged returns the condition after the end of a sandbox, "" if there was none.
func unplugged(containerID string) metav1.Condition {
	if containerID == "" {
		return not(reasonNeverPlugged, "nothing was plugged on this node")
	}
	return not(reasonUnplugged, fmt.Sprintf("nothing of sandbox %s is left on this node", containerID))
}

// writePlugged writes that a sandbox holds the interfaces. The condition Ready is true if
// no interface is missing and the default interface has its addresses.
func (a *Statuses) writePlugged(ctx context.Context, pa *v1alpha1.PodAttachment, rec *ledger.Record) error {
	ready := plugged
	if missing := rec.Missing(pa); len(missing) > 0 {
		ready = not(v1alpha1.ReasonInterfacesMissing, ledger.TellMissing(pa, rec, missing))
	} else if gone := a.Gone(rec.ContainerID); len(gone) > 0 {
		ready = not(v1alpha1.ReasonInterfacesGone, strings.Join(gone, ", ")+": removed from the node by another program: delete the pod, its successor gets all interfaces")
	}
	if isUpToDate(pa, rec, ready) {
		return nil
	}
	inside, lost := a.look(ctx, rec)
	if ready.Status == metav1.ConditionTrue {
		if lost != "" {
			ready = not(v1alpha1.ReasonInterfacesMissing, lost)
			a.queue.AddAfter(apiserver.KeyOf(pa), recheckLost)
			if isUpToDate(pa, rec, ready) {
				return nil
			}
		}
	}
	at := metav1.NewMicroTime(rec.AttachedAt())
	s := v1alpha1.Sandbox{
		ID: rec.ContainerID, BootID: rec.BootID, State: v1alpha1.SandboxAttached, AttachedAt: &at,
		Generation: generationOf(rec), Links: linksOf(rec, inside),
	}
	return a.Write(ctx, pa, s, plugged, ready)
}

// look returns the interfaces of a sandbox, and a message about an address of the record
// that the default interface has lost, "" if it has all. It returns nothing if the
// namespace cannot be read: the sweep detects whether the namespace is gone.
func (a *Statuses) look(ctx context.Context, rec *ledger.Record) (inside map[string]plug.Inspected, lost string) {
	add := rec.Plug()
	if add == nil {
		return nil, ""
	}
	inside, err := a.Inside(ctx, rec)
	if err != nil {
		return nil, ""
	}
	if i, there := inside[add.IfName]; there {
		lost = add.LostAddress(i)
	}
	return inside, lost
}

// Inside returns the interfaces in the namespace of a sandbox by name; nil if the namespace is gone.
func (a *Statuses) Inside(ctx context.Context, rec *ledger.Record) (map[string]plug.Inspected, error) {
	ns, err := a.Namespaces.Open(rec.Netns)
	if errors.Is(err, link.ErrNotNamespace) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = ns.Close() }()
	if ns.Place().ID != rec.NetnsID {
		return nil, nil // another sandbox's by now
	}
	return a.Namespaces.Inspect(ctx, ns)
}

// isUpToDate reports whether the status has the sandbox of the record, its interfaces and
// the condition Ready already. A condition that a migration wrote (reason Imported) stays: the record
// of such a sandbox has only the interfaces that were plugged again since.
func isUpToDate(pa *v1alpha1.PodAttachment, rec *ledger.Record, ready metav1.Condition) bool {
	s := pa.Status.Sandbox
	if s == nil || s.ID != rec.ContainerID || s.BootID != rec.BootID || s.State != v1alpha1.SandboxAttached ||
		!meta.IsStatusConditionTrue(pa.Status.Conditions, v1alpha1.ConditionAttached) {
		return false
	}
	has := meta.FindStatusCondition(pa.Status.Conditions, v1alpha1.ConditionReady)
	switch {
	case has == nil:
		return false
	case has.Reason == v1alpha1.ReasonImported:
		return true
	case !sameSpec(s, rec):
		return false
	case ready.Status == metav1.ConditionTrue:
		return has.Status == metav1.ConditionTrue
	}
	return has.Status == ready.Status && has.Reason == ready.Reason && has.Message == ready.Message
}

// Write writes the sandbox and the conditions Attached and Ready, in one merge patch. It
// fails with a conflict if the object is newer than pa: a list in a merge patch replaces
// the whole list of conditions, which has Released, written by the controller.
func (a *Statuses) Write(ctx context.Context, pa *v1alpha1.PodAttachment, s v1alpha1.Sandbox, attached, ready metav1.Condition) error {
	attached.Type, ready.Type = v1alpha1.ConditionAttached, v1alpha1.ConditionReady
	conditions := slices.Clone(pa.Status.Conditions)
	for _, c := range []metav1.Condition{attached, ready} {
		c.ObservedGeneration = pa.Generation
		meta.SetStatusCondition(&conditions, c)
	}
	sandbox := map[string]any{
		// A null removes the value of an earlier sandbox.
		"id": orNull(s.ID), "bootID": s.BootID, "state": s.State,
		"attachedAt": s.AttachedAt, "detachedAt": s.DetachedAt,
	}
	if old := pa.Status.Sandbox; len(s.Links) > 0 || old != nil && len(old.Links) > 0 {
		sandbox["links"] = s.Links
	}
	if old := pa.Status.Sandbox; s.Generation != 0 || old != nil && old.Generation != 0 {
		sandbox["generation"] = s.Generation
	}
	patch, err := json.Marshal(map[string]any{
		// The resource version also identifies the object, as a UID does. The API server
		// ignores a UID in a patch of a status.
		"metadata": map[string]any{"resourceVersion": pa.ResourceVersion},
		"status":   map[string]any{"sandbox": sandbox, "conditions": conditions},
	})
	if err != nil {
		return fmt.Errorf("encode the status of PodAttachment %s/%s: %w", pa.Namespace, pa.Name, err)
	}
	start := time.Now()
	got, err := a.API.PatchAttachment(ctx, apiserver.KeyOf(pa), patch)
	if apierrors.IsNotFound(err) {
		a.Ledger.Drop(pa.UID) // the object has been deleted
	}
	if err != nil {
		return fmt.Errorf("write the status of PodAttachment %s/%s: %w", pa.Namespace, pa.Name, err)
	}
	a.Took.Observe(time.Since(start).Seconds())
	a.Registry.Written(got)
	if ready.Reason == v1alpha1.ReasonInterfacesGone {
		Warn(a.Events, ledger.PodOf(pa), ready.Reason, ready.Message)
	}
	logr.FromContextOrDiscard(ctx).V(run.LevelPod).Info("status written", "podAttachment", klog.KObj(got), "state", s.State, "sandbox", s.ID)
	return nil
}

func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// maxAddresses is the limit of addresses of one link in the status.
const maxAddresses = 16

// linksOf returns the interfaces of a sandbox that Fairlead plugs, if there are several or
// plugins were executed: MAC and MTU from the record, where it has them, otherwise from the
// inspected namespace. The addresses are those that plugins have chosen. An interface that
// is being unplugged is among them until nothing is left of it.
func linksOf(rec *ledger.Record, inside map[string]plug.Inspected) (links []v1alpha1.SandboxLink) {
	add := rec.Plug()
	if add == nil || len(add.Interfaces) < 2 && !add.Executes() {
		return nil
	}
	for _, i := range add.Interfaces {
		if i.State == ledger.Attaching {
			continue // it may fail
		}
		mac, mtu := i.Known()
		if mac == "" {
			mac = inside[i.Name].MAC
		}
		if seen := inside[i.Name].MTU; mtu == 0 && seen <= link.MaxMTU { // a pod may put lo in its place
			mtu = seen
		}
		l := v1alpha1.SandboxLink{Name: i.Name, MAC: mac, MTU: int32(mtu)} //nolint:gosec // an MTU is at most 65535
		if d := i.Binding.HostDevice; d != nil {
			l.PCIAddress = d.PCIAddress
		}
		if d := i.Made.Device; d != nil && d.PCIAddress != "" {
			l.PCIAddress = d.PCIAddress
		}
		if i.Binding.Delegate != nil {
			l.Addresses = i.Addresses[:min(len(i.Addresses), maxAddresses)]
		}
		links = append(links, l)
	}
	return links
}

// generationOf returns the generation of the PodAttachment whose spec a sandbox has.
func generationOf(rec *ledger.Record) int64 {
	if add := rec.Plug(); add != nil {
		return add.Generation
	}
	return 0
}

// sameSpec reports whether a status has the generation of a record and its interfaces. A
// record without a generation may lack interfaces.
func sameSpec(s *v1alpha1.Sandbox, rec *ledger.Record) bool {
	generation := generationOf(rec)
	return generation == 0 || s.Generation == generation && slices.EqualFunc(s.Links, linksOf(rec, nil), func(a, b v1alpha1.SandboxLink) bool { return a.Name == b.Name })
}

// migratedRecheck is the time between two searches for the sandbox of a migrated
// PodAttachment.
const migratedRecheck = 2 * time.Second

// migratedInUse reports whether a network namespace of this node still has an address of
// a PodAttachment that a migration wrote. If so, the PodAttachment is checked again after
// migratedRecheck.
//
// The sandbox of such a PodAttachment may be older than this daemon's service of its
// network. It then has no record, and its DEL may go to the program that served the
// network before, so a missing record does not prove that nothing is plugged. The
// namespace of the sandbox does: it has the addresses until its interfaces are gone. A
// pod that was force-deleted keeps them until its containers have ended. A sandbox that
// this daemon plugs for the pod has a record, and ChangeOf decides by it before this check.
func (a *Statuses) migratedInUse(ctx context.Context, pa *v1alpha1.PodAttachment) (bool, error) {
	if pa.Labels[v1alpha1.LabelMigratedFrom] == "" {
		return false, nil
	}
	var addrs []netip.Addr
	for _, i := range pa.Spec.Interfaces {
		plain, err := ledger.PlainAddresses(i)
		if err != nil {
			return false, fmt.Errorf("PodAttachment %s/%s: %w", pa.Namespace, pa.Name, err)
		}
		addrs = append(addrs, plain...)
	}
	path, err := a.Namespaces.Holding(ctx, addrs)
	if err != nil || path == "" {
		return false, err
	}
	logr.FromContextOrDiscard(ctx).Info("waiting for a sandbox that was there before the migration", "podAttachment", apiserver.KeyOf(pa), "namespace", path)
	a.queue.AddAfter(apiserver.KeyOf(pa), migratedRecheck)
	return true, nil
}
