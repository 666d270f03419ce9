package health

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/ovsdb"
)

// A kind of binding is broken if different pods fail for BrokenFor without a success among
// them. Kuryr restarted for ever because of one failing pod, and never reset its count.
func TestBindings(t *testing.T) {
	broken := errors.New("no buffer space")
	type step struct {
		pod types.UID
		err error
	}
	many := func(n int) (steps []step) {
		for i := range n {
			steps = append(steps, step{types.UID(fmt.Sprint(i)), broken})
		}
		return steps
	}
	cases := []struct {
		name  string
		steps []step
		after time.Duration
		want  bool
	}{
		{name: "nothing happened", after: time.Hour},
		{name: "one pod, again and again", steps: slices.Repeat(many(1), 100), after: time.Hour},
		{name: "many pods", steps: many(10), after: BrokenFor, want: true},
		{name: "many pods for a moment", steps: many(10), after: BrokenFor - time.Second},
		{name: "one that was plugged", steps: append(many(10), step{"ok", nil}), after: time.Hour},
		{name: "it began again", steps: append(append(many(10), step{"ok", nil}), many(2)...), after: time.Hour},
		{name: "the pods' own mistakes", steps: []step{{"1", link.ErrExists}, {"2", link.ErrInvalid}, {"3", link.ErrNotNamespace}, {"4", fault.ErrInvalid}, {"5", link.ErrNoParent}, {"6", ovsdb.ErrUnavailable}, {"7", ovsdb.ErrRefused}}, after: time.Hour},
		{name: "plugins that fail", steps: []step{{"1", fault.ErrPlugin}, {"2", fault.ErrPlugin}, {"3", fault.ErrPlugin}}, after: time.Hour},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var b Bindings
				for _, s := range tc.steps {
					b.Note("bridge", s.pod, s.err)
				}
				time.Sleep(tc.after) //nolint:forbidigo // the bubble's clock
				err := b.Check("bridge")
				if (err != nil) != tc.want {
					t.Fatalf("got %v", err)
				}
				if tc.want && (!strings.Contains(err.Error(), "no buffer space") || !strings.Contains(err.Error(), "bridge")) {
					t.Errorf("got %v", err)
				}
			})
		})
	}
}
