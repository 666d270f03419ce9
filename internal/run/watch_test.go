package run

import (
	"testing"

	"k8s.io/client-go/tools/cache"
)

// The object of a delete event is the same, whether the watch saw the deletion or missed it.
func TestDeleted(t *testing.T) {
	o := &struct{ name string }{"web"}
	for _, event := range []any{o, cache.DeletedFinalStateUnknown{Key: "default/web", Obj: o}} {
		if got := Deleted(event); got != any(o) {
			t.Errorf("%v, want %v", got, o)
		}
	}
}
