package pool

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/test/pooltest"
)

// refuse has the API refuse the writes of one PortPool.
func (w *world) refuse(name string) {
	w.api.Inject(func(_ string, o *v1alpha1.PortPool) pooltest.Fault {
		if o.Name == name {
			return pooltest.LoseRequest
		}
		return pooltest.None
	})
}

// A PortPool that differs from the records of pods cannot be written. The pools of other nodes
// serve. Its own ports go to nobody but the pods of the records, and none is deleted.
func TestUnwritablePortPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.start(marks)
		other := key
		other.Node, other.Host = "node-2", "node-2"
		first := w.take(p, key, 1)
		w.take(p, other, 2)
		second := w.take(p, key, 4)
		w.want(0, repeat("ready", 8)+" used used used")
		p.stop()
		w.set(func() { w.recorded[first.ID], w.recorded[second.ID] = holder(1), holder(4) })
		for name, edit := range map[string]func(o *v1alpha1.PortPool){
			key.name(0): func(o *v1alpha1.PortPool) {
				for i := range o.Spec.Ports {
					switch s := &o.Spec.Ports[i]; s.ID {
					case first.ID:
						s.Pod.Name = "pod-9"
					case second.ID:
						s.State, s.Pod = ready, nil
					}
				}
				o.Spec.Desired = new(int32) // the ready ports are to go
			},
			other.name(0): func(*v1alpha1.PortPool) {},
		} {
			if err := w.api.Edit(name, edit); err != nil {
				t.Fatal(err)
			}
		}
		w.refuse(key.name(0))
		p = w.start(marks)
		wait(10 * time.Second)
		if !p.Compared() {
			t.Error("no pod gets a port: one PortPool cannot be written")
		}
		w.take(p, other, 3)
		if h, ok, err := p.Of(holder(9)); ok || !errors.Is(err, fault.ErrUnavailable) {
			t.Errorf("pod 9 has %+v, %v, and pod 1 has a record with its port", h, err)
		}
		wait(strayAfter)
		w.api.Inject(nil)
		wait(lastPause)
		for n, want := range map[int]string{1: first.ID, 4: second.ID} {
			if h, ok, err := p.Of(holder(n)); !ok || err != nil || h.ID != want {
				t.Errorf("pod %d has %+v, %v, its record %s", n, h, err, want)
			}
			if _, has := w.made()[want]; !has {
				t.Errorf("the port of pod %d is deleted", n)
			}
		}
		if _, has, err := p.Of(holder(9)); has || err != nil || !slices.Contains(w.given(), first.ID) {
			t.Errorf("pod 9 has a port: %v, %v; reported: %v", has, err, w.given())
		}
		wait(time.Minute)
		w.sound()
	})
}

// A stray cannot be adopted, because its PortPool cannot be written: the others are deleted in
// time, and a PortPool with a missing port is corrected.
func TestStraysBesideAnUnwritablePortPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.start(marks)
		other := key
		other.Node, other.Host = "node-2", "node-2"
		w.take(p, key, 1)
		w.take(p, other, 2)
		w.want(0, repeat("ready", 8)+" used used")
		p.stop()
		name := min(key.name(0), other.name(0)) // the first that is compared
		for id, at := range map[string]Place{"a": {name, 40}, "z": {"node-9-0000000000-0", 3}} {
			node := map[bool]string{true: "node-1", false: "node-2"}[name == key.name(0)]
			made := Made{Port: Port{ID: id, MAC: "fa:16:3e:01:00:00", Addresses: []string{"10.8.9.9/16"}}, Place: at, Network: "net-1", Host: node}
			w.set(func() { w.ports[id] = made })
		}
		w.set(func() { // a ready port of each is gone
			for _, o := range w.api.List() {
				delete(w.ports, o.Spec.Ports[in(o.Spec.Ports, ready)].ID)
			}
		})
		w.refuse(name)
		w.start(marks)
		wait(time.Minute)
		for _, o := range w.api.List() {
			for _, s := range o.Spec.Ports {
				if _, has := w.made()[s.ID]; !has && o.Name != name {
					t.Errorf("%s has port %s, which does not exist", o.Name, s.ID)
				}
			}
		}
		wait(strayAfter)
		if _, has := w.made()["z"]; has {
			t.Error("a stray exists: the comparison fails for another port")
		}
		w.api.Inject(nil)
		wait(time.Minute)
		w.sound()
	})
}

// The port of an interface that was unplugged goes back, and the interface is plugged again. The
// reply to its second hand-out is lost, and the caller gives up: the record that names the new
// port counts all the same when the PortPool is deleted.
func TestLateHandOutIsRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.start(marks)
		w.take(p, key, 1)
		w.want(0, repeat("ready", 4)+" used")
		w.free(p, 1)
		ctx, cancel := context.WithCancel(t.Context())
		w.api.Inject(func(_ string, o *v1alpha1.PortPool) pooltest.Fault {
			if o.Spec.Used == 0 || ctx.Err() != nil {
				return pooltest.None
			}
			cancel()
			return pooltest.LoseReply
		})
		if _, err := p.Take(ctx, key, holder(1)); err == nil {
			t.Fatal("the hand-out succeeded")
		}
		wait(time.Second)
		held, ok, err := p.Of(holder(1))
		if !ok || err != nil {
			t.Fatal("the pod has no port", err)
		}
		w.set(func() { w.recorded[held.ID] = holder(1) })
		if err := w.api.Edit(key.name(0), nil); err != nil {
			t.Fatal(err)
		}
		wait(cooldown + time.Minute)
		if got, ok, err := p.Of(holder(1)); !ok || err != nil || got.ID != held.ID {
			t.Errorf("the pod has %+v, %v; its record names %s of %v", got, err, held.ID, slices.Sorted(maps.Keys(w.made())))
		}
		w.sound()
	})
}
