package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// e2ePrograms are the programs of the end-to-end test, which has nodes with a real kubelet
// and containerd, beside those of the bench.
var e2ePrograms = []string{"e2e", "e2e-server", "fairlead", "containerd/containerd", "reference/bridge"}

// deploy30Measurement is of a Deployment on real nodes. It comes first, before the bench's
// own cluster runs.
func deploy30Measurement() measurement {
	return measurement{
		objects: []object{
			{name: "deploy30_vs_hostnetwork", unit: "s", target: "ratio <= 2", met: ratioAtMost(2)},
			{name: "deploy30_processor_s", unit: "s", target: "ratio <= 1.5", met: ratioAtMost(1.5)},
		},
		what: "a Deployment of 30 pods on two nodes with the real kubelet and containerd (bin/e2e --deploy30): from the create until a\n" +
			"         watch has shown every pod Ready, and the processor time of all programs meanwhile; baseline: the same with\n" +
			"         hostNetwork, in turns",
		run: deploy30,
	}
}

// deploy30 runs the end-to-end test's measurement of a Deployment.
func deploy30(ctx context.Context, w *testbed) (map[string]figure, error) {
	cmd := exec.CommandContext(ctx, w.program("e2e"), "--deploy30", strconv.Itoa(w.samples(7, 2)), "--bin", w.Bin)
	cmd.Env = append(os.Environ(), "TMPDIR="+w.Logs()) // after a failure its own logs stay
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = time.Minute
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	var said strings.Builder
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	figures, readErr := deploy30Figures(out, func(line string) { w.Say("  %s", line) })
	if err := cmd.Wait(); err != nil {
		return nil, fmt.Errorf("bin/e2e --deploy30: %w: %s", err, strings.TrimSpace(said.String()))
	}
	return figures, readErr
}

// deploy30Figures reads the output of bin/e2e --deploy30, and passes on its lines about the
// turns. Errors: the line of the result is missing.
func deploy30Figures(out io.Reader, say func(line string)) (map[string]figure, error) {
	var figures map[string]figure
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var wall, processor figure
		if n, _ := fmt.Sscanf(lines.Text(), "deploy30: OK seconds=%g hostnetwork=%g processor=%g processor-hostnetwork=%g",
			&wall.value, &wall.baseline, &processor.value, &processor.baseline); n == 4 {
			figures = map[string]figure{"deploy30_vs_hostnetwork": wall, "deploy30_processor_s": processor}
		}
		if _, line, ok := strings.Cut(lines.Text(), "]   "); ok && (strings.HasPrefix(line, "turn ") || strings.HasPrefix(line, "processor time ")) {
			say(line)
		}
	}
	if figures == nil {
		return nil, errors.Join(errors.New("bin/e2e --deploy30 printed no line of its result"), lines.Err())
	}
	return figures, lines.Err()
}
