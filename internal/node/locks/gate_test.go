package locks

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// A GC holds the gate alone, as with ocicni's gcLock. It waits for running operations,
// and later operations wait for it, all in order of arrival.
func TestGateIsSharedByAddAndDelAndGCHasItAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newTurns(t)
		var events []string
		record := func(event string, until <-chan struct{}) func(context.Context) error {
			return func(context.Context) error {
				events = append(events, event)
				if until != nil {
					<-until
				}
				return nil
			}
		}
		endAdd, endDel, endGC := make(chan struct{}), make(chan struct{}), make(chan struct{})
		go func() { _ = m.Add(t.Context(), "a", "eth0", record("ADD a", endAdd)) }()
		synctest.Wait()
		go func() { _ = m.Del(t.Context(), "b", "eth0", record("DEL b", endDel)) }()
		synctest.Wait()
		go func() { _ = m.Alone(t.Context(), record("GC", endGC)) }()
		synctest.Wait()
		go func() { _ = m.Add(t.Context(), "c", "eth0", record("ADD c", nil)) }()
		synctest.Wait()
		go func() { _ = m.Alone(t.Context(), record("GC again", nil)) }()
		synctest.Wait()
		want := []string{"ADD a", "DEL b"}
		for _, end := range []chan struct{}{endAdd, endDel} {
			if !slices.Equal(events, want) {
				t.Fatalf("events %v, want %v", events, want)
			}
			close(end)
			synctest.Wait()
		}
		if want = append(want, "GC"); !slices.Equal(events, want) {
			t.Fatalf("events %v, want %v", events, want)
		}
		close(endGC)
		synctest.Wait()
		if want = append(want, "ADD c", "GC again"); !slices.Equal(events, want) {
			t.Fatalf("events %v, want %v", events, want)
		}
		wantIdle(t, m)
	})
}

// An ADD that has left the gate holds up neither a GC nor the ADDs behind it. Its sandbox is
// still its own, and a DEL ends it.
func TestLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newTurns(t)
		added := make(chan error, 1)
		go func() {
			added <- m.Add(t.Context(), "a", "eth0", func(ctx context.Context) error {
				m.Leave(ctx)
				m.Leave(ctx) // a second time does nothing
				<-ctx.Done()
				return context.Cause(ctx)
			})
		}()
		synctest.Wait()
		if err := m.Alone(t.Context(), nothing); err != nil {
			t.Error(err)
		}
		if err := m.Add(t.Context(), "b", "eth0", nothing); err != nil {
			t.Error(err)
		}
		own, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := m.Do(own, "a", nothing); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("another operation on the sandbox: %v", err)
		}
		if err := m.Del(t.Context(), "a", "eth0", nothing); err != nil {
			t.Error(err)
		}
		if err := <-added; !errors.Is(err, ErrDeleted) {
			t.Errorf("ADD: %v", err)
		}
		wantIdle(t, m)
	})
}

// Unplug ends the earlier ADDs of its interface, also those that wait for their turn or
// at the gate, and affects no other interface. The interface can be plugged again until
// the sandbox has ended.
func TestInterfacesThatMayBePluggedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newTurns(t)
		got := map[string]error{}
		hold := func(ctx context.Context) error {
			<-ctx.Done()
			time.Sleep(time.Second) //nolint:forbidigo // the bubble's clock; its undo
			return context.Cause(ctx)
		}
		start := func(name, ifName string, fn func(context.Context) error) {
			go func() {
				err := m.Add(t.Context(), "c1", ifName, fn)
				m.mu.Lock()
				defer m.mu.Unlock()
				got[name] = err
			}()
			synctest.Wait()
		}
		start("net1", "net1", hold)
		start("net1 again", "net1", hold)
		start("net2", "net2", nothing)
		go func() { _ = m.Alone(t.Context(), nothing) }()
		synctest.Wait()
		start("net1 behind a GC", "net1", hold)

		var before int
		done := make(chan error)
		go func() {
			done <- m.Unplug(t.Context(), "c1", "net1", func(context.Context) error {
				m.mu.Lock()
				defer m.mu.Unlock()
				before = len(got) // all four, with their undo, after the GC
				return nil
			})
		}()
		synctest.Wait()
		if err := <-done; err != nil || before != 4 {
			t.Errorf("DEL: %v, after %d of 4 that came before", err, before)
		}
		for _, name := range []string{"net1", "net1 again", "net1 behind a GC"} {
			if err := got[name]; !errors.Is(err, ErrDeleted) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if err := got["net2"]; err != nil {
			t.Errorf("net2: %v", err)
		}
		if err := m.Add(t.Context(), "c1", "net1", nothing); err != nil {
			t.Errorf("again after its DEL: %v", err)
		}
		// The DEL of one interface does not affect the others, until End is called.
		if err := m.Del(t.Context(), "c1", "eth0", nothing); err != nil {
			t.Error(err)
		}
		if err := m.Add(t.Context(), "c1", "net1", nothing); err != nil {
			t.Errorf("after a DEL of another interface: %v", err)
		}
		m.End("c1")
		if err := m.Add(t.Context(), "c1", "net1", nothing); !errors.Is(err, ErrDeleted) {
			t.Errorf("after the end of the sandbox: %v", err)
		}
		wantIdle(t, m)
		if len(m.adds) != 0 {
			t.Errorf("%d entries stay", len(m.adds))
		}
	})
}

// A GC that gives up lets the operations run that waited behind it.
func TestGateOpensBehindAGCThatGaveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newTurns(t)
		end := make(chan struct{})
		go func() { _ = m.Add(t.Context(), "a", "eth0", func(context.Context) error { <-end; return nil }) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		gc := make(chan error, 1)
		go func() { gc <- m.Alone(ctx, nothing) }()
		synctest.Wait()
		start := time.Now()
		if err := m.Add(t.Context(), "b", "eth0", nothing); err != nil {
			t.Error(err)
		}
		if waited := time.Since(start); waited != time.Second {
			t.Errorf("ADD waited %s behind a GC that waited 1s", waited)
		}
		if err := <-gc; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("GC: %v", err)
		}
		close(end)
		synctest.Wait()
		wantIdle(t, m)
	})
}

// A DEL cancels the ADD of its sandbox also while a GC waits for that ADD. Otherwise the
// three would wait for one another.
func TestDelCancelsAnAddThatAGCWaitsFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newTurns(t)
		added := make(chan error, 1)
		go func() {
			added <- m.Add(t.Context(), "a", "eth0", func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) })
		}()
		synctest.Wait()
		go func() { _ = m.Alone(t.Context(), nothing) }()
		synctest.Wait()
		if err := m.Del(t.Context(), "a", "eth0", nothing); err != nil {
			t.Error(err)
		}
		if err := <-added; !errors.Is(err, ErrDeleted) {
			t.Errorf("ADD: %v", err)
		}
		wantIdle(t, m)
	})
}

// An ADD that is idle does not hold up a GC, nor the operations behind the GC: it begins
// again after them.
func TestGCDoesNotWaitForAnAddThatIdles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newTurns(t)
		var events []string
		there := make(chan struct{})
		added := make(chan error, 1)
		go func() {
			added <- m.Add(t.Context(), "a", "eth0", func(ctx context.Context) error {
				events = append(events, "ADD a")
				idle, busy := m.Idle(ctx)
				defer busy()
				select {
				case <-there:
					return nil
				case <-idle.Done():
					return context.Cause(idle)
				}
			})
		}()
		synctest.Wait()
		for range 2 {
			if err := m.Alone(t.Context(), func(context.Context) error { events = append(events, "GC"); return nil }); err != nil {
				t.Error(err)
			}
			synctest.Wait()
		}
		if err := m.Del(t.Context(), "b", "eth0", func(context.Context) error { events = append(events, "DEL b"); return nil }); err != nil {
			t.Error(err)
		}
		close(there)
		if err := <-added; err != nil {
			t.Errorf("ADD: %v", err)
		}
		if want := []string{"ADD a", "GC", "ADD a", "GC", "ADD a", "DEL b"}; !slices.Equal(events, want) {
			t.Errorf("events %v, want %v", events, want)
		}
		wantIdle(t, m)
	})
}

// An ADD does not become idle if a GC is waiting already.
func TestAddDoesNotIdleInFrontOfAGC(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newTurns(t)
		begin, tries := make(chan struct{}), 0
		added := make(chan error, 1)
		go func() {
			added <- m.Add(t.Context(), "a", "eth0", func(ctx context.Context) error {
				<-begin
				idle, busy := m.Idle(ctx)
				defer busy()
				tries++
				return context.Cause(idle)
			})
		}()
		synctest.Wait()
		collected := make(chan error, 1)
		go func() { collected <- m.Alone(t.Context(), nothing) }()
		synctest.Wait()
		close(begin)
		if err := errors.Join(<-collected, <-added); err != nil || tries != 2 {
			t.Errorf("%d tries, %v", tries, err)
		}
		wantIdle(t, m)
	})
}

// An ADD that makes way for a GC waits until the GC holds the gate, also if the GC has not asked
// for the gate yet.
func TestAddMakesWayOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newTurns(t)
		m.gate.waiting++ // a GC has ended the idle ADDs, and asks for the gate next
		tries := 0
		added := make(chan error, 1)
		go func() {
			added <- m.Add(t.Context(), "a", "eth0", func(ctx context.Context) error {
				if tries++; tries > 9 {
					return errors.New("begins again at once")
				}
				idle, busy := m.Idle(ctx)
				defer busy()
				return context.Cause(idle)
			})
		}()
		synctest.Wait()
		if tries != 1 {
			t.Errorf("%d tries before the GC, want 1", tries)
		}
		m.gate.waiting--
		if err := errors.Join(m.Alone(t.Context(), nothing), <-added); err != nil || tries != 2 {
			t.Errorf("%d tries, %v", tries, err)
		}
		wantIdle(t, m)
	})
}

// The fn of Alone may call Do: GC removes sandboxes with the operations of the sweep.
func TestAloneMayDo(t *testing.T) {
	m := newTurns(t)
	err := m.Alone(t.Context(), func(ctx context.Context) error { return m.Do(ctx, "a", nothing) })
	if err != nil {
		t.Error(err)
	}
	wantIdle(t, m)
}

// wantIdle checks that no operation is left in queues and gate.
func wantIdle(t *testing.T, m *Locks) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if free := m.gate.slots.TryAcquire(whole); !free || m.gates.Len() != 0 || len(m.gate.idle) != 0 || m.gate.waiting != 0 {
		t.Errorf("%d entries stay, gate %+v", m.gates.Len(), m.gate)
	} else {
		m.gate.slots.Release(whole)
	}
}
