package plugin

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/node/turns"
)

// The tests cover seven points in which the kubelet's plugin manager was subtle or wrong.
// Some are tested in package turns: 1, pods that share a claim, in
// TestSubtle1ClaimHoldersWaitForEachOther; 3, the wait in metrics, in
// TestSubtle3WaitingIsNotWorking; 4, order of arrival, in
// TestTurnsSerializesInOrderOfArrival; 5 and 6, entries under load, in
// TestTurnsKeepsItsEntryUnderLoad.

func nothing(context.Context) error { return nil }

// wantIdle checks that no operation runs or waits: Alone waits for them.
func wantIdle(t *testing.T, m *Manager) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := m.turns.Alone(ctx, nothing); err != nil {
		t.Errorf("the gate is not free: %v", err)
	}
}

// Point 1: the kubelet's key was the name of the pod, so the sandbox of a new pod waited
// for the hanging sandbox of an earlier pod with the same name.
func TestSubtle1NamesakesDoNotWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		m := newManager(t, &fakePlugin{tearDown: func(context.Context, cniproto.Request) error { <-hang; return nil }})
		const pod = "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web-0"
		old := make(chan error, 1)
		go func() { old <- m.TearDownPod(t.Context(), cniproto.Request{ContainerID: "old", Args: pod}) }()
		synctest.Wait()
		if _, err := m.SetUpPod(t.Context(), cniproto.Request{ContainerID: "new", Args: pod}); err != nil {
			t.Error(err)
		}
		close(hang)
		if err := <-old; err != nil {
			t.Error(err)
		}
		wantIdle(t, m)
	})
}

// Point 2: all teardowns without the name of a pod had the key "_", so a hanging teardown
// blocked all others.
func TestSubtle2OrphansDoNotShareAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		m := newManager(t, &fakePlugin{tearDown: func(_ context.Context, r cniproto.Request) error {
			if r.ContainerID == "a" {
				<-hang
			}
			return nil
		}})
		go func() { _ = m.TearDownPod(t.Context(), cniproto.Request{ContainerID: "a"}) }()
		synctest.Wait()
		if err := m.TearDownPod(t.Context(), cniproto.Request{ContainerID: "b"}); err != nil {
			t.Error(err)
		}
		// Pods without an identity do not share a key either.
		go func() { _ = m.turns.Identity(t.Context(), "", func(context.Context) error { <-hang; return nil }) }()
		synctest.Wait()
		if err := m.turns.Identity(t.Context(), "", nothing); err != nil {
			t.Error(err)
		}
		close(hang)
		synctest.Wait()
		wantIdle(t, m)
	})
}

// Point 4: waiting had no end, so a hanging set-up blocked the teardown and the status of
// its pod for ever.
func TestSubtle4WaitingEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		m := newManager(t, &fakePlugin{setUp: func(context.Context, cniproto.Request) ([]byte, error) { <-hang; return nil, nil }})
		go func() { _, _ = m.SetUpPod(t.Context(), cniproto.Request{ContainerID: "a"}) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := m.TearDownPod(ctx, cniproto.Request{ContainerID: "a"}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		close(hang)
		synctest.Wait()
		wantIdle(t, m)
	})
}

// Point 5: the kubelet's branch for a wrong reference count deleted an entry whose lock was
// held. Here only a panic could leave a lock held, in ADD, identity or GC.
func TestSubtle5APanicStrandsNobody(t *testing.T) {
	m := newManager(t, &fakePlugin{setUp: func(context.Context, cniproto.Request) ([]byte, error) { panic("x") }})
	calls := map[string]func(){
		"ADD":      func() { _, _ = m.SetUpPod(t.Context(), cniproto.Request{ContainerID: "a"}) },
		"identity": func() { _ = m.turns.Identity(t.Context(), "ns/a", func(context.Context) error { panic("x") }) },
		"GC":       func() { _ = m.turns.Alone(t.Context(), func(context.Context) error { panic("x") }) },
	}
	for name, call := range calls {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: the panic was swallowed", name)
				}
			}()
			call()
		}()
		wantIdle(t, m)
	}
}

// Point 7: operations that concern no pod do not wait for pods.
func TestSubtle7StatusWaitsForNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		down := errors.New("no bridge")
		p := &fakePlugin{status: down, setUp: func(context.Context, cniproto.Request) ([]byte, error) { <-hang; return nil, nil }}
		m := newManager(t, p)
		go func() { _, _ = m.SetUpPod(t.Context(), cniproto.Request{ContainerID: "a"}) }()
		synctest.Wait()
		go func() { _ = m.turns.Alone(t.Context(), nothing) }()
		synctest.Wait()
		if err := m.Status(); !errors.Is(err, down) {
			t.Error(err)
		}
		close(hang)
	})
}

// Different pods run in parallel, and operations on one pod in order: the kubelet's test of
// ten pods with four cycles each.
func TestTenPodsInFourCycles(t *testing.T) {
	var mu sync.Mutex
	busy := map[string]int{}
	p := &fakePlugin{}
	step := func(_ context.Context, r cniproto.Request) {
		mu.Lock()
		defer mu.Unlock()
		busy[r.ContainerID]++
		if busy[r.ContainerID] != 1 {
			t.Errorf("%d operations on %s at once", busy[r.ContainerID], r.ContainerID)
		}
	}
	leave := func(r cniproto.Request) {
		mu.Lock()
		defer mu.Unlock()
		delete(busy, r.ContainerID)
	}
	p.setUp = func(ctx context.Context, r cniproto.Request) ([]byte, error) {
		step(ctx, r)
		defer leave(r)
		return nil, nil
	}
	p.tearDown = func(ctx context.Context, r cniproto.Request) error { step(ctx, r); defer leave(r); return nil }
	m := newManager(t, p)
	var wg sync.WaitGroup
	for pod := range 10 {
		for range 4 {
			wg.Go(func() {
				r := cniproto.Request{ContainerID: string(rune('a' + pod))}
				if _, err := m.SetUpPod(t.Context(), r); err != nil && !errors.Is(err, turns.ErrDeleted) {
					t.Error(err)
				}
				if err := m.TearDownPod(t.Context(), r); err != nil {
					t.Error(err)
				}
			})
		}
	}
	wg.Wait()
	wantIdle(t, m)
}
