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

// hands is a world in which somebody edits objects while the leader changes.
type hands struct {
	*world
	node string
	// ghost is the record of a pod that is gone, as it was. Its address is heir's.
	ghost *v1alpha1.PodAttachment
	// victim is the pod of the case, and what it has.
	victim  *corev1.Pod
	address string
	// anothers is what a pod has that stays, of the pool in which claims keep addresses.
	anothers string

	stay sync.Mutex
	// kept is what each pod had at first, by its UID.
	kept map[types.UID]string
}

// handEdit is something that somebody does to one kind of object, and what becomes of it.
type handEdit struct {
	name string
	// claim says that the victim has its address by a claim.
	claim bool
	do    func(ctx context.Context, h *hands) error
	// healed fails until it is as it was.
	healed func(ctx context.Context, h *hands) error
	// after brings back what only people can.
	after func(ctx context.Context, h *hands) error
}

// TestHandEdits deletes objects, edits them and puts them back to an older state, right
// after the leader was killed: at no time do two pods have one address, a pod that has
// one keeps it, new pods are served, and what was done is healed.
func TestHandEdits(t *testing.T) {
	c := cluster.Exclusive(t)
	freeLease(t, c)
	t.Cleanup(func() { freeLease(t, c) }) // whoever leads at the end is killed
	h := newHands(t, c)
	for range 2 {
		supervise(t, c.Account(cluster.ControllerAccount, ""), fmt.Sprintf(longLease, freePort(t)), "gcInterval: 10s")
	}
	standing := h.begin(t)
	for i, edit := range slices.Concat(networkEdits(), poolEdits(), claimEdits(), recordEdits()) {
		if !t.Run(edit.name, func(t *testing.T) { h.try(t, edit, i, standing) }) {
			return
		}
	}
	c.Eventually(t, "a clean audit", func(ctx context.Context) error { return audited(ctx, c) })
}

// try edits something, and looks at what becomes of it.
func (h *hands) try(t *testing.T, edit handEdit, number int, standing []*corev1.Pod) {
	t.Helper()
	h.victim = h.c.Pod(fmt.Sprintf("victim-%d", number), h.node, keeping(edit.claim, number))
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
	h.c.Eventually(t, "what they had to be given back", func(ctx context.Context) error { return h.agree(ctx, standing) })
}

// newHands makes a node and a pool of 30 addresses, so that what is free by mistake is soon
// handed out, and watches the pods.
func newHands(t *testing.T, c *cluster.Cluster) *hands {
	t.Helper()
	h := &hands{world: &world{c: c, domain: "hands"}, node: "hands", kept: map[types.UID]string{}}
	c.Node(h.node)
	shared := h.pool()
	shared.Name, shared.Spec.Ranges, shared.Spec.Placement = keepingPool, []string{"10.2.0.0/28"}, v1alpha1.PlacementShared
	for _, pool := range []*v1alpha1.IPPool{h.pool(), shared} {
		if err := c.Client.Create(t.Context(), pool); err != nil {
			t.Fatal(err)
		}
	}
	h.keep(t, 10*time.Millisecond, h.watch)
	return h
}

// pool is the pool of the default network as it should be.
func (h *hands) pool() *v1alpha1.IPPool {
	return &v1alpha1.IPPool{
		ObjectMeta: metav1.ObjectMeta{Name: "default"},
		Spec: v1alpha1.IPPoolSpec{
			Domain: h.domain, Ranges: []string{"10.1.0.0/27"}, Placement: v1alpha1.PlacementPerNode,
			Cooldown: &metav1.Duration{Duration: 5 * time.Second},
		},
	}
}

// keepingPool is where claims keep addresses: not in a pool of which nodes have blocks.
const keepingPool = "keeping"

// keeping is a pod of that pool that has a claim, if it is one.
func keeping(claim bool, number int) func(p *corev1.Pod) {
	return func(p *corev1.Pod) {
		if claim {
			p.Annotations = map[string]string{v1alpha1.AnnotationPools: keepingPool, v1alpha1.AnnotationClaim: fmt.Sprintf("claim-%d", number)}
		}
	}
}

// begin makes the pods that stay, of which one has the address of one that is gone.
func (h *hands) begin(t *testing.T) []*corev1.Pod {
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
	other := h.c.Pod("other", h.node, keeping(true, 1000))
	h.anothers = addressOf(t, h.c, other)
	standing = append(standing, other)
	h.c.Eventually(t, "the records of the pods that stay", func(ctx context.Context) error { return h.agree(ctx, standing) })
	return standing
}

// killLeader kills the leader. The standby does not lead yet when it returns.
func (h *hands) killLeader(t *testing.T) {
	t.Helper()
	if err := syscall.Kill(processOf(t, leaderOf(t, h.c)), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// watch notes where a living pod has another address than it had, or one that another
// living pod has. It plays the node, too: it says Detached of records of pods that are gone.
func (h *hands) watch(ctx context.Context) {
	records, err := h.records(ctx)
	if err != nil {
		return
	}
	var pods corev1.PodList // later than the records: who lives now has lived then
	if err := h.c.Client.List(ctx, &pods, client.InNamespace(h.c.Namespace)); err != nil {
		return
	}
	lives := map[types.UID]bool{}
	for i := range pods.Items {
		lives[pods.Items[i].UID] = true
	}
	h.stay.Lock()
	defer h.stay.Unlock()
	seen := map[string]string{}
	for i := range records {
		r := &records[i]
		if !lives[r.Spec.PodUID] {
			if r.DeletionTimestamp != nil && !detached(r) {
				_ = h.write(ctx, r, v1alpha1.Sandbox{State: v1alpha1.SandboxDetached})
			}
			continue
		}
		address := r.Spec.Summary.Addresses
		if other := seen[address]; other != "" {
			h.fault("pods %s and %s both have %s", other, r.Spec.PodName, address)
		}
		seen[address] = r.Spec.PodName
		if had := h.kept[r.Spec.PodUID]; had != "" && had != address {
			h.fault("pod %s had %s and has %s", r.Spec.PodName, had, address)
		}
		h.kept[r.Spec.PodUID] = address
	}
}

// client is the administrator's.
func (h *hands) client() client.Client { return h.c.Client }

// nothing is to be healed: it stays as the hand left it, and nobody loses an address.
func nothing(context.Context, *hands) error { return nil }

// networkEdits are of the NodeNetwork, which the controller writes.
func networkEdits() []handEdit {
	healed := func(ctx context.Context, h *hands) error {
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
	patch := func(text string) func(ctx context.Context, h *hands) error {
		return func(ctx context.Context, h *hands) error {
			nn := &v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: h.node}}
			return h.client().Patch(ctx, nn, client.RawPatch(types.MergePatchType, []byte(text)))
		}
	}
	return []handEdit{
		{name: "NodeNetwork deleted", healed: healed, do: func(ctx context.Context, h *hands) error {
			return h.client().Delete(ctx, &v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: h.node}})
		}},
		{name: "NodeNetwork edited", healed: healed, do: patch(`{"spec":{"blocks":["10.1.0.64/26"]}}`)},
		{name: "NodeNetwork put back", healed: healed, do: patch(`{"spec":{"blocks":null,"underlay":null}}`)},
	}
}

// poolEdits are of the IPPool, which people write: nothing but people can heal it.
func poolEdits() []handEdit {
	patch := func(ranges string) func(ctx context.Context, h *hands) error {
		return func(ctx context.Context, h *hands) error {
			return h.client().Patch(ctx, h.pool(), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"ranges":["`+ranges+`"]}}`)))
		}
	}
	return []handEdit{
		{name: "IPPool deleted and made again", healed: nothing, do: func(ctx context.Context, h *hands) error {
			if err := h.client().Delete(ctx, h.pool()); err != nil {
				return err
			}
			return h.client().Create(ctx, h.pool())
		}},
		{name: "IPPool edited to another range", healed: nothing, do: patch("10.1.1.0/28"), after: patch("10.1.0.0/27")},
		{name: "IPPool put back to a smaller range", healed: nothing, do: patch("10.1.0.16/28"), after: patch("10.1.0.0/27")},
	}
}

// claimEdits are of the victim's IPClaim.
func claimEdits() []handEdit {
	claim := func(ctx context.Context, h *hands) (*v1alpha1.IPClaim, error) {
		o := &v1alpha1.IPClaim{}
		err := h.client().Get(ctx, client.ObjectKey{Namespace: h.c.Namespace, Name: h.victim.Annotations[v1alpha1.AnnotationClaim]}, o)
		return o, err
	}
	healed := func(ctx context.Context, h *hands) error {
		o, err := claim(ctx, h)
		if err != nil {
			return err
		}
		if s := o.Status; s.Pod != h.victim.Name || !slices.Equal(s.Addresses, []string{h.address}) || s.Pool != keepingPool {
			return fmt.Errorf("status %+v, must have %s of pod %s", s, h.address, h.victim.Name)
		}
		return nil
	}
	status := func(text func(h *hands) string) func(ctx context.Context, h *hands) error {
		return func(ctx context.Context, h *hands) error {
			o, err := claim(ctx, h)
			if err != nil {
				return err
			}
			return h.client().Status().Patch(ctx, o, client.RawPatch(types.MergePatchType, []byte(text(h))))
		}
	}
	return []handEdit{
		{claim: true, name: "IPClaim deleted", healed: nothing, do: func(ctx context.Context, h *hands) error {
			o, err := claim(ctx, h)
			return errors.Join(err, h.client().Delete(ctx, o))
		}},
		{claim: true, name: "IPClaim status edited to another's address", healed: healed, do: status(func(h *hands) string {
			return `{"status":{"addresses":["` + h.anothers + `"],"pod":""}}`
		})},
		{claim: true, name: "IPClaim edited to want another's address", healed: healed, do: func(ctx context.Context, h *hands) error {
			o, err := claim(ctx, h)
			if err != nil {
				return err
			}
			return h.client().Patch(ctx, o, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"addresses":["`+h.anothers+`"]}}`)))
		}},
		{claim: true, name: "IPClaim put back to before it had an address", healed: healed, do: status(func(*hands) string {
			return `{"status":{"addresses":null,"pod":null,"pool":null,"domain":null}}`
		})},
	}
}

// recordEdits are of the victim's PodAttachment, and of one whose pod is gone.
func recordEdits() []handEdit {
	record := func(ctx context.Context, h *hands) (*v1alpha1.PodAttachment, error) {
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
	patch := func(ctx context.Context, h *hands, text string) error {
		r, err := record(ctx, h)
		if err != nil {
			return err
		}
		return h.client().Patch(ctx, r, client.RawPatch(types.MergePatchType, []byte(text)))
	}
	remove := func(ctx context.Context, h *hands) error {
		r, err := record(ctx, h)
		return errors.Join(err, h.client().Delete(ctx, r))
	}
	is := func(good func(r *v1alpha1.PodAttachment) bool) func(ctx context.Context, h *hands) error {
		return func(ctx context.Context, h *hands) error {
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
		{name: "PodAttachment deleted with its finalizer", healed: is(whole), do: func(ctx context.Context, h *hands) error {
			return errors.Join(patch(ctx, h, `{"metadata":{"finalizers":null}}`), remove(ctx, h))
		}},
		{name: "PodAttachment edited", healed: is(whole), do: func(ctx context.Context, h *hands) error {
			err := patch(ctx, h, `{"spec":{"podName":"another"}}`)
			if !apierrors.IsInvalid(err) {
				return fmt.Errorf("the edit must be refused as invalid: %w", err)
			}
			return nil
		}},
		{
			name: "PodAttachment put back whose pod is gone", do: func(ctx context.Context, h *hands) error {
				old := h.ghost.DeepCopy()
				old.ResourceVersion, old.UID = "", ""
				return h.client().Create(ctx, old)
			},
			healed: func(ctx context.Context, h *hands) error {
				err := h.client().Get(ctx, client.ObjectKeyFromObject(h.ghost), &v1alpha1.PodAttachment{})
				if err == nil {
					err = errors.New("it is there")
				}
				return client.IgnoreNotFound(err)
			},
		},
	}
}
