// Package warn posts the reasons why an object waits or fails, as events. The newest
// event of an object has the present cause.
package warn

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/internal/run"
)

const (
	// maxCauses is how many causes of one subject are remembered. An older cause that
	// comes back is written as a new event.
	maxCauses = 8
	// retell is how long a cause that lasts is not written again. The API server deletes
	// events after an hour, unless it is configured otherwise.
	retell = 20 * time.Minute
	// firstPause and lastPause bound the pause before events are tried again that could
	// not be written. It doubles with each try.
	firstPause = 50 * time.Millisecond
	lastPause  = 30 * time.Second
)

// Creator writes events.
type Creator interface {
	CreateEvent(ctx context.Context, e *eventsv1.Event) error
}

// Writer writes events and changes them.
type Writer interface {
	Creator
	// PatchEvent applies a merge patch.
	PatchEvent(ctx context.Context, key types.NamespacedName, patch []byte) error
}

// Config of a Teller.
type Config struct {
	// Writer writes the events. A Creator is enough if there is an Every.
	Writer Creator
	// Controller and Instance report the events.
	Controller, Instance string
	// Every is the shortest time between two events of a subject, with any causes. The later ones
	// are left out, and each event is a new one then. 0: the causes decide.
	Every time.Duration
}

// Teller posts warnings as events; the newest has the present cause. client-go's
// recorder makes one event of all that differ only in their text, with the text of the
// first. A Teller has one event for each distinct cause of a subject: it creates the
// event the first time, and continues the event's series if the cause comes back. A cause
// that only lasts is not written again before retell.
type Teller struct {
	cfg Config
	// wake has a value if an event is due.
	wake chan struct{}

	mu  sync.Mutex
	m   map[types.NamespacedName]map[string]*history
	due map[subject]bool
}

// subject is an object and an aspect of it. Causes that hold at the same time have
// different aspects (about).
type subject struct {
	types.NamespacedName
	about string
}

// cause of a warning. Texts that differ only in counts are one cause.
type cause struct{ reason, action, text string }

// history is the remembered part of a subject's warnings.
type history struct {
	regarding corev1.ObjectReference
	told      time.Time
	present   cause
	note      string
	// due is true until the present cause has been written.
	due bool
	// events of causes, the last written at the end
	events []written
}

// lastWritten returns when the last event was written; zero if there is none.
func (t *history) lastWritten() time.Time {
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

// New returns a Teller. It writes nothing before Start.
func New(c Config) *Teller {
	return &Teller{
		cfg: c, wake: make(chan struct{}, 1),
		m:   map[types.NamespacedName]map[string]*history{},
		due: map[subject]bool{},
	}
}

// counts match the numbers in a text that may change while the cause stays the same.
var counts = regexp.MustCompile(`\b([a-z]+)=\d+\b`)

// Tell makes a warning the present cause of a subject and returns at once.
func (t *Teller) Tell(of corev1.ObjectReference, about, reason, action, note string) {
	s := subject{types.NamespacedName{Namespace: of.Namespace, Name: of.Name}, about}
	note = run.Clip(note) // the text of a tenant may be in it
	c := cause{reason, action, counts.ReplaceAllString(note, "$1=")}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forgetOld()
	got := t.m[s.NamespacedName][about]
	if got == nil || got.regarding.UID != of.UID {
		got = &history{regarding: of, told: time.Now()}
		if t.m[s.NamespacedName] == nil {
			t.m[s.NamespacedName] = map[string]*history{}
		}
		t.m[s.NamespacedName][about] = got
	} else if t.cfg.Every > 0 {
		return
	}
	if got.present == c && (got.due || time.Since(got.lastWritten()) < retell) {
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

// forgetOld forgets the subjects whose next event is due, if there is an Every. t.mu is held.
func (t *Teller) forgetOld() {
	if t.cfg.Every == 0 {
		return
	}
	for key, subjects := range t.m {
		maps.DeleteFunc(subjects, func(_ string, h *history) bool { return !h.due && time.Since(h.told) >= t.cfg.Every })
		if len(subjects) == 0 {
			delete(t.m, key)
		}
	}
}

// Over ends the present cause of a subject. If the cause comes back, it is written again.
func (t *Teller) Over(of corev1.ObjectReference, about string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if got := t.m[types.NamespacedName{Namespace: of.Namespace, Name: of.Name}][about]; got != nil {
		got.present, got.due = cause{}, false
	}
}

// Clear forgets all subjects: another process may have written other causes since.
func (t *Teller) Clear() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.m, t.due = map[types.NamespacedName]map[string]*history{}, map[subject]bool{}
}

// Due returns the number of subjects with a cause that is not written yet. Tests wait for
// 0.
func (t *Teller) Due() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.due)
}

// Forget removes subjects of an object; all without about.
func (t *Teller) Forget(key types.NamespacedName, about ...string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, a := range about {
		delete(t.m[key], a)
	}
	if len(about) == 0 || len(t.m[key]) == 0 {
		delete(t.m, key)
	}
	if len(t.m) == 0 {
		t.m = map[types.NamespacedName]map[string]*history{} // Go never shrinks a map
	}
}

// Start writes the due causes until ctx ends. It returns nil.
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

// writeDue writes all due causes, and reports whether none is left. A failure stops no
// other write.
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
		logr.FromContextOrDiscard(ctx).V(1).Info("cannot write an event, trying again", "object", s.NamespacedName, "error", err.Error())
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
	o := t.event(got.regarding, next, got.note)
	t.mu.Unlock()

	var err error
	if again >= 0 {
		err = t.continueSeries(ctx, o, next)
	}
	if again < 0 || apierrors.IsNotFound(err) { // the API server has deleted it
		o.Name = run.EventName(s.Name, now)
		next.name, next.count = o.Name, 1
		err = t.cfg.Writer.CreateEvent(ctx, o)
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

// continueSeries makes the cause of an existing event the present one.
func (t *Teller) continueSeries(ctx context.Context, o *eventsv1.Event, next written) error {
	w, ok := t.cfg.Writer.(Writer)
	if !ok {
		return fmt.Errorf("%T changes no events", t.cfg.Writer)
	}
	patch, err := json.Marshal(map[string]any{"series": eventsv1.EventSeries{Count: next.count, LastObservedTime: metav1.NewMicroTime(next.at)}})
	if err != nil {
		return err
	}
	return w.PatchEvent(ctx, types.NamespacedName{Namespace: o.Namespace, Name: o.Name}, patch)
}

// refusedForGood reports whether an event cannot be written however often it is tried:
// its namespace is gone or terminates.
func refusedForGood(err error) bool {
	return apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || apierrors.IsInvalid(err)
}

func (t *Teller) event(of corev1.ObjectReference, w written, note string) *eventsv1.Event {
	return &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{Namespace: of.Namespace, Name: w.name},
		EventTime:           metav1.NewMicroTime(w.at),
		ReportingController: t.cfg.Controller,
		ReportingInstance:   t.cfg.Instance,
		Action:              w.action,
		Reason:              w.reason,
		Regarding:           of,
		Note:                note,
		Type:                corev1.EventTypeWarning,
	}
}
