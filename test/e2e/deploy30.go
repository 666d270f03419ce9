package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/procfs"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/test/kubeclient"
	"fairlead.dev/fairlead/test/quiet"
)

// deploy30 measures how long a Deployment of 30 pods takes until all are Ready, with
// Fairlead's network and with hostNetwork, in turns. A first turn of each is not counted.
func (w *testbed) deploy30(ctx context.Context) error {
	c, err := kubeclient.New(w.REST)
	if err != nil {
		return err
	}
	var (
		ours, host []time.Duration
		spent      = map[bool]map[string]float64{false: {}, true: {}} // by hostNetwork
	)
	for turn := range 1 + w.Deploy30 {
		ways := []struct {
			hostNetwork bool
			into        *[]time.Duration
		}{{false, &ours}, {true, &host}}
		if turn%2 == 1 { // neither always follows the other
			slices.Reverse(ways)
		}
		for _, way := range ways {
			took, seconds, err := w.untilReady(ctx, c, way.hostNetwork)
			if err != nil {
				return err
			}
			if turn == 0 {
				continue
			}
			*way.into = append(*way.into, took)
			for program, s := range seconds {
				spent[way.hostNetwork][program] += s / float64(w.Deploy30)
			}
		}
		if turn > 0 {
			w.Say("  turn %d of %d: %.2f s, with hostNetwork %.2f s", turn, w.Deploy30, ours[turn-1].Seconds(), host[turn-1].Seconds())
		}
	}
	wait, plug, err := w.shareOfADD(ctx)
	if err != nil {
		return err
	}
	w.Say("an ADD waited for its record for %.1f ms and plugged for %.1f ms, on average", wait, plug)
	var with, without float64
	for _, program := range slices.Sorted(maps.Keys(spent[false])) {
		ours, host := spent[false][program], spent[true][program]
		with, without = with+ours, without+host
		if max(ours, host) >= 0.05 {
			w.Say("  processor time of %s: %.2f s, with hostNetwork %.2f s", program, ours, host)
		}
	}
	_, err = fmt.Fprintf(w.Out, deploy30Line+"\n", median(ours).Seconds(), median(host).Seconds(), with, without, w.Deploy30)
	return err
}

// deploy30Line is the line with the medians of the turns and the average processor time of
// all programs. The bench reads it.
const deploy30Line = "deploy30: OK seconds=%.3f hostnetwork=%.3f processor=%.3f processor-hostnetwork=%.3f turns=%d"

func median(all []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

// idleDeployment is a Deployment of pods that do nothing. They have no probe, because the
// time of its first try is a matter of chance, and no port, because all pods of a node
// share its ports with hostNetwork. They have the node's DNS, because by default the kubelet
// writes events about each pod without hostNetwork in a cluster without a DNS.
func idleDeployment(hostNetwork bool) *appsv1.Deployment {
	d := newDeployment()
	spec := &d.Spec.Template.Spec
	spec.HostNetwork, spec.DNSPolicy = hostNetwork, corev1.DNSDefault
	spec.Containers = []corev1.Container{{Name: "idle", Image: pauseImage, ImagePullPolicy: corev1.PullNever}}
	return d
}

// untilReady returns the time from the create of a Deployment until a watch has shown
// each of its pods Ready, and the processor time of the programs meanwhile. It then deletes the Deployment and waits until nothing of it is
// left.
func (w *testbed) untilReady(ctx context.Context, c client.WithWatch, hostNetwork bool) (took time.Duration, spent map[string]float64, err error) {
	if err := quiet.Wait(ctx); err != nil {
		return 0, nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, stepTimeout, fmt.Errorf("not within %v", stepTimeout))
	defer cancel()
	d := idleDeployment(hostNetwork)
	begin := func() (watch.Interface, error) {
		return c.Watch(ctx, &corev1.PodList{}, client.InNamespace(namespace), client.MatchingLabels{appLabel: deployment})
	}
	pods, err := begin()
	if err != nil {
		return 0, nil, fmt.Errorf("watch the pods: %w", err)
	}
	before, err := processorTimes()
	if err != nil {
		return 0, nil, err
	}
	start := time.Now()
	if err := c.Create(ctx, d); err != nil {
		return 0, nil, err
	}
	if err := allReady(ctx, pods, begin, int(*d.Spec.Replicas)); err != nil {
		return 0, nil, err
	}
	took = time.Since(start)
	if spent, err = processorTimes(); err != nil {
		return 0, nil, err
	}
	for program := range spent {
		spent[program] -= before[program]
	}
	if err := c.Delete(ctx, d, client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
		return 0, nil, err
	}
	return took, spent, w.await(ctx, "the pods and their records to go", func(ctx context.Context) (string, error) {
		left, records := &corev1.PodList{}, &v1alpha1.PodAttachmentList{}
		if err := w.List(ctx, left, client.InNamespace(namespace)); err != nil {
			return "", err
		}
		if err := w.List(ctx, records); err != nil {
			return "", err
		}
		if len(left.Items)+len(records.Items) == 0 {
			return "", nil
		}
		return fmt.Sprintf("%d pods and %d records are left", len(left.Items), len(records.Items)), nil
	})
}

// allReady returns when a watch has shown so many pods that are Ready. The API server ends
// a watch now and then; begin begins the next one, which shows all pods again.
func allReady(ctx context.Context, pods watch.Interface, begin func() (watch.Interface, error), want int) (err error) {
	ready := map[types.UID]bool{}
	for {
		for event := range pods.ResultChan() {
			if pod, ok := event.Object.(*corev1.Pod); ok && isReady(pod) {
				ready[pod.UID] = true
			}
			if len(ready) == want {
				pods.Stop()
				return nil
			}
		}
		pods.Stop()
		if ctx.Err() == nil {
			pods, err = begin()
		}
		if err = errors.Join(context.Cause(ctx), err); err != nil {
			return fmt.Errorf("wait for %d pods, of which %d are Ready: %w", want, len(ready), err)
		}
	}
}

// shareOfADD returns how long an ADD of the daemons waited for its record and how long it
// plugged, in milliseconds and on average.
func (w *testbed) shareOfADD(ctx context.Context) (wait, plug float64, err error) {
	for step, into := range map[string]*float64{"wait": &wait, "plug": &plug} {
		var sum, count float64
		for _, n := range w.nodes {
			label := fmt.Sprintf("step=%q", step)
			s, err := n.metric(ctx, daemonPort, "fairlead_node_step_duration_seconds_sum", label)
			if err != nil {
				return 0, 0, err
			}
			c, err := n.metric(ctx, daemonPort, "fairlead_node_step_duration_seconds_count", label)
			if err != nil {
				return 0, 0, err
			}
			sum, count = sum+s, count+c
		}
		*into = 1000 * sum / cmp.Or(count, 1)
	}
	return wait, plug, nil
}

// processorTimes returns the processor time of all programs by name, in seconds. Process 1
// has the time of the containers' programs that have ended.
func processorTimes() (map[string]float64, error) {
	all, err := procfs.AllProcs()
	if err != nil {
		return nil, err
	}
	out := map[string]float64{}
	for _, p := range all {
		stat, err := p.Stat()
		if err != nil {
			continue // it has just ended
		}
		name := stat.Comm
		if line, err := p.CmdLine(); err == nil && name == "kubelab" && len(line) > 1 {
			name += " " + line[1] // its programs are parts of one
		}
		const ticks = 100 // per second
		out[name] += float64(stat.UTime+stat.STime) / ticks
		out[name+"'s children"] += float64(stat.CUTime+stat.CSTime) / ticks
	}
	return out, nil
}
