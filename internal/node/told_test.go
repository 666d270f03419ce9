package node

import (
	"strings"
	"testing"

	"fairlead.dev/fairlead/internal/node/ledger"
)

// A pod's owner reads in the kubelet's event which pod of hers is in the way, and of
// others nothing.
func TestWhatPodsAreToldOfOthers(t *testing.T) {
	other := &ledger.Record{ContainerID: "c0ffee", Pod: ledger.Pod{Namespace: "shop", Name: "db-0", UID: "9b2e6f4e"}}
	if got := told(ledger.Pod{Namespace: "shop", Name: "web"}, other); !strings.Contains(got, "shop/db-0") || !strings.Contains(got, "c0ffee") {
		t.Errorf("to a pod of its namespace: %s", got)
	}
	got := told(ledger.Pod{Namespace: "evil", Name: "web"}, other)
	for _, secret := range []string{"shop", "db-0", "9b2e6f4e"} {
		if strings.Contains(got, secret) {
			t.Errorf("to a pod of another: %s", got)
		}
	}
}
