package harness

import (
	"context"
	"time"

	"github.com/prometheus/procfs"
)

const (
	// quietLook is how long the processors have to idle.
	quietLook = 50 * time.Millisecond
	// quietShare is the part of that time that must be idle.
	quietShare = 0.75
	// quietTime bounds the wait, because a machine with other work is never quiet.
	quietTime = 2 * time.Second
)

// Quiet waits until the machine is nearly idle. A batch leaves work behind, in the packet
// filter and the kernel, which must not slow the next one.
func Quiet(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, quietTime)
	defer cancel()
	look := time.NewTicker(quietLook)
	defer look.Stop()
	idle, all, err := processorTime()
	for err == nil {
		select {
		case <-look.C:
		case <-ctx.Done():
			return nil // the next step reports the cancellation
		}
		idleThen, allThen := idle, all
		idle, all, err = processorTime()
		if idle-idleThen >= quietShare*(all-allThen) {
			return err
		}
	}
	return err
}

// processorTime returns how long the processors have been idle, and their total time, in
// seconds.
func processorTime() (idle, all float64, err error) {
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
