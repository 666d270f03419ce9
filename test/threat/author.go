package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/pod"
)

const byAuthor = "author"

// network returns a NetworkAttachmentDefinition of the author.
func network(name string, ipam map[string]any) *unstructured.Unstructured {
	raw, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": name, "type": "macvlan", "master": "eth0", "ipam": ipam})
	if err != nil {
		panic(err) // of maps and strings
	}
	o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"config": string(raw)}}}
	o.SetAPIVersion("k8s.cni.cncf.io/v1")
	o.SetKind("NetworkAttachmentDefinition")
	o.SetNamespace(author)
	o.SetName(name)
	return o
}

func whereabouts(ipRange, name string) map[string]any {
	ipam := map[string]any{"type": "whereabouts", "range": ipRange}
	if name != "" {
		ipam["network_name"] = name
	}
	return ipam
}

// authorAttacks try to use pools through networks.
func authorAttacks() []attack {
	var out []attack
	for _, a := range []struct {
		id, tries string
		ipam      map[string]any
	}{
		{"author-pools", "a network names the victim's pool", map[string]any{"type": "fairlead-ipam", "pools": []string{"private"}}},
		{"author-default-pool", "a network names the default network's pool", map[string]any{"type": "fairlead-ipam", "pools": []string{"default"}}},
		{"author-no-pools", "a network names no pool", map[string]any{"type": "fairlead-ipam"}},
		{"author-name", "a network of whereabouts has the victim's domain as its network_name", whereabouts("10.90.0.0/26", "private")},
		{"author-default-name", "a network of whereabouts is called default", whereabouts("10.77.0.0/24", "default")},
		{"author-default-range", "a network of whereabouts has the default network's range", whereabouts("10.244.0.0/16", "")},
		{"author-part-of-default", "a network of whereabouts has a part of the default network's range", whereabouts("10.244.7.0/24", "mine")},
		{"author-around-default", "a network of whereabouts has a range around the default network's", whereabouts("10.240.0.0/12", "")},
	} {
		out = append(out, attack{id: a.id, by: byAuthor, tries: a.tries, do: drawsFrom(a.id, a.ipam)})
	}
	return append(
		out,
		attack{id: "author-edits", by: byAuthor, tries: fmt.Sprintf("a network is changed %d times, and each time a pool is written for it", edits), do: asUser(author, editNetwork)},
		attack{id: "author-deletes", by: byAuthor, tries: "a network is deleted, and its pools stay for ever", do: asUser(author, deleteNetwork)},
	)
}

// drawsFrom creates a network and a pod of it. The attack succeeds if the pod has an
// address of an operator's domain or range on the network.
func drawsFrom(name string, ipam map[string]any) func(ctx context.Context, w *testbed) (effect, error) {
	return asUser(author, func(ctx context.Context, w *testbed, api client.Client) (effect, error) {
		nad := network(name, ipam)
		if err := api.Create(ctx, nad); err != nil {
			return effect{}, err
		}
		p := newPod(author, name, w.nodes[0].Name, map[string]string{pod.AnnotationNetworks: name})
		f, err := w.try(ctx, api, p)
		if err != nil {
			return effect{}, err
		}
		out := effect{got: f.String()}
		if f.record != nil {
			for _, i := range f.record.Spec.Interfaces {
				out.succeeded = out.succeeded || i.Name != "eth0" && ofOperator(i)
			}
			out.got += ", of " + jsonOf(f.record.Spec.Interfaces[len(f.record.Spec.Interfaces)-1].Domain)
		}
		return out, errors.Join(api.Delete(ctx, nad), w.remove(ctx, p))
	})
}

// ofOperator reports whether an interface has a domain or an address that the operator
// did not open.
func ofOperator(i v1alpha1.Interface) bool {
	if slices.Contains([]string{"default", "private", "shop", "tiny", "common"}, i.Domain) {
		return true
	}
	for _, text := range i.Addresses {
		p, err := netip.ParsePrefix(text)
		if err == nil && netip.MustParsePrefix("10.244.0.0/16").Contains(p.Addr()) {
			return true
		}
	}
	return false
}

// boundOfPools is how many pools may be written for the networks of one namespace.
const boundOfPools = 64

// othersPools counts the pools that were written for networks.
func (w *testbed) othersPools(ctx context.Context) (int, error) {
	var list v1alpha1.IPPoolList
	err := w.List(ctx, &list)
	return len(list.Items) - len(pools()), err
}

// edits is how often the network is changed.
const edits = 300

func editNetwork(ctx context.Context, w *testbed, api client.Client) (effect, error) {
	nad := network("changing", whereabouts("10.110.0.0/24", "changing"))
	if err := api.Create(ctx, nad); err != nil {
		return effect{}, err
	}
	highest := 0
	for i := range edits {
		ipam := whereabouts(fmt.Sprintf("10.%d.%d.0/24", 110+i/256, i%256), fmt.Sprintf("changing-%d", i))
		nad.Object["spec"] = network("changing", ipam).Object["spec"]
		if err := api.Update(ctx, nad); err != nil {
			return effect{}, err
		}
		n, err := w.othersPools(ctx)
		if err != nil {
			return effect{}, err
		}
		highest = max(highest, n)
	}
	labels, err := w.measuredPools(ctx)
	if err != nil {
		return effect{}, err
	}
	out := effect{got: fmt.Sprintf("%d pools at most, and metrics of %d pools", highest, len(labels))}
	out.succeeded = highest > boundOfPools || len(labels) > boundOfPools+len(pools())
	return out, api.Delete(ctx, nad)
}

// measuredPools returns the pools in the leader's metrics. It fails if an operator's pool
// is missing there, because the number of other pools would then prove nothing.
func (w *testbed) measuredPools(ctx context.Context) (map[string]bool, error) {
	text, err := w.controllersMetrics(ctx)
	if err != nil {
		return nil, err
	}
	out := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^fairlead_pool_addresses\{pool="([^"]+)"`).FindAllStringSubmatch(text, -1) {
		out[m[1]] = true
	}
	for _, p := range pools() {
		if !out[p.Name] {
			return nil, fmt.Errorf("the controller's metrics have the pools %q, and not %s", slices.Sorted(maps.Keys(out)), p.Name)
		}
	}
	return out, nil
}

func deleteNetwork(ctx context.Context, w *testbed, api client.Client) (effect, error) {
	nad := network("brief", whereabouts("10.101.0.0/24", "brief"))
	if err := api.Create(ctx, nad); err != nil {
		return effect{}, err
	}
	p := newPod(author, "brief", w.nodes[0].Name, map[string]string{pod.AnnotationNetworks: "brief"})
	f, err := w.try(ctx, api, p)
	if err != nil {
		return effect{}, err
	}
	if f.record == nil {
		return effect{}, fmt.Errorf("a pod of an honest network got %v", f)
	}
	if err := errors.Join(api.Delete(ctx, nad), w.remove(ctx, p)); err != nil {
		return effect{}, err
	}
	left := 0
	// Its address cools first, for half a minute.
	gone, err := within(ctx, 50*time.Second, func(ctx context.Context) (bool, error) {
		left, err = w.othersPools(ctx)
		return left == 0, err
	})
	return effect{!gone, fmt.Sprintf("%d pools are left", left)}, err
}
