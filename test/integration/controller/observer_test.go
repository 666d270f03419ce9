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

// observer reads the PodAttachments of the test's namespace and the IPBlocks of one domain,
// and collects faults.
type observer struct {
	c      *cluster.Cluster
	domain string
	mu     sync.Mutex
	faults []string
}

// observe inspects the records every 10 ms until the test ends. It plays the nodes, too:
// it sets Detached on each record that is being deleted.
func observe(t *testing.T, c *cluster.Cluster, domain string) *observer {
	w := &observer{c: c, domain: domain}
	w.repeat(t, 10*time.Millisecond, func(ctx context.Context) { w.detach(ctx, w.inspect(ctx)) })
	return w
}

// oneNode creates a node and the pool of the default network, whose domain has the name of
// the node, and starts observe.
func oneNode(t *testing.T, c *cluster.Cluster, name string) *observer {
	t.Helper()
	c.Node(name)
	pool := &v1alpha1.IPPool{
		ObjectMeta: metav1.ObjectMeta{Name: "default"},
		Spec:       v1alpha1.IPPoolSpec{Domain: name, Ranges: []string{"10.1.0.0/24"}, Cooldown: &metav1.Duration{Duration: 5 * time.Second}},
	}
	if err := c.Client.Create(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	return observe(t, c, name)
}

// repeat calls do in every interval until the test ends. Then the test fails with each
// recorded fault.
func (w *observer) repeat(t *testing.T, every time.Duration, do func(ctx context.Context)) {
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

func (w *observer) records(ctx context.Context) ([]v1alpha1.PodAttachment, error) {
	var list v1alpha1.PodAttachmentList
	err := w.c.Client.List(ctx, &list, client.InNamespace(w.c.Namespace))
	return list.Items, err
}

// slots returns the taken addresses of the domain, each with the UID of the pod that holds it.
func (w *observer) slots(ctx context.Context) (map[string]string, error) {
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

// inspect returns the records. It records a fault if two records name one address, or if the
// slot of an address has another holder than the record of a running pod.
func (w *observer) inspect(ctx context.Context) []v1alpha1.PodAttachment {
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
			continue // another pod may have its address by now
		}
		for _, address := range addressesOf(r) {
			if other := seen[address]; other != "" {
				w.fault("records %s and %s both name %s", other, r.Name, address)
			}
			seen[address] = r.Name
			// The blocks were read after the records, so a slot must name the pod of its
			// record, unless the record was being released at that time.
			if holder := slots[address]; r.DeletionTimestamp == nil && holder != string(r.Spec.PodUID) && w.unchanged(ctx, r) {
				w.fault("record %s names %s, which its slot gives to %q", r.Name, address, holder)
			}
		}
	}
	return records
}

// addressesOf returns all addresses of a record.
func addressesOf(r *v1alpha1.PodAttachment) []string {
	return strings.Split(r.Spec.Summary.Addresses, ",")
}

func detached(r *v1alpha1.PodAttachment) bool {
	return r.Status.Sandbox != nil && r.Status.Sandbox.State == v1alpha1.SandboxDetached
}

// detach sets Detached on the records that are being deleted and have no sandbox.
func (w *observer) detach(ctx context.Context, records []v1alpha1.PodAttachment) {
	for i := range records {
		if r := &records[i]; r.DeletionTimestamp != nil && r.Status.Sandbox == nil {
			_ = w.writeSandbox(ctx, r, v1alpha1.Sandbox{State: v1alpha1.SandboxDetached})
		}
	}
}

// writeSandbox sets the sandbox in the status of a record, as a node does.
func (w *observer) writeSandbox(ctx context.Context, r *v1alpha1.PodAttachment, s v1alpha1.Sandbox) error {
	after := r.DeepCopy()
	after.Status.Sandbox = &s
	return w.c.Client.Status().Patch(ctx, after, client.MergeFrom(r))
}

// unchanged reports whether the record is unchanged and its pod still runs. If the pod is gone
// or finished, a controller that was killed may have written the record late, after another
// controller had released the addresses.
func (w *observer) unchanged(ctx context.Context, r *v1alpha1.PodAttachment) bool {
	p := &corev1.Pod{}
	err := w.c.Client.Get(ctx, client.ObjectKey{Namespace: r.Namespace, Name: r.Spec.PodName}, p)
	if err != nil || p.UID != r.Spec.PodUID || !pod.Holds(p) {
		return false
	}
	now := &v1alpha1.PodAttachment{}
	err = w.c.Client.Get(ctx, client.ObjectKeyFromObject(r), now)
	return err == nil && now.ResourceVersion == r.ResourceVersion
}

func (w *observer) fault(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults = append(w.faults, fmt.Sprintf(format, args...))
}

// recorded returns an error until each pod has exactly one record.
func (w *observer) recorded(ctx context.Context, pods []*corev1.Pod) error {
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

// empty returns an error while there is a record or a taken address.
func (w *observer) empty(ctx context.Context) error {
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
