package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/procfs"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// livesAlone is how many pods run one after the other.
const livesAlone = 10

// lives counts the API calls in the life of a pod.
func lives(ctx context.Context, w *testbed) (map[string]figure, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := w.cluster(ctx); err != nil {
		return nil, err
	}
	if err := w.controller(ctx, true); err != nil {
		return nil, err
	}
	if err := w.nodeDaemon(ctx); err != nil {
		return nil, err
	}
	if err := w.endPods(ctx); err != nil {
		return nil, err
	}
	n := w.samples(300, 60)
	l, err := newLivesRun(ctx, w, n)
	if err != nil {
		return nil, err
	}
	defer l.close()
	if err := l.warmUp(ctx); err != nil {
		return nil, err
	}
	w.proxy.reset()
	before, err := processorTime(w.controlled.Cmd.Process.Pid)
	if err != nil {
		return nil, err
	}
	if err := l.live(ctx, "life", n, time.Second/podRate); err != nil {
		return nil, err
	}
	after, err := processorTime(w.controlled.Cmd.Process.Pid)
	if err != nil {
		return nil, err
	}
	writes, reads := l.count(w.proxy.calls(), n, fmt.Sprintf("%d begun per second", podRate))
	w.proxy.reset()
	for i := range livesAlone {
		if err := l.life(ctx, fmt.Sprintf("lonely-%d", i)); err != nil {
			return nil, err
		}
	}
	alone, _ := l.count(w.proxy.calls(), livesAlone, "one after the other")
	return map[string]figure{
		"api_writes_per_pod":        {writes, 5},
		"api_writes_per_pod_alone":  {alone, 5},
		"api_reads_per_pod":         {reads, 0},
		"controller_cpu_ms_per_pod": {1000 * (after - before) / float64(n), 1},
	}, nil
}

// endPods deletes the pods of earlier measurements, and waits until nothing of them is left: the
// node reports, a minute later, that pods without a sandbox have lost their interfaces.
func (w *testbed) endPods(ctx context.Context) error {
	if err := w.kube.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(namespace), client.GracePeriodSeconds(0)); err != nil {
		return fmt.Errorf("delete the pods of earlier measurements: %w", err)
	}
	return await(ctx, "the records of earlier pods to go", func(ctx context.Context) error {
		var left v1alpha1.PodAttachmentList
		if err := w.kube.List(ctx, &left, client.InNamespace(namespace)); err != nil {
			return err
		}
		if n := len(left.Items); n > 0 {
			return fmt.Errorf("%d are there", n)
		}
		return nil
	})
}

// processorTime returns the processor time that a process has used, in seconds.
func processorTime(pid int) (float64, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return 0, err
	}
	stat, err := p.Stat()
	return stat.CPUTime(), err
}

// warmUp runs pods until Kubernetes' garbage collector knows the kind of the records,
// which takes up to half a minute: it looks for new kinds now and then. Until then the
// controller does its work.
func (l *livesRun) warmUp(ctx context.Context) error {
	const few = 4
	for i := 0; ; i++ {
		l.w.proxy.reset()
		if err := l.live(ctx, fmt.Sprintf("warm-%d", i), few, time.Second/podRate); err != nil {
			return err
		}
		if l.w.proxy.calls()[call{program: "fairlead-controller", verb: http.MethodDelete, resource: "podattachments"}] == 0 {
			return nil
		}
		if i == 0 {
			l.w.Say("  waiting for Kubernetes' garbage collector to know of PodAttachments")
		}
		if i > 60 {
			return errors.New("it does not delete records of pods that are gone")
		}
	}
}

// livesRun has the resources for the lives of pods.
type livesRun struct {
	w      *testbed
	board  *board
	config []byte
	boxes  chan sandbox // those that are not plugged
	close  func()
}

func newLivesRun(ctx context.Context, w *testbed, n int) (*livesRun, error) {
	l := &livesRun{w: w}
	var err error
	if l.config, err = w.pluginConfig(); err != nil {
		return nil, err
	}
	if l.board, err = w.kube.watchNodes(ctx, false, realNode); err != nil {
		return nil, err
	}
	boxes, done, err := newSandboxes(n)
	if err != nil {
		return nil, err
	}
	l.boxes, l.close = make(chan sandbox, n), done
	for _, s := range boxes {
		l.boxes <- s
	}
	return l, nil
}

// live starts n lives, one at each interval, and returns when nothing of them is left.
func (l *livesRun) live(ctx context.Context, prefix string, n int, every time.Duration) error {
	var (
		running sync.WaitGroup
		errs    = make([]error, n)
		ticker  = time.NewTicker(every)
	)
	defer ticker.Stop()
	for i := range n {
		<-ticker.C
		running.Go(func() {
			if err := l.life(ctx, fmt.Sprintf("%s-%d", prefix, i)); err != nil {
				errs[i] = fmt.Errorf("life %d: %w", i, err)
			}
		})
	}
	running.Wait()
	return firstOf(errs)
}

// life runs the life of one pod: bound, recorded, ADD, its status seen, DEL, deleted, its
// record gone.
func (l *livesRun) life(ctx context.Context, name string) error {
	pod, err := l.w.kube.pod(ctx, name, realNode)
	if err != nil {
		return err
	}
	if _, err := l.board.record(ctx, pod.UID); err != nil {
		return err
	}
	box := <-l.boxes
	call := cniCall{verb: "ADD", containerID: containerID("life", 0), sandbox: box, pod: pod, path: l.w.binDir()}
	if err := l.exec(ctx, call); err != nil {
		return err
	}
	if err := l.board.attached(ctx, pod.UID, call.containerID); err != nil {
		return err
	}
	call.verb = "DEL"
	if err := l.exec(ctx, call); err != nil {
		return err
	}
	if err := l.w.kube.Delete(ctx, pod, client.GracePeriodSeconds(0)); err != nil {
		return err
	}
	if err := l.board.gone(ctx, pod.UID); err != nil {
		return err
	}
	l.boxes <- box // the record is gone only when the link is
	return nil
}

func (l *livesRun) exec(ctx context.Context, c cniCall) error {
	_, _, err := execution{
		ns: l.w.node().Namespace, path: filepath.Join(l.w.binDir(), "fairlead"), env: c.env(), stdin: l.config,
	}.run(ctx)
	return err
}

// notPerPod reports whether the number of a call depends on the time or on the number of
// nodes and pools, and not on pods.
func notPerPod(c call) bool {
	switch c.resource {
	case "leases", "ippools/status", "nodenetworks/status":
		return true
	}
	return c.verb == "WATCH"
}

// count adds up the calls that the proxy saw, for each of n lives.
func (l *livesRun) count(calls map[call]int, n int, how string) (writes, reads float64) {
	var counted, left []string
	for _, c := range slices.SortedFunc(maps.Keys(calls), func(a, b call) int { return strings.Compare(a.String(), b.String()) }) {
		text := fmt.Sprintf("%s %d", c, calls[c])
		switch {
		case notPerPod(c):
			left = append(left, text)
			continue
		case c.verb == http.MethodGet:
			reads += float64(calls[c])
		default:
			writes += float64(calls[c])
		}
		counted = append(counted, text)
	}
	l.w.Say("  calls in %d lives, %s: %s", n, how, strings.Join(counted, ", "))
	l.w.Say("    not counted, being per time, per node or per pool: %s", strings.Join(left, ", "))
	return writes / float64(n), reads / float64(n)
}
