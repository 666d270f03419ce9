package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
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
	// atOnce is how many pods exist at a time.
	atOnce = 20
	// Between two kills on a node at most podsBetweenKills pods end and a bit more than
	// maxPause passes; by time alone a slow machine would only start programs. A killed
	// program stays away for at most maxAway: longer than a DEL waits for the daemon,
	// which is 2 s, so that the plugin stores some DELs.
	podsBetweenKills = 6
	maxPause         = 2 * time.Second
	maxAway          = 3 * time.Second
	// maxLife is how long a pod that gets ready exists.
	maxLife = 3 * time.Second
)

// lives creates and deletes pods while the programs of their nodes are killed with
// SIGKILL at random moments, and checks that nothing of the pods is left.
func (w *testbed) lives(ctx context.Context) error {
	killing, stopKilling := context.WithCancel(ctx)
	supervising, stopSupervising := context.WithCancel(ctx)
	defer stopKilling()
	defer stopSupervising()
	var (
		nodes errgroup.Group
		kills kills
		done  atomic.Int64
	)
	for i, n := range w.nodes {
		n.killed = true
		random := rand.New(rand.NewPCG(w.Seed, uint64(i)))
		// Each node begins with a different program, so that all are killed soon.
		first := slices.Concat(victims[i%len(victims):], victims[:i%len(victims)])
		nodes.Go(func() error { return n.disturb(killing, supervising, random, first, &done, &kills) })
	}
	g, pods := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for i := range w.Lives {
		random := rand.New(rand.NewPCG(w.Seed, uint64(len(w.nodes)+i)))
		g.Go(func() error {
			if err := w.live(pods, newLife(i), random); err != nil {
				return err
			}
			if n := done.Add(1); n%atOnce == 0 {
				w.Say("  %d of %d pods have lived; killed: %v", n, w.Lives, &kills)
			}
			return nil
		})
	}
	err := g.Wait()
	stopKilling()
	if err == nil {
		w.Say("%d pods have lived; killed: %v", w.Lives, &kills)
		err = errors.Join(kills.enough(), w.nothingLeft(ctx))
	}
	stopSupervising()
	return errors.Join(err, nodes.Wait())
}

// victims are the programs that are killed.
var victims = []string{kubelet, containerRuntime, fairleadNode}

// kills counts the kills, in the order of victims.
type kills [3]atomic.Int64

func (k *kills) add(victim string) { k[slices.Index(victims, victim)].Add(1) }

func (k *kills) String() string {
	var out []string
	for i, victim := range victims {
		out = append(out, fmt.Sprintf("%s %d times", victim, k[i].Load()))
	}
	return strings.Join(out, ", ")
}

// enough returns an error if a program was never killed, because then the test proves
// nothing about it.
func (k *kills) enough() error {
	for i := range victims {
		if k[i].Load() == 0 {
			return fmt.Errorf("not every program was killed (%v): let more pods live", k)
		}
	}
	return nil
}

// disturb kills one of the node's programs after the other, first those in first and then
// at random, and starts it again, until killing ends. Until supervising ends it also
// restarts the kubelet as the machine's init would: a kubelet that starts while
// containerd is away ends.
func (n *node) disturb(killing, supervising context.Context, random *rand.Rand, first []string, lived *atomic.Int64, kills *kills) error {
	next := int64(0)
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
			victim := victims[random.IntN(len(victims))]
			if len(first) > 0 {
				victim, first = first[0], first[1:]
			} else {
				next = lived.Load() + 1 + random.Int64N(podsBetweenKills)
			}
			n.running[victim].Kill()
			kills.add(victim)
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

// newLife returns the pod of one life. Every fourth has a port of its node and a limited
// bandwidth, which need more on the node than an address.
func newLife(i int) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("life-%d", i)}, Spec: podSpec()}
	if i%4 == 0 {
		// No two pods at a time have the same port.
		pod.Spec.Containers[0].Ports[0].HostPort = 31000 + int32(i/4%1000)
		pod.Annotations = map[string]string{"kubernetes.io/ingress-bandwidth": "100M", "kubernetes.io/egress-bandwidth": "100M"}
	}
	return pod
}

// live runs the life of one pod. One of four pods is deleted before it can be ready, at
// any step of its start.
func (w *testbed) live(ctx context.Context, pod *corev1.Pod, random *rand.Rand) error {
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

// podIs waits until a pod is in a state; without a state until it is gone.
func (w *testbed) podIs(ctx context.Context, pod *corev1.Pod, what string, state func(*corev1.Pod) bool) error {
	err := wait.PollUntilContextTimeout(ctx, 5*pollInterval, stepTimeout, true, func(ctx context.Context) (bool, error) {
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
