package native

import (
	"errors"
	"fmt"
	"testing"

	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/ipam/block"
)

// An error of the store is the driver's, and a user reads its meaning once.
func TestTranslate(t *testing.T) {
	for _, tc := range []struct {
		err, want error
		text      string
	}{
		{fmt.Errorf("%w: pool a has none left", block.ErrExhausted), driver.ErrExhausted, "address pool exhausted: pool a has none left"},
		{fmt.Errorf("%w: 10.0.0.1 is taken", block.ErrConflict), driver.ErrConflict, "address conflict: 10.0.0.1 is taken"},
		{fmt.Errorf("%w: no pool", block.ErrInvalid), driver.ErrInvalid, "invalid request: no pool"},
		{fmt.Errorf("%w: no answer", block.ErrUnavailable), driver.ErrUnavailable, "address store unavailable: no answer"},
		{errors.New("closed"), driver.ErrUnavailable, "unavailable: closed"},
	} {
		got := Translate(tc.err)
		if !errors.Is(got, tc.want) || !errors.Is(got, tc.err) || got.Error() != tc.text {
			t.Errorf("%v: got %q; want %q, which is %v", tc.err, got, tc.text, tc.want)
		}
	}
}
