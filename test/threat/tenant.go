package main

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/ipam"
)

const byTenant = "tenant"

// asking returns a pod of the tenant with an annotation, on the first node.
func asking(name, annotation string, value func(w *testbed) string) func(w *testbed) *corev1.Pod {
	return func(w *testbed) *corev1.Pod {
		return newPod(tenant, name, w.nodes[0].Name, map[string]string{annotation: value(w)})
	}
}

func dbAddress(w *testbed) string { return w.victims.db.addresses[0].String() }

func hasDB(w *testbed, f podResult) bool { return f.has(w.victims.db.addresses[0]) }

func inRange(prefix string) func(*testbed, podResult) bool {
	p := netip.MustParsePrefix(prefix)
	return func(_ *testbed, f podResult) bool {
		if f.record == nil {
			return false
		}
		for _, i := range f.record.Spec.Interfaces {
			for _, text := range i.Addresses {
				if addr, err := netip.ParsePrefix(text); err == nil && p.Contains(addr.Addr()) {
					return true
				}
			}
		}
		return false
	}
}

// addressAttacks try to get addresses of others, or too many.
func addressAttacks() []attack {
	return []attack{
		{
			id: "address-of-another", by: byTenant, tries: "a pod asks for the victim's address by annotation",
			do: podTries(asking("wants", v1alpha1.AnnotationAddresses, dbAddress), hasDB),
		},
		{
			id: "mirror-uid", by: byTenant, tries: "a pod with the victim's UID as its config.mirror is made and deleted, another asks for the address meanwhile",
			do: asUser(tenant, stealByMirror),
		},
		{
			id: "mirror-same-name", by: byTenant, tries: "the same, with a pod of the victim's name",
			do: podTries(func(w *testbed) *corev1.Pod {
				return newPod(tenant, "db", w.nodes[0].Name, map[string]string{corev1.MirrorPodAnnotationKey: string(w.victims.db.UID)})
			}, hasDB),
		},
		{
			id: "mirror-other-node", by: byTenant, tries: "the same, on another node than the victim's",
			do: podTries(func(w *testbed) *corev1.Pod {
				return newPod(tenant, "db", w.nodes[1].Name, map[string]string{corev1.MirrorPodAnnotationKey: string(w.victims.db.UID)})
			}, hasDB),
		},
		{id: "unwritable-uids", by: byTenant, tries: "pods with UIDs that no record can have use up a pool", do: asUser(tenant, leakByUIDs)},
		{id: "ghost-nodes", by: byTenant, tries: "pods on 12 nodes that do not exist take a block each", do: asUser(tenant, podsOnGhostNodes)},
		{id: "route-blocks", by: byTenant, tries: "one pod after the other asks for an address of another vacant block", do: asUser(tenant, routeBlocks)},
		{
			id: "block-of-another-node", by: byTenant, tries: "a pod on node-2 asks for a free address of a block of node-1",
			do: podTries(func(w *testbed) *corev1.Pod {
				return newPod(tenant, "neighbour", w.nodes[1].Name, map[string]string{v1alpha1.AnnotationAddresses: lastOfDBBlock(w)})
			}, func(w *testbed, f podResult) bool { return f.record != nil }),
		},
		{
			id: "foreign-pool", by: byTenant, tries: "a pod names a pool that is another namespace's",
			do: podTries(asking("rich", v1alpha1.AnnotationPools, func(*testbed) string { return "private" }), inRange("10.90.0.0/26")),
		},
		{id: "quota-pods", by: byTenant, tries: "four pods draw from a pool with a quota of two", do: asUser(tenant, quotaOfPods)},
	}
}

// lastOfDBBlock returns the last address of the victim's block, which no pod has.
func lastOfDBBlock(w *testbed) string {
	block := ipam.BlockOf(w.victims.db.addresses[0])
	last := block.Addr()
	for addr := last; block.Contains(addr); addr = addr.Next() {
		last = addr
	}
	return last.String()
}

func stealByMirror(ctx context.Context, w *testbed, api client.Client) (effect, error) {
	wants := newPod(tenant, "wants", w.nodes[0].Name, map[string]string{v1alpha1.AnnotationAddresses: dbAddress(w)})
	if err := api.Create(ctx, wants); err != nil {
		return effect{}, err
	}
	mirror := newPod(tenant, "mirror", w.nodes[0].Name, map[string]string{corev1.MirrorPodAnnotationKey: string(w.victims.db.UID)})
	f, err := w.try(ctx, api, mirror)
	if err != nil {
		return effect{}, err
	}
	if hasDB(w, f) {
		return effect{true, "the mirror pod has " + f.String()}, w.remove(ctx, wants, mirror)
	}
	if err := w.remove(ctx, mirror); err != nil {
		return effect{}, err
	}
	// This is longer than any cooldown.
	got, err := within(ctx, 8*time.Second, func(ctx context.Context) (bool, error) {
		record, err := w.recordOf(ctx, wants)
		return record != nil && hasAddress(record, w.victims.db.addresses[0]), err
	})
	if err != nil {
		return effect{}, err
	}
	return effect{got, "the mirror pod: " + f.String()}, w.remove(ctx, wants)
}

// leakByUIDs creates pods whose records the API server cannot store, in a pool of eight.
// Addresses that stay taken when the pods are gone are leaked.
func leakByUIDs(ctx context.Context, w *testbed, api client.Client) (effect, error) {
	var pods []*corev1.Pod
	var last podResult
	for i := range 8 {
		pod := newPod(tenant, fmt.Sprintf("unwritable-%d", i), w.nodes[0].Name, map[string]string{
			corev1.MirrorPodAnnotationKey: fmt.Sprintf("A_%d:", i), v1alpha1.AnnotationPools: "tiny",
		})
		if err := api.Create(ctx, pod); err != nil {
			return effect{}, err
		}
		pods = append(pods, pod)
	}
	var err error
	if last, err = w.resultOf(ctx, pods[len(pods)-1]); err != nil {
		return effect{}, err
	}
	if err := w.remove(ctx, pods...); err != nil {
		return effect{}, err
	}
	// This is the time of two passes of the collector.
	_, err = within(ctx, 22*time.Second, func(ctx context.Context) (bool, error) {
		left, err := w.slots(ctx, "tiny")
		return len(left) == 0, err
	})
	if err != nil {
		return effect{}, err
	}
	left, err := w.slots(ctx, "tiny")
	return effect{len(left) > 0, fmt.Sprintf("%d addresses stay taken; %v", len(left), last)}, err
}

func podsOnGhostNodes(ctx context.Context, w *testbed, api client.Client) (effect, error) {
	var pods []*corev1.Pod
	for i := range 12 {
		pod := newPod(tenant, fmt.Sprintf("ghost-%d", i), fmt.Sprintf("ghost-%d", i), nil)
		if err := api.Create(ctx, pod); err != nil {
			return effect{}, err
		}
		pods = append(pods, pod)
	}
	count := 0
	_, err := within(ctx, patience, func(ctx context.Context) (bool, error) {
		blocks, err := w.blocks(ctx)
		count = 0
		for _, b := range blocks {
			if strings.HasPrefix(b.Spec.Node, "ghost-") {
				count++
			}
		}
		return count == len(pods), err
	})
	if err != nil {
		return effect{}, err
	}
	return effect{count > 0, fmt.Sprintf("%d blocks are of nodes that do not exist", count)}, w.clear(ctx, pods...)
}

// boundOfBlocks is how many blocks of the default pool a node may have.
const boundOfBlocks = 4

// routeBlocks asks for an address of one vacant block after the other.
func routeBlocks(ctx context.Context, w *testbed, api client.Client) (effect, error) {
	addr := netip.MustParseAddr("10.244.128.1")
	var last podResult
	for i := range boundOfBlocks + 3 {
		pod := newPod(tenant, fmt.Sprintf("route-%d", i), w.nodes[0].Name, map[string]string{v1alpha1.AnnotationAddresses: addr.String()})
		var err error
		if last, err = w.try(ctx, api, pod); err != nil {
			return effect{}, err
		}
		if err := w.remove(ctx, pod); err != nil {
			return effect{}, err
		}
		for block := ipam.BlockOf(addr); block.Contains(addr); {
			addr = addr.Next()
		}
		addr = addr.Next()
	}
	n, err := w.blocksOf(ctx, w.nodes[0].Name, netip.MustParsePrefix("10.244.0.0/16"))
	return effect{n > boundOfBlocks, fmt.Sprintf("node-1 has %d blocks of IPv4; the last pod: %v", n, last)}, err
}

// blocksOf counts the blocks of a node in a range.
func (w *testbed) blocksOf(ctx context.Context, name string, within netip.Prefix) (int, error) {
	blocks, err := w.blocks(ctx)
	n := 0
	for _, b := range blocks {
		if p, err := netip.ParsePrefix(b.Spec.CIDR); err == nil && b.Spec.Node == name && within.Contains(p.Addr()) {
			n++
		}
	}
	return n, err
}

func quotaOfPods(ctx context.Context, w *testbed, api client.Client) (effect, error) {
	var pods []*corev1.Pod
	for i := range 4 {
		pods = append(pods, newPod(tenant, fmt.Sprintf("many-%d", i), w.nodes[0].Name, map[string]string{v1alpha1.AnnotationPools: "shop"}))
	}
	return w.countOfShop(ctx, api, pods)
}

// countOfShop creates pods of the pool with a quota of two, and counts their addresses.
func (w *testbed) countOfShop(ctx context.Context, api client.Client, pods []*corev1.Pod) (effect, error) {
	var last podResult
	for _, pod := range pods {
		var err error
		if last, err = w.try(ctx, api, pod); err != nil {
			return effect{}, err
		}
	}
	slots, err := w.slots(ctx, "shop")
	if err != nil {
		return effect{}, err
	}
	return effect{len(slots) > 2, fmt.Sprintf("%d addresses; the last pod: %v", len(slots), last)}, w.remove(ctx, pods...)
}
