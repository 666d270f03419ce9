package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/test/podrunner/sandbox"
)

// createAtOnce is how many pods are created at once.
const createAtOnce = 8

// podRow is one pod in the tables.
type podRow struct {
	name      string
	uid       types.UID
	node      *labNode
	netns     string
	addresses []netip.Addr
	addMS     float64
}

// runPods creates the pods, waits until all run, and prints them.
func (w *testbed) runPods(ctx context.Context) ([]podRow, error) {
	var creating errgroup.Group
	creating.SetLimit(createAtOnce)
	for i := range w.Pods {
		creating.Go(func() error {
			if err := w.Create(ctx, w.newPod(i+1)); err != nil {
				return fmt.Errorf("create pod %d: %w", i+1, err)
			}
			return nil
		})
	}
	if err := creating.Wait(); err != nil {
		return nil, err
	}
	created := time.Now()
	w.Say("created %d pods; the scheduler spreads them over the nodes", w.Pods)
	if err := w.await(ctx, "the pods", w.podsRunning); err != nil {
		return nil, errors.Join(err, w.warnings(ctx))
	}
	w.Say("all %d pods run, %.1f s after the last was created", w.Pods, time.Since(created).Seconds())
	rows, err := w.rows(ctx)
	if err != nil {
		return nil, err
	}
	return rows, w.printRunning(rows)
}

func (w *testbed) newPod(number int) *corev1.Pod {
	no := false
	labels := map[string]string{demoLabel: w.ID}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace(), Name: fmt.Sprintf("demo-%d", number), Labels: labels},
		Spec: corev1.PodSpec{
			Containers:                   []corev1.Container{{Name: "nothing", Image: "example.org/nothing"}},
			AutomountServiceAccountToken: &no,
			TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{
				MaxSkew:           1,
				TopologyKey:       corev1.LabelHostname,
				WhenUnsatisfiable: corev1.DoNotSchedule,
				LabelSelector:     &metav1.LabelSelector{MatchLabels: labels},
			}},
		},
	}
	if w.Kubeconfig != "" {
		pod.Spec.NodeSelector = labels
		pod.Spec.Tolerations = []corev1.Toleration{
			{Key: demoLabel, Value: w.ID, Effect: corev1.TaintEffectNoSchedule},
			// Every new Node has this taint, and it stays in a cluster without the node
			// lifecycle controller. The demo waits for Ready.
			{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
		}
	}
	return pod
}

func (w *testbed) podsRunning(ctx context.Context) (string, error) {
	pods := &corev1.PodList{}
	if err := w.List(ctx, pods, client.InNamespace(w.namespace())); err != nil {
		return "", err
	}
	scheduled, running := 0, 0
	for _, pod := range pods.Items {
		if pod.Spec.NodeName != "" {
			scheduled++
		}
		if pod.Status.Phase == corev1.PodRunning {
			running++
		}
	}
	if running == w.Pods {
		return "", nil
	}
	return fmt.Sprintf("%d of %d scheduled, %d running", scheduled, w.Pods, running), nil
}

// maxWarnings is how many events of a failed step are shown.
const maxWarnings = 5

// warnings returns the warning events of the pods, to explain a failure.
func (w *testbed) warnings(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), progressInterval*5)
	defer cancel()
	events := &corev1.EventList{}
	if err := w.List(ctx, events, client.InNamespace(w.namespace())); err != nil {
		return nil // the caller has a better error already
	}
	var errs []error
	for _, event := range events.Items {
		if event.Type == corev1.EventTypeWarning && len(errs) < maxWarnings {
			errs = append(errs, fmt.Errorf("  %s: %s: %s", event.InvolvedObject.Name, event.Reason, event.Message))
		}
	}
	return errors.Join(errs...)
}

// rows collects the data for the tables and the pings.
func (w *testbed) rows(ctx context.Context) ([]podRow, error) {
	boxes := map[types.UID]sandbox.Record{}
	adds := map[types.UID]float64{}
	nodes := map[string]*labNode{}
	for _, node := range w.nodes {
		nodes[node.KubeName] = node
		records, err := sandbox.Read(node.RunnerDir())
		if err != nil {
			return nil, err
		}
		for _, record := range records {
			boxes[record.UID] = record
		}
		ops, err := sandbox.ReadOps(node.RunnerDir())
		if err != nil {
			return nil, err
		}
		for _, op := range ops {
			if op.Verb == "ADD" && op.Error == "" {
				adds[op.UID] = op.MS
			}
		}
	}
	var rows []podRow
	for i := range w.Pods {
		pod := &corev1.Pod{}
		if err := w.Get(ctx, client.ObjectKey{Namespace: w.namespace(), Name: fmt.Sprintf("demo-%d", i+1)}, pod); err != nil {
			return nil, fmt.Errorf("read a pod: %w", err)
		}
		row := podRow{
			name: pod.Name, uid: pod.UID, node: nodes[pod.Spec.NodeName],
			netns: boxes[pod.UID].NetnsPath, addMS: adds[pod.UID],
		}
		for _, ip := range pod.Status.PodIPs {
			addr, err := netip.ParseAddr(ip.IP)
			if err != nil {
				return nil, fmt.Errorf("address of pod %s: %w", pod.Name, err)
			}
			row.addresses = append(row.addresses, addr)
		}
		if row.node == nil || row.netns == "" || len(row.addresses) != len(w.ranges()) {
			return nil, fmt.Errorf("pod %s runs on node %q with the namespace %q and the addresses %v; want one of our nodes, a namespace and %d addresses",
				pod.Name, pod.Spec.NodeName, row.netns, row.addresses, len(w.ranges()))
		}
		rows = append(rows, row)
	}
	return rows, nil
}

func (w *testbed) printRunning(rows []podRow) error {
	table := tabwriter.NewWriter(w.Out, 0, 8, 3, ' ', 0)
	_, _ = fmt.Fprintf(table, "\nPOD\tNODE\tADDRESSES\tADD, WAIT FOR THE RECORD INCLUDED (ms)\n")
	for _, row := range rows {
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%.1f\n", row.name, row.node.KubeName, words(row.addresses), row.addMS)
	}
	_, _ = fmt.Fprintln(table)
	return table.Flush()
}

func words(addresses []netip.Addr) string {
	var out []string
	for _, addr := range addresses {
		out = append(out, addr.String())
	}
	return strings.Join(out, ", ")
}

// removePods deletes the pods and waits until everything is released: records,
// finalizers, addresses.
func (w *testbed) removePods(ctx context.Context, rows []podRow) error {
	err := w.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(w.namespace()), client.MatchingLabels{demoLabel: w.ID})
	if err != nil {
		return fmt.Errorf("delete the pods: %w", err)
	}
	started := time.Now()
	w.Say("deleted all pods")
	if err := w.await(ctx, "everything to be given back", w.allReturned(rows)); err != nil {
		return errors.Join(err, w.warnings(ctx))
	}
	w.Say("everything is given back after %.1f s: no pod, no PodAttachment, no finalizer, no address in use", time.Since(started).Seconds())
	if err := w.printReturned(ctx, rows); err != nil {
		return err
	}
	if w.Kubeconfig == "" {
		return nil
	}
	if err := w.retireNodes(ctx); err != nil {
		return err
	}
	return w.await(ctx, "all addresses", w.poolEmpty)
}

// allReturned waits until the addresses of the pods are released. With our own control
// plane it waits for all addresses; a user's cluster may have pods of its own on our
// nodes.
func (w *testbed) allReturned(rows []podRow) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		pods, attachments, own := &corev1.PodList{}, &v1alpha1.PodAttachmentList{}, client.InNamespace(w.namespace())
		if err := errors.Join(w.List(ctx, pods, own), w.List(ctx, attachments, own)); err != nil {
			return "", err
		}
		blocks, err := w.blocks(ctx)
		if err != nil {
			return "", err
		}
		used := 0
		for _, row := range rows {
			for _, addr := range row.addresses {
				if slotState(blocks, addr) == inUse {
					used++
				}
			}
		}
		if len(pods.Items)+len(attachments.Items)+used > 0 {
			return fmt.Sprintf("%d pods, %d attachments, %d addresses in use", len(pods.Items), len(attachments.Items), used), nil
		}
		if w.Kubeconfig != "" {
			return "", nil
		}
		return w.poolEmpty(ctx)
	}
}

// poolEmpty waits until no address of the pool is in use, by its blocks and by its
// counts.
func (w *testbed) poolEmpty(ctx context.Context) (string, error) {
	pool := &v1alpha1.IPPool{}
	if err := w.Get(ctx, client.ObjectKey{Name: w.poolName()}, pool); err != nil {
		return "", err
	}
	blocks, err := w.blocks(ctx)
	if err != nil {
		return "", err
	}
	used := 0
	for _, block := range blocks {
		used += block.Used()
	}
	counted := int(pool.Status.Allocated + pool.Status.Held + pool.Status.Reserved)
	if used+counted == 0 {
		return "", nil
	}
	return fmt.Sprintf("%d addresses in use, %d by the pool's count", used, counted), nil
}

// blocks returns the blocks of the run's address domain.
func (w *testbed) blocks(ctx context.Context) ([]*ipam.Block, error) {
	list := &v1alpha1.IPBlockList{}
	if err := w.List(ctx, list, client.MatchingLabels{v1alpha1.LabelDomain: w.poolName()}); err != nil {
		return nil, fmt.Errorf("list the blocks: %w", err)
	}
	var out []*ipam.Block
	for _, item := range list.Items {
		prefix, err := netip.ParsePrefix(item.Spec.CIDR)
		if err != nil {
			return nil, fmt.Errorf("block %s: %w", item.Name, err)
		}
		out = append(out, ipam.DecodeBlock(prefix, item.Spec.Node, item.Spec.Slots))
	}
	return out, nil
}

func (w *testbed) printReturned(ctx context.Context, rows []podRow) error {
	blocks, err := w.blocks(ctx)
	if err != nil {
		return err
	}
	dels := map[types.UID]float64{}
	for _, node := range w.nodes {
		ops, err := sandbox.ReadOps(node.RunnerDir())
		if err != nil {
			return err
		}
		for _, op := range ops {
			if op.Verb == "DEL" && op.Error == "" && op.Netns != "" {
				dels[op.UID] = op.MS
			}
		}
	}
	table := tabwriter.NewWriter(w.Out, 0, 8, 3, ' ', 0)
	_, _ = fmt.Fprintf(table, "\nPOD\tNODE\tADDRESSES\tDEL (ms)\n")
	for _, row := range rows {
		var returned []string
		for _, addr := range row.addresses {
			returned = append(returned, addr.String()+" "+slotState(blocks, addr))
		}
		_, _ = fmt.Fprintf(table, "%s gone\t%s\t%s\t%.1f\n", row.name, row.node.KubeName, strings.Join(returned, ", "), dels[row.uid])
	}
	_, _ = fmt.Fprintln(table)
	return table.Flush()
}

// inUse is the state of an address that was not released.
const inUse = "IN USE"

// slotState returns the state of an address that a pod had.
func slotState(blocks []*ipam.Block, addr netip.Addr) string {
	for _, block := range blocks {
		slot, ok := block.Slot(addr)
		switch {
		case ok && slot.State == ipam.Freed:
			return "cooling"
		case ok:
			return inUse
		}
	}
	return "free"
}
