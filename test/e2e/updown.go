package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/test/kubeclient"
)

// visitors is how many pods come and go on a node at a time.
const visitors = 3

// visits are the pods that come and go while Fairlead is exchanged.
type visits struct {
	*testbed
	target string // address of a pod that stays
	name   string // of this pod
	lived  atomic.Int64
	gaps   atomic.Int64 // pods that were created when the daemon of their node was gone
	// slowest is the longest time until a pod was ready, in nanoseconds.
	slowest atomic.Int64
}

// upAndDown upgrades the release and rolls it back, while pods come and go. No ADD may fail
// because of that, and pods that stay may not lose more than a packet in a row, or in a hundred.
func (w *testbed) upAndDown(ctx context.Context) error {
	before, err := w.failedSandboxes(ctx)
	if err != nil {
		return err
	}
	logs, err := w.runtimeLogs()
	if err != nil {
		return err
	}
	flow, stop := context.WithCancel(ctx)
	defer stop()
	streams, err := w.newStreams(flow)
	if err != nil {
		return err
	}
	v, err := w.changes(ctx)
	if err != nil {
		return err
	}
	stop()
	sent, lost := 0, 0
	for _, s := range streams {
		n, l, e := s.end()
		sent, lost, err = sent+n, lost+l, errors.Join(err, e)
	}
	if len(streams) == 0 {
		err = errors.Join(err, errors.New("no pods that stay send packets"))
	}
	after, e := w.failedSandboxes(ctx)
	if news := slices.DeleteFunc(after, func(s string) bool { return slices.Contains(before, s) }); len(news) > 0 {
		err = errors.Join(err, fmt.Errorf("pods were refused: %s", summary(news)))
	}
	if err := errors.Join(err, e, w.runtimeFailures(logs)); err != nil {
		return err
	}
	w.Say("no sandbox failed; %d of %d packets between pods that stay were lost", lost, sent)
	_, err = fmt.Fprintf(w.Out, "upgrade: OK pods=%d without-daemon=%d slowest=%.1fs packets=%d lost=%d\n",
		v.lived.Load(), v.gaps.Load(), time.Duration(v.slowest.Load()).Seconds(), sent, lost)
	return err
}

// changes upgrades and rolls back under pods that come and go.
func (w *testbed) changes(ctx context.Context) (*visits, error) {
	pods, err := w.pods(ctx)
	if err != nil {
		return nil, err
	}
	stays := pods[0]
	v := &visits{testbed: w, name: stays.Name, target: fmt.Sprintf("%s:%d", stays.Status.PodIP, port)}
	c, err := kubeclient.New(w.REST)
	if err != nil {
		return nil, err
	}
	until, stop := context.WithCancel(ctx)
	defer stop()
	g, ctx := errgroup.WithContext(ctx)
	for _, n := range w.nodes {
		for i := range visitors {
			g.Go(func() error { return v.comeAndGo(ctx, until, n, i) })
		}
	}
	g.Go(func() error { return v.meetGaps(ctx, until, c) })
	g.Go(func() error {
		defer stop()
		return w.change(ctx, v)
	})
	return v, g.Wait()
}

// change upgrades by docs/operator/upgrade.md and goes back.
func (w *testbed) change(ctx context.Context, v *visits) error {
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"upgrade", func(ctx context.Context) error {
			crds := []string{"apply", "--server-side", "--force-conflicts", "-k", w.Source + "/api/v1alpha1/crd"}
			if err := errors.Join(w.Kubectl(ctx, crds...), w.helmRelease(ctx, "upgrade", w.newVersion(), "--set", "ui.enabled=true")); err != nil {
				return err
			}
			return w.livePicture(ctx)
		}},
		// The plugin that waits is the new one.
		{"rollback, with a daemon that starts late", func(ctx context.Context) error {
			late := w.nodes[len(w.nodes)-1]
			started, err := late.delayDaemon(ctx)
			if err != nil {
				return err
			}
			return errors.Join(w.helm(ctx, "rollback", release), <-started)
		}},
	} {
		started, lived, gaps := time.Now(), v.lived.Load(), v.gaps.Load()
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		if err := w.workloadsReady(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		// A pod that was created without a daemon lives until the next step.
		err := w.await(ctx, "a pod on each node that was created without a daemon", func(context.Context) (string, error) {
			if met := v.gaps.Load() - gaps; met < int64(len(w.nodes)) {
				return fmt.Sprintf("%d have lived", met), nil
			}
			return "", nil
		})
		if err != nil {
			return err
		}
		w.Say("%s: all pods of both programs exchanged in %.1f s; %d pods have lived meanwhile, %d of them created without a daemon",
			step.name, time.Since(started).Seconds(), v.lived.Load()-lived, v.gaps.Load()-gaps)
	}
	return nil
}

// lateStart is how much longer a daemon starts than usual. A pull of its image may take
// longer.
const lateStart = 15 * time.Second

// delayDaemon keeps the next daemon of the node from serving for lateStart after the end of
// the present one: it holds the lock on the daemon's records. The channel has the outcome.
func (n *node) delayDaemon(ctx context.Context) (<-chan error, error) {
	var lock *os.File
	err := n.place().do(func() (err error) {
		lock, err = os.Open("/run/fairlead/lock")
		return err
	})
	if err != nil {
		return nil, err
	}
	done := make(chan error, 1)
	go func() {
		defer lock.Close()
		var err error = unix.EINTR
		for errors.Is(err, unix.EINTR) {
			err = unix.Flock(int(lock.Fd()), unix.LOCK_EX)
		}
		if err == nil {
			select {
			case <-ctx.Done():
			case <-time.After(lateStart):
			}
		}
		done <- err
	}()
	return done, nil
}

// comeAndGo has pods live on a node, one after the other.
func (v *visits) comeAndGo(ctx, until context.Context, n *node, slot int) error {
	for round := 0; until.Err() == nil; round++ {
		if err := v.live(ctx, n, fmt.Sprintf("visit-%s-%d-%d", n.name, slot, round)); err != nil {
			return err
		}
	}
	return nil
}

// live runs the life of one pod: it is ready, reaches a pod that stays, and is gone.
func (v *visits) live(ctx context.Context, n *node, name string) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: podSpec()}
	pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: n.name}
	started := time.Now()
	if err := v.Create(ctx, pod); err != nil {
		return err
	}
	if err := v.podIs(ctx, pod, "ready", isReady); err != nil {
		return err
	}
	for took := int64(time.Since(started)); ; {
		slowest := v.slowest.Load()
		if took <= slowest || v.slowest.CompareAndSwap(slowest, took) {
			break
		}
	}
	answers, err := v.reach(ctx, *pod, []string{v.target})
	if err != nil {
		return err
	}
	if answers[v.target] != v.name {
		return fmt.Errorf("pod %s on %s asks pod %s at %s: got %q", name, n.name, v.name, v.target, answers[v.target])
	}
	if err := v.Delete(ctx, pod); err != nil {
		return err
	}
	if err := v.podIs(ctx, pod, "gone", nil); err != nil {
		return err
	}
	v.lived.Add(1)
	return nil
}

// meetGaps has a pod live on a node whenever its daemon has gone: no daemon may serve its
// ADD yet.
func (v *visits) meetGaps(ctx, until context.Context, c client.WithWatch) error {
	g, ctx := errgroup.WithContext(ctx)
	gone := map[string]int{}
	for until.Err() == nil && ctx.Err() == nil {
		daemons, err := c.Watch(ctx, &corev1.PodList{}, client.InNamespace(system), client.MatchingLabels{"app.kubernetes.io/name": nodeAccount})
		if err != nil {
			return errors.Join(err, g.Wait())
		}
		unwatch := context.AfterFunc(until, daemons.Stop)
		for event := range daemons.ResultChan() {
			pod, ok := event.Object.(*corev1.Pod)
			if !ok || event.Type != watch.Deleted || v.nodeOf(*pod) == nil {
				continue
			}
			n := v.nodeOf(*pod)
			gone[n.name]++
			name := fmt.Sprintf("alone-%s-%d", n.name, gone[n.name])
			g.Go(func() error {
				if err := v.live(ctx, n, name); err != nil {
					return err
				}
				v.gaps.Add(1)
				return nil
			})
		}
		unwatch()
		daemons.Stop()
	}
	return g.Wait()
}

// runtimeLogs returns the present lengths of the logs of containerd.
func (w *testbed) runtimeLogs() (map[*node]int64, error) {
	out := map[*node]int64{}
	for _, n := range w.nodes {
		info, err := os.Stat(n.running[containerRuntime].Log)
		if err != nil {
			return nil, err
		}
		out[n] = info.Size()
	}
	return out, nil
}

// networkFailures are containerd's messages about an ADD or a DEL that failed.
var networkFailures = []string{"failed to setup network for sandbox", "failed to destroy network for sandbox"}

// runtimeFailures returns an error with the failed ADDs and DELs in the logs of containerd,
// after the given lengths.
func (w *testbed) runtimeFailures(from map[*node]int64) error {
	var errs []error
	for _, n := range w.nodes {
		raw, err := os.ReadFile(n.running[containerRuntime].Log)
		if err != nil {
			return err
		}
		for line := range bytes.Lines(raw[from[n]:]) {
			for _, message := range networkFailures {
				if bytes.Contains(line, []byte(message)) {
					errs = append(errs, fmt.Errorf("containerd of %s: %s", n.name, bytes.TrimSpace(line)))
				}
			}
		}
	}
	return errors.Join(errs...)
}
