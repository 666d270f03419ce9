package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/nad"
	"fairlead.dev/fairlead/test/cluster"
	"fairlead.dev/fairlead/test/netlab"
)

// furtherNetworks is how many networks a pod of eight interfaces has beside the default
// one.
const furtherNetworks = 7

// referenceEvery is after how many rounds the reference plugins have a turn: their ADDs
// and DELs take long.
const referenceEvery = 3

// severalRun has the pods of one, four and eight interfaces, and their counterparts.
type severalRun struct {
	c         *comparison
	reference *netlab.Namespace // the host of the reference plugins
	sizes     []*podsOfSize
}

// podsOfSize are pods with a number of interfaces, and the times of their ADDs.
type podsOfSize struct {
	interfaces int
	podsOnBoard
	ours, theirs sandbox
	// adds are the times of our ADDs, referenceAdds of as many ADDs of the reference
	// plugins, one after the other.
	adds, referenceAdds samples
}

// severalInterfaces measures one ADD of one, four and eight interfaces: eight against eight
// times one, and each against the reference plugins, executed once for each interface.
func severalInterfaces(ctx context.Context, w *testbed) (figures map[string]figure, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done, err := w.attaching(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, done()) }()
	const warmUp = 4
	rounds := w.samples(120, 12)
	r := &severalRun{c: &comparison{w: w}}
	defer r.close()
	if err := r.prepare(ctx, warmUp+rounds); err != nil {
		return nil, err
	}
	for round := range warmUp + rounds {
		if round == warmUp { // the first pods make the bridges
			for _, p := range r.sizes {
				p.adds, p.referenceAdds = nil, nil
			}
		}
		if err := r.round(ctx, round); err != nil {
			return nil, fmt.Errorf("round %d: %w", round, err)
		}
	}
	figures = map[string]figure{}
	for _, p := range r.sizes {
		w.Say("  medians: ADD of %d interfaces %.2f ms (of %d), the reference plugins' %.2f ms (of %d)",
			p.interfaces, p.adds.median(), len(p.adds), p.referenceAdds.median(), len(p.referenceAdds))
		figures[fmt.Sprintf("add_%d_vs_reference", p.interfaces)] = figure{p.adds.median(), p.referenceAdds.median()}
	}
	one, eight := r.sizes[0], r.sizes[len(r.sizes)-1]
	figures["add_8_vs_single"] = figure{eight.adds.median(), 8 * one.adds.median()}
	return figures, nil
}

// attaching makes networks for pods of several interfaces, if there are none, and replaces
// the controller by one that attaches pods to them. done ends it: other measurements have
// a controller without networks.
func (w *testbed) attaching(ctx context.Context) (done func() error, err error) {
	if err := w.cluster(ctx); err != nil {
		return nil, err
	}
	if err := w.furtherNetworks(ctx); err != nil {
		return nil, err
	}
	if err := w.stopController(); err != nil {
		return nil, err
	}
	w.attaches = true
	done = func() error {
		w.attaches = false
		return w.stopController()
	}
	if err := w.serving(ctx); err != nil {
		return nil, errors.Join(err, done())
	}
	return done, nil
}

// prepare creates pods of each size for n rounds.
func (r *severalRun) prepare(ctx context.Context, n int) (err error) {
	w := r.c.w
	if r.c.config, err = w.pluginConfig(); err != nil {
		return err
	}
	if r.reference, err = netlab.NewNamespace(); err != nil {
		return err
	}
	for _, interfaces := range []int{1, 4, 1 + furtherNetworks} {
		p := &podsOfSize{interfaces: interfaces}
		r.sizes = append(r.sizes, p)
		if p.podsOnBoard, err = w.podsOf(ctx, fmt.Sprintf("of-%d", interfaces), n, interfaces); err != nil {
			return err
		}
		boxes, _, err := newSandboxes(2)
		if err != nil {
			return err
		}
		p.ours, p.theirs = boxes[0], boxes[1]
	}
	return nil
}

func (r *severalRun) close() {
	if r.reference != nil {
		r.reference.Close()
	}
	for _, p := range r.sizes {
		for _, s := range []sandbox{p.ours, p.theirs} {
			if s.Namespace != nil {
				s.Close()
			}
		}
	}
}

// round plugs a sandbox of each size once and unplugs it again.
func (r *severalRun) round(ctx context.Context, round int) error {
	var turns []func() error
	var all []plugging
	for _, p := range r.sizes {
		call := r.c.ourExecution(cniCall{
			containerID: containerID(fmt.Sprintf("of-%d", p.interfaces), round), sandbox: p.ours, pod: p.pods[round],
		})
		all = append(all, call)
		turns = append(turns, func() error { return p.addAlone(ctx, call, &p.adds) })
		if round%referenceEvery == 0 {
			turns = append(turns, func() error { return r.addReference(ctx, p, round) })
		}
	}
	if err := inTurns(round, turns...); err != nil {
		return err
	}
	return r.c.w.delAll(ctx, all...)
}

// addReference plugs a sandbox with the reference plugins, an interface after the other as
// Multus does, and unplugs it again. The time is that of all ADDs, without Multus' own.
func (r *severalRun) addReference(ctx context.Context, p *podsOfSize, round int) error {
	calls := make([]plugging, p.interfaces)
	for i := range calls {
		config, err := r.c.w.refConfig(fmt.Sprintf("several-%d", i), i, false)
		if err != nil {
			return err
		}
		calls[i] = r.c.refExecution(r.reference, config, cniCall{
			containerID: containerID(fmt.Sprintf("reference-%d", p.interfaces), round), sandbox: p.theirs, ifName: interfaceName(i),
		})
	}
	var single samples
	start := time.Now()
	for _, call := range calls {
		if err := call.exec(ctx, "ADD", &single); err != nil {
			return err
		}
	}
	p.referenceAdds.addTime(time.Since(start))
	for _, call := range calls {
		if err := call.exec(ctx, "DEL", &single); err != nil {
			return err
		}
	}
	return nil
}

// interfaceName is the name of the i-th interface of a pod, as Multus chooses it.
func interfaceName(i int) string {
	if i == 0 {
		return "eth0"
	}
	return fmt.Sprintf("net%d", i)
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

// delAll unplugs sandboxes, and waits until nothing of them is left.
func (w *testbed) delAll(ctx context.Context, calls ...plugging) error {
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

// podsOf creates n pods with a number of interfaces on the real node, and waits for their
// records.
func (w *testbed) podsOf(ctx context.Context, prefix string, n, interfaces int) (p podsOnBoard, err error) {
	var names []string
	for i := range interfaces - 1 {
		names = append(names, networkName(i))
	}
	if p.pods, p.board, err = w.boundPods(ctx, prefix, n, names...); err != nil {
		return p, err
	}
	for _, pod := range p.pods {
		record, err := p.board.record(ctx, pod.UID)
		if err != nil {
			return p, err
		}
		if got := len(record.Spec.Interfaces); got != interfaces {
			return p, fmt.Errorf("pod %s has %d interfaces; want %d", pod.Name, got, interfaces)
		}
	}
	return p, nil
}

func networkName(i int) string { return fmt.Sprintf("further-%d", i+1) }

// furtherNetworks creates networks like the default one, if there are none: each a bridge
// of its own, with addresses of a pool.
func (w *testbed) furtherNetworks(ctx context.Context) error {
	if w.networks {
		return nil
	}
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
	w.networks = true
	return nil
}
