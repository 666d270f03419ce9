package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// Between two kills at most a bit more than maxPause passes. A killed program stays
	// away for at most maxAway: longer than a DEL waits for the daemon, which is 2 s, so
	// that the plugin stores some DELs.
	maxPause = 2 * time.Second
	maxAway  = 3 * time.Second
	// maxLife is how long a pod that gets ready exists.
	maxLife = 3 * time.Second
)

// pause waits for a random time, or until ctx ends.
func pause(ctx context.Context, random *rand.Rand, most time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(time.Duration(random.Int64N(int64(most)))):
	}
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
