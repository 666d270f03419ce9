package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
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
		if float64(idle-idleThen) >= quietShare*float64(all-allThen) {
			return err
		}
	}
	return err
}

// processorTime is how long the processors have been idle, and have been there, in
// ticks of the kernel (proc_stat(5), the line "cpu").
func processorTime() (idle, all int, err error) {
	raw, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0, err
	}
	return parseProcessorTime(string(raw))
}

func parseProcessorTime(stat string) (idle, all int, err error) {
	const fieldIdle, fieldWait, fields = 3, 4, 8 // what follows is counted in the first ones already
	line, _, _ := strings.Cut(stat, "\n")
	values := strings.Fields(strings.TrimPrefix(line, "cpu "))
	if len(values) < fields {
		return 0, 0, fmt.Errorf("/proc/stat: %q: must have %d numbers", line, fields)
	}
	for i, v := range values[:fields] {
		n, err := strconv.Atoi(v)
		if err != nil {
			return 0, 0, fmt.Errorf("/proc/stat: %q: %w", line, err)
		}
		all += n
		if i == fieldIdle || i == fieldWait {
			idle += n
		}
	}
	return idle, all, nil
}
