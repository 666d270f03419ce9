package nested

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/fairlead/internal/openstack/cloud"
)

// memory is a cloud with the trunks of parents.
type memory struct {
	// each call takes a time.
	takes time.Duration

	mu     sync.Mutex
	trunks []cloud.Trunk
	calls  map[string]int
	// refuses returns the error of an addition; nil refuses nothing more.
	refuses func([]cloud.Subport) error
}

func (m *memory) called(name string) {
	<-time.After(m.takes)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.calls == nil {
		m.calls = map[string]int{}
	}
	m.calls[name]++
}

func (m *memory) TrunkOf(_ context.Context, parent string) (cloud.Trunk, error) {
	m.called("read")
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, t := range m.trunks {
		if t.Parent == parent {
			t.Subports = slices.Clone(t.Subports)
			return t, nil
		}
	}
	return cloud.Trunk{}, cloud.ErrNotFound
}

func (m *memory) Trunks(context.Context) ([]cloud.Trunk, error) {
	m.called("list")
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.trunks), nil
}

func (m *memory) AddSubports(_ context.Context, id string, all []cloud.Subport) error {
	m.called("add")
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.refuses != nil {
		if err := m.refuses(all); err != nil {
			return err
		}
	}
	n := slices.IndexFunc(m.trunks, func(t cloud.Trunk) bool { return t.ID == id })
	if n < 0 {
		return cloud.ErrNotFound
	}
	for i, s := range all {
		if slices.ContainsFunc(all[:i], func(before cloud.Subport) bool { return before.VLAN == s.VLAN }) {
			return cloud.ErrInvalid // as Neutron
		}
		for _, t := range m.trunks {
			if slices.ContainsFunc(t.Subports, func(has cloud.Subport) bool { return has.Port == s.Port || t.ID == id && has.VLAN == s.VLAN }) {
				return cloud.ErrTaken
			}
		}
	}
	m.trunks[n].Subports = append(m.trunks[n].Subports, all...)
	return nil
}

func (m *memory) RemoveSubports(_ context.Context, id string, ports []string) error {
	m.called("remove")
	m.mu.Lock()
	defer m.mu.Unlock()
	for n := range m.trunks {
		if m.trunks[n].ID == id {
			m.trunks[n].Subports = slices.DeleteFunc(m.trunks[n].Subports, func(s cloud.Subport) bool { return slices.Contains(ports, s.Port) })
			return nil
		}
	}
	return cloud.ErrNotFound
}

func (m *memory) start() *Trunks {
	return NewTrunks(func() (TrunkCalls, error) { return m, nil })
}

// Ports of one batch are added with one call for each 20, in the order of the ports, and again
// with the same VLANs. A port that the cloud refuses fails the batch, and stops no other.
func TestAddAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{takes: time.Second, trunks: []cloud.Trunk{{ID: "t", Parent: "p"}}}
		trunks := m.start()
		var ports []string
		for n := range 30 {
			ports = append(ports, fmt.Sprintf("port-%d", n))
		}
		vlans, err := trunks.AddAll(t.Context(), "p", ports)
		if err != nil {
			t.Fatal(err)
		}
		for n, s := range m.trunks[0].Subports {
			if s.Port != ports[n] || s.VLAN != vlans[n] {
				t.Errorf("subport %v; want %s with VLAN %d", s, ports[n], vlans[n])
			}
		}
		if diff := cmp.Diff(map[string]int{"read": 1, "add": 2}, m.calls); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
		again, err := m.start().AddAll(t.Context(), "p", ports)
		if diff := cmp.Diff(vlans, again); diff != "" || err != nil {
			t.Errorf("again: %v (-want +got):\n%s", err, diff)
		}
		m.refuses = func(all []cloud.Subport) error {
			if slices.ContainsFunc(all, func(s cloud.Subport) bool { return s.Port == "poison" }) {
				return cloud.ErrNotFound
			}
			return nil
		}
		if _, err := trunks.AddAll(t.Context(), "p", []string{"more", "poison"}); !errors.Is(err, cloud.ErrNotFound) {
			t.Errorf("error %v", err)
		}
		if len(m.trunks[0].Subports) != 31 {
			t.Errorf("%d subports, want 31", len(m.trunks[0].Subports))
		}
	})
}

// Pods that come while a call is under way are added with the next one.
func TestTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{takes: time.Second, trunks: []cloud.Trunk{{ID: "t", Parent: "p"}}}
		trunks := m.start()
		var wg sync.WaitGroup
		vlans := make([]int, 15)
		for n := range vlans {
			wg.Go(func() {
				var err error
				if vlans[n], err = trunks.Add(t.Context(), "p", fmt.Sprint("port-", n)); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		slices.Sort(vlans)
		if vlans = slices.Compact(vlans); len(vlans) != 15 {
			t.Errorf("VLANs %v", vlans)
		}
		// The first call has those that came before it began: one pod, or all.
		if m.calls["read"] != 1 || m.calls["add"] > 2 {
			t.Errorf("calls for 15 pods: %v, want one read and at most two additions", m.calls)
		}
		synctest.Wait()
		if n := trunks.batches.Len(); n != 0 {
			t.Errorf("%d batches are left", n)
		}
	})
}

// One port that the cloud refuses stops no other of its batch.
func TestOneRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{takes: time.Second, trunks: []cloud.Trunk{{ID: "t", Parent: "p"}}, refuses: func(all []cloud.Subport) error {
			if slices.ContainsFunc(all, func(s cloud.Subport) bool { return s.Port == "poison" }) {
				return cloud.ErrInvalid
			}
			return nil
		}}
		trunks := m.start()
		var wg sync.WaitGroup
		for _, port := range []string{"a", "b", "poison", "c"} {
			wg.Go(func() {
				_, err := trunks.Add(t.Context(), "p", port)
				if (err == nil) == (port == "poison") {
					t.Errorf("%s: %v", port, err)
				}
			})
		}
		wg.Wait()
		if n := len(m.trunks[0].Subports); n != 3 {
			t.Errorf("%d subports", n)
		}
	})
}

// A full trunk is an error only after it was read again: another may have returned a VLAN. The VLAN
// that was returned is not given at once, if there are others.
func TestFullTrunk(t *testing.T) {
	m := &memory{trunks: []cloud.Trunk{{ID: "t", Parent: "p"}}}
	for vlan := 1; vlan <= maxVLAN; vlan++ {
		m.trunks[0].Subports = append(m.trunks[0].Subports, cloud.Subport{Port: fmt.Sprint("other-", vlan), VLAN: vlan})
	}
	trunks := m.start()
	if _, err := trunks.Add(t.Context(), "p", "a"); !errors.Is(err, cloud.ErrFull) {
		t.Fatalf("error %v", err)
	}
	m.trunks[0].Subports = slices.Delete(m.trunks[0].Subports, 6, 8) // VLANs 7 and 8
	var got []int
	for _, port := range []string{"a", "b"} {
		vlan, err := trunks.Add(t.Context(), "p", port)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, vlan)
	}
	if err := trunks.Remove(t.Context(), "p", "a"); err != nil {
		t.Fatal(err)
	}
	vlan, err := trunks.Add(t.Context(), "p", "c")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]int{7, 8, 7}, append(got, vlan)); diff != "" {
		t.Errorf("VLANs (-want +got):\n%s", diff)
	}
}

// VLANs are given in turn: the VLAN of a pod that has just gone may still be in use on a node
// that died.
func TestVLANsInTurn(t *testing.T) {
	m := &memory{trunks: []cloud.Trunk{{ID: "t", Parent: "p", Subports: []cloud.Subport{{Port: "x", VLAN: 4093}}}}}
	trunks := m.start()
	var got []int
	for _, port := range []string{"a", "b", "c"} {
		vlan, err := trunks.Add(t.Context(), "p", port)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, vlan)
		if err := trunks.Remove(t.Context(), "p", port); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]int{4094, 1, 2}, got); diff != "" {
		t.Errorf("VLANs (-want +got):\n%s", diff)
	}
}

// A subport that is attached again keeps its VLAN, although another pod comes with it whose turn
// would be this VLAN. One call adds both.
func TestReattachBesideOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{takes: time.Second, trunks: []cloud.Trunk{{ID: "t", Parent: "p", Subports: []cloud.Subport{{Port: "a", VLAN: 1}, {Port: "b", VLAN: 4093}}}}}
		trunks := m.start()
		add := func(port string) func() {
			return func() {
				if _, err := trunks.Add(t.Context(), "p", port); err != nil {
					t.Errorf("%s: %v", port, err)
				}
			}
		}
		var wg sync.WaitGroup
		wg.Go(add("first")) // VLAN 4094; the others wait for it
		synctest.Wait()
		wg.Go(add("c"))
		synctest.Wait()
		wg.Go(func() {
			if err := trunks.Reattach(t.Context(), "p", "a", 1); err != nil {
				t.Error(err)
			}
		})
		wg.Wait()
		want := []cloud.Subport{{Port: "b", VLAN: 4093}, {Port: "first", VLAN: 4094}, {Port: "a", VLAN: 1}, {Port: "c", VLAN: 2}}
		if diff := cmp.Diff(want, m.trunks[0].Subports); diff != "" || m.calls["add"] != 2 {
			t.Errorf("calls %v, want 2 additions; subports (-want +got):\n%s", m.calls, diff)
		}
	})
}

// A subport was removed to be attached again, and its addition fails. The next pod does not get
// its VLAN, which a running pod has.
func TestReattachThatFails(t *testing.T) {
	m := &memory{trunks: []cloud.Trunk{{ID: "t", Parent: "p", Subports: []cloud.Subport{{Port: "a", VLAN: 1}, {Port: "b", VLAN: 2}}}}}
	trunks := m.start()
	m.refuses = func([]cloud.Subport) error { return cloud.ErrUnavailable }
	if err := trunks.Reattach(t.Context(), "p", "b", 2); !errors.Is(err, cloud.ErrUnavailable) || len(m.trunks[0].Subports) != 1 {
		t.Fatalf("subports %v, %v", m.trunks[0].Subports, err)
	}
	m.refuses = nil
	vlan, err := trunks.Add(t.Context(), "p", "c")
	if vlan != 3 || err != nil {
		t.Errorf("the next pod has VLAN %d, %v; want 3", vlan, err)
	}
	if err := trunks.Reattach(t.Context(), "p", "b", 2); err != nil || len(m.trunks[0].Subports) != 3 {
		t.Errorf("subports %v, %v", m.trunks[0].Subports, err)
	}
}

// The machine of a node was replaced: the pod's port moves from the old trunk to the new one.
func TestSubportOfAnotherTrunk(t *testing.T) {
	m := &memory{trunks: []cloud.Trunk{
		{ID: "old", Parent: "q", Subports: []cloud.Subport{{Port: "a", VLAN: 5}, {Port: "b", VLAN: 6}}}, {ID: "new", Parent: "p"},
	}}
	trunks := m.start()
	if _, err := trunks.Add(t.Context(), "p", "a"); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]cloud.Subport{{Port: "b", VLAN: 6}}, m.trunks[0].Subports); diff != "" || len(m.trunks[1].Subports) != 1 {
		t.Errorf("new trunk %v, old (-want +got):\n%s", m.trunks[1].Subports, diff)
	}
}

// A caller that gives up leaves its place to others, and its port to a later call.
func TestCallerGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{takes: time.Second, trunks: []cloud.Trunk{{ID: "t", Parent: "p"}}}
		trunks := m.start()
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		if _, err := trunks.Add(ctx, "p", "a"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
		first, err := trunks.Add(t.Context(), "p", "b")
		if err != nil {
			t.Fatal(err)
		}
		again, err := trunks.Add(t.Context(), "p", "a")
		if err != nil || again == first || len(m.trunks[0].Subports) != 2 {
			t.Errorf("VLANs %d and %d, subports %v, %v", first, again, m.trunks[0].Subports, err)
		}
	})
}
