package controller

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// creations are the records that are being written, by the name of their pod: until the
// cache shows the record, or the pod is gone. A creation is noted before the write, whose
// event may come before its reply. Losing one costs a repeated write, never correctness.
type creations struct {
	mu sync.Mutex
	m  map[types.NamespacedName]creation
}

// creation is the create of the record of one incarnation of a pod.
type creation struct {
	pod types.UID
	at  time.Time
}

// believed is for how long a record that was written need not have been shown. Its
// events are missed when it is deleted again while the watch is broken.
const believed = 30 * time.Second

// begin notes that the record of a pod is about to be written.
func (c *creations) begin(key types.NamespacedName, pod types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.m[key] = creation{pod, time.Now()}
}

// left is for how long it is believed yet that a pod's record was written and is about to
// be shown; 0 or less when it is not.
func (c *creations) left(key types.NamespacedName, pod types.UID) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if has := c.m[key]; has.pod == pod {
		return time.Until(has.at.Add(believed))
	}
	return 0
}

// end ends a creation: its record is shown, or was not written.
func (c *creations) end(key types.NamespacedName, pod types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.m[key].pod == pod {
		delete(c.m, key)
	}
}

// onlyOf forgets the creations for other incarnations of a pod than this one, which is
// empty for none.
func (c *creations) onlyOf(key types.NamespacedName, pod types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if has, ok := c.m[key]; ok && has.pod != pod {
		delete(c.m, key)
	}
}

// doubtful forgets the creations that are believed no more, and returns their pods.
func (c *creations) doubtful() []types.NamespacedName {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []types.NamespacedName
	for key, has := range c.m {
		if time.Since(has.at) >= believed {
			delete(c.m, key)
			out = append(out, key)
		}
	}
	return out
}

func (c *creations) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.m)
}

func (c *creations) size() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.m)
}
