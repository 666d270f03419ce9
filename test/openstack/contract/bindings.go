package contract

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/fairlead/internal/openstack/cloud"
)

// bindings are those of a live migration: a port is bound on a second host, gets its traffic
// there, and loses the first.
func bindings(t *testing.T, l Lab) {
	if l.SecondHost == "" {
		t.Skip("needs a second host for ports")
	}
	ctx := t.Context()
	n, _, _ := l.network(t)
	s := spec(n.ID, "machine")
	s.Host = l.Host
	p, err := l.Cloud.CreatePort(ctx, s)
	if err != nil {
		t.Fatal(err)
	}
	want := func(step string, err error, all ...cloud.Binding) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", step, err)
		}
		got, err := l.Cloud.Bindings.List(ctx, p.ID)
		if diff := cmp.Diff(all, got); err != nil || diff != "" {
			t.Errorf("%s: %v, bindings (-want +got):\n%s", step, err, diff)
		}
	}
	first := cloud.Binding{Host: l.Host, Active: true, VIFType: "ovs"}
	second := cloud.Binding{Host: l.SecondHost, VIFType: "ovs"}
	want("a new port", nil, first)
	for range 2 {
		want("a second binding", l.Cloud.Bindings.Add(ctx, p.ID, l.SecondHost), first, second)
	}
	if err := l.Cloud.Bindings.Add(ctx, p.ID, "no-such-host.example"); err == nil {
		t.Error("a port was bound on a host without an agent")
	}
	if err := l.Cloud.Bindings.Delete(ctx, p.ID, l.Host); !errors.Is(err, cloud.ErrInUse) {
		t.Errorf("deletion of the active binding: %v, want %v", err, cloud.ErrInUse)
	}
	if err := l.Cloud.Bindings.Activate(ctx, p.ID, "no-such-host.example"); !errors.Is(err, cloud.ErrNotFound) {
		t.Errorf("activation on another host: %v, want %v", err, cloud.ErrNotFound)
	}
	for range 2 {
		if err := l.Cloud.Bindings.Activate(ctx, p.ID, l.SecondHost); err != nil {
			t.Error(err)
		}
	}
	second.Active = true
	for range 2 {
		want("the first binding is deleted", l.Cloud.Bindings.Delete(ctx, p.ID, l.Host), second)
	}
	moved, err := l.Cloud.Port(ctx, p.ID)
	if err != nil || moved.Host != l.SecondHost || moved.MAC != p.MAC || moved.DeviceID != p.DeviceID {
		t.Errorf("port that moved: %+v, %v; want it on %s, otherwise as before: %+v", moved, err, l.SecondHost, p)
	}
	// A port of two hosts is deleted as any other.
	if err := l.Cloud.Bindings.Add(ctx, p.ID, l.Host); err != nil {
		t.Error(err)
	}
	if err := l.Cloud.DeletePort(ctx, p.ID); err != nil {
		t.Error(err)
	}
	if err := l.Cloud.Bindings.Delete(ctx, p.ID, l.Host); err != nil {
		t.Errorf("deletion of a binding of a port that is gone: %v", err)
	}
	if err := l.Cloud.Bindings.Add(ctx, p.ID, l.Host); !errors.Is(err, cloud.ErrNotFound) {
		t.Errorf("binding of a port that is gone: %v, want %v", err, cloud.ErrNotFound)
	}
}
