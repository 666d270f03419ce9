package node

import (
	"strings"
	"testing"

	"fairlead.dev/fairlead/internal/node/ledger"
)

// The owner of a pod reads the name of another pod only if it is of the same namespace.
func TestPodNameFor(t *testing.T) {
	other := &ledger.Record{ContainerID: "c0ffee", Pod: ledger.Pod{Namespace: "shop", Name: "db-0", UID: "9b2e6f4e"}}
	if got := podNameFor(ledger.Pod{Namespace: "shop", Name: "web"}, other); !strings.Contains(got, "shop/db-0") || !strings.Contains(got, "c0ffee") {
		t.Errorf("to a pod of its namespace: %s", got)
	}
	got := podNameFor(ledger.Pod{Namespace: "evil", Name: "web"}, other)
	for _, secret := range []string{"shop", "db-0", "9b2e6f4e"} {
		if strings.Contains(got, secret) {
			t.Errorf("to a pod of another: %s", got)
		}
	}
}
