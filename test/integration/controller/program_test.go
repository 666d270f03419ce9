package controller

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/test/cluster"
)

// Each malformed pool is refused with an error that names the field, by the API server or in
// a condition of the pool, and no pod gets an address of it. Some of them whereabouts
// accepted silently (research 1.1: a start outside the range, excludes outside it).
func TestMalformedPools(t *testing.T) {
	t.Parallel()
	c := cluster.Exclusive(t)
	supervise(t, c.Account(cluster.ControllerAccount, ""))
	c.Node("node-x")
	w := &poolTest{claimTest{&observer{c: c, domain: "default"}}}
	w.repeat(t, 10*time.Millisecond, func(ctx context.Context) { w.detach(ctx, w.inspect(ctx)) })
	cases := []struct {
		name string
		spec v1alpha1.IPPoolSpec
		want []string
	}{
		{"overlapping excludes", v1alpha1.IPPoolSpec{Ranges: []string{"10.1.0.0/24"}, Excludes: []string{"10.1.0.0/28", "10.1.0.8"}}, []string{"spec.excludes[1]", "10.1.0.8"}},
		{"an exclude outside", v1alpha1.IPPoolSpec{Ranges: []string{"10.1.0.0/24"}, Excludes: []string{"10.2.0.1"}}, []string{"spec.excludes[0]", "10.2.0.1"}},
		{"a gateway outside", v1alpha1.IPPoolSpec{Ranges: []string{"10.1.0.0/24"}, Gateways: []string{"10.2.0.1"}}, []string{"spec.gateways[0]", "10.2.0.1"}},
		{"a gateway that is none", v1alpha1.IPPoolSpec{Ranges: []string{"10.1.0.0/24"}, Gateways: []string{"router"}}, []string{"spec.gateways"}},
		{"host bits", v1alpha1.IPPoolSpec{Ranges: []string{"10.1.0.1/24"}}, []string{"spec.ranges[0]", "10.1.0.0/24"}},
		{"mixed families", v1alpha1.IPPoolSpec{Ranges: []string{"10.1.0.1-fd00::1"}}, []string{"spec.ranges[0]", "10.1.0.1-fd00::1"}},
		{"first after last", v1alpha1.IPPoolSpec{Ranges: []string{"10.1.0.0/24", "10.2.0.9-10.2.0.1"}}, []string{"spec.ranges[1]", "10.2.0.9-10.2.0.1"}},
		{"overlapping ranges", v1alpha1.IPPoolSpec{Ranges: []string{"10.1.0.0/24", "10.1.0.128/25"}}, []string{"spec.ranges[1]", "10.1.0.128/25"}},
		{"not an address", v1alpha1.IPPoolSpec{Ranges: []string{"ten dot one"}}, []string{"spec.ranges[0]", "ten dot one"}},
		{"no ranges", v1alpha1.IPPoolSpec{}, []string{"spec.ranges"}},
		{"a cooldown too short", v1alpha1.IPPoolSpec{Ranges: []string{"10.1.0.0/24"}, Cooldown: &metav1.Duration{Duration: 1}}, []string{"spec.cooldown", "5s"}},
	}
	var waiting []*corev1.Pod
	for i, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			pool := &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "default"}, Spec: tc.spec}
			err := c.Client.Create(t.Context(), pool)
			if apierrors.IsInvalid(err) {
				mentions(t, err.Error(), tc.want)
				return // there is no pool that a pod could get an address of
			}
			if err != nil {
				t.Fatal(err)
			}
			w.invalid(t, pool, tc.want)
			p := c.Pod(fmt.Sprintf("web-%d", i), "node-x")
			waiting = append(waiting, p)
			w.refused(t, p, "NetworkInvalid", tc.want...)
			if err := w.empty(t.Context()); err != nil {
				t.Errorf("a pod got an address of the pool: %v", err)
			}
			if err := c.Client.Delete(t.Context(), pool); err != nil {
				t.Fatal(err)
			}
		})
	}
	if len(waiting) == 0 {
		t.Fatal("every pool was refused by the API server")
	}
	good := w.pool(t, "default", v1alpha1.IPPoolSpec{Ranges: []string{"10.1.0.0-10.1.0.31"}})
	c.Eventually(t, "the pods that waited to be served by the good pool", func(ctx context.Context) error { return w.holdsOnly(ctx, waiting) })
	t.Run("edited while it is in use", func(t *testing.T) { w.edited(t, good, waiting) })
}

// edited makes a pool invalid and valid again while pods use it.
func (w *poolTest) edited(t *testing.T, pool *v1alpha1.IPPool, pods []*corev1.Pod) {
	change := func(ranges string) {
		t.Helper()
		patch := fmt.Sprintf(`{"spec":{"ranges":[%q]}}`, ranges)
		if err := w.c.Client.Patch(t.Context(), pool, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
			t.Fatal(err)
		}
	}
	good := pool.Spec.Ranges[0]
	change("10.1.0.1/24")
	w.invalid(t, pool, []string{"spec.ranges[0]", "10.1.0.0/24"})
	late := w.c.Pod("late", "node-x")
	w.refused(t, late, "NetworkInvalid", "spec.ranges[0]", "10.1.0.0/24")
	if err := w.holdsOnly(t.Context(), pods); err != nil {
		t.Errorf("the addresses that pods had before: %v", err)
	}
	w.delete(t, pods[0])
	w.c.Eventually(t, "an address to be given back meanwhile", func(ctx context.Context) error { return w.holdsOnly(ctx, pods[1:]) })
	change(good)
	w.c.Eventually(t, "the pod that waited", func(ctx context.Context) error { return w.holdsOnly(ctx, append(pods[1:], late)) })
}

// invalid waits until the condition Ready of a pool is False with the reason Invalid, and
// checks its message.
func (w *poolTest) invalid(t *testing.T, pool *v1alpha1.IPPool, want []string) {
	t.Helper()
	w.status(t, pool, v1alpha1.ConditionReady, metav1.ConditionFalse, want[0])
	ready := meta.FindStatusCondition(pool.Status.Conditions, v1alpha1.ConditionReady)
	if ready.Reason != v1alpha1.ReasonInvalid {
		t.Errorf("the reason is %s", ready.Reason)
	}
	mentions(t, ready.Message, want)
}

func mentions(t *testing.T, text string, want []string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(text, w) {
			t.Errorf("%q is not in: %s", w, text)
		}
	}
}

// longLease is a lease that does not expire during a test, mediumLease one that a busy leader
// does not lose, and that expires within seconds when the leader was killed.
const (
	longLease   = "leaderElection: {leaseDuration: 10m, renewDeadline: 9m, retryPeriod: 100ms}"
	mediumLease = "leaderElection: {leaseDuration: 4s, renewDeadline: 3s, retryPeriod: 200ms}"
)

// A standby has warm caches and takes over when the leader ends. If the leader stops in
// order, it gives the lease back, and the standby leads at once. If the leader is killed,
// the standby leads when the lease has expired. kuryr 1.7 had neither.
func TestFailover(t *testing.T) {
	t.Parallel()
	c := cluster.Exclusive(t)
	c.Node("node-x")
	if err := c.Client.Create(t.Context(), &v1alpha1.IPPool{
		ObjectMeta: metav1.ObjectMeta{Name: "default"},
		Spec:       v1alpha1.IPPoolSpec{Ranges: []string{"10.1.0.0/24"}},
	}); err != nil {
		t.Fatal(err)
	}
	cases := []struct {
		name, election string
		signals        []syscall.Signal
	}{
		// The lease does not expire; the leader gives it back.
		{"in order", longLease, []syscall.Signal{syscall.SIGTERM, syscall.SIGTERM}},
		{"killed", briefLease, []syscall.Signal{syscall.SIGKILL, syscall.SIGKILL, syscall.SIGTERM}},
	}
	seen := map[string]bool{}
	serves := func(t *testing.T) {
		t.Helper()
		p := c.Pod(fmt.Sprintf("web-%d", len(seen)), "node-x")
		address := addressOf(t, c, p)
		if seen[address] {
			t.Errorf("%s was given twice", address)
		}
		seen[address] = true
	}
	for _, tc := range cases {
		ok := t.Run(tc.name, func(t *testing.T) {
			freeLease(t, c)
			t.Cleanup(func() { freeLease(t, c) }) // the last leader is killed and leaves its lease
			for range 2 {
				supervise(t, c.Account(cluster.ControllerAccount, ""), tc.election)
			}
			serves(t)
			for _, signal := range tc.signals {
				holder := leaderOf(t, c)
				if err := syscall.Kill(processOf(t, holder), signal); err != nil {
					t.Fatal(err)
				}
				serves(t) // the former leader may serve this pod before it ends
				c.Eventually(t, fmt.Sprintf("another leader after signal %v", signal), func(ctx context.Context) error {
					now, err := leads(ctx, c)
					if err == nil && now == holder {
						err = fmt.Errorf("%s still leads", now)
					}
					return err
				})
				serves(t)
			}
		})
		if !ok {
			return
		}
	}
}

// processOf returns the process ID in an identity, which is the last part but one.
func processOf(t *testing.T, identity string) int {
	t.Helper()
	parts := strings.Split(identity, "_")
	pid, err := strconv.Atoi(parts[max(len(parts)-2, 0)])
	if err != nil {
		t.Fatalf("identity %q: %v", identity, err)
	}
	return pid
}

// leaderOf waits for a leader and returns its identity.
func leaderOf(t *testing.T, c *cluster.Cluster) (identity string) {
	t.Helper()
	c.Eventually(t, "a leader", func(ctx context.Context) (err error) {
		identity, err = leads(ctx, c)
		return err
	})
	return identity
}

// leads returns the identity in the Lease, or an error if the Lease is free.
func leads(ctx context.Context, c *cluster.Cluster) (string, error) {
	lease := &coordinationv1.Lease{}
	if err := c.Client.Get(ctx, client.ObjectKey{Namespace: cluster.AccountNamespace, Name: leaseName}, lease); err != nil {
		return "", err
	}
	if lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "" {
		return "", errors.New("the lease is free")
	}
	return *lease.Spec.HolderIdentity, nil
}

func addressOf(t *testing.T, c *cluster.Cluster, p *corev1.Pod) string {
	t.Helper()
	var address string
	c.Eventually(t, "the attachment of "+p.Name, func(ctx context.Context) error {
		var list v1alpha1.PodAttachmentList
		if err := c.Client.List(ctx, &list, client.InNamespace(p.Namespace)); err != nil {
			return err
		}
		for _, r := range list.Items {
			if r.Spec.PodUID == p.UID {
				address = r.Spec.Summary.Addresses
				return nil
			}
		}
		return fmt.Errorf("%d attachments, none of the pod", len(list.Items))
	})
	return address
}
