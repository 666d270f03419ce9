package main

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/test/cluster"
)

// Each malformed pool is refused with an error that names the field, by the
// API server or on the pool itself, and no pod gets an address of it. Among
// them are those that whereabouts took without a word (research 1.1: a start
// outside the range, excludes outside it).
func TestMalformedPools(t *testing.T) {
	c := cluster.Exclusive(t)
	supervise(t, c.Account(cluster.ControllerAccount, ""))
	c.Node("node-x")
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
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			pool := &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "default"}, Spec: tc.spec}
			text := refusal(t, c, pool)
			for _, want := range tc.want {
				if !strings.Contains(text, want) {
					t.Errorf("%q is not in: %s", want, text)
				}
			}
		})
	}
	p := c.Pod("web", "node-x")
	good := &v1alpha1.IPPool{
		ObjectMeta: metav1.ObjectMeta{Name: "default"},
		Spec:       v1alpha1.IPPoolSpec{Ranges: []string{"10.1.0.7"}},
	}
	if err := c.Client.Create(t.Context(), good); err != nil {
		t.Fatal(err)
	}
	c.Eventually(t, "the pod that waited to be served by the good pool", func(ctx context.Context) error {
		var list v1alpha1.PodAttachmentList
		if err := c.Client.List(ctx, &list, client.InNamespace(c.Namespace)); err != nil {
			return err
		}
		if len(list.Items) != 1 || list.Items[0].Spec.PodUID != p.UID || list.Items[0].Spec.Summary.Addresses != "10.1.0.7" {
			return fmt.Errorf("attachments %+v", list.Items)
		}
		return nil
	})
}

// refusal is why a pool is not used: the API server's error, or its condition.
func refusal(t *testing.T, c *cluster.Cluster, pool *v1alpha1.IPPool) string {
	t.Helper()
	err := c.Client.Create(t.Context(), pool)
	if apierrors.IsInvalid(err) {
		return err.Error()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Client.Delete(t.Context(), pool); err != nil {
			t.Error(err)
		}
	}()
	var text string
	c.Eventually(t, "the pool to be judged", func(ctx context.Context) error {
		if err := c.Client.Get(ctx, client.ObjectKeyFromObject(pool), pool); err != nil {
			return err
		}
		ready := meta.FindStatusCondition(pool.Status.Conditions, v1alpha1.ConditionReady)
		if ready == nil {
			return fmt.Errorf("no condition yet")
		}
		if ready.Status != metav1.ConditionFalse || ready.Reason != v1alpha1.ReasonInvalid {
			t.Errorf("the pool is %s, %s", ready.Status, ready.Reason)
		}
		text = ready.Message
		return nil
	})
	return text
}

// A standby has everything in its caches and takes over when the leader goes:
// at once when the leader ends in order, for it gives the lease back, and
// after the lease when it is killed. kuryr 1.7 had neither.
func TestFailover(t *testing.T) {
	c := cluster.Exclusive(t)
	c.Node("node-x")
	if err := c.Client.Create(t.Context(), &v1alpha1.IPPool{
		ObjectMeta: metav1.ObjectMeta{Name: "default"},
		Spec:       v1alpha1.IPPoolSpec{Ranges: []string{"10.1.0.0/24"}},
	}); err != nil {
		t.Fatal(err)
	}
	supervise(t, c.Account(cluster.ControllerAccount, ""))
	supervise(t, c.Account(cluster.ControllerAccount, ""))
	seen := map[string]bool{}
	for i, signal := range []syscall.Signal{0, syscall.SIGTERM, syscall.SIGKILL, syscall.SIGTERM} {
		var holder string
		if signal != 0 {
			holder = leader(t, c)
			pid := 0
			if _, err := fmt.Sscanf(holder[strings.LastIndex(holder, "_")+1:], "%d", &pid); err != nil {
				t.Fatal(err)
			}
			if err := syscall.Kill(pid, signal); err != nil {
				t.Fatal(err)
			}
		}
		p := c.Pod(fmt.Sprintf("web-%d", i), "node-x")
		address := addressOf(t, c, p)
		if seen[address] {
			t.Errorf("%s was given twice", address)
		}
		seen[address] = true
		if now := leader(t, c); now == holder {
			t.Errorf("%s still leads after signal %v", now, signal)
		}
	}
}

// leader is the identity in the Lease.
func leader(t *testing.T, c *cluster.Cluster) string {
	t.Helper()
	lease := &coordinationv1.Lease{}
	c.Eventually(t, "a leader", func(ctx context.Context) error {
		if err := c.Client.Get(ctx, client.ObjectKey{Namespace: cluster.AccountNamespace, Name: leaseName}, lease); err != nil {
			return err
		}
		if lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "" {
			return fmt.Errorf("the lease is free")
		}
		return nil
	})
	return *lease.Spec.HolderIdentity
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
		return fmt.Errorf("%d attachments, none of it", len(list.Items))
	})
	return address
}

func TestBadCommandLines(t *testing.T) {
	for _, args := range [][]string{{"--config", "/does/not/exist"}, {"--log-format", "xml"}, {"extra"}, {"--no-such-flag"}} {
		if code := execute(args); code == 0 {
			t.Errorf("%v: exit code 0", args)
		}
	}
}
