package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
)

const (
	// largeSize is how many pods the large cluster has.
	largeSize = 50_000
	// podsPerNode is how many pods each node of the large cluster has.
	podsPerNode = 100
	// fillers are the clients that fill the cluster: few enough for the
	// controller to keep its Lease meanwhile.
	fillers = 16
	// page is how many objects are listed at once.
	page = 5000
)

// large measures a controller in a large cluster.
func large(ctx context.Context, w *testbed) (map[string]figure, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := errors.Join(w.machines(ctx), w.stop()); err != nil {
		return nil, err
	}
	l := &largeRun{testbed: &testbed{plan: w.plan, Reporter: w.Reporter, processes: w.processes, lab: w.lab, keepsLease: true}}
	if err := l.prepare(ctx, largeSize); err != nil {
		return nil, err
	}
	var starts, lists samples
	for round := range 5 {
		err := inTurns(round,
			func() error {
				took, err := l.start(ctx, fmt.Sprintf("new-%d", round))
				starts = append(starts, took.Seconds())
				return err
			},
			func() error {
				took, err := l.list(ctx)
				lists = append(lists, took.Seconds())
				return err
			})
		if err != nil {
			return nil, fmt.Errorf("round %d: %w", round, err)
		}
	}
	// The last round may have ended with a list, and the controller is not idle after
	// that.
	if _, err := l.start(ctx, "last"); err != nil {
		return nil, err
	}
	rss, err := l.idle(ctx)
	if err != nil {
		return nil, err
	}
	return map[string]figure{
		"controller_start_50k_s": {starts.median(), lists.median()},
		"controller_rss_50k_mb":  {rss, 300},
	}, l.stop()
}

// largeRun is a testbed with a cluster of its own, which is not slowed down by a disk.
type largeRun struct{ *testbed }

// prepare fills the cluster: with pods, which the controller gives addresses, and with
// the status that their nodes write after plugging.
func (l *largeRun) prepare(ctx context.Context, n int) error {
	nodes := n / podsPerNode
	kubeconfig, err := l.startKubernetes(ctx, "kubelab-large", nodes)
	if err != nil {
		return err
	}
	if l.kube, err = connect(kubeconfig); err != nil {
		return err
	}
	if err := l.kube.install(ctx); err != nil {
		return err
	}
	if err := l.controller(ctx, false); err != nil {
		return err
	}
	l.Say("  making %d pods on %d nodes", n, nodes)
	err = atOnce(fillers, n, func(i int) error {
		_, err := l.kube.pod(ctx, fmt.Sprintf("large-6d4cf56db6-%05d", i), fmt.Sprintf("node-%d", i%nodes+1))
		return err
	})
	if err != nil {
		return err
	}
	if err := l.until(ctx, 5*stepTimeout, func() (bool, error) { return l.recorded(ctx, n) }); err != nil {
		return err
	}
	l.Say("  plugging them")
	return l.plug(ctx)
}

// until waits until look returns true.
func (l *largeRun) until(ctx context.Context, limit time.Duration, look func() (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("the controller is not done within %v", limit))
	defer cancel()
	// The interval is long, because counting takes the machine's time.
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		if done, err := look(); done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
		}
	}
}

// allSeen reports whether the controller has processed all pods.
func (l *largeRun) allSeen(ctx context.Context) (bool, error) {
	left, err := l.sum(ctx, func(line string) bool {
		return isQueued(line) || strings.HasPrefix(line, "fairlead_controller_waiting_pods ")
	})
	return left == 0, err
}

// recorded reports whether there are n records.
func (l *largeRun) recorded(ctx context.Context, n int) (bool, error) {
	if done, err := l.allSeen(ctx); !done || err != nil {
		return false, err
	}
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("PodAttachmentList"))
	if err := l.kube.List(ctx, list, client.Limit(1)); err != nil {
		return false, err
	}
	count := len(list.Items)
	if more := list.RemainingItemCount; more != nil {
		count += int(*more)
	}
	return count == n, nil
}

// plug writes the status into each record that its node writes after an ADD.
func (l *largeRun) plug(ctx context.Context) error {
	list, next := &v1alpha1.PodAttachmentList{}, ""
	for first := true; first || next != ""; first = false {
		if err := l.page(ctx, list, next); err != nil {
			return err
		}
		next = list.Continue
		err := atOnce(fillers, len(list.Items), func(i int) error {
			record := &list.Items[i]
			before, at := record.DeepCopy(), metav1.NowMicro()
			id := strings.Repeat("0123456789abcdef", 4)
			record.Status.Sandbox = &v1alpha1.Sandbox{ID: id, BootID: string(record.UID), State: v1alpha1.SandboxAttached, AttachedAt: &at}
			for _, t := range []string{v1alpha1.ConditionAttached, v1alpha1.ConditionReady} {
				meta.SetStatusCondition(&record.Status.Conditions, metav1.Condition{
					Type: t, Status: metav1.ConditionTrue, Reason: "Plugged", Message: "plugged in the sandbox that status.sandbox names", ObservedGeneration: record.Generation,
				})
			}
			return l.kube.Status().Patch(ctx, record, client.MergeFrom(before))
		})
		if err != nil {
			return fmt.Errorf("write status of records: %w", err)
		}
	}
	return nil
}

// start replaces the running controller, which has given up the Lease, by a new one. It
// returns the time until a waiting pod had its record. It prints the time until the
// controller led and until it had processed all other pods.
func (l *largeRun) start(ctx context.Context, pod string) (time.Duration, error) {
	if err := l.stopController(); err != nil {
		return 0, err
	}
	const node = "node-1"
	p, err := l.kube.pod(ctx, pod, node)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	b, err := l.kube.watchNodes(ctx, false, node)
	if err != nil {
		return 0, err
	}
	start := time.Now()
	if err := l.controller(ctx, false); err != nil {
		return 0, err
	}
	leads := time.Since(start)
	if _, err := b.record(ctx, p.UID); err != nil {
		return 0, err
	}
	served := time.Since(start)
	err = l.until(ctx, stepTimeout, func() (bool, error) { return l.allSeen(ctx) })
	l.Say("  leads after %.2f s, a pod that waited has its record after %.2f, all pods are looked at after %.2f",
		leads.Seconds(), served.Seconds(), time.Since(start).Seconds())
	return served, err
}

// page lists records from the end of the last page. On a slow machine a page may take
// longer than the API server keeps the whole list. The server then returns a token for
// the present objects, which are the same here.
func (l *largeRun) page(ctx context.Context, list *v1alpha1.PodAttachmentList, next string) error {
	err := l.kube.List(ctx, list, client.Limit(page), client.Continue(next))
	if status := apierrors.APIStatus(nil); apierrors.IsResourceExpired(err) && errors.As(err, &status) && status.Status().Continue != "" {
		return l.kube.List(ctx, list, client.Limit(page), client.Continue(status.Status().Continue))
	}
	return err
}

// list returns how long it takes to list the objects that the controller keeps, without
// keeping them.
func (l *largeRun) list(ctx context.Context) (time.Duration, error) {
	lists := []client.ObjectList{&corev1.PodList{}, &v1alpha1.PodAttachmentList{}, &v1alpha1.IPBlockList{}}
	start := time.Now()
	errs := make(chan error, len(lists))
	for _, list := range lists {
		go func() { errs <- l.kube.List(ctx, list) }()
	}
	var all []error
	for range lists {
		all = append(all, <-errs)
	}
	return time.Since(start), errors.Join(all...)
}

// idle waits until the controller's memory shrinks no more, and returns its size in MB.
func (l *largeRun) idle(ctx context.Context) (float64, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 10*stepTimeout, errors.New("its memory keeps shrinking"))
	defer cancel()
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	var rss, peak float64
	// The wait is 130 seconds, because the controller gives memory back every two
	// minutes.
	for quiet := 0; quiet < 130; quiet++ {
		now, most, err := memory(l.controlled.Cmd.Process.Pid)
		if err != nil {
			return 0, err
		}
		if rss == 0 || now < rss*0.99 {
			rss, quiet = now, 0
		}
		peak = most
		select {
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		case <-ticker.C:
		}
	}
	l.Say("  memory of the controller: %.0f MB, %.0f at its most", rss, peak)
	return rss, nil
}
