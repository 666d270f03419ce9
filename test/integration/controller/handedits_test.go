package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/test/cluster"
)

// editor edits objects by hand while the leader changes.
type editor struct {
	*observer
	node string
	// ghost is the former record of a pod that is gone. Pod heir has its address.
	ghost *v1alpha1.PodAttachment
	// victim is the pod of the case; address is its address.
	victim  *corev1.Pod
	address string
	// otherAddress is the address of a pod that stays, from the pool claimPool.
	otherAddress string

	mu sync.Mutex
	// firstAddress holds the first address of each pod, by its UID.
	firstAddress map[types.UID]string
}

// handEdit is an edit of an object by hand, with its expected outcome.
type handEdit struct {
	name string
	// claim gives the victim a claim.
	claim bool
	do    func(ctx context.Context, h *editor) error
	// healed returns an error until the edit is healed.
	healed func(ctx context.Context, h *editor) error
	// after undoes the edit if only people can; nil otherwise.
	after func(ctx context.Context, h *editor) error
}

// TestHandEdits deletes objects, edits them and restores them to an older state, right after
// the leader was killed. At no time do two pods have one address. A pod keeps its address,
// new pods get one, and the edit is healed.
func TestHandEdits(t *testing.T) {
	t.Parallel()
	c := cluster.Exclusive(t)
	freeLease(t, c)
	t.Cleanup(func() { freeLease(t, c) }) // the last leader is killed and leaves its lease
	h := newEditor(t, c)
	for range 2 {
		supervise(t, c.Account(cluster.ControllerAccount, ""), mediumLease, "gcInterval: 10s")
	}
	standing := h.begin(t)
	for i, edit := range slices.Concat(networkEdits(), poolEdits(), claimEdits(), recordEdits()) {
		if !t.Run(edit.name, func(t *testing.T) { h.try(t, edit, i, standing) }) {
			return
		}
	}
	c.Eventually(t, "a clean audit", func(ctx context.Context) error { return audited(ctx, c) })
}

// try makes one edit and checks its outcome. number is part of the names of its pods.
func (h *editor) try(t *testing.T, edit handEdit, number int, standing []*corev1.Pod) {
	t.Helper()
	h.victim = h.c.Pod(fmt.Sprintf("victim-%d", number), h.node, withClaim(edit.claim, number))
	h.address = addressOf(t, h.c, h.victim)
	h.killLeader(t)
	if err := edit.do(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	come := []*corev1.Pod{h.victim}
	for _, name := range []string{"a", "b"} {
		come = append(come, h.c.Pod(fmt.Sprintf("next-%d-%s", number, name), h.node))
	}
	all := slices.Concat(standing, come)
	h.c.Eventually(t, "each pod's own address in its record and its block", func(ctx context.Context) error { return h.agree(ctx, all) })
	h.c.Eventually(t, "the edit to be healed", func(ctx context.Context) error { return edit.healed(ctx, h) })
	if edit.after != nil {
		if err := edit.after(t.Context(), h); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range come {
		if err := h.c.Client.Delete(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	h.c.Eventually(t, "the release of their addresses", func(ctx context.Context) error { return h.agree(ctx, standing) })
}

// newEditor creates a node and a default pool of 30 addresses, and watches the pods. The pool
// is small, so that an address that is free by mistake is soon given to another pod.
func newEditor(t *testing.T, c *cluster.Cluster) *editor {
	t.Helper()
	h := &editor{observer: &observer{c: c, domain: "hands"}, node: "hands", firstAddress: map[types.UID]string{}}
	c.Node(h.node)
	shared := h.pool()
	shared.Name, shared.Spec.Ranges, shared.Spec.Placement = claimPool, []string{"10.2.0.0/28"}, v1alpha1.PlacementShared
	for _, pool := range []*v1alpha1.IPPool{h.pool(), shared} {
		if err := c.Client.Create(t.Context(), pool); err != nil {
			t.Fatal(err)
		}
	}
	h.repeat(t, 10*time.Millisecond, h.watch)
	return h
}

// pool returns the pool of the default network before any edit.
func (h *editor) pool() *v1alpha1.IPPool {
	return &v1alpha1.IPPool{
		ObjectMeta: metav1.ObjectMeta{Name: "default"},
		Spec: v1alpha1.IPPoolSpec{
			Domain: h.domain, Ranges: []string{"10.1.0.0/27"}, Placement: v1alpha1.PlacementPerNode,
			Cooldown: &metav1.Duration{Duration: 5 * time.Second},
		},
	}
}

// claimPool is the pool of the pods with a claim. It is shared: claims keep no addresses of
// a pool with blocks per node.
const claimPool = "keeping"

// withClaim gives a pod a claim and that pool, if claim is true.
func withClaim(claim bool, number int) func(p *corev1.Pod) {
	return func(p *corev1.Pod) {
		if claim {
			p.Annotations = map[string]string{v1alpha1.AnnotationPools: claimPool, v1alpha1.AnnotationClaim: fmt.Sprintf("claim-%d", number)}
		}
	}
}

// begin creates and returns the pods that stay. Pod heir has the address of a pod that is
// gone.
func (h *editor) begin(t *testing.T) []*corev1.Pod {
	t.Helper()
	gone := h.c.Pod("ghost", h.node)
	address := addressOf(t, h.c, gone)
	records, err := h.records(t.Context())
	if err != nil || len(records) != 1 {
		t.Fatalf("%d records of one pod: %v", len(records), err)
	}
	h.ghost = &records[0]
	if err := h.c.Client.Delete(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
	standing := []*corev1.Pod{h.c.Pod("heir", h.node, func(p *corev1.Pod) { p.Annotations = map[string]string{v1alpha1.AnnotationAddresses: address} })}
	for i := range 3 {
		standing = append(standing, h.c.Pod(fmt.Sprintf("standing-%d", i), h.node))
	}
	other := h.c.Pod("other", h.node, withClaim(true, 1000))
	h.otherAddress = addressOf(t, h.c, other)
	standing = append(standing, other)
	h.c.Eventually(t, "the records of the pods that stay", func(ctx context.Context) error { return h.agree(ctx, standing) })
	return standing
}

// killLeader kills the leader. When it returns, the standby does not lead yet.
func (h *editor) killLeader(t *testing.T) {
	t.Helper()
	if err := syscall.Kill(processOf(t, leaderOf(t, h.c)), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// watch records a fault if a running pod has another address than before, or the address of
// another running pod. It plays the node, too: it sets Detached on the records of pods that
// are gone.
func (h *editor) watch(ctx context.Context) {
	records, err := h.records(ctx)
	if err != nil {
		return
	}
	var pods corev1.PodList // read after the records: a pod that exists now existed then
	if err := h.c.Client.List(ctx, &pods, client.InNamespace(h.c.Namespace)); err != nil {
		return
	}
	running := map[types.UID]bool{}
	for i := range pods.Items {
		running[pods.Items[i].UID] = true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	seen := map[string]string{}
	for i := range records {
		r := &records[i]
		if !running[r.Spec.PodUID] {
			if r.DeletionTimestamp != nil && !detached(r) {
				_ = h.writeSandbox(ctx, r, v1alpha1.Sandbox{State: v1alpha1.SandboxDetached})
			}
			continue
		}
		address := r.Spec.Summary.Addresses
		if other := seen[address]; other != "" {
			h.fault("pods %s and %s both have %s", other, r.Spec.PodName, address)
		}
		seen[address] = r.Spec.PodName
		if had := h.firstAddress[r.Spec.PodUID]; had != "" && had != address {
			h.fault("pod %s had %s and has %s", r.Spec.PodName, had, address)
		}
		h.firstAddress[r.Spec.PodUID] = address
	}
}

// client returns the client of the administrator.
func (h *editor) client() client.Client { return h.c.Client }

// nothing is for an edit that is not healed: the object stays as edited, and no pod loses its
// address.
func nothing(context.Context, *editor) error { return nil }

// networkEdits are edits of the NodeNetwork, which the controller writes.
func networkEdits() []handEdit {
	healed := func(ctx context.Context, h *editor) error {
		var blocks v1alpha1.IPBlockList
		if err := h.client().List(ctx, &blocks, client.MatchingLabels{v1alpha1.LabelDomain: h.domain}); err != nil {
			return err
		}
		var want []string
		for _, b := range blocks.Items {
			if b.Spec.Node == h.node {
				want = append(want, b.Spec.CIDR)
			}
		}
		slices.Sort(want)
		nn := &v1alpha1.NodeNetwork{}
		if err := h.client().Get(ctx, client.ObjectKey{Name: h.node}, nn); err != nil {
			return err
		}
		if diff := cmp.Diff(want, nn.Spec.Blocks); diff != "" {
			return fmt.Errorf("blocks of the node (-want +got):\n%s", diff)
		}
		if nn.Spec.Summary != strings.Join(want, ",") {
			return fmt.Errorf("summary %q, want %v", nn.Spec.Summary, want)
		}
		return nil
	}
	patch := func(text string) func(ctx context.Context, h *editor) error {
		return func(ctx context.Context, h *editor) error {
			nn := &v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: h.node}}
			return h.client().Patch(ctx, nn, client.RawPatch(types.MergePatchType, []byte(text)))
		}
	}
	return []handEdit{
		{name: "NodeNetwork deleted", healed: healed, do: func(ctx context.Context, h *editor) error {
			return h.client().Delete(ctx, &v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: h.node}})
		}},
		{name: "NodeNetwork edited", healed: healed, do: patch(`{"spec":{"blocks":["10.1.0.64/26"]}}`)},
		{name: "NodeNetwork put back", healed: healed, do: patch(`{"spec":{"blocks":null,"underlay":null}}`)},
	}
}

// poolEdits are edits of the IPPool. People write it, so only people can heal it.
func poolEdits() []handEdit {
	patch := func(ranges string) func(ctx context.Context, h *editor) error {
		return func(ctx context.Context, h *editor) error {
			return h.client().Patch(ctx, h.pool(), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"ranges":["`+ranges+`"]}}`)))
		}
	}
	return []handEdit{
		{name: "IPPool deleted and made again", healed: nothing, do: func(ctx context.Context, h *editor) error {
			if err := h.client().Delete(ctx, h.pool()); err != nil {
				return err
			}
			return h.client().Create(ctx, h.pool())
		}},
		{name: "IPPool edited to another range", healed: nothing, do: patch("10.1.1.0/28"), after: patch("10.1.0.0/27")},
		{name: "IPPool put back to a smaller range", healed: nothing, do: patch("10.1.0.16/28"), after: patch("10.1.0.0/27")},
	}
}

// claimEdits are edits of the victim's IPClaim.
func claimEdits() []handEdit {
	claim := func(ctx context.Context, h *editor) (*v1alpha1.IPClaim, error) {
		o := &v1alpha1.IPClaim{}
		err := h.client().Get(ctx, client.ObjectKey{Namespace: h.c.Namespace, Name: h.victim.Annotations[v1alpha1.AnnotationClaim]}, o)
		return o, err
	}
	healed := func(ctx context.Context, h *editor) error {
		o, err := claim(ctx, h)
		if err != nil {
			return err
		}
		if s := o.Status; s.Pod != h.victim.Name || !slices.Equal(s.Addresses, []string{h.address}) || s.Pool != claimPool {
			return fmt.Errorf("status %+v, must have %s of pod %s", s, h.address, h.victim.Name)
		}
		return nil
	}
	status := func(text func(h *editor) string) func(ctx context.Context, h *editor) error {
		return func(ctx context.Context, h *editor) error {
			o, err := claim(ctx, h)
			if err != nil {
				return err
			}
			return h.client().Status().Patch(ctx, o, client.RawPatch(types.MergePatchType, []byte(text(h))))
		}
	}
	return []handEdit{
		{claim: true, name: "IPClaim deleted", healed: nothing, do: func(ctx context.Context, h *editor) error {
			o, err := claim(ctx, h)
			return errors.Join(err, h.client().Delete(ctx, o))
		}},
		{claim: true, name: "IPClaim status edited to another's address", healed: healed, do: status(func(h *editor) string {
			return `{"status":{"addresses":["` + h.otherAddress + `"],"pod":""}}`
		})},
		{claim: true, name: "IPClaim edited to want another's address", healed: healed, do: func(ctx context.Context, h *editor) error {
			o, err := claim(ctx, h)
			if err != nil {
				return err
			}
			return h.client().Patch(ctx, o, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"addresses":["`+h.otherAddress+`"]}}`)))
		}},
		{claim: true, name: "IPClaim put back to before it had an address", healed: healed, do: status(func(*editor) string {
			return `{"status":{"addresses":null,"pod":null,"pool":null,"domain":null}}`
		})},
	}
}

// recordEdits are edits of the victim's PodAttachment, and of a PodAttachment whose pod is
// gone.
func recordEdits() []handEdit {
	record := func(ctx context.Context, h *editor) (*v1alpha1.PodAttachment, error) {
		records, err := h.records(ctx)
		if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(records, func(r v1alpha1.PodAttachment) bool { return r.Spec.PodUID == h.victim.UID })
		if i < 0 {
			return nil, errors.New("the victim has no record")
		}
		return &records[i], nil
	}
	patch := func(ctx context.Context, h *editor, text string) error {
		r, err := record(ctx, h)
		if err != nil {
			return err
		}
		return h.client().Patch(ctx, r, client.RawPatch(types.MergePatchType, []byte(text)))
	}
	remove := func(ctx context.Context, h *editor) error {
		r, err := record(ctx, h)
		return errors.Join(err, h.client().Delete(ctx, r))
	}
	is := func(good func(r *v1alpha1.PodAttachment) bool) func(ctx context.Context, h *editor) error {
		return func(ctx context.Context, h *editor) error {
			r, err := record(ctx, h)
			if err == nil && !good(r) {
				err = fmt.Errorf("the record is deleted at %v with the finalizers %q", r.DeletionTimestamp, r.Finalizers)
			}
			return err
		}
	}
	whole := func(r *v1alpha1.PodAttachment) bool {
		return r.DeletionTimestamp == nil && slices.Contains(r.Finalizers, v1alpha1.ReleaseFinalizer)
	}
	return []handEdit{
		{name: "PodAttachment deleted", do: remove, healed: is(func(r *v1alpha1.PodAttachment) bool { return r.DeletionTimestamp != nil })},
		{name: "PodAttachment deleted with its finalizer", healed: is(whole), do: func(ctx context.Context, h *editor) error {
			return errors.Join(patch(ctx, h, `{"metadata":{"finalizers":null}}`), remove(ctx, h))
		}},
		{name: "PodAttachment edited", healed: is(whole), do: func(ctx context.Context, h *editor) error {
			err := patch(ctx, h, `{"spec":{"podName":"another"}}`)
			if !apierrors.IsInvalid(err) {
				return fmt.Errorf("the edit must be refused as invalid: %w", err)
			}
			return nil
		}},
		{
			name: "PodAttachment put back whose pod is gone", do: func(ctx context.Context, h *editor) error {
				old := h.ghost.DeepCopy()
				old.ResourceVersion, old.UID = "", ""
				return h.client().Create(ctx, old)
			},
			healed: func(ctx context.Context, h *editor) error {
				err := h.client().Get(ctx, client.ObjectKeyFromObject(h.ghost), &v1alpha1.PodAttachment{})
				if err == nil {
					err = errors.New("it is there")
				}
				return client.IgnoreNotFound(err)
			},
		},
	}
}
