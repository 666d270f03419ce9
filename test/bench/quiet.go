package main

import (
	"context"
	"time"

	"github.com/prometheus/procfs"
)

const (
	// quietLook is for how long the processors have to idle.
	quietLook = 50 * time.Millisecond
	// quietShare of that time is idle when the machine is quiet.
	quietShare = 0.75
	// quietTime bounds the wait: a machine that has other work is never quiet.
	quietTime = 2 * time.Second
)

// quiet waits until the machine has next to nothing to do. A batch leaves work
// behind, in the packet filter and the kernel, that the next one is not to pay for.
func quiet(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, quietTime)
	defer cancel()
	look := time.NewTicker(quietLook)
	defer look.Stop()
	idle, all, err := processorTime()
	for err == nil {
		select {
		case <-look.C:
		case <-ctx.Done():
			return nil // cancelled, the next step says so
		}
		idleThen, allThen := idle, all
		idle, all, err = processorTime()
		if idle-idleThen >= quietShare*(all-allThen) {
			return err
		}
	}
	return err
}

// processorTime is for how long the processors have been idle, and have been there, in
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

// sumUp adds up what the processors did; guests are in user and nice already.
func sumUp(t procfs.CPUStat) (idle, all float64) {
	idle = t.Idle + t.Iowait
	return idle, idle + t.User + t.Nice + t.System + t.IRQ + t.SoftIRQ + t.Steal
}
