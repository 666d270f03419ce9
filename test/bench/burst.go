package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
)

const (
	burstSize = 1000
	// benchHolds is the holder of the Lease while no controller may lead.
	benchHolds = "bench"
	// holdFor is how long controllers respect the bench's Lease, in seconds.
	holdFor = 3600
)

// burst measures 1,000 pods at once.
func burst(ctx context.Context, w *testbed) (map[string]figure, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	model, err := w.allocating(ctx, "burst-model")
	if err != nil {
		return nil, err
	}
	var ours, floor samples
	rounds := w.samples(9, 2)
	for round := range rounds {
		err := inTurns(round,
			func() error {
				perSecond, err := w.burstOfPods(ctx, round)
				ours = append(ours, perSecond)
				return err
			},
			func() error {
				perSecond, err := w.burstOfCreates(ctx, model, round)
				floor = append(floor, perSecond)
				return err
			})
		if err != nil {
			return nil, fmt.Errorf("round %d: %w", round, err)
		}
		w.Say("  round %d of %d: %.0f pods/s, %.0f creates/s", round+1, rounds, ours[round], floor[round])
	}
	if err := errors.Join(w.stopController(), w.hold(ctx, "", 1)); err != nil { // the next may lead
		return nil, err
	}
	return map[string]figure{"burst1000_vs_create": {ours.overall(), floor.overall()}}, nil
}

// burstOfPods returns how many pods per second a controller served of 1,000
// that waited for it.
func (w *testbed) burstOfPods(ctx context.Context, round int) (float64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := w.standby(ctx); err != nil {
		return 0, err
	}
	err := w.abreast(burstSize, func(i int) error {
		_, err := w.kube.pod(ctx, fmt.Sprintf("burst-%d-%d", round, i), watchedNodes()[i%len(watchedNodes())])
		return err
	})
	if err != nil {
		return 0, err
	}
	b, err := w.kube.watchNodes(ctx, false, watchedNodes()...)
	if err != nil {
		return 0, err
	}
	before, err := w.records(ctx)
	if err != nil {
		return 0, err
	}
	if _, err := b.shown(ctx, before); err != nil {
		return 0, err
	}
	err = await(ctx, "the controller to have queued all pods", func(ctx context.Context) error {
		depth, err := w.queueDepth(ctx)
		if err == nil && depth < burstSize {
			err = fmt.Errorf("%d are queued", depth)
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	if err := w.collectGarbage(ctx); err != nil {
		return 0, err
	}
	start, err := w.letLead(ctx)
	if err != nil {
		return 0, err
	}
	seen, err := b.shown(ctx, before+burstSize)
	if err != nil {
		return 0, err
	}
	last := slices.MaxFunc(slices.Collect(maps.Values(seen)), time.Time.Compare)
	return burstSize / last.Sub(start).Seconds(), nil
}

// burstOfCreates returns how many objects per second the same number of clients
// create, beside a controller on standby.
func (w *testbed) burstOfCreates(ctx context.Context, model *v1alpha1.PodAttachment, round int) (float64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := w.standby(ctx); err != nil {
		return 0, err
	}
	b, err := w.kube.watchNodes(ctx, true, watchedNodes()...)
	if err != nil {
		return 0, err
	}
	before, err := w.rawRecords(ctx)
	if err != nil {
		return 0, err
	}
	if _, err := b.shown(ctx, before); err != nil {
		return 0, err
	}
	if err := w.collectGarbage(ctx); err != nil {
		return 0, err
	}
	start := time.Now()
	err = w.abreast(burstSize, func(i int) error {
		// The numbers are higher than those of the other measurement's objects.
		return w.kube.Create(ctx, rawLike(model, 10_000_000+round*burstSize+i))
	})
	if err != nil {
		return 0, err
	}
	seen, err := b.shown(ctx, before+burstSize)
	if err != nil {
		return 0, err
	}
	last := slices.MaxFunc(slices.Collect(maps.Values(seen)), time.Time.Compare)
	return burstSize / last.Sub(start).Seconds(), nil
}

// abreast does n things with as many clients as the controller has writes in progress at
// once.
func (w *testbed) abreast(n int, do func(i int) error) error { return atOnce(workers(), n, do) }

// atOnce does n things with the given number of clients.
func atOnce(clients, n int, do func(i int) error) error {
	next := make(chan int, n)
	for i := range n {
		next <- i
	}
	close(next)
	errs := make([]error, n)
	var running sync.WaitGroup
	for range clients {
		running.Go(func() {
			for i := range next {
				errs[i] = do(i)
			}
		})
	}
	running.Wait()
	return firstOf(errs)
}

// records returns how many records there are on the watched nodes.
func (w *testbed) records(ctx context.Context) (int, error) {
	n := 0
	for _, node := range watchedNodes() {
		list := &v1alpha1.PodAttachmentList{}
		if err := w.kube.List(ctx, list, client.MatchingFields{"spec.nodeName": node}); err != nil {
			return 0, err
		}
		n += len(list.Items)
	}
	return n, nil
}

func (w *testbed) rawRecords(ctx context.Context) (int, error) {
	list := &rawAttachmentList{}
	err := w.kube.List(ctx, list)
	return len(list.Items), err
}

// standby starts a controller that may not lead: the bench holds the Lease.
func (w *testbed) standby(ctx context.Context) error {
	if err := w.stopController(); err != nil { // it gives the Lease back
		return err
	}
	if err := w.hold(ctx, benchHolds, holdFor); err != nil {
		return err
	}
	return w.startController(ctx, w.kube.path)
}

// hold writes the holder of the Lease, and for how many seconds.
func (w *testbed) hold(ctx context.Context, who string, seconds int32) error {
	lease, err := w.kube.lease(ctx)
	missing := apierrors.IsNotFound(err)
	if err != nil && !missing {
		return err
	}
	now := metav1.NowMicro()
	lease.Namespace, lease.Name = namespace, leaseName
	lease.Spec = coordinationv1.LeaseSpec{HolderIdentity: &who, LeaseDurationSeconds: &seconds, AcquireTime: &now, RenewTime: &now}
	if missing {
		return w.kube.Create(ctx, lease)
	}
	return w.kube.Update(ctx, lease)
}

// letLead gives the Lease up, and returns the time at which a watch showed the controller
// as its holder.
func (w *testbed) letLead(ctx context.Context) (time.Time, error) {
	watch, err := w.kube.Watch(ctx, &coordinationv1.LeaseList{}, client.InNamespace(namespace), client.MatchingFields{"metadata.name": leaseName})
	if err != nil {
		return time.Time{}, err
	}
	defer watch.Stop()
	if err := w.hold(ctx, "", 1); err != nil {
		return time.Time{}, err
	}
	for event := range watch.ResultChan() {
		lease, ok := event.Object.(*coordinationv1.Lease)
		if ok && holder(lease) != "" && holder(lease) != benchHolds {
			return time.Now(), nil
		}
	}
	return time.Time{}, errors.New("the watch of the Lease ended")
}

// queueDepth returns how many pods wait in the controller's queue, by its metrics.
func (w *testbed) queueDepth(ctx context.Context) (int, error) {
	return w.sum(ctx, isQueued)
}

// isQueued reports whether a line of the metrics counts pods in the queue, or those that workers have taken
// from it: on standby they wait there for the lead.
func isQueued(line string) bool {
	return (strings.HasPrefix(line, "workqueue_depth{") || strings.HasPrefix(line, "controller_runtime_active_workers{")) &&
		strings.Contains(line, `controller="attachments"`)
}

// sum adds up the lines of the controller's metrics that wanted accepts.
func (w *testbed) sum(ctx context.Context, wanted func(line string) bool) (int, error) {
	text, err := w.health.get(ctx, "/metrics")
	if err != nil {
		return 0, err
	}
	sum := 0
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		line := lines.Text()
		if !wanted(line) {
			continue
		}
		value, err := strconv.ParseFloat(line[strings.LastIndex(line, " ")+1:], 64)
		if err != nil {
			return 0, fmt.Errorf("metric %q: %w", line, err)
		}
		sum += int(value)
	}
	return sum, lines.Err()
}
