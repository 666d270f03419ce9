package controller

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// creations are the records that are being created, by pod. An entry lasts until the
// cache shows the record or the pod is gone. It is added before the write, since the
// event of the write may arrive before the reply. A lost entry costs a repeated write,
// never correctness.
type creations struct {
	mu sync.Mutex
	m  map[types.NamespacedName]creation
}

// creation is the create of the record for one UID of a pod.
type creation struct {
	pod types.UID
	at  time.Time
}

// showDeadline is how long a record that was written may be missing from the cache. The
// cache never shows a record that is deleted again while the watch is broken.
const showDeadline = 30 * time.Second

// begin adds a creation; the caller writes the record next.
func (c *creations) begin(key types.NamespacedName, pod types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.m[key] = creation{pod, time.Now()}
}

// left returns how long the record of a pod may still be missing from the cache; 0 or
// less if no creation is pending for that UID.
func (c *creations) left(key types.NamespacedName, pod types.UID) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if has := c.m[key]; has.pod == pod {
		return time.Until(has.at.Add(showDeadline))
	}
	return 0
}

// end removes a creation: the cache shows its record, or the write failed.
func (c *creations) end(key types.NamespacedName, pod types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.m[key].pod == pod {
		delete(c.m, key)
	}
}

// onlyOf removes a creation for any other UID of the pod; an empty UID stands for no pod.
func (c *creations) onlyOf(key types.NamespacedName, pod types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if has, ok := c.m[key]; ok && has.pod != pod {
		delete(c.m, key)
	}
}

// overdue removes the creations that are older than showDeadline and returns their pods.
func (c *creations) overdue() []types.NamespacedName {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []types.NamespacedName
	for key, has := range c.m {
		if time.Since(has.at) >= showDeadline {
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
