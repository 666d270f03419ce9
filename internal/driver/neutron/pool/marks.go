package pool

import (
	"math"
	"time"
)

// Marks bound the number of ports that wait for pods.
type Marks struct {
	// Low is the number of ready ports below which ports are made, High that above which
	// they are deleted.
	Low, High int
	// Batch is the largest number of ports of a request.
	Batch int
}

const (
	// lead is how far ahead the pods of a pool are expected to be served.
	lead = 10 * time.Second
	// idleAfter is the time without a pod after which a pool shrinks to its low mark.
	idleAfter = 10 * time.Minute
	// forgetAfter is the time without a pod after which a pool has no ready port any more.
	forgetAfter = time.Hour
)

// level is the state of a key, in numbers.
type level struct {
	ready, cooling, used int
	// waiting is the number of pods that wait for a port.
	waiting int
	// rate is the number of pods that took or wanted a port, per second.
	rate float64
	// idle is the time since the last one.
	idle time.Duration
	// desired replaces the marks; negative if it is not set.
	desired int
	// closed pools get no new ports.
	closed bool
}

// plan returns how many ports are to be made with the next request, and how many ready ones
// are to be deleted; never both.
func (m Marks) plan(l level) (create, remove int) {
	low, target, high := m.Low, m.Low+int(l.rate*lead.Seconds()), m.High
	switch {
	case l.closed:
		low, target, high = 0, 0, 0
	case l.desired >= 0:
		low, target, high = l.desired, l.desired, l.desired
	case l.idle >= forgetAfter && l.waiting == 0:
		low, target, high = 0, 0, 0
	case l.idle >= idleAfter:
		target, high = m.Low, m.Low
	}
	target = min(max(low, target), high)
	if l.closed || l.desired == 0 {
		l.waiting = 0 // these get ports of their own
	}
	left := l.ready - l.waiting // once the waiting pods have theirs
	switch {
	case left < 0 || left+l.cooling < low:
		return min(max(target-left-l.cooling, -left), m.Batch), 0
	case left > high:
		return 0, left - high
	default:
		return 0, 0
	}
}

// meter measures how many pods ask per second, the recent ones above all.
type meter struct {
	rate float64
	at   time.Time
}

// window is the time over which a meter forgets.
const window = 30 * time.Second

// now returns the rate at a moment.
func (m *meter) now(t time.Time) float64 {
	if m.at.IsZero() {
		return 0
	}
	return m.rate * math.Exp(-t.Sub(m.at).Seconds()/window.Seconds())
}

// count counts one pod.
func (m *meter) count(t time.Time) {
	m.rate = m.now(t) + 1/window.Seconds()
	m.at = t
}
