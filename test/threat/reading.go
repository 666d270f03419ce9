package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/test/netlab"
)

// readAttacks try to read data of others.
func readAttacks() []attack {
	out := []attack{
		{id: "learn-holder", by: byTenant, tries: "events of a pod that asks for the victim's address name its holder", do: asUser(tenant, learnHolder)},
		{
			id: "metrics-from-a-pod", by: byTenant, tries: "a pod reads the metrics of its node, of the other node and of the controller",
			do: func(ctx context.Context, w *testbed) (effect, error) {
				pod, ns, err := w.attackersPod(ctx, 0)
				if err != nil {
					return effect{}, err
				}
				out := w.readMetrics(ctx, ns)
				return out, errors.Join(ns.Close(), w.remove(ctx, pod))
			},
		},
		{
			id: "metrics-from-outside", by: "outsider", tries: "a machine on the nodes' link reads the metrics of nodes and controller",
			do: func(ctx context.Context, w *testbed) (effect, error) { return w.readMetrics(ctx, w.outsider), nil },
		},
		{id: "memory", by: byTenant, tries: "150 pods with 250 kB of annotations each fill the controller's memory", do: asUser(tenant, fillMemory)},
	}
	for _, what := range slices.Sorted(maps.Keys(kinds())) {
		list := kinds()[what]
		out = append(out, attack{
			id: "read-" + what, by: byTenant, tries: "reads the " + what + " of the cluster",
			do: asUser(tenant, func(ctx context.Context, _ *testbed, api client.Client) (effect, error) {
				return mustBeRefused(api.List(ctx, list))
			}),
		})
	}
	return out
}

// kinds returns the kinds that no tenant may read or write.
func kinds() map[string]client.ObjectList {
	return map[string]client.ObjectList{
		"records": &v1alpha1.PodAttachmentList{}, "blocks": &v1alpha1.IPBlockList{}, "pools": &v1alpha1.IPPoolList{}, "nodes": &v1alpha1.NodeNetworkList{},
	}
}

func learnHolder(ctx context.Context, w *testbed, api client.Client) (effect, error) {
	pod := newPod(tenant, "curious", w.nodes[0].Name, map[string]string{v1alpha1.AnnotationAddresses: dbAddress(w)})
	f, err := w.try(ctx, api, pod)
	if err != nil {
		return effect{}, err
	}
	db := w.victims.db
	lockDelay := contains(f.note, string(db.UID), victim+"/", "node "+db.node.Name)
	return effect{lockDelay, f.String()}, w.remove(ctx, pod)
}

// attackersPod starts a pod of the tenant on a node.
func (w *testbed) attackersPod(ctx context.Context, nodeNumber int) (*corev1.Pod, *netlab.Namespace, error) {
	n := w.nodes[nodeNumber]
	pod := newPod(tenant, "evil", n.Name, nil)
	if err := w.Create(ctx, pod); err != nil {
		return nil, nil, err
	}
	ns, err := w.running(ctx, pod, n)
	return pod, ns, err
}

// readMetrics asks for the metrics of both programs from a network namespace.
func (w *testbed) readMetrics(ctx context.Context, ns *netlab.Namespace) effect {
	var got []string
	for _, target := range []string{
		net.JoinHostPort(w.nodes[0].V4.Addr().String(), "9471"), net.JoinHostPort(w.nodes[1].V4.Addr().String(), "9471"),
		net.JoinHostPort(w.nodes[0].V6.Addr().String(), "9471"), net.JoinHostPort(w.Net.Switch.V4.Addr().String(), "9470"),
	} {
		text, err := scrape(ctx, ns, target)
		if err == nil && strings.Contains(text, "fairlead_") {
			got = append(got, target)
		}
	}
	if len(got) > 0 {
		return effect{true, "reads those at " + strings.Join(got, ", ")}
	}
	return effect{false, "no connection"}
}

// scrape reads metrics from within a network namespace.
func scrape(ctx context.Context, ns *netlab.Namespace, target string) (string, error) {
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
			err = ns.Do(func() error {
				conn, err = (&net.Dialer{}).DialContext(ctx, network, addr)
				return err
			})
			return conn, err
		},
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+target+"/metrics", nil)
	if err != nil {
		return "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	raw, err := io.ReadAll(response.Body)
	return string(raw), err
}

// controllersMetrics reads the controller's metrics as an operator can, on the
// controller's machine.
func (w *testbed) controllersMetrics(ctx context.Context) (string, error) {
	text, err := scrape(ctx, w.Net.Switch.Namespace, "127.0.0.1:9470")
	if err != nil {
		return "", fmt.Errorf("the controller's metrics: %w", err)
	}
	return text, nil
}

func gauge(metrics, name string) (float64, error) {
	for line := range strings.Lines(metrics) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, fmt.Errorf("no metric %s", name)
}

// fillMemory creates pods that are never run. It measures the memory that the controller
// keeps: the lowest heap while more pods make it collect its garbage.
func fillMemory(ctx context.Context, w *testbed, api client.Client) (effect, error) {
	const count, size, half = 150, 250 << 10, 150 * 250 << 10 / 2
	low := func() (float64, error) {
		lowest := 0.0
		for i := range 20 {
			pod := newPod(tenant, fmt.Sprintf("small-%d", i), "", nil)
			pod.Spec.SchedulerName = "nobody"
			pod.Annotations = map[string]string{"fairlead.dev/garbage": strings.Repeat("y", 250<<10)}
			if err := errors.Join(api.Create(ctx, pod), api.Delete(ctx, pod, client.GracePeriodSeconds(0))); err != nil {
				return 0, err
			}
			text, err := w.controllersMetrics(ctx)
			if err != nil {
				return 0, err
			}
			now, err := gauge(text, "go_memstats_heap_alloc_bytes")
			if err != nil {
				return 0, err
			}
			if lowest == 0 || now < lowest {
				lowest = now
			}
		}
		return lowest, nil
	}
	before, err := low()
	if err != nil {
		return effect{}, err
	}
	for i := range count {
		pod := newPod(tenant, fmt.Sprintf("fat-%d", i), "", map[string]string{"fairlead.dev/anything": strings.Repeat("x", size)})
		pod.Spec.SchedulerName = "nobody"
		if err := api.Create(ctx, pod); err != nil {
			return effect{}, err
		}
	}
	after, err := low()
	if err != nil {
		return effect{}, err
	}
	grown := after - before
	if err := w.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(tenant), client.GracePeriodSeconds(0)); err != nil {
		return effect{}, err
	}
	return effect{grown > half, fmt.Sprintf("the controller's heap grew by %.0f MB of %d", grown/1e6, count*size/1000/1000)}, nil
}

// writeAttacks are writes that the tenant has no right to make.
func writeAttacks() []attack {
	in := func(do func(ctx context.Context, w *testbed, api client.Client) error) func(ctx context.Context, w *testbed) (effect, error) {
		return asUser(tenant, func(ctx context.Context, w *testbed, api client.Client) (effect, error) {
			return mustBeRefused(do(ctx, w, api))
		})
	}
	return []attack{
		{id: "write-record", by: byTenant, tries: "creates a PodAttachment with the victim's address for her own pod", do: in(writeRecord)},
		{
			id: "write-status", by: byTenant, tries: "writes Detached into the victim's PodAttachment",
			do: in(func(ctx context.Context, w *testbed, api client.Client) error {
				return w.writeDetached(ctx, api, w.victims.db)
			}),
		},
		{
			id: "write-pool", by: byTenant, tries: "creates a pool of the victim's addresses",
			do: in(func(ctx context.Context, _ *testbed, api client.Client) error {
				return api.Create(ctx, &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "hers"}, Spec: v1alpha1.IPPoolSpec{Ranges: []string{"10.244.0.0/16"}}})
			}),
		},
		{
			id: "delete-block", by: byTenant, tries: "deletes the victim's IPBlock",
			do: in(func(ctx context.Context, w *testbed, api client.Client) error {
				blocks, err := w.blocks(ctx)
				if err != nil {
					return err
				}
				return api.Delete(ctx, &blocks[0])
			}),
		},
		{
			id: "write-node", by: byTenant, tries: "adds a block to a node's NodeNetwork",
			do: in(func(ctx context.Context, w *testbed, api client.Client) error {
				return api.Patch(ctx, &v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: w.nodes[0].Name}},
					client.RawPatch(types.MergePatchType, []byte(`{"spec":{"blocks":["10.244.0.0/26"]}}`)))
			}),
		},
	}
}

func writeRecord(ctx context.Context, w *testbed, api client.Client) error {
	record, err := w.recordOf(ctx, w.victims.db.Pod)
	if err != nil {
		return err
	}
	hers := &v1alpha1.PodAttachment{ObjectMeta: metav1.ObjectMeta{Namespace: tenant, Name: "forged"}, Spec: *record.Spec.DeepCopy()}
	hers.Spec.PodName, hers.Spec.PodUID = "forged", "11111111-2222-3333-4444-555555555555"
	return api.Create(ctx, hers)
}

// writeDetached writes into the record of a victim's pod that its sandbox is Detached.
func (w *testbed) writeDetached(ctx context.Context, api client.Client, p *victimPod) error {
	record, err := w.recordOf(ctx, p.Pod)
	if err != nil {
		return err
	}
	if record == nil {
		return fmt.Errorf("pod %s has no record", p.Name)
	}
	patch := `{"status":{"sandbox":{"state":"Detached"}}}`
	return api.SubResource("status").Patch(ctx, record, client.RawPatch(types.MergePatchType, []byte(patch)))
}
