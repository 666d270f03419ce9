package native

import (
	"container/list"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/ipam"
)

const (
	// maxStarved is the number of pods that are remembered; the others are tried again
	// after their pause alone.
	maxStarved = 10_000
	// stillStarved is how long a pod is remembered after its last try. A pod that still wants
	// an address is tried every 30 seconds at least.
	stillStarved = 2 * time.Minute
	// restSlack is added to the rest of an address, because its release is known to the
	// block a little later than to the driver.
	restSlack = 200 * time.Millisecond
)

// starved has the pods that found no address left. When a released address has rested and
// may be taken again, it has as many of them tried again as addresses were released.
// Without it they would be tried after the pause of a failed pod alone, which grows to 30
// seconds.
type starved struct {
	mu sync.Mutex
	// start is the time from which seconds count; zero before the first release.
	start time.Time
	// pods has an element for each pod, in lines, which are in order of the first failure.
	pods  map[types.NamespacedName]*list.Element
	lines map[place]*list.List
	// rested is how many addresses may be taken again, by second and place.
	rested map[time.Duration]map[place]int
	// wakes are the functions registered by Parts.Wake.
	wakes []func(...types.NamespacedName)
}

// place is where addresses come from: the blocks of a domain, or those that are routed to
// one node. node is empty for the former.
type place struct{ domain, node string }

// starving is a pod in a line.
type starving struct {
	pod types.NamespacedName
	at  place
	// tried is the time of the last try.
	tried time.Time
}

func newStarved() *starved {
	return &starved{pods: map[types.NamespacedName]*list.Element{}, lines: map[place]*list.List{}, rested: map[time.Duration]map[place]int{}}
}

// podOf returns the name of an owner's pod.
func podOf(o driver.Owner) types.NamespacedName {
	return types.NamespacedName{Namespace: o.Namespace, Name: o.PodName}
}

// add enters a pod that found no address left in a pool.
func (s *starved) add(o driver.Owner, pool *ipam.Pool) {
	at := place{domain: pool.Domain()}
	if pool.PerNode() {
		at.node = o.NodeName
	}
	pod := podOf(o)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.pods[pod]; e != nil && e.Value.(*starving).at == at {
		e.Value.(*starving).tried = time.Now()
		return
	}
	s.drop(pod)
	if len(s.pods) >= maxStarved {
		if s.forget(); len(s.pods) >= maxStarved {
			return
		}
	}
	if s.lines[at] == nil {
		s.lines[at] = list.New()
	}
	s.pods[pod] = s.lines[at].PushBack(&starving{pod, at, time.Now()})
}

// forget drops the pods that have not been tried for long: they are gone.
func (s *starved) forget() {
	for pod, e := range s.pods {
		if time.Since(e.Value.(*starving).tried) > stillStarved {
			s.drop(pod)
		}
	}
}

// remove forgets a pod that has its address.
func (s *starved) remove(o driver.Owner) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(podOf(o))
}

func (s *starved) drop(pod types.NamespacedName) {
	e := s.pods[pod]
	if e == nil {
		return
	}
	at := e.Value.(*starving).at
	delete(s.pods, pod)
	if s.lines[at].Remove(e); s.lines[at].Len() == 0 {
		delete(s.lines, at)
	}
}

// released notes that a pod's addresses in a domain were released.
func (s *starved) released(o driver.Owner, domain string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.start.IsZero() {
		s.start = time.Now()
	}
	since := time.Since(s.start)
	due := (since + ipam.MinCooldown + restSlack).Truncate(time.Second) + time.Second
	if s.rested[due] == nil {
		s.rested[due] = map[place]int{}
		time.AfterFunc(due-since, func() { s.retry(due) })
	}
	s.rested[due][place{domain, ""}]++
	s.rested[due][place{domain, o.NodeName}]++
}

// retry has pods tried again for the addresses that may be taken again from a second on.
func (s *starved) retry(second time.Duration) {
	s.mu.Lock()
	var pods []types.NamespacedName
	s.forget()
	for at, n := range s.rested[second] {
		for ; n > 0 && s.lines[at] != nil; n-- {
			pod := s.lines[at].Front().Value.(*starving).pod
			s.drop(pod)
			pods = append(pods, pod)
		}
	}
	delete(s.rested, second)
	wakes := s.wakes
	s.mu.Unlock()
	if len(pods) == 0 {
		return
	}
	for _, wake := range wakes {
		wake(pods...)
	}
}
