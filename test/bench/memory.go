package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// podsOfNode is how many pods a node has by the kubelet's default (maxPods).
const podsOfNode = 110

// severalInMemory measures the memory of a daemon with pods of four interfaces, and with as
// many pods of one.
func severalInMemory(ctx context.Context, w *testbed) (figures map[string]figure, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done, err := w.attaching(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, done()) }()
	one, err := w.memoryOf(ctx, 1)
	if err != nil {
		return nil, err
	}
	four, err := w.memoryOf(ctx, 4)
	if err != nil {
		return nil, err
	}
	return map[string]figure{"daemon_rss_110x4_mb": {four, one}}, nil
}

// memoryOf returns the memory of a new daemon that has plugged pods with a number of
// interfaces, when it has been idle for a while, in MB.
func (w *testbed) memoryOf(ctx context.Context, interfaces int) (now float64, err error) {
	if err := w.stopNode(); err != nil {
		return 0, err
	}
	if err := w.nodeDaemon(ctx); err != nil {
		return 0, err
	}
	config, err := w.pluginConfig()
	if err != nil {
		return 0, err
	}
	all, err := w.podsOf(ctx, fmt.Sprintf("memory-%d", interfaces), podsOfNode, interfaces)
	if err != nil {
		return 0, err
	}
	boxes, closeBoxes, err := newSandboxes(podsOfNode)
	if err != nil {
		return 0, err
	}
	defer closeBoxes()
	ids := make([]string, podsOfNode)
	each := func(verb string) error {
		return atOnce(abreast, podsOfNode, func(i int) error {
			ids[i] = containerID(fmt.Sprintf("memory-%d", interfaces), i)
			call := cniCall{verb: verb, containerID: ids[i], sandbox: boxes[i], pod: all.pods[i], path: w.binDir()}
			return w.post(ctx, call.request(config))
		})
	}
	if err := each("ADD"); err != nil {
		return 0, err
	}
	for i, pod := range all.pods {
		if err := all.board.attached(ctx, pod.UID, ids[i]); err != nil {
			return 0, err
		}
	}
	select {
	case <-time.After(idleTime):
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	now, peak, err := memory(w.daemon.Cmd.Process.Pid)
	if err != nil {
		return 0, err
	}
	w.Say("  %d pods of %d interfaces: the daemon has %.1f MB, %.1f at its most", podsOfNode, interfaces, now, peak)
	if err := each("DEL"); err != nil {
		return 0, err
	}
	return now, w.recordsGone(ctx, ids...)
}

// memory returns the resident memory of a process and its peak, in MB.
func memory(pid int) (now, most float64, err error) {
	file, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, err
	}
	defer file.Close()
	fields := map[string]*float64{"VmRSS:": &now, "VmHWM:": &most}
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		var name string
		var kilobytes float64
		if n, _ := fmt.Sscanf(lines.Text(), "%s %g kB", &name, &kilobytes); n == 2 && fields[name] != nil {
			*fields[name] = kilobytes * 1024 / 1e6
		}
	}
	if now == 0 || most == 0 {
		return 0, 0, fmt.Errorf("process %d has no VmRSS and VmHWM: %w", pid, lines.Err())
	}
	return now, most, nil
}
