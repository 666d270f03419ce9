package link_test

import (
	"testing"

	"fairlead.dev/fairlead/internal/netdev/link"
)

func TestBootID(t *testing.T) {
	id, err := link.BootID()
	if again, _ := link.BootID(); err != nil || len(id) != 36 || id != again {
		t.Errorf("BootID: %q, then %q, %v", id, again, err)
	}
}
