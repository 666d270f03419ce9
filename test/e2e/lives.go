package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// atOnce is how many pods live at a time.
	atOnce = 20
	// Between two kills on a node at most livesApart pods end and a bit more than
	// maxPause passes; by time alone a slow machine would do nothing but start
	// programs. A killed program stays away for at most maxAway: longer than a
	// DEL waits for the daemon, which is 2 s, so that some are put aside.
	livesApart = 6
	maxPause   = 2 * time.Second
	maxAway    = 3 * time.Second
	// maxLife is how long a pod lives that gets ready.
	maxLife = 3 * time.Second
)

// lives has pods come and go while the programs of their nodes are killed with
// SIGKILL at random moments, and looks for what is left of them.
func (w *world) lives(ctx context.Context) error {
	killing, stopKilling := context.WithCancel(ctx)
	supervising, stopSupervising := context.WithCancel(ctx)
	defer stopKilling()
	defer stopSupervising()
	var (
		nodes errgroup.Group
		kills atomic.Int64
		done  atomic.Int64
	)
	for i, n := range w.nodes {
		n.killed = true
		random := rand.New(rand.NewPCG(w.Seed, uint64(i)))
		nodes.Go(func() error { return n.disturb(killing, supervising, random, &done, &kills) })
	}
	g, pods := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for i := range w.Lives {
		random := rand.New(rand.NewPCG(w.Seed, uint64(len(w.nodes)+i)))
		g.Go(func() error {
			if err := w.live(pods, fmt.Sprintf("life-%d", i), random); err != nil {
				return err
			}
			if n := done.Add(1); n%atOnce == 0 {
				w.Say("  %d of %d pods have lived, %d programs were killed", n, w.Lives, kills.Load())
			}
			return nil
		})
	}
	err := g.Wait()
	stopKilling()
	if err == nil {
		w.Say("%d pods have lived, %d programs were killed", w.Lives, kills.Load())
		err = w.nothingLeft(ctx)
	}
	stopSupervising()
	return errors.Join(err, nodes.Wait())
}

// disturb kills one of the node's programs after the other and starts it again,
// until killing ends. Until supervising ends it does for the kubelet what the
// machine's init does: a kubelet that starts while containerd is away ends.
func (n *node) disturb(killing, supervising context.Context, random *rand.Rand, lived, kills *atomic.Int64) error {
	next := int64(0)
	victims := []string{kubelet, containerRuntime, fairleadNode}
	n.running[kubelet].Expect()
	for {
		select {
		case <-supervising.Done():
			return nil
		case <-n.running[kubelet].Done():
			pause(supervising, random, maxAway)
			if err := n.start(kubelet); err != nil {
				return err
			}
		case <-time.After(time.Duration(random.Int64N(int64(maxPause)))):
			if killing.Err() != nil || lived.Load() < next {
				continue
			}
			next = lived.Load() + 1 + random.Int64N(livesApart)
			victim := victims[random.IntN(len(victims))]
			n.running[victim].Kill()
			kills.Add(1)
			pause(killing, random, maxAway)
			if err := n.start(victim); err != nil {
				return err
			}
		}
		n.running[kubelet].Expect()
	}
}

// pause waits for a random time, or until ctx ends.
func pause(ctx context.Context, random *rand.Rand, most time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(time.Duration(random.Int64N(int64(most)))):
	}
}

// live is the life of one pod. Of four one is deleted before it can be ready,
// at whatever step its start is.
func (w *world) live(ctx context.Context, name string, random *rand.Rand) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: podSpec()}
	if err := w.Create(ctx, pod); err != nil {
		return err
	}
	if random.IntN(4) > 0 {
		if err := w.podIs(ctx, pod, "ready", isReady); err != nil {
			return err
		}
	}
	pause(ctx, random, maxLife)
	if err := w.Delete(ctx, pod); err != nil {
		return err
	}
	return w.podIs(ctx, pod, "gone", nil)
}

func isReady(pod *corev1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// podIs waits until a pod is in a state; with no state until it is gone.
func (w *world) podIs(ctx context.Context, pod *corev1.Pod, what string, state func(*corev1.Pod) bool) error {
	err := wait.PollUntilContextTimeout(ctx, 5*lookInterval, stepTimeout, true, func(ctx context.Context) (bool, error) {
		err := w.Get(ctx, client.ObjectKeyFromObject(pod), pod)
		if apierrors.IsNotFound(err) && state == nil {
			return true, nil
		}
		return err == nil && state != nil && state(pod), err
	})
	if err != nil {
		return fmt.Errorf("waiting for pod %s on %s to be %s: %w", pod.Name, pod.Spec.NodeName, what, errors.Join(context.Cause(ctx), err))
	}
	return nil
}
