package controller

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/test/cluster"
)

// world is what the test sees of its namespace and of one domain.
type world struct {
	c      *cluster.Cluster
	domain string
	mu     sync.Mutex
	faults []string
}

// watchWorld looks at the world until the test ends, and plays the nodes: it
// says Detached of each record that is being deleted.
func watchWorld(t *testing.T, c *cluster.Cluster, domain string) *world {
	w := &world{c: c, domain: domain}
	w.keep(t, 10*time.Millisecond, func(ctx context.Context) { w.detach(ctx, w.look(ctx)) })
	return w
}

// oneNode makes a node and the pool of the default network, in a domain of the
// same name, and watches its world.
func oneNode(t *testing.T, c *cluster.Cluster, name string) *world {
	t.Helper()
	c.Node(name)
	pool := &v1alpha1.IPPool{
		ObjectMeta: metav1.ObjectMeta{Name: "default"},
		Spec:       v1alpha1.IPPoolSpec{Domain: name, Ranges: []string{"10.1.0.0/24"}, Cooldown: &metav1.Duration{Duration: 5 * time.Second}},
	}
	if err := c.Client.Create(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	return watchWorld(t, c, name)
}

// keep does something again and again until the test ends, which fails with the
// faults that were noted.
func (w *world) keep(t *testing.T, every time.Duration, do func(ctx context.Context)) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for ctx.Err() == nil {
			do(ctx)
			<-tick.C
		}
	}()
	t.Cleanup(func() {
		for _, f := range w.faults {
			t.Error(f)
		}
	})
	t.Cleanup(func() { cancel(); <-done })
}

func (w *world) records(ctx context.Context) ([]v1alpha1.PodAttachment, error) {
	var list v1alpha1.PodAttachmentList
	err := w.c.Client.List(ctx, &list, client.InNamespace(w.c.Namespace))
	return list.Items, err
}

// slots are the taken addresses by the pod UID that holds them.
func (w *world) slots(ctx context.Context) (map[string]string, error) {
	var list v1alpha1.IPBlockList
	if err := w.c.Client.List(ctx, &list, client.MatchingLabels{v1alpha1.LabelDomain: w.domain}); err != nil {
		return nil, err
	}
	taken := map[string]string{}
	for _, b := range list.Items {
		decoded := ipam.DecodeBlock(netip.MustParsePrefix(b.Spec.CIDR), b.Spec.Node, b.Spec.Slots)
		for slot := range decoded.Slots() {
			if slot.State == ipam.Taken {
				taken[slot.Addr.String()] = slot.Holder.PodUID
			}
		}
	}
	return taken, nil
}

// look notes what must never be, and returns the records.
func (w *world) look(ctx context.Context) []v1alpha1.PodAttachment {
	records, err := w.records(ctx)
	if err != nil {
		return nil
	}
	slots, err := w.slots(ctx)
	if err != nil {
		return nil
	}
	seen := map[string]string{}
	for i := range records {
		r := &records[i]
		if r.DeletionTimestamp != nil && detached(r) {
			continue // its address may be somebody else's by now
		}
		for _, address := range addressesOf(r) {
			if other := seen[address]; other != "" {
				w.fault("records %s and %s both name %s", other, r.Name, address)
			}
			seen[address] = r.Name
			// The blocks were read after the record: unless it was being released
			// then, its slot must say the same.
			if holder := slots[address]; r.DeletionTimestamp == nil && holder != string(r.Spec.PodUID) && w.still(ctx, r) {
				w.fault("record %s names %s, which its slot gives to %q", r.Name, address, holder)
			}
		}
	}
	return records
}

// addressesOf are all addresses of a record.
func addressesOf(r *v1alpha1.PodAttachment) []string {
	return strings.Split(r.Spec.Summary.Addresses, ",")
}

func detached(r *v1alpha1.PodAttachment) bool {
	return r.Status.Sandbox != nil && r.Status.Sandbox.State == v1alpha1.SandboxDetached
}

// detach says Detached of the records that are being deleted.
func (w *world) detach(ctx context.Context, records []v1alpha1.PodAttachment) {
	for i := range records {
		if r := &records[i]; r.DeletionTimestamp != nil && r.Status.Sandbox == nil {
			_ = w.write(ctx, r, v1alpha1.Sandbox{State: v1alpha1.SandboxDetached})
		}
	}
}

// write writes what a node says about a record.
func (w *world) write(ctx context.Context, r *v1alpha1.PodAttachment, s v1alpha1.Sandbox) error {
	after := r.DeepCopy()
	after.Status.Sandbox = &s
	return w.c.Client.Status().Patch(ctx, after, client.MergeFrom(r))
}

// still reports whether a record is as it was, and its pod too. That of a pod
// that is gone or has finished may have been written late, by a controller that
// was killed, when another one had taken everything back.
func (w *world) still(ctx context.Context, r *v1alpha1.PodAttachment) bool {
	p := &corev1.Pod{}
	err := w.c.Client.Get(ctx, client.ObjectKey{Namespace: r.Namespace, Name: r.Spec.PodName}, p)
	if err != nil || p.UID != r.Spec.PodUID || !pod.Holds(p) {
		return false
	}
	now := &v1alpha1.PodAttachment{}
	err = w.c.Client.Get(ctx, client.ObjectKeyFromObject(r), now)
	return err == nil && now.ResourceVersion == r.ResourceVersion
}

func (w *world) fault(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults = append(w.faults, fmt.Sprintf(format, args...))
}

// recorded fails until each pod has exactly one record.
func (w *world) recorded(ctx context.Context, pods []*corev1.Pod) error {
	records, err := w.records(ctx)
	if err != nil {
		return err
	}
	count := map[string]int{}
	for _, r := range records {
		count[string(r.Spec.PodUID)]++
	}
	for _, p := range pods {
		if count[string(p.UID)] != 1 {
			return fmt.Errorf("pod %s has %d records", p.Name, count[string(p.UID)])
		}
	}
	return nil
}

// empty fails while anything is recorded or taken.
func (w *world) empty(ctx context.Context) error {
	records, err := w.records(ctx)
	if err != nil {
		return err
	}
	slots, err := w.slots(ctx)
	if err != nil {
		return err
	}
	if len(records) > 0 || len(slots) > 0 {
		return fmt.Errorf("%d records, slots %v", len(records), slots)
	}
	return nil
}
