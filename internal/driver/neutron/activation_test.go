package neutron

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
)

func refOf(n int) driver.Ref {
	o := owner()
	o.PodName = fmt.Sprintf("web-%d", n)
	return driver.Ref{Owner: o, Interface: v1alpha1.Interface{Name: "eth0", Binding: v1alpha1.Binding{OVS: &v1alpha1.OVSBinding{PortID: fmt.Sprintf("port-%d", n)}}}}
}

// statuses are the statuses of ports, and the questions about them.
type statuses struct {
	mu    sync.Mutex
	m     map[string]string
	err   error
	asked [][]string
	at    []time.Duration
	begin time.Time
}

func (s *statuses) read(_ context.Context, ids []string) (map[string]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked, s.at = append(s.asked, slices.Clone(ids)), append(s.at, time.Since(s.begin))
	out := map[string]string{}
	for _, id := range ids {
		if status, ok := s.m[id]; ok {
			out[id] = status
		}
	}
	return out, s.err
}

func (s *statuses) set(status string, ids ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		s.m[id] = status
	}
}

func (s *statuses) questions() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.asked)
}

// later returns the times of the questions, apart from those of the first instant: then the
// ports become known one after the other, and may be asked about so.
func (s *statuses) later() []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.at), func(at time.Duration) bool { return at == 0 })
}

// watch runs Activations until the test ends, and returns a function that returns the pods
// that it reported since the last call.
func watch(t *testing.T, p *ports) func() []string {
	t.Helper()
	var (
		mu      sync.Mutex
		changed []string
	)
	go p.activations(t.Context(), func(o driver.Owner) {
		mu.Lock()
		defer mu.Unlock()
		changed = append(changed, o.PodName)
	})
	synctest.Wait()
	return func() []string {
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		out := changed
		changed = nil
		slices.Sort(out)
		return out
	}
}

// All ports that wait are read with one list, soon at first and then more rarely; nothing is
// read if none waits.
func TestOneListForAllThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &statuses{m: map[string]string{}, begin: time.Now()}
		p := newPorts(s.read, nil)
		changed := watch(t, p)
		<-time.After(time.Hour)
		if n := s.questions(); n != 0 {
			t.Fatalf("%d questions, and no port waits", n)
		}
		s.begin = time.Now()
		for n := range 50 {
			s.set("DOWN", fmt.Sprintf("port-%d", n))
			p.obtained(refOf(n), false)
		}
		<-time.After(10 * time.Second)
		if at := s.later(); len(at) < 5 || len(at) > 8 {
			t.Errorf("%d questions in 10 s: %v", len(at), at)
		}
		for i, ids := range s.asked {
			if len(ids) != 50 && s.at[i] > 0 {
				t.Errorf("the question at %s is about %d ports, want all 50", s.at[i], len(ids))
			}
		}
		s.set(active, "port-1", "port-2")
		<-time.After(askLast)
		if diff := cmp.Diff([]string{"web-1", "web-2"}, changed()); diff != "" {
			t.Errorf("changed (-want +got):\n%s", diff)
		}
		if yes, why := p.isActive(refOf(1)); !yes || why != "" {
			t.Errorf("active: %v %q", yes, why)
		}
		if yes, why := p.isActive(refOf(3)); yes || why != "port port-3 is not ACTIVE yet" {
			t.Errorf("active: %v %q", yes, why)
		}
		for n := range 50 {
			p.released(refOf(n).Owner)
		}
		<-time.After(askLast)
		before := s.questions()
		<-time.After(time.Hour)
		if n := s.questions(); n != before {
			t.Errorf("%d questions after the release of all ports", n-before)
		}
	})
}

// A port that becomes ACTIVE at once is reported at once.
func TestActiveSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &statuses{m: map[string]string{"port-1": "DOWN"}, begin: time.Now()}
		p := newPorts(s.read, nil)
		changed := watch(t, p)
		p.obtained(refOf(1), false)
		<-time.After(50 * time.Millisecond)
		s.set(active, "port-1")
		<-time.After(askFirst)
		if diff := cmp.Diff([]string{"web-1"}, changed()); diff != "" {
			t.Errorf("changed (-want +got):\n%s", diff)
		}
	})
}

// A port that stays DOWN, or is gone, is reported with the reason, once.
func TestReasonsOfPorts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &statuses{m: map[string]string{"port-1": "DOWN"}, begin: time.Now()}
		p := newPorts(s.read, nil)
		changed := watch(t, p)
		p.isActive(refOf(1))
		p.isActive(refOf(2))
		<-time.After(downFor / 2)
		if diff := cmp.Diff([]string{"web-2"}, changed()); diff != "" {
			t.Errorf("changed (-want +got):\n%s", diff)
		}
		if _, why := p.isActive(refOf(2)); !strings.Contains(why, "port port-2 does not exist any more") {
			t.Errorf("reason %q", why)
		}
		<-time.After(2 * downFor)
		if diff := cmp.Diff([]string{"web-1"}, changed()); diff != "" {
			t.Errorf("changed (-want +got):\n%s", diff)
		}
		if _, why := p.isActive(refOf(1)); !strings.Contains(why, "port port-1 is DOWN for more than 1m0s") || !strings.Contains(why, "node node-1") {
			t.Errorf("reason %q", why)
		}
		before := s.questions()
		<-time.After(time.Minute)
		if n := s.questions() - before; n > int(time.Minute/askLast)+1 {
			t.Errorf("%d questions in a minute about ports that wait long", n)
		}
	})
}

// While Neutron is away the pause grows, and a port that became ACTIVE meanwhile is reported
// afterwards.
func TestAwayWhileAPortWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &statuses{m: map[string]string{"port-1": active}, begin: time.Now(), err: errors.New("away")}
		p := newPorts(s.read, nil)
		changed := watch(t, p)
		p.obtained(refOf(1), false)
		<-time.After(10 * time.Minute)
		if n := s.questions(); n > 10*60/5+20 || len(changed()) != 0 {
			t.Errorf("%d questions while Neutron is away", n)
		}
		s.mu.Lock()
		s.err = nil
		s.mu.Unlock()
		<-time.After(askLast)
		if diff := cmp.Diff([]string{"web-1"}, changed()); diff != "" {
			t.Errorf("changed (-want +got):\n%s", diff)
		}
	})
}

// A term of a leader begins with the owners of all ports, and asks again for those that the
// controller asks about.
func TestEachTermAsksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &statuses{m: map[string]string{"port-1": "DOWN"}, begin: time.Now()}
		p := newPorts(s.read, nil)
		p.obtained(refOf(1), false)
		p.obtained(refOf(2), true)
		changed := watch(t, p)
		if diff := cmp.Diff([]string{"web-1", "web-2"}, changed()); diff != "" {
			t.Errorf("changed (-want +got):\n%s", diff)
		}
		p.mu.Lock()
		all := len(p.m)
		p.mu.Unlock()
		if all != 0 {
			t.Errorf("%d ports are remembered", all)
		}
		s.set(active, "port-1")
		p.isActive(refOf(1))
		if diff := cmp.Diff([]string{"web-1"}, changed()); diff != "" {
			t.Errorf("changed (-want +got):\n%s", diff)
		}
	})
}

// An interface is held until it is known to be recorded or is released.
func TestHeld(t *testing.T) {
	p := newPorts(nil, nil)
	p.obtained(refOf(1), false)
	p.obtained(refOf(2), false)
	if diff := cmp.Diff([]driver.Ref{refOf(1)}, p.held(refOf(1).Owner)); diff != "" {
		t.Errorf("held (-want +got):\n%s", diff)
	}
	p.isActive(refOf(1))
	p.released(refOf(2).Owner)
	for n := range 3 {
		if held := p.held(refOf(n).Owner); held != nil {
			t.Errorf("held for pod %d: %v", n, held)
		}
	}
	if yes, why := p.isActive(driver.Ref{Owner: owner()}); yes || why == "" {
		t.Errorf("a record without a port: %v %q", yes, why)
	}
}

// A subport that stays DOWN is attached again after a while, once in each such while, and the
// others are not.
func TestSubportsThatStayDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &statuses{m: map[string]string{}}
		s.set("DOWN", "port-1", "port-2", "port-3")
		var mu sync.Mutex
		var again []string
		p := newPorts(s.read, func(_ context.Context, id string, vlan int) {
			mu.Lock()
			defer mu.Unlock()
			again = append(again, fmt.Sprintf("%s=%d", id, vlan))
		})
		watch(t, p)
		for n := 1; n <= 3; n++ {
			ref := refOf(n)
			if n < 3 {
				ref.Interface.Binding = v1alpha1.Binding{VLAN: &v1alpha1.VLANBinding{PortID: fmt.Sprint("port-", n), ID: int32(100 + n)}}
			}
			p.isActive(ref)
		}
		<-time.After(downFor / 2)
		s.set(active, "port-2")
		<-time.After(2*downFor + downFor/4)
		mu.Lock()
		defer mu.Unlock()
		if diff := cmp.Diff([]string{"port-1=101", "port-1=101"}, again); diff != "" {
			t.Errorf("attached again (-want +got):\n%s", diff)
		}
	})
}
