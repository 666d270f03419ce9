package driver

import (
	"errors"
	"strings"
	"testing"

	"fairlead.dev/fairlead/internal/fault"
)

// A driver that does not exist is refused with the names of those that do.
func TestNamed(t *testing.T) {
	table := Table{"native": {}, "fixed": {}}
	if _, err := table.Named("native"); err != nil {
		t.Error(err)
	}
	_, err := table.Named("nimbus")
	if !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), `no driver is named "nimbus": must be one of fixed, native`) {
		t.Errorf("error %v", err)
	}
}
