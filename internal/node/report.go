package node

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

	"fairlead.dev/fairlead/internal/run"
)

const (
	// reportEvery is how long a pod has no second event for the same reason: a
	// runtime tries again every few seconds.
	reportEvery = 5 * time.Minute
	// maxNote bounds the text of an event, in bytes, as the API server does.
	maxNote = 1024

	reportingController = "fairlead.dev/node"
)

// report is what a pod's owner has to know.
type report struct {
	pod          podRef
	reason, note string
}

// reporter writes events on pods, in the background, and none for what goes well.
// An event that cannot be written is only logged: the runtime has the same words.
type reporter struct {
	api   API
	node  string
	queue workqueue.TypedRateLimitingInterface[report]

	mu   sync.Mutex
	said map[reported]time.Time
}

// reported names what was said of a pod.
type reported struct {
	uid    types.UID
	reason string
}

func newReporter(api API, node string) *reporter {
	return &reporter{api: api, node: node, queue: newQueue[report]("reporter"), said: map[reported]time.Time{}}
}

// report has an event written, unless the pod had one for that reason lately.
func (r *reporter) report(x report) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, at := range r.said {
		if now.Sub(at) >= reportEvery {
			delete(r.said, key)
		}
	}
	key := reported{uid: x.pod.UID, reason: x.reason}
	if _, lately := r.said[key]; lately {
		return
	}
	r.said[key] = now
	r.queue.Add(x)
}

// Run writes until ctx ends.
func (r *reporter) Run(ctx context.Context) error {
	work(ctx, r.queue, 1, func(ctx context.Context, x report) error {
		if err := r.api.CreateEvent(ctx, r.event(x)); err != nil && ctx.Err() == nil {
			logr.FromContextOrDiscard(ctx).Error(err, "event was not written", "pod", x.pod, "reason", x.reason)
		}
		return nil
	})
	return nil
}

func (r *reporter) event(x report) *eventsv1.Event {
	note := strings.ToValidUTF8(x.note, "")
	if len(note) > maxNote {
		note = strings.ToValidUTF8(note[:maxNote], "")
	}
	now := time.Now()
	return &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{Namespace: x.pod.Namespace, Name: run.EventName(x.pod.Name, now)},
		EventTime:           metav1.NewMicroTime(now),
		ReportingController: reportingController,
		ReportingInstance:   r.node,
		Action:              "PlugPod",
		Reason:              x.reason,
		Type:                corev1.EventTypeWarning,
		Note:                note,
		Regarding: corev1.ObjectReference{
			APIVersion: "v1", Kind: "Pod", Namespace: x.pod.Namespace, Name: x.pod.Name, UID: x.pod.UID,
		},
	}
}
