// Package warn writes why something waits or fails, as events of which the newest has the
// present cause.
package warn

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"fairlead.dev/fairlead/internal/run"
)

const (
	// maxCauses is how many causes of one subject are remembered. An older one that
	// comes back is written as a new event.
	maxCauses = 8
	// retell is how long a cause that lasts is not written again. The API server
	// forgets events after an hour, unless it is told otherwise.
	retell = 20 * time.Minute
	// firstPause and lastPause are how long events rest that could not be written.
	firstPause = 50 * time.Millisecond
	lastPause  = 30 * time.Second
)

// Teller writes why something waits, as events of which the newest has the present
// cause. client-go's recorder makes one event of all that differ in their text alone,
// with the text of the first. Here each subject has one event for each distinct
// cause: the first time it is created, and when the cause comes back its series goes
// on. A cause that only lasts writes nothing until retell.
type Teller struct {
	client client.Client
	// wake tells Start that something is due.
	wake chan struct{}

	mu  sync.Mutex
	m   map[types.NamespacedName]map[string]*telling
	due map[subject]bool
}

// reporter is who reports, as client-go's recorder calls it.
const reporter = "fairlead-controller"

// subject is an object and what is told about it. Things that are so at the same time
// are kept apart by about.
type subject struct {
	types.NamespacedName
	about string
}

// cause is what is told. Texts that differ in counts alone are one cause.
type cause struct{ reason, action, text string }

// telling is what is remembered of a subject.
type telling struct {
	regarding corev1.ObjectReference
	present   cause
	note      string
	// due is true until the present cause has been written.
	due bool
	// events of causes, the one that was written last at the end.
	events []written
}

// written is when the last event was.
func (t *telling) written() time.Time {
	if len(t.events) == 0 {
		return time.Time{}
	}
	return t.events[len(t.events)-1].at
}

// written is the event of a cause.
type written struct {
	cause
	name  string
	count int32
	at    time.Time
}

// New returns a Teller that writes by a client when it is started.
func New(c client.Client) *Teller {
	return &Teller{
		client: c, wake: make(chan struct{}, 1),
		m:   map[types.NamespacedName]map[string]*telling{},
		due: map[subject]bool{},
	}
}

// counts are numbers that change while a cause stays the same.
var counts = regexp.MustCompile(`\b([a-z]+)=\d+\b`)

// Tell makes a warning the present cause of a subject. It waits for nothing.
func (t *Teller) Tell(of corev1.ObjectReference, about, reason, action, note string) {
	s := subject{types.NamespacedName{Namespace: of.Namespace, Name: of.Name}, about}
	c := cause{reason, action, counts.ReplaceAllString(note, "$1=")}
	t.mu.Lock()
	defer t.mu.Unlock()
	got := t.m[s.NamespacedName][about]
	if got == nil || got.regarding.UID != of.UID {
		got = &telling{regarding: of}
		if t.m[s.NamespacedName] == nil {
			t.m[s.NamespacedName] = map[string]*telling{}
		}
		t.m[s.NamespacedName][about] = got
	}
	if got.present == c && (got.due || time.Since(got.written()) < retell) {
		got.note = note
		return
	}
	got.present, got.note, got.due = c, note, true
	t.due[s] = true
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// Over says that there is no cause any more. One that comes again is told again.
func (t *Teller) Over(of corev1.ObjectReference, about string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if got := t.m[types.NamespacedName{Namespace: of.Namespace, Name: of.Name}][about]; got != nil {
		got.present, got.due = cause{}, false
	}
}

// Clear forgets what was told: another process may have told other things since.
func (t *Teller) Clear() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.m, t.due = map[types.NamespacedName]map[string]*telling{}, map[subject]bool{}
}

// Due is how many subjects have a cause that is still to be written: what tests wait for.
func (t *Teller) Due() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.due)
}

// Forget ends what is told about an object.
func (t *Teller) Forget(key types.NamespacedName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if delete(t.m, key); len(t.m) == 0 {
		t.m = map[types.NamespacedName]map[string]*telling{} // one that was large stays so
	}
}

// Start writes what is told until ctx ends.
func (t *Teller) Start(ctx context.Context) error {
	var retry <-chan time.Time
	pause := firstPause
	for {
		select {
		case <-t.wake:
		case <-retry:
		case <-ctx.Done():
			return nil
		}
		if t.writeDue(ctx) {
			retry, pause = nil, firstPause
		} else {
			retry, pause = time.After(pause), min(2*pause, lastPause)
		}
	}
}

// writeDue writes all that is due, and reports whether nothing of it is left. What
// fails keeps nothing else.
func (t *Teller) writeDue(ctx context.Context) (all bool) {
	t.mu.Lock()
	due := t.due
	t.due = map[subject]bool{}
	t.mu.Unlock()
	all = true
	for s := range due {
		err := t.write(ctx, s)
		if err == nil {
			continue
		}
		log.FromContext(ctx).V(1).Info("an event could not be written, will be tried again", "object", s.NamespacedName, "error", err.Error())
		all = false
		t.mu.Lock()
		t.due[s] = true
		t.mu.Unlock()
	}
	return all
}

// write writes the present cause of a subject, if it is due.
func (t *Teller) write(ctx context.Context, s subject) error {
	t.mu.Lock()
	got := t.m[s.NamespacedName][s.about]
	if got == nil || !got.due {
		t.mu.Unlock()
		return nil
	}
	now := time.Now()
	next := written{cause: got.present, name: run.EventName(s.Name, now), count: 1, at: now}
	again := slices.IndexFunc(got.events, func(w written) bool { return w.cause == next.cause })
	if again >= 0 {
		next.name, next.count = got.events[again].name, got.events[again].count+1
	}
	o := eventOf(got.regarding, next, got.note)
	t.mu.Unlock()

	var err error
	if again >= 0 {
		err = t.goOn(ctx, o, next)
	}
	if again < 0 || apierrors.IsNotFound(err) { // the API server has forgotten it
		o.Name = run.EventName(s.Name, now)
		next.name, next.count = o.Name, 1
		err = t.client.Create(ctx, o)
	}
	if err != nil && !refusedForGood(err) {
		return fmt.Errorf("write event %s of %s: %w", o.Reason, s.NamespacedName, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	got.events = append(slices.DeleteFunc(got.events, func(w written) bool { return w.cause == next.cause }), next)
	if len(got.events) > maxCauses {
		got.events = slices.Clone(got.events[1:])
	}
	got.due = got.present != next.cause
	return nil
}

// goOn says of an event that is there that its cause is the present one.
func (t *Teller) goOn(ctx context.Context, o *eventsv1.Event, w written) error {
	patch, err := json.Marshal(map[string]any{"series": eventsv1.EventSeries{Count: w.count, LastObservedTime: metav1.NewMicroTime(w.at)}})
	if err != nil {
		return err
	}
	return t.client.Patch(ctx, o, client.RawPatch(types.MergePatchType, patch))
}

// refusedForGood says that an event cannot be written, however often it is tried: the
// namespace is gone or going.
func refusedForGood(err error) bool {
	return apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || apierrors.IsInvalid(err)
}

func eventOf(of corev1.ObjectReference, w written, note string) *eventsv1.Event {
	return &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{Namespace: of.Namespace, Name: w.name},
		EventTime:           metav1.NewMicroTime(w.at),
		ReportingController: reporter,
		ReportingInstance:   reporter,
		Action:              w.action,
		Reason:              w.reason,
		Regarding:           of,
		Note:                Clip(note),
		Type:                corev1.EventTypeWarning,
	}
}
