package plug

import (
	"errors"
	"testing"

	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/test/nettest"
)

// An open namespace outlives its path: its interfaces can be read and removed after the
// runtime dropped the path (a device stuck in a dead namespace, multus#1134).
func TestNamespaceOutlivesPath(t *testing.T) {
	k, pod := newPlugHost(t), nettest.NewNamespace(t)
	if err := k.Make(t.Context(), pod, plugFor("10.244.1.5/32")); err != nil {
		t.Fatal(err)
	}
	nettest.DropPath(t, pod.Path())
	if _, err := link.OpenNamespace(pod.Path()); !errors.Is(err, link.ErrNotNamespace) {
		t.Errorf("opening the dropped path: %v, want ErrNotNamespace", err)
	}
	ips, err := nettest.PodIPs(pod, "eth0")
	if err != nil || len(ips) != 1 {
		t.Errorf("addresses in the dropped namespace: %v, %v", ips, err)
	}
	if err := k.detach(t.Context(), HostName("c1", "eth0")); err != nil {
		t.Fatal(err)
	}
}
