package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// stage is a step in the life of a pod, as its node sees it.
type stage int

const (
	// created is the time just before the pod is created, bound to its node.
	created stage = iota
	// recorded is the time at which the PodAttachment arrives at the node.
	recorded
	// attached is the time at which the status Attached is written.
	attached
	// deleted is the time just before the pod is deleted.
	deleted
	// detached is the time at which the status Detached is written.
	detached
	// released is the time at which the PodAttachment is gone.
	released
	stages
)

var stageNames = [stages]string{"created", "recorded", "attached", "deleted", "detached", "released"}

// life has the times of one pod.
type life struct {
	key   types.NamespacedName
	node  *node
	batch *batch

	mu sync.Mutex
	at [stages]time.Time
}

// reach notes that a stage has been reached; only the first time counts.
func (l *life) reach(s stage) {
	l.mu.Lock()
	first := l.at[s].IsZero()
	if first {
		l.at[s] = time.Now()
	}
	l.mu.Unlock()
	if first {
		l.batch.count(s)
	}
}

// has reports whether a stage has been reached.
func (l *life) has(s stage) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.at[s].IsZero()
}

// between returns the time from one stage to another.
func (l *life) between(from, to stage) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.at[to].Sub(l.at[from])
}

// batch is a number of pods that are measured together.
type batch struct {
	lives   []*life
	reached [stages]atomic.Int64
	done    [stages]chan struct{} // closed when all pods have reached the stage
}

func newBatch() *batch {
	b := &batch{}
	for i := range b.done {
		b.done[i] = make(chan struct{})
	}
	return b
}

func (b *batch) count(s stage) {
	if b.reached[s].Add(1) == int64(len(b.lives)) {
		close(b.done[s])
	}
}

// await waits until every pod of the batch has reached a stage.
func (b *batch) await(ctx context.Context, s stage, limit time.Duration) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-b.done[s]:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return fmt.Errorf("%d of %d pods are %s within %v%s", b.reached[s].Load(), len(b.lives), stageNames[s], limit, b.missing(s))
	}
}

// missing names a pod that has not reached a stage.
func (b *batch) missing(s stage) string {
	for _, l := range b.lives {
		if !l.has(s) {
			return fmt.Sprintf("; %s on %s is not", l.key, l.node.name)
		}
	}
	return ""
}

// latency returns a percentile of the times between two stages.
func (b *batch) latency(from, to stage, percent int) time.Duration {
	if len(b.lives) == 0 {
		return 0
	}
	all := make([]time.Duration, len(b.lives))
	for i, l := range b.lives {
		all[i] = l.between(from, to)
	}
	slices.Sort(all)
	return all[min(percent*len(all)/100, len(all)-1)]
}

// lives has every pod of the test by name. Names are not used twice.
type lives struct {
	// attached is called with each pod whose status Attached has been written.
	attached func(types.NamespacedName)

	mu  sync.Mutex
	all map[types.NamespacedName]*life
}

// of returns the life of a pod; nil if the pod is not of the test.
func (l *lives) of(key types.NamespacedName) *life {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all[key]
}

func (l *lives) add(one *life) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all[one.key] = one
}

func (l *lives) forget(b *batch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, one := range b.lives {
		delete(l.all, one.key)
	}
}
