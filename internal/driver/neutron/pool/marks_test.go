package pool

import (
	"math/rand/v2"
	"testing"
	"time"
)

func TestPlan(t *testing.T) {
	m := Marks{Low: 4, High: 10, Batch: 20}
	for name, tc := range map[string]struct {
		level          level
		create, remove int
	}{
		"a new pool gets its low mark":             {level{desired: -1}, 4, 0},
		"a pool at its low mark is left":           {level{ready: 4, desired: -1}, 0, 0},
		"a pool below it is filled":                {level{ready: 3, desired: -1}, 1, 0},
		"the more pods ask, the more ports":        {level{ready: 3, rate: 0.3, desired: -1}, 4, 0},
		"never above the high mark":                {level{ready: 3, rate: 100, desired: -1}, 7, 0},
		"cooling ports will be ready":              {level{ready: 1, cooling: 3, desired: -1}, 0, 0},
		"a pod that waits does not wait for these": {level{cooling: 10, waiting: 2, desired: -1}, 2, 0},
		"pods that wait are added":                 {level{waiting: 5, desired: -1}, 9, 0},
		"a request has at most a batch":            {level{waiting: 50, desired: -1}, 20, 0},
		"surplus goes":                             {level{ready: 13, desired: -1}, 0, 3},
		"not what pods wait for":                   {level{ready: 13, waiting: 3, desired: -1}, 0, 0},
		"an idle pool shrinks to its low mark":     {level{ready: 10, idle: idleAfter, desired: -1}, 0, 6},
		"and has none after an hour":               {level{ready: 4, used: 1, idle: forgetAfter, desired: -1}, 0, 4},
		"people fill":                              {level{ready: 4, desired: 15}, 11, 0},
		"and drain":                                {level{ready: 4, waiting: 2, desired: 0}, 0, 4},
		"a filled pool is not idle":                {level{ready: 15, idle: forgetAfter, desired: 15}, 0, 0},
		"a closed pool is emptied":                 {level{ready: 4, waiting: 2, desired: 15, closed: true}, 0, 4},
	} {
		if create, remove := m.plan(tc.level); create != tc.create || remove != tc.remove {
			t.Errorf("%s: create %d, remove %d, want %d, %d", name, create, remove, tc.create, tc.remove)
		}
	}
}

// A plan settles: once it is followed, there is nothing left to do. It never creates and
// removes at once, and serves the pods that wait.
func TestPlanSettles(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20000 {
		low := r.IntN(20)
		m := Marks{Low: low, High: low + r.IntN(20), Batch: 1 + r.IntN(32)}
		l := level{
			ready: r.IntN(64), cooling: r.IntN(32), used: r.IntN(64), waiting: r.IntN(40), rate: r.Float64() * 3,
			idle: time.Duration(r.IntN(7200)) * time.Second, desired: r.IntN(66) - 1, closed: r.IntN(8) == 0,
		}
		was := l
		for step := 0; ; step++ {
			create, remove := m.plan(l)
			if create > 0 && remove > 0 || create < 0 || create > m.Batch || remove < 0 || remove > l.ready {
				t.Fatalf("%+v %+v: create %d, remove %d", m, l, create, remove)
			}
			if create == 0 && remove == 0 {
				break
			}
			if step > 200 {
				t.Fatalf("%+v %+v does not settle: %+v", m, was, l)
			}
			l.ready += create - remove
		}
		if !l.closed && l.desired != 0 && l.ready < l.waiting {
			t.Fatalf("%+v %+v: %d ports for %d pods that wait", m, was, l.ready, l.waiting)
		}
	}
}

func TestMeter(t *testing.T) {
	var m meter
	at := time.Unix(0, 0)
	for range 600 { // 5 a second for two minutes
		m.count(at)
		at = at.Add(200 * time.Millisecond)
	}
	if r := m.now(at); r < 4.5 || r > 5.5 {
		t.Errorf("rate %.2f after 5 pods a second", r)
	}
	if r := m.now(at.Add(5 * time.Minute)); r > 0.01 {
		t.Errorf("rate %.2f five minutes later", r)
	}
	if r := new(meter).now(at); r != 0 {
		t.Errorf("rate %.2f without a pod", r)
	}
}
