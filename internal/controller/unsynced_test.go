package controller

import (
	"context"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/test/cluster"
	"fairlead.dev/fairlead/test/drivertest"
)

// late is a driver that does not know yet which addresses are taken.
type late struct {
	*drivertest.Memory
	synced, ready atomic.Bool
	wake          atomic.Pointer[driver.Wake]
}

func (l *late) parts() driver.Parts {
	d := l.Parts()
	d.Run.Synced, d.Run.Ready = l.synced.Load, l.ready.Load
	d.Run.Wake = func(_ context.Context, w driver.Wake) error { l.wake.Store(&w); return nil }
	return d
}

// A driver that is not synced yet is asked for nothing, and no interface is released to
// it. Pods of the other driver do not wait. When it is synced, it wakes the pods.
func TestDriverThatIsNotSynced(t *testing.T) {
	slow := &late{Memory: drivertest.NewMemory("slow", 8)}
	slow.synced.Store(true)
	slow.ready.Store(true)
	h := start(t, cluster.New(t), drivertest.NewMemory(driverName, 8), func(c *Config, _ ctrl.Manager) {
		c.Drivers["slow"] = slow.parts()
	}, withSource(func(p *corev1.Pod) ([]pod.Interface, error) {
		if p.Labels["net"] == "" {
			return nil, nil
		}
		return []pod.Interface{{Network: "blue/slow", Driver: p.Labels["net"], AddressOnly: true}}, nil
	}))
	on := func(name string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Labels = map[string]string{"net": name} }
	}
	held := h.Pod("held", h.node, on("slow"))
	if r := h.record(held); len(r.Spec.Interfaces) != 2 || r.Spec.Interfaces[1].Driver != "slow" {
		t.Fatalf("%+v", r.Spec.Interfaces)
	}
	slow.synced.Store(false) // as in a process that has just begun
	calls := slow.Calls("ensure") + slow.Calls("release")
	waits := h.Pod("waits", h.node, on("slow"))
	h.delete(held)
	h.waitState(held, "deleting")
	h.setSandbox(held, v1alpha1.SandboxDetached)
	h.settle("plain")
	if n := slow.Calls("ensure") + slow.Calls("release"); n != calls || h.state(t.Context(), held) != "deleting" || h.state(t.Context(), waits) != "absent" {
		t.Errorf("%d calls in place of %d", n, calls)
	}
	slow.synced.Store(true)
	slow.wake.Load().Leaving()
	h.waitState(held, "absent")

	slow.ready.Store(false)
	slow.wake.Load().Waiting()
	h.settle("plain-too")
	if h.state(t.Context(), waits) != "absent" {
		t.Error("a driver that is not ready handed out")
	}
	slow.ready.Store(true)
	slow.wake.Load().Waiting()
	h.record(waits)

	lost := h.Pod("lost", h.node, on("nimbus"))
	h.event(lost, "NetworkInvalid")
	if h.heldBy(lost) > 0 {
		t.Error("something was obtained for a pod whose other driver does not exist")
	}
}
