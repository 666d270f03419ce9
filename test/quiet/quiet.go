// Package quiet waits until the machine has little to do, so that a measurement does not pay
// for the work that the one before left behind.
package quiet

import (
	"context"
	"time"

	"github.com/prometheus/procfs"
)

const (
	// look is how long the processors have to idle.
	look = 50 * time.Millisecond
	// idleShare is the part of that time that must be idle.
	idleShare = 0.75
	// atMost bounds the wait, because a machine with other work is never quiet.
	atMost = 2 * time.Second
)

// Wait waits until the machine is nearly idle. A batch leaves work behind, in the packet
// filter and the kernel, which must not slow the next one.
func Wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	ticker := time.NewTicker(look)
	defer ticker.Stop()
	idle, all, err := ProcessorTime()
	for err == nil {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil // the next step reports the cancellation
		}
		idleThen, allThen := idle, all
		idle, all, err = ProcessorTime()
		if idle-idleThen >= idleShare*(all-allThen) {
			return err
		}
	}
	return err
}

// ProcessorTime returns how long the processors have been idle, and their total time, in
// seconds.
func ProcessorTime() (idle, all float64, err error) {
	proc, err := procfs.NewDefaultFS()
	if err != nil {
		return 0, 0, err
	}
	stat, err := proc.Stat()
	if err != nil {
		return 0, 0, err
	}
	idle, all = sumUp(stat.CPUTotal)
	return idle, all, nil
}

// sumUp adds up the time of the processors; the time of guests is included in user and
// nice.
func sumUp(t procfs.CPUStat) (idle, all float64) {
	idle = t.Idle + t.Iowait
	return idle, idle + t.User + t.Nice + t.System + t.IRQ + t.SoftIRQ + t.Steal
}
