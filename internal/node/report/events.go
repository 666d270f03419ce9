package report

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

	"fairlead.dev/fairlead/internal/node/ledger"
	"fairlead.dev/fairlead/internal/node/queue"
	"fairlead.dev/fairlead/internal/run"
)

const (
	// ReportEvery is the shortest time between two events of a pod with the same reason.
	// A runtime repeats a failing request every few seconds.
	ReportEvery = 5 * time.Minute
	// maxNote is the longest text of an event, in bytes, that the API server accepts.
	maxNote = 1024

	reportingController = "fairlead.dev/node"
)

// Event is a warning for the owner of a pod.
type Event struct {
	Pod          ledger.Pod
	Reason, Note string
}

// Events writes warning events on pods, in the background. An event that cannot be written
// is only logged: the runtime gets the same text in its answer.
type Events struct {
	api   API
	node  string
	queue workqueue.TypedRateLimitingInterface[Event]

	mu       sync.Mutex
	reported map[eventKey]time.Time // when an event was reported last
}

// eventKey identifies the events of a pod with one reason.
type eventKey struct {
	uid    types.UID
	reason string
}

// NewEvents returns a writer of events, which writes while Run runs. node is the name of
// the node.
func NewEvents(api API, node string) *Events {
	return &Events{api: api, node: node, queue: queue.New[Event]("events"), reported: map[eventKey]time.Time{}}
}

// Report queues an event, unless the pod had one with that reason within ReportEvery.
func (r *Events) Report(x Event) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, at := range r.reported {
		if now.Sub(at) >= ReportEvery {
			delete(r.reported, key)
		}
	}
	key := eventKey{uid: x.Pod.UID, reason: x.Reason}
	if _, lately := r.reported[key]; lately {
		return
	}
	r.reported[key] = now
	r.queue.Add(x)
}

// Run writes until ctx ends.
func (r *Events) Run(ctx context.Context) error {
	queue.Run(ctx, r.queue, 1, func(ctx context.Context, x Event) error {
		if err := r.api.CreateEvent(ctx, r.event(x)); err != nil && ctx.Err() == nil {
			logr.FromContextOrDiscard(ctx).Error(err, "event was not written", "pod", x.Pod, "reason", x.Reason)
		}
		return nil
	})
	return nil
}

func (r *Events) event(x Event) *eventsv1.Event {
	note := strings.ToValidUTF8(x.Note, "")
	if len(note) > maxNote {
		note = strings.ToValidUTF8(note[:maxNote], "")
	}
	now := time.Now()
	return &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{Namespace: x.Pod.Namespace, Name: run.EventName(x.Pod.Name, now)},
		EventTime:           metav1.NewMicroTime(now),
		ReportingController: reportingController,
		ReportingInstance:   r.node,
		Action:              "PlugPod",
		Reason:              x.Reason,
		Type:                corev1.EventTypeWarning,
		Note:                note,
		Regarding: corev1.ObjectReference{
			APIVersion: "v1", Kind: "Pod", Namespace: x.Pod.Namespace, Name: x.Pod.Name, UID: x.Pod.UID,
		},
	}
}
