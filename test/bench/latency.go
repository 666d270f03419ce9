package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// podRate is how many pods are bound in a second. quietRate is a rate at which the API
// server is not busy: on a machine with few processors podRate is near to its limit.
const (
	podRate   = 100
	quietRate = 25
)

// latencyRun creates bound pods, and objects of the baseline, at a steady rate.
type latencyRun struct {
	w           *testbed
	board, raw  *board
	model       *v1alpha1.PodAttachment // the record that objects of the baseline equal
	turn        int
	ours, floor samples // of this turn, in milliseconds
}

// boundToRecord measures the time until the node sees a pod's record.
func boundToRecord(ctx context.Context, w *testbed) (map[string]figure, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l := &latencyRun{w: w}
	var err error
	if l.model, err = w.allocating(ctx, "latency-model"); err != nil {
		return nil, err
	}
	if l.board, err = w.kube.watchNodes(ctx, false, watchedNodes()...); err != nil {
		return nil, err
	}
	if l.raw, err = w.kube.watchNodes(ctx, true, watchedNodes()...); err != nil {
		return nil, err
	}
	// One second of warm-up.
	if err := errors.Join(l.bind(ctx, podRate, podRate), l.create(ctx, podRate, podRate)); err != nil {
		return nil, err
	}
	figures := map[string]figure{}
	err = errors.Join(
		l.at(ctx, podRate, w.samples(7, 3), w.samples(4, 1), "bound_to_record_%s", figures),
		l.at(ctx, quietRate, w.samples(5, 1), w.samples(4, 2), "bound_to_record_quiet_%s", figures))
	return figures, err
}

// at measures at a rate, in turns of some seconds.
func (l *latencyRun) at(ctx context.Context, rate, turns, seconds int, name string, figures map[string]figure) error {
	var ours50, ours99, floor50, floor99 samples
	for turn := range turns {
		l.turn++
		l.ours, l.floor = nil, nil
		if err := l.w.collectGarbage(ctx); err != nil {
			return err
		}
		err := inTurns(turn,
			func() error { return l.bind(ctx, rate, seconds*rate) },
			func() error { return l.create(ctx, rate, seconds*rate) })
		if err != nil {
			return err
		}
		ours50, ours99 = append(ours50, l.ours.median()), append(ours99, l.ours.percentile(99))
		floor50, floor99 = append(floor50, l.floor.median()), append(floor99, l.floor.percentile(99))
		l.w.Say("  %d per second, turn %d of %d: %d pods: p50 %.1f ms, p90 %.1f, p99 %.1f; create to watch: p50 %.1f, p90 %.1f, p99 %.1f", rate, turn+1, turns, len(l.ours),
			ours50[turn], l.ours.percentile(90), ours99[turn], floor50[turn], l.floor.percentile(90), floor99[turn])
	}
	figures[fmt.Sprintf(name, "p50")] = figure{ours50.median(), floor50.median()}
	figures[fmt.Sprintf(name, "p99")] = figure{ours99.median(), floor99.median()}
	return nil
}

// allocating makes a controller lead, stops the daemon, and gives every watched node a
// pod and a block. It returns the record of one of these pods.
func (w *testbed) allocating(ctx context.Context, prefix string) (*v1alpha1.PodAttachment, error) {
	if err := w.cluster(ctx); err != nil {
		return nil, err
	}
	if err := w.stopNode(); err != nil {
		return nil, err
	}
	if err := w.controller(ctx, false); err != nil {
		return nil, err
	}
	return w.modelRecord(ctx, prefix)
}

// modelRecord returns the record of a new pod on the first of the watched nodes. Every
// node has a pod and a block by then.
func (w *testbed) modelRecord(ctx context.Context, prefix string) (*v1alpha1.PodAttachment, error) {
	var model *v1alpha1.PodAttachment
	for i, node := range watchedNodes() {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		b, err := w.kube.watchNodes(ctx, false, node)
		if err != nil {
			return nil, err
		}
		pod, err := w.kube.pod(ctx, fmt.Sprintf("%s-%d", prefix, i), node)
		if err != nil {
			return nil, err
		}
		if model, err = b.record(ctx, pod.UID); err != nil {
			return nil, err
		}
	}
	return model, nil
}

// rawLike returns an object that equals a record, of a pod that does not exist.
func rawLike(model *v1alpha1.PodAttachment, i int) *rawAttachment {
	raw := &rawAttachment{v1alpha1.PodAttachment{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: model.Namespace, Finalizers: model.Finalizers, OwnerReferences: model.OwnerReferences,
		},
		Spec: *model.Spec.DeepCopy(),
	}}
	tag := fmt.Sprintf("%08x", i)
	raw.Name = model.Name[:strings.LastIndex(model.Name, "-")+1] + tag
	raw.Spec.PodUID = types.UID(tag + string(model.Spec.PodUID)[len(tag):])
	raw.Spec.NodeName = watchedNodes()[i%len(watchedNodes())]
	return raw
}

// steadily does n things at a rate per second, without waiting for one thing before the
// next.
func steadily(rate, n int, do func(i int) error) error {
	var (
		running sync.WaitGroup
		errs    = make([]error, n)
		ticker  = time.NewTicker(time.Second / time.Duration(rate))
	)
	defer ticker.Stop()
	for i := range n {
		<-ticker.C
		running.Go(func() { errs[i] = do(i) })
	}
	running.Wait()
	return firstOf(errs)
}

// bind creates pods that are bound, and waits for their records.
func (l *latencyRun) bind(ctx context.Context, rate, n int) error {
	uids, replied := make([]types.UID, n), make([]time.Time, n)
	before := len(l.board.firstSeen())
	err := steadily(rate, n, func(i int) error {
		pod, err := l.w.kube.pod(ctx, fmt.Sprintf("latency-%d-%d", l.turn, i), watchedNodes()[i%len(watchedNodes())])
		if err == nil {
			uids[i], replied[i] = pod.UID, time.Now()
		}
		return err
	})
	if err != nil {
		return err
	}
	seen, err := l.board.shown(ctx, before+n)
	for i, uid := range uids {
		l.ours.addTime(seen[uid].Sub(replied[i]))
	}
	return err
}

// create creates objects of the baseline, and waits for them.
func (l *latencyRun) create(ctx context.Context, rate, n int) error {
	uids, called := make([]types.UID, n), make([]time.Time, n)
	before := len(l.raw.firstSeen())
	err := steadily(rate, n, func(i int) error {
		raw := rawLike(l.model, l.turn*100_000+i)
		uids[i], called[i] = raw.Spec.PodUID, time.Now()
		return l.w.kube.Create(ctx, raw)
	})
	if err != nil {
		return err
	}
	seen, err := l.raw.shown(ctx, before+n)
	for i, uid := range uids {
		l.floor.addTime(seen[uid].Sub(called[i]))
	}
	return err
}

// shown waits until n records were shown, and returns when each was.
func (b *board) shown(ctx context.Context, n int) (map[types.UID]time.Time, error) {
	err := b.until(ctx, fmt.Sprintf("%d records", n), func(records map[types.UID]*shownRecord) bool { return len(records) >= n })
	return b.firstSeen(), err
}
