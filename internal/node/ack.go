package node

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/go-logr/logr"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev"
	"fairlead.dev/fairlead/internal/run"
)

// ackWriters is how many statuses are written at once.
const ackWriters = 16

// ackDelay is how long the status of an ADD waits for the answer to it, and to those
// of other pods that start at the same time.
const ackDelay = 100 * time.Millisecond

// API is what the daemon asks of the API server, beside what it watches.
type API interface {
	// PatchAttachment merges a patch into the status of a PodAttachment and
	// returns the object as it is then.
	PatchAttachment(ctx context.Context, key types.NamespacedName, patch []byte) (*v1alpha1.PodAttachment, error)
	// PatchNetwork merges a patch into the status of a NodeNetwork.
	PatchNetwork(ctx context.Context, name string, patch []byte) (*v1alpha1.NodeNetwork, error)
	// Pod reads the metadata of a pod.
	Pod(ctx context.Context, key types.NamespacedName) (*metav1.PartialObjectMetadata, error)
	// CreateEvent writes an event.
	CreateEvent(ctx context.Context, e *eventsv1.Event) error
}

// acknowledger writes down, in the status of PodAttachments, what is plugged.
// It looks at the whole truth each time, so it does not matter how often it is
// asked or what it missed; a failure is retried for ever.
type acknowledger struct {
	api      API
	registry *registry
	ledger   *ledger
	metrics  *metrics
	queue    workqueue.TypedRateLimitingInterface[types.NamespacedName]
	// holding finds a namespace by the addresses in it.
	holding func(ctx context.Context, addrs []netip.Addr) (path string, err error)
}

func newAcknowledger(api API, r *registry, l *ledger, m *metrics) *acknowledger {
	return &acknowledger{api: api, registry: r, ledger: l, metrics: m, queue: newQueue[types.NamespacedName]("acknowledger"), holding: netdev.Holding}
}

func (a *acknowledger) enqueue(key types.NamespacedName) { a.queue.Add(key) }

// enqueueSoon lets the runtime have its answers first: encoding and sending a
// status competes with them for the processor.
func (a *acknowledger) enqueueSoon(key types.NamespacedName) { a.queue.AddAfter(key, ackDelay) }

// Run writes until ctx ends. It is started when the records were adopted.
func (a *acknowledger) Run(ctx context.Context) error {
	work(ctx, a.queue, ackWriters, func(ctx context.Context, key types.NamespacedName) error {
		err := a.acknowledge(ctx, key)
		switch {
		case err == nil, ctx.Err() != nil, apierrors.IsConflict(err):
		case apierrors.IsNotFound(err):
			err = nil // the watch will say so
		default:
			a.metrics.ackFailures.Inc()
			logr.FromContextOrDiscard(ctx).Error(err, "status was not written, will be tried again", "podAttachment", key)
		}
		return err
	})
	return nil
}

// acknowledge makes one status say the truth. After a conflict the newer copy
// arrives by the watch and is looked at then; the retry is for the case that
// it had arrived before.
func (a *acknowledger) acknowledge(ctx context.Context, key types.NamespacedName) error {
	pa := a.registry.get(key)
	if pa == nil {
		return nil
	}
	v, rec := a.ledger.verdict(pa)
	if now := a.registry.get(key); now == nil || now.UID != pa.UID {
		a.ledger.drop(pa.UID) // word that it is gone may have come before the verdict
		return nil
	}
	switch v {
	case plugged:
		if saysPlugged(pa, rec) {
			return nil
		}
		at := metav1.NewMicroTime(rec.AttachedAt)
		return a.write(ctx, pa, v1alpha1.Sandbox{
			ID: rec.ContainerID, BootID: rec.BootID, State: v1alpha1.SandboxAttached, AttachedAt: &at,
		}, "Plugged", "plugged in the sandbox that status.sandbox names")
	case unplugged:
		if inUse, err := a.migratedInUse(ctx, pa); inUse || err != nil {
			return err
		}
		at := metav1.NewMicroTime(a.ledger.endOf(pa.UID))
		s := v1alpha1.Sandbox{BootID: a.ledger.bootID, State: v1alpha1.SandboxDetached, DetachedAt: &at}
		reason, msg := "NeverPlugged", "nothing was plugged on this node"
		if old := pa.Status.Sandbox; old != nil {
			s.ID, s.AttachedAt = old.ID, old.AttachedAt
			reason, msg = "Unplugged", fmt.Sprintf("nothing of sandbox %s is left on this node", old.ID)
		}
		return a.write(ctx, pa, s, reason, msg)
	case asItIs:
	}
	return nil
}

// saysPlugged tells whether the status is that of the record already.
func saysPlugged(pa *v1alpha1.PodAttachment, rec *record) bool {
	s := pa.Status.Sandbox
	return s != nil && s.ID == rec.ContainerID && s.BootID == rec.BootID && s.State == v1alpha1.SandboxAttached &&
		meta.IsStatusConditionTrue(pa.Status.Conditions, v1alpha1.ConditionAttached)
}

// write writes the sandbox and the two conditions of the node, in one merge
// patch that holds only for the state of the object that was looked at: a list
// in a merge patch replaces the whole list, and Released is the controller's.
func (a *acknowledger) write(ctx context.Context, pa *v1alpha1.PodAttachment, s v1alpha1.Sandbox, reason, message string) error {
	status := metav1.ConditionFalse
	if s.AttachedAt != nil && s.State == v1alpha1.SandboxAttached {
		status = metav1.ConditionTrue
	}
	conditions := slices.Clone(pa.Status.Conditions)
	for _, t := range []string{v1alpha1.ConditionAttached, v1alpha1.ConditionReady} {
		meta.SetStatusCondition(&conditions, metav1.Condition{
			Type: t, Status: status, Reason: reason, Message: message, ObservedGeneration: pa.Generation,
		})
	}
	patch, err := json.Marshal(map[string]any{
		// It belongs to one object for all time, as a UID does: that alone would
		// not be looked at in a patch of a status.
		"metadata": map[string]any{"resourceVersion": pa.ResourceVersion},
		"status": map[string]any{
			// A null takes away what an earlier sandbox left.
			"sandbox": map[string]any{
				"id": orNull(s.ID), "bootID": s.BootID, "state": s.State,
				"attachedAt": s.AttachedAt, "detachedAt": s.DetachedAt,
			},
			"conditions": conditions,
		},
	})
	if err != nil {
		return fmt.Errorf("encode the status of PodAttachment %s/%s: %w", pa.Namespace, pa.Name, err)
	}
	start := time.Now()
	got, err := a.api.PatchAttachment(ctx, keyOf(pa), patch)
	if apierrors.IsNotFound(err) {
		// Gone as a whole, and what was said of it with it.
		a.ledger.drop(pa.UID)
	}
	if err != nil {
		return fmt.Errorf("write the status of PodAttachment %s/%s: %w", pa.Namespace, pa.Name, err)
	}
	a.metrics.step("acknowledge", start)
	a.registry.written(got)
	logr.FromContextOrDiscard(ctx).V(run.LevelPod).Info("status written", "podAttachment", klog.KObj(got), "state", s.State, "sandbox", s.ID)
	return nil
}

func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}
