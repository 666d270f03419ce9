package controller

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
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/driver/drivertest"
	"fairlead.dev/fairlead/internal/run"
	"fairlead.dev/fairlead/test/cluster"
)

// eventAPI is what the teller needs of the API server.
type eventAPI struct {
	client.Client
	// log has each write: create NOTE, or patch NOTE of the event that goes on.
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

// Each distinct cause is one event, whose series goes on when the cause comes back;
// one that only lasts, or whose counts alone change, writes nothing.
func TestTellWritesThePresentCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &eventAPI{events: map[string]*eventsv1.Event{}}
		told := newTeller(api)
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
		tell := func(note string) { told.tell(of, "", "NetworkExhausted", "EnsureNetwork", note) }

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

		// Only the last of several is written.
		api.away.Store(true)
		tell("first")
		synctest.Wait()
		tell("second")
		synctest.Wait()
		api.away.Store(false)
		<-time.After(lastRetry)
		expect("create second")

		// The API server forgets events; those of another pod of the name are others.
		clear(api.events)
		tell("held by another")
		expect("create held by another")
		of.UID = "u2"
		tell("held by another")
		expect("create held by another")
		told.over(of, "")
		tell("held by another")
		expect("patch held by another")
		told.forget(client.ObjectKey{Namespace: "a", Name: "web"})
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

// Names of events are names, and in the order of time.
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

// A message is cut between characters, within what the API takes.
func TestClip(t *testing.T) {
	for _, text := range []string{"", "short", strings.Repeat("a", 1024), strings.Repeat("a", 1025)} {
		if got := clip(text); len(text) <= 1024 && got != text || len(got) > 1024 {
			t.Errorf("%d bytes became %d", len(text), len(got))
		}
	}
	for shift := range 4 {
		text := strings.Repeat("x", shift) + strings.Repeat("\U0001F600", 300)
		got := clip(text)
		if !utf8.ValidString(got) || len(got) > 1024 || len(got) < 1018 || !strings.HasSuffix(got, "...") {
			t.Errorf("shift %d: %d bytes, %q", shift, len(got), got[len(got)-8:])
		}
	}
	if got := clip(strings.Repeat("\xff", 2000)); !utf8.ValidString(got) || len(got) > 1024 {
		t.Errorf("%d bytes", len(got))
	}
}

// With a real API server: what is read of a pod that waits is why it waits now, however
// often that changed, and there is one event for each cause.
func TestEventsOfAPodThatWaits(t *testing.T) {
	h := start(t, cluster.New(t), drivertest.NewMemory(driverName, 64))
	var why atomic.Value
	why.Store("the first cause")
	h.driver.FailWith(func(method string, _ driver.Owner) error {
		if text := why.Load().(string); method == "ensure" && text != "" {
			return fmt.Errorf("%w: %s", driver.ErrUnavailable, text)
		}
		return nil
	})
	p := h.Pod("web", h.node)
	notes := func(ctx context.Context) (newest string, count map[string]int, err error) {
		var list eventsv1.EventList
		err = h.Client.List(ctx, &list, client.InNamespace(h.Namespace))
		count = map[string]int{}
		var last time.Time
		for i := range list.Items {
			e := &list.Items[i]
			if e.Regarding.UID != p.UID || e.Action != "EnsureNetwork" {
				continue
			}
			count[e.Note]++
			at := e.EventTime.Time
			if e.Series != nil {
				at = e.Series.LastObservedTime.Time
			}
			if at.After(last) {
				last, newest = at, e.Note
			}
		}
		return newest, count, err
	}
	for n, text := range []string{"the first cause", "a second one", "the first cause", "a second one", "a third"} {
		why.Store(text)
		h.wakePods(n)
		h.Eventually(t, "the present cause to be the newest: "+text, func(ctx context.Context) error {
			newest, _, err := notes(ctx)
			if err == nil && !strings.HasSuffix(newest, text) {
				err = fmt.Errorf("it is %q", newest)
			}
			return err
		})
	}
	_, count, err := notes(t.Context())
	if err != nil || len(count) != 3 {
		t.Errorf("error %v, events %v", err, count)
	}
	for note, n := range count {
		if n != 1 {
			t.Errorf("%d events say %q", n, note)
		}
	}
	why.Store("")
	h.wakePods(-1)
	h.record(p)
}

// wakePods has the pods that wait looked at again.
func (h *harness) wakePods(n int) {
	h.t.Helper()
	patch := fmt.Sprintf(`{"metadata":{"labels":{"fairlead.dev/test-turn":"%d"}}}`, n+1)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: h.Namespace}}
	if err := h.Client.Patch(h.t.Context(), namespace, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		h.t.Fatal(err)
	}
}
