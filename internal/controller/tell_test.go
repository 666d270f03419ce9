package controller

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/test/cluster"
	"fairlead.dev/fairlead/test/drivertest"
)

// With a real API server: the newest event of a waiting pod has the present cause,
// however often the cause changed, and each cause has one event.
func TestEventsOfAPodThatWaits(t *testing.T) {
	h := start(t, cluster.New(t), drivertest.NewMemory(driverName, 64))
	var why atomic.Value
	why.Store("the first cause")
	h.driver.FailWith(func(method string, _ driver.Owner) error {
		if text := why.Load().(string); method == "ensure" && text != "" {
			return fmt.Errorf("%w: %s", fault.ErrUnavailable, text)
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

// wakePods enqueues the pods that wait.
func (h *harness) wakePods(n int) {
	h.t.Helper()
	patch := fmt.Sprintf(`{"metadata":{"labels":{"fairlead.dev/test-turn":"%d"}}}`, n+1)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: h.Namespace}}
	if err := h.Client.Patch(h.t.Context(), namespace, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		h.t.Fatal(err)
	}
}
