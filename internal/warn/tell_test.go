package warn

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/internal/run"
)

// eventAPI is an API server for events.
type eventAPI struct {
	// log has each write: create NOTE, or patch NOTE of the event whose series continues.
	log    []string
	events map[string]*eventsv1.Event
	// away makes every create fail.
	away atomic.Bool
}

func (a *eventAPI) CreateEvent(_ context.Context, e *eventsv1.Event) error {
	if a.away.Load() {
		return errors.New("the API server is away")
	}
	a.events[e.Name] = e
	a.log = append(a.log, "create "+e.Note)
	return nil
}

func (a *eventAPI) PatchEvent(_ context.Context, key types.NamespacedName, patch []byte) error {
	e := a.events[key.Name]
	if e == nil {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "events"}, key.Name)
	}
	if !strings.Contains(string(patch), `"lastObservedTime"`) {
		return fmt.Errorf("patch %s", patch)
	}
	a.log = append(a.log, "patch "+e.Note)
	return nil
}

// Each distinct cause is one event, whose series continues if the cause comes back. A
// cause that only lasts, or changes only in its counts, writes nothing.
func TestTellWritesThePresentCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &eventAPI{events: map[string]*eventsv1.Event{}}
		told := New(Config{Writer: api, Controller: "c", Instance: "i"})
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _ = told.Start(ctx) }()
		defer synctest.Wait()
		defer cancel()
		of := corev1.ObjectReference{Kind: "Pod", Namespace: "a", Name: "web", UID: "u1"}
		expect := func(want ...string) {
			t.Helper()
			synctest.Wait()
			if diff := cmp.Diff(want, api.log); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			api.log = nil
		}
		tell := func(note string) { told.Tell(of, "", "NetworkExhausted", "EnsureNetwork", note) }

		tell("free=0 allocated=7")
		expect("create free=0 allocated=7")
		for n := range 50 {
			<-time.After(time.Second)
			tell(fmt.Sprintf("free=0 allocated=%d", n))
		}
		expect()
		tell("held by another")
		expect("create held by another")
		tell("free=0 allocated=9")
		expect("patch free=0 allocated=7")
		tell("held by another")
		expect("patch held by another")
		<-time.After(retell)
		tell("held by another")
		expect("patch held by another")

		// Only the last of several causes is written.
		api.away.Store(true)
		tell("first")
		synctest.Wait()
		tell("second")
		synctest.Wait()
		api.away.Store(false)
		<-time.After(lastPause)
		expect("create second")

		// The API server deletes events. Another pod of the name has its own.
		clear(api.events)
		tell("held by another")
		expect("create held by another")
		of.UID = "u2"
		tell("held by another")
		expect("create held by another")
		told.Over(of, "")
		tell("held by another")
		expect("patch held by another")
		told.Forget(types.NamespacedName{Namespace: "a", Name: "web"})
		if len(told.m) != 0 {
			t.Errorf("%d subjects are remembered", len(told.m))
		}
		for n := range 3 * maxCauses {
			tell(fmt.Sprintf("cause %c", 'a'+n))
			synctest.Wait()
		}
		if n := len(told.m[types.NamespacedName{Namespace: "a", Name: "web"}][""].events); n > maxCauses {
			t.Errorf("%d causes are remembered", n)
		}
	})
}

// With a time between events each is a new one, and a tenant whose pods fail in ever new ways
// gets no more of them. Nothing is remembered beyond that time.
func TestTellBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &eventAPI{events: map[string]*eventsv1.Event{}}
		told := New(Config{Writer: struct{ Creator }{api}, Every: 5 * time.Minute})
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _ = told.Start(ctx) }()
		defer synctest.Wait()
		defer cancel()
		of := corev1.ObjectReference{Kind: "Pod", Namespace: "a", Name: "web", UID: "u1"}
		for n := range 11 {
			told.Tell(of, "Failed", "Failed", "PlugPod", fmt.Sprintf("cause %c", 'a'+n))
			told.Tell(of, "Other", "Other", "PlugPod", "the same")
			synctest.Wait()
			<-time.After(time.Minute)
		}
		want := []string{"create cause a", "create the same", "create cause f", "create the same", "create cause k", "create the same"}
		slices.Sort(want)
		slices.Sort(api.log)
		if diff := cmp.Diff(want, api.log); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		of.Name = "next"
		<-time.After(5 * time.Minute)
		told.Tell(of, "Failed", "Failed", "PlugPod", "cause")
		if len(told.m) != 1 {
			t.Errorf("%d objects are remembered", len(told.m))
		}
	})
}

// Names of events are valid and sort by time.
func TestEventName(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	names := []string{run.EventName("web-0", at), run.EventName("web-0", at.Add(time.Nanosecond)), run.EventName("web-0", at.AddDate(50, 0, 0))}
	if !slices.IsSorted(names) {
		t.Errorf("%v", names)
	}
	long := run.EventName(strings.Repeat("a.", 126)+"b", at)
	if len(long) > 253 || strings.Contains(long, "..") {
		t.Errorf("%d: %s", len(long), long)
	}
}
