package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// hotPlugRun plugs a further interface into running pods, and unplugs it.
type hotPlugRun struct {
	w       *testbed
	running podsOnBoard
	raw     *board
	model   *v1alpha1.PodAttachment // the record that objects of the baseline equal

	plug, unplug, floor samples
}

// hotPlug measures how long a running pod waits for a further network, one pod at a time.
func hotPlug(ctx context.Context, w *testbed) (figures map[string]figure, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done, err := w.attaching(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, done()) }()
	const pods, warmUp = 4, 2
	boxes, closeBoxes, err := newSandboxes(pods)
	if err != nil {
		return nil, err
	}
	defer closeBoxes()
	h := &hotPlugRun{w: w}
	calls, err := h.prepare(ctx, boxes)
	if err != nil {
		return nil, err
	}
	rounds := w.samples(120, 20)
	for round := range warmUp + rounds {
		if round == warmUp {
			h.plug, h.unplug, h.floor = nil, nil, nil
		}
		if err := h.round(ctx, round); err != nil {
			return nil, fmt.Errorf("round %d: %w", round, err)
		}
	}
	w.Say("  medians of %d: plugged after %.1f ms (p90 %.1f), unplugged after %.1f (p90 %.1f); create to watch %.1f (p90 %.1f)", rounds,
		h.plug.median(), h.plug.percentile(90), h.unplug.median(), h.unplug.percentile(90), h.floor.median(), h.floor.percentile(90))
	return map[string]figure{
		"hotplug_ms":   {h.plug.median(), h.floor.median()},
		"hotunplug_ms": {h.unplug.median(), h.floor.median()},
	}, w.delAll(ctx, calls...)
}

// prepare makes pods of one interface run in the sandboxes.
func (h *hotPlugRun) prepare(ctx context.Context, boxes []sandbox) (calls []plugging, err error) {
	c := &comparison{w: h.w}
	if c.config, err = h.w.pluginConfig(); err != nil {
		return nil, err
	}
	if h.running, err = h.w.podsOf(ctx, "hot", len(boxes), 1); err != nil {
		return nil, err
	}
	if h.raw, err = h.w.kube.watchNodes(ctx, true, watchedNodes()...); err != nil {
		return nil, err
	}
	for i, s := range boxes {
		call := c.ourExecution(cniCall{containerID: containerID("hot", i), sandbox: s, pod: h.running.pods[i]})
		var unmeasured samples
		if err := h.running.addAlone(ctx, call, &unmeasured); err != nil {
			return nil, err
		}
		calls = append(calls, call)
	}
	h.model, err = h.running.board.record(ctx, h.running.pods[0].UID)
	return calls, err
}

// round plugs a further interface into one of the pods, and unplugs it.
func (h *hotPlugRun) round(ctx context.Context, round int) error {
	pod := h.running.pods[round%len(h.running.pods)]
	return inTurns(round,
		func() error {
			if err := h.reselect(ctx, pod, networkName(0), &h.plug); err != nil {
				return err
			}
			return h.reselect(ctx, pod, "", &h.unplug)
		},
		func() error {
			object := rawLike(h.model, round)
			start := time.Now()
			if err := h.w.kube.Create(ctx, object); err != nil {
				return err
			}
			_, err := h.raw.record(ctx, object.Spec.PodUID)
			h.floor.addTime(time.Since(start))
			return err
		})
}

// reselect writes the further network of a running pod into its annotation, empty for
// none, and measures the time until the node says that its interface is plugged or gone.
func (h *hotPlugRun) reselect(ctx context.Context, pod *corev1.Pod, network string, into *samples) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{annotationNetworks: network}}})
	if err != nil {
		return err
	}
	before, err := h.running.board.record(ctx, pod.UID)
	if err != nil {
		return err
	}
	start := time.Now()
	if err := h.w.kube.Patch(ctx, pod, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return fmt.Errorf("networks of pod %s: %w", pod.Name, err)
	}
	shows := func(want func(*v1alpha1.PodAttachment) bool) error {
		return h.running.board.until(ctx, "the node to plug the networks of a pod", func(records map[types.UID]*shownRecord) bool {
			return want(records[pod.UID].record)
		})
	}
	err = shows(func(record *v1alpha1.PodAttachment) bool { return isPlugged(record, before.Generation, network != "") })
	into.addTime(time.Since(start))
	if err != nil {
		return err
	}
	return shows(done)
}

// isPlugged reports whether the node has plugged the further interface of a record, or
// unplugged it, since an older generation of the spec.
func isPlugged(record *v1alpha1.PodAttachment, older int64, plugged bool) bool {
	s := record.Status.Sandbox
	has := slices.ContainsFunc(s.Links, func(l v1alpha1.SandboxLink) bool { return l.Name == "net1" })
	return has == plugged && s.Generation > older
}

// done reports whether controller and node have nothing more to do.
func done(record *v1alpha1.PodAttachment) bool {
	return len(record.Spec.Unplug) == 0 && record.Status.Sandbox.Generation == record.Generation
}
