package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	ctrl "sigs.k8s.io/controller-runtime"
)

// inner is the program inside the namespaces that the outer one made. It is
// process 1 there: its end is the end of everything it started.
func inner(planFile string, stdout, stderr io.Writer) int {
	var p plan
	raw, err := os.ReadFile(planFile)
	if err == nil {
		err = json.Unmarshal(raw, &p)
	}
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "demo: read the plan: %v\n", err)
		return 1
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctrl.SetLogger(logr.Discard())
	result, err, leaveErr := perform(ctx, p, reporter{out: stdout, start: p.Start})
	if ctx.Err() != nil {
		err = errInterrupted // whatever failed, failed of that
	}
	if leaveErr != nil {
		err = errors.Join(err, leaveErr)
	}
	if err == nil {
		err = writeJSON(p.doneFile(), result)
	}
	if err != nil {
		if err := os.WriteFile(p.reasonFile(), []byte(err.Error()), 0o600); err != nil {
			_, _ = fmt.Fprintf(stderr, "demo: %v\n", err)
		}
		return 1
	}
	return 0
}

func writeJSON(path string, value any) error {
	raw, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	return os.WriteFile(path, raw, 0o600)
}

// perform is the whole story. What goes wrong when it leaves the user's cluster
// is told apart: it is news even to one who has interrupted the demo.
func perform(ctx context.Context, p plan, report reporter) (result outcome, err, leaveErr error) {
	if err := settleIn(p); err != nil {
		return result, err, nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w := &world{plan: p, reporter: report, crew: &crew{logs: p.logs(), failed: cancel}}
	if err := w.build(ctx); err != nil {
		return result, err, nil
	}
	result, err = w.story(ctx)
	// A control plane of our own ends with this process; a user's stays.
	if p.Kubeconfig != "" {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stepTimeout)
		defer cancel()
		leaveErr = w.leaveCluster(ctx)
	}
	return result, err, leaveErr
}

// story is what happens in the cluster.
func (w *world) story(ctx context.Context) (result outcome, err error) {
	if err := w.install(ctx); err != nil {
		return result, err
	}
	if err := w.startFairlead(ctx); err != nil {
		return result, err
	}
	pods, err := w.runPods(ctx)
	if err != nil {
		return result, err
	}
	if result, err = w.pingAll(ctx, pods); err != nil {
		return result, err
	}
	if err := w.removePods(ctx, pods); err != nil {
		return result, err
	}
	return result, w.cleanNodes(ctx)
}

// settleIn makes the mount namespace private, with the processes of our own
// PID namespace in /proc, and what must not outlive a boot on tmpfs.
func settleIn(p plan) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if err := unix.Mount("tmpfs", p.run(), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0700"); err != nil {
		return fmt.Errorf("mount a tmpfs at %s: %w", p.run(), err)
	}
	return nil
}

// stepTimeout bounds each step of the story; all together take a fraction.
const stepTimeout = 2 * time.Minute
