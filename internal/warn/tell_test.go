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
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/internal/run"
)

// eventAPI is an API server for events.
type eventAPI struct {
	client.Client
	// log has each write: create NOTE, or patch NOTE of the event whose series continues.
	log    []string
	events map[string]*eventsv1.Event
	// away makes every create fail.
	away atomic.Bool
}

func (a *eventAPI) Create(_ context.Context, o client.Object, _ ...client.CreateOption) error {
	if a.away.Load() {
		return errors.New("the API server is away")
	}
	e := o.(*eventsv1.Event)
	a.events[e.Name] = e
	a.log = append(a.log, "create "+e.Note)
	return nil
}

func (a *eventAPI) Patch(_ context.Context, o client.Object, patch client.Patch, _ ...client.PatchOption) error {
	e := a.events[o.GetName()]
	if e == nil {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "events"}, o.GetName())
	}
	data, err := patch.Data(o)
	if err != nil || !strings.Contains(string(data), `"lastObservedTime"`) {
		return fmt.Errorf("patch %s: %w", data, err)
	}
	a.log = append(a.log, "patch "+e.Note)
	return nil
}

// Each distinct cause is one event, whose series continues if the cause comes back. A
// cause that only lasts, or changes only in its counts, writes nothing.
func TestTellWritesThePresentCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &eventAPI{events: map[string]*eventsv1.Event{}}
		told := New(api)
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
		told.Forget(client.ObjectKey{Namespace: "a", Name: "web"})
		if len(told.m) != 0 {
			t.Errorf("%d subjects are remembered", len(told.m))
		}
		for n := range 3 * maxCauses {
			tell(fmt.Sprintf("cause %c", 'a'+n))
			synctest.Wait()
		}
		if n := len(told.m[client.ObjectKey{Namespace: "a", Name: "web"}][""].events); n > maxCauses {
			t.Errorf("%d causes are remembered", n)
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
