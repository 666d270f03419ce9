package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/ipam"
)

// claimAttacks try to get addresses through claims.
func claimAttacks() []attack {
	return []attack{
		{
			id: "quota-claims", by: byTenant, tries: "pods with four claims draw from a pool with a quota of two",
			do: asUser(tenant, func(ctx context.Context, w *testbed, api client.Client) (effect, error) {
				var pods []*corev1.Pod
				for i := range 4 {
					pods = append(pods, newPod(tenant, fmt.Sprintf("claims-%d", i), w.nodes[0].Name, map[string]string{
						v1alpha1.AnnotationPools: "shop", v1alpha1.AnnotationClaim: fmt.Sprintf("mine-%d", i),
					}))
				}
				out, err := w.countOfShop(ctx, api, pods)
				if err != nil {
					return out, err
				}
				return out, w.dropClaims(ctx, tenant)
			}),
		},
		{id: "quota-held", by: byTenant, tries: "pods with claims come and go one by one, and their addresses stay held", do: asUser(tenant, quotaOfHeld)},
		{id: "claim-of-another", by: byTenant, tries: "a pod names the claim carol/kept in every way that there is", do: asUser(tenant, foreignClaim)},
		{id: "launcher-of-another", by: byTenant, tries: "pods pass for the target of a live migration of carol's virtual machine, by owner reference and labels", do: asUser(tenant, forgedLauncher)},
		{id: "claim-by-address", by: byTenant, tries: "an IPClaim asks for the address of carol's pod, and a pod for the claim", do: asUser(tenant, claimByAddress)},
		{
			id: "long-claim", by: byTenant, tries: "a claim of 3,000 characters of UTF-8 hides the reason why another of her pods waits",
			do: asUser(tenant, func(ctx context.Context, w *testbed, api client.Client) (effect, error) {
				pod := newPod(tenant, "long", w.nodes[0].Name, map[string]string{
					v1alpha1.AnnotationClaim: strings.Repeat("地址", 1500), v1alpha1.AnnotationPools: "private",
				})
				f, err := w.try(ctx, api, pod)
				if err != nil {
					return effect{}, err
				}
				silent := f.record == nil && strings.HasPrefix(f.note, "no event")
				if err := w.remove(ctx, pod); err != nil {
					return effect{}, err
				}
				return effect{silent || f.record != nil, f.String()}, w.dropClaims(ctx, tenant)
			}),
		},
	}
}

// quotaOfHeld makes claims hold addresses without pods.
func quotaOfHeld(ctx context.Context, w *testbed, api client.Client) (effect, error) {
	var last podResult
	for i := range 4 {
		pod := newPod(tenant, fmt.Sprintf("holds-%d", i), w.nodes[0].Name, map[string]string{
			v1alpha1.AnnotationPools: "shop", v1alpha1.AnnotationClaim: fmt.Sprintf("held-%d", i),
		})
		var err error
		if last, err = w.try(ctx, api, pod); err != nil {
			return effect{}, err
		}
		if err := w.remove(ctx, pod); err != nil {
			return effect{}, err
		}
	}
	slots, err := w.slots(ctx, "shop")
	if err != nil {
		return effect{}, err
	}
	return effect{len(slots) > 2, fmt.Sprintf("%d addresses are held; the last pod: %v", len(slots), last)}, w.dropClaims(ctx, tenant)
}

// dropClaims deletes the claims of a namespace, and waits until they hold nothing.
func (w *testbed) dropClaims(ctx context.Context, namespace string) error {
	if err := w.DeleteAllOf(ctx, &v1alpha1.IPClaim{}, client.InNamespace(namespace)); err != nil {
		return err
	}
	return await(ctx, "the claims of "+namespace+" to go", func(ctx context.Context) (string, error) {
		var list v1alpha1.IPClaimList
		if err := w.List(ctx, &list, client.InNamespace(namespace)); err != nil || len(list.Items) > 0 {
			return fmt.Sprintf("%d claims", len(list.Items)), err
		}
		for _, domain := range []string{"shop", "common"} {
			slots, err := w.slots(ctx, domain)
			held := func(s ipam.Slot) bool { return strings.HasPrefix(s.Claim, namespace+"/") }
			if err != nil || slices.ContainsFunc(slots, held) {
				return "an address of " + domain + " is held", err
			}
		}
		return "", nil
	})
}

// claimByAddress claims another tenant's address of a pool that both may use.
func claimByAddress(ctx context.Context, w *testbed, api client.Client) (effect, error) {
	theirs := newPod(other, "has", w.nodes[0].Name, map[string]string{v1alpha1.AnnotationPools: "common"})
	f, err := w.try(ctx, w, theirs)
	if err != nil {
		return effect{}, err
	}
	if f.record == nil {
		return effect{}, fmt.Errorf("a pod of %s got %v", other, f)
	}
	addr, err := netip.ParseAddr(f.record.Spec.Summary.Addresses)
	if err != nil {
		return effect{}, err
	}
	claim := &v1alpha1.IPClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: tenant, Name: "hers"}, Spec: v1alpha1.IPClaimSpec{Addresses: []string{addr.String()}},
	}
	if err := api.Create(ctx, claim); err != nil {
		return effect{}, err
	}
	pod := newPod(tenant, "claims", w.nodes[0].Name, map[string]string{v1alpha1.AnnotationClaim: "hers", v1alpha1.AnnotationPools: "common"})
	if f, err = w.try(ctx, api, pod); err != nil {
		return effect{}, err
	}
	if err := w.remove(ctx, pod, theirs); err != nil {
		return effect{}, err
	}
	return effect{f.has(addr), f.String()}, w.dropClaims(ctx, tenant)
}

// launcherPod returns a pod with the owner reference and the labels of a launcher of the
// machine db. migration is empty for the first launcher.
func launcherPod(namespace, name, node, migration string) *corev1.Pod {
	pod := newPod(namespace, name, node, map[string]string{v1alpha1.AnnotationPools: "common", v1alpha1.AnnotationClaim: "db"})
	pod.Labels = map[string]string{"kubevirt.io": "virt-launcher", "kubevirt.io/created-by": "uid-of-db"}
	if migration != "" {
		pod.Labels["kubevirt.io/migrationJobUID"] = migration
	}
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachineInstance", Name: "db", UID: "uid-of-db", Controller: new(true)}}
	return pod
}

// forgedLauncher has a virtual machine of another tenant run with a claim, and imitates
// the target of its migration in the tenant's own namespace.
func forgedLauncher(ctx context.Context, w *testbed, api client.Client) (effect, error) {
	source := launcherPod(other, "source", w.nodes[0].Name, "")
	f, err := w.try(ctx, w, source)
	if err != nil {
		return effect{}, err
	}
	if f.record == nil {
		return effect{}, fmt.Errorf("the launcher of %s got %v", other, f)
	}
	addr, err := netip.ParseAddr(f.record.Spec.Summary.Addresses)
	if err != nil {
		return effect{}, err
	}
	out := effect{}
	for i, claim := range []string{"db", other + "/db"} {
		pod := launcherPod(tenant, fmt.Sprintf("target-%d", i), w.nodes[len(w.nodes)-1].Name, fmt.Sprintf("migration-%d", i))
		pod.Annotations[v1alpha1.AnnotationClaim] = claim
		got, err := w.try(ctx, api, pod)
		if err != nil {
			return effect{}, err
		}
		out.succeeded = out.succeeded || got.has(addr)
		out.got = fmt.Sprintf("the machine has %s; as %q: %v", addr, claim, got)
		if err := w.remove(ctx, pod); err != nil {
			return effect{}, err
		}
	}
	if err := w.remove(ctx, source); err != nil {
		return effect{}, err
	}
	if err := w.dropClaims(ctx, tenant); err != nil {
		return effect{}, err
	}
	return out, w.dropClaims(ctx, other)
}

// foreignClaim has another tenant keep an address by a claim, of a pool that both may
// use, and tries to get it by every form of the claim's name.
func foreignClaim(ctx context.Context, w *testbed, api client.Client) (effect, error) {
	kept := newPod(other, "kept", w.nodes[0].Name, map[string]string{v1alpha1.AnnotationClaim: "kept", v1alpha1.AnnotationPools: "common"})
	f, err := w.try(ctx, w, kept)
	if err != nil {
		return effect{}, err
	}
	if f.record == nil {
		return effect{}, fmt.Errorf("the claim of %s got %v", other, f)
	}
	if err := w.remove(ctx, kept); err != nil {
		return effect{}, err
	}
	slots, err := w.slots(ctx, "common")
	if err != nil {
		return effect{}, err
	}
	at := slices.IndexFunc(slots, func(s ipam.Slot) bool { return s.State == ipam.Held })
	if at < 0 {
		return effect{}, fmt.Errorf("no address is held for the claim of %s: %v", other, slots)
	}
	held := slots[at].Addr
	out := effect{}
	for i, name := range []string{other + "/kept", "../" + other + "/kept", "kept", slots[at].Claim} {
		pod := newPod(tenant, fmt.Sprintf("claims-%d", i), w.nodes[0].Name, map[string]string{v1alpha1.AnnotationClaim: name, v1alpha1.AnnotationPools: "common"})
		f, err := w.try(ctx, api, pod)
		if err != nil {
			return effect{}, err
		}
		out.succeeded = out.succeeded || f.has(held)
		out.got = fmt.Sprintf("%s is held; as %q: %v", held, name, f)
		if err := w.remove(ctx, pod); err != nil {
			return effect{}, err
		}
	}
	if err := w.dropClaims(ctx, tenant); err != nil {
		return effect{}, err
	}
	return out, w.dropClaims(ctx, other)
}
