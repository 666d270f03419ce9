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
	// ReportEvery is how long a pod has no second event for the same reason: a
	// runtime tries again every few seconds.
	ReportEvery = 5 * time.Minute
	// maxNote bounds the text of an event, in bytes, as the API server does.
	maxNote = 1024

	reportingController = "fairlead.dev/node"
)

// Event is what a pod's owner has to know.
type Event struct {
	Pod          ledger.Pod
	Reason, Note string
}

// Events writes events on pods, in the background, and none for what goes well.
// An event that cannot be written is only logged: the runtime has the same words.
type Events struct {
	api   API
	node  string
	queue workqueue.TypedRateLimitingInterface[Event]

	mu   sync.Mutex
	said map[reported]time.Time
}

// reported names what was said of a pod.
type reported struct {
	uid    types.UID
	reason string
}

// NewEvents returns a writer of events, which writes while Run runs.
func NewEvents(api API, node string) *Events {
	return &Events{api: api, node: node, queue: queue.New[Event]("events"), said: map[reported]time.Time{}}
}

// Report has an event written, unless the pod had one for that reason lately.
func (r *Events) Report(x Event) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, at := range r.said {
		if now.Sub(at) >= ReportEvery {
			delete(r.said, key)
		}
	}
	key := reported{uid: x.Pod.UID, reason: x.Reason}
	if _, lately := r.said[key]; lately {
		return
	}
	r.said[key] = now
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

// Remembered is how many things are remembered, by kind.
func (r *Events) Remembered() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return map[string]int{"said": len(r.said)}
}
