package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/nad"
	"fairlead.dev/fairlead/test/cluster"
)

// furtherNetworks is how many networks a pod of eight interfaces has beside the default
// one.
const furtherNetworks = 7

// eightInterfaces measures one ADD of eight interfaces against eight times an ADD of one.
func eightInterfaces(ctx context.Context, w *testbed) (figures map[string]figure, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := w.cluster(ctx); err != nil {
		return nil, err
	}
	if err := w.furtherNetworks(ctx); err != nil {
		return nil, err
	}
	// Other measurements have a controller without networks.
	if err := w.stopController(); err != nil {
		return nil, err
	}
	w.attaches = true
	defer func() {
		w.attaches = false
		err = errors.Join(err, w.stopController())
	}()
	if err := w.serving(ctx); err != nil {
		return nil, err
	}
	const warmUp = 4
	rounds := w.samples(120, 12)
	one, eight, err := w.prepareEight(ctx, warmUp+rounds)
	if err != nil {
		return nil, err
	}
	boxes, _, err := newSandboxes(2)
	if err != nil {
		return nil, err
	}
	defer func() {
		for _, s := range boxes {
			s.Close()
		}
	}()
	c := &comparison{w: w}
	if c.config, err = w.pluginConfig(); err != nil {
		return nil, err
	}
	var ones, eights samples
	for round := range warmUp + rounds {
		if round == warmUp { // the first pods make the bridges
			ones, eights = nil, nil
		}
		first := c.ourExecution(cniCall{containerID: containerID("one", round), sandbox: boxes[0], pod: one.pods[round]})
		second := c.ourExecution(cniCall{containerID: containerID("eight", round), sandbox: boxes[1], pod: eight.pods[round]})
		err := inTurns(round,
			func() error { return one.addAlone(ctx, first, &ones) },
			func() error { return eight.addAlone(ctx, second, &eights) })
		if err == nil {
			err = w.delBoth(ctx, first, second)
		}
		if err != nil {
			return nil, fmt.Errorf("round %d: %w", round, err)
		}
	}
	w.Say("  medians of %d: ADD of one interface %.2f ms, of eight %.2f", rounds, ones.median(), eights.median())
	return map[string]figure{"add_8_vs_single": {eights.median(), 8 * ones.median()}}, nil
}

// podsOnBoard are pods with records, and the board that shows the records.
type podsOnBoard struct {
	pods  []*corev1.Pod
	board *board
}

// addAlone measures an ADD, and waits until its status is written.
func (p podsOnBoard) addAlone(ctx context.Context, call plugging, into *samples) error {
	if err := call.exec(ctx, "ADD", into); err != nil {
		return err
	}
	return p.board.attached(ctx, call.pod.UID, call.containerID)
}

// delBoth unplugs two sandboxes, and waits until nothing of them is left.
func (w *testbed) delBoth(ctx context.Context, calls ...plugging) error {
	var ids []string
	for _, call := range calls {
		var unmeasured samples
		if err := call.exec(ctx, "DEL", &unmeasured); err != nil {
			return err
		}
		ids = append(ids, call.containerID)
	}
	return w.recordsGone(ctx, ids...)
}

// prepareEight creates pods with one interface, and pods with eight.
func (w *testbed) prepareEight(ctx context.Context, n int) (one, eight podsOnBoard, err error) {
	if one.pods, one.board, err = w.boundPods(ctx, "one", n); err != nil {
		return one, eight, err
	}
	var names []string
	for i := range furtherNetworks {
		names = append(names, networkName(i))
	}
	if eight.pods, eight.board, err = w.boundPods(ctx, "eight", n, names...); err != nil {
		return one, eight, err
	}
	for _, p := range eight.pods {
		record, err := eight.board.record(ctx, p.UID)
		if err != nil {
			return one, eight, err
		}
		if got := len(record.Spec.Interfaces); got != 1+furtherNetworks {
			return one, eight, fmt.Errorf("pod %s has %d interfaces; want %d", p.Name, got, 1+furtherNetworks)
		}
	}
	return one, eight, nil
}

func networkName(i int) string { return fmt.Sprintf("further-%d", i+1) }

// furtherNetworks creates networks like the default one: each a bridge of its own, with
// addresses of a pool.
func (w *testbed) furtherNetworks(ctx context.Context) error {
	if err := w.kube.Create(ctx, cluster.NetworkDefinition()); err != nil {
		return fmt.Errorf("CRD of the networks: %w", err)
	}
	objects := []client.Object{&v1alpha1.IPPool{
		ObjectMeta: metav1.ObjectMeta{Name: "further"},
		Spec:       v1alpha1.IPPoolSpec{Domain: "further", Ranges: []string{"10.200.0.0/16"}},
	}}
	for i := range furtherNetworks {
		config, err := json.Marshal(map[string]any{
			"cniVersion": "1.0.0", "type": "bridge", "bridge": fmt.Sprintf("br-%d", i+1),
			"ipam": map[string]any{"type": nad.Type, "pools": []string{"further"}},
		})
		if err != nil {
			return err
		}
		o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"config": string(config)}}}
		o.SetGroupVersionKind(nad.Kind)
		o.SetNamespace(namespace)
		o.SetName(networkName(i))
		objects = append(objects, o)
	}
	for _, o := range objects {
		if err := await(ctx, "the kind of networks", func(ctx context.Context) error { return w.kube.Create(ctx, o) }); err != nil {
			return err
		}
	}
	return nil
}
