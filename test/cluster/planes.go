package cluster

import (
	"os"
	"sync"
)

// planes are the control planes of this test binary that tests have for themselves. Each is
// found or started once, by its first test.
var planes = &planePool{}

type planePool struct {
	mu   sync.Mutex
	all  []func() (*connection, error)
	idle []int // numbers of those that no test has
}

// take returns the connection to a control plane that no test has until giveBack is called.
func (p *planePool) take() (plane func() (*connection, error), giveBack func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	number := len(p.all)
	if last := len(p.idle) - 1; last >= 0 {
		number = p.idle[last]
		p.idle = p.idle[:last]
	} else {
		p.all = append(p.all, sync.OnceValues(func() (*connection, error) { return connect(os.Getpid(), number) }))
	}
	return p.all[number], func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.idle = append(p.idle, number)
	}
}
