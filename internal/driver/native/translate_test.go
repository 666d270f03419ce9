package native

import (
	"errors"
	"fmt"
	"testing"

	"fairlead.dev/fairlead/internal/fault"
)

// An error of the store is the driver's, and a user reads its meaning once.
func TestTranslate(t *testing.T) {
	for _, tc := range []struct {
		err, want error
		text      string
	}{
		{fmt.Errorf("%w: pool a has none left", fault.ErrExhausted), fault.ErrExhausted, "exhausted: pool a has none left"},
		{fmt.Errorf("%w: 10.0.0.1 is taken", fault.ErrConflict), fault.ErrConflict, "conflict: 10.0.0.1 is taken"},
		{fmt.Errorf("%w: no pool", fault.ErrInvalid), fault.ErrInvalid, "invalid request: no pool"},
		{fmt.Errorf("%w: no answer", fault.ErrUnavailable), fault.ErrUnavailable, "unavailable: no answer"},
		{errors.New("closed"), fault.ErrUnavailable, "unavailable: closed"},
	} {
		got := Translate(tc.err)
		if !errors.Is(got, tc.want) || !errors.Is(got, tc.err) || got.Error() != tc.text {
			t.Errorf("%v: got %q; want %q, which is %v", tc.err, got, tc.text, tc.want)
		}
	}
}
