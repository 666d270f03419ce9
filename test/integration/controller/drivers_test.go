package controller

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/test/cloud"
	"fairlead.dev/fairlead/test/cluster"
)

// twoDrivers has pods with a default interface of the native driver. A pod may have a second
// interface, on the network "fast" of the cloud.
type twoDrivers struct {
	*claimTest
	cloud *cloud.Cloud
}

// startTwoDrivers runs two controllers; one leads.
func startTwoDrivers(t *testing.T, c *cluster.Cluster) *twoDrivers {
	t.Helper()
	freeLease(t, c)
	t.Cleanup(func() { freeLease(t, c) })
	w := &twoDrivers{&claimTest{&observer{c: c, domain: "two"}}, cloud.New(t, 16)}
	binary, err := buildWithCloud()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(withCloud, w.cloud.URL)
	c.Node("node-x")
	create(t, c, &v1alpha1.IPPool{
		ObjectMeta: metav1.ObjectMeta{Name: "default"},
		Spec:       v1alpha1.IPPoolSpec{Domain: "two", Ranges: []string{"10.1.0.0/24"}},
	})
	for name, d := range map[string]string{"fast": cloud.Name, "lost": "nimbus"} {
		network := c.Network(name, `{"type": "any"}`)
		patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, v1alpha1.AnnotationDriver, d)
		if err := c.Client.Patch(t.Context(), network, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
			t.Fatal(err)
		}
	}
	w.repeat(t, 10*time.Millisecond, func(ctx context.Context) {
		if records, err := w.records(ctx); err == nil {
			w.detach(ctx, records)
		}
	})
	for range 2 {
		superviseBinary(t, binary, c.Account(cluster.ControllerAccount, ""), "multiVIFSources: [npwg]", "gcInterval: 10s", briefLease)
	}
	return w
}

// pods creates n pods on the network of the cloud.
func (w *twoDrivers) pods(name string, n int) []*corev1.Pod {
	pods := make([]*corev1.Pod, n)
	for i := range pods {
		pods[i] = w.on(fmt.Sprintf("%s-%d", name, i), "fast")
	}
	return pods
}

func (w *twoDrivers) on(name, network string) *corev1.Pod {
	return w.c.Pod(name, "node-x", func(p *corev1.Pod) {
		if network != "" {
			p.Annotations = map[string]string{pod.AnnotationNetworks: network}
		}
	})
}

// recordOf waits until is returns true for the record of a pod.
func (w *twoDrivers) recordOf(t *testing.T, p *corev1.Pod, what string, is func(*v1alpha1.PodAttachment) bool) {
	t.Helper()
	w.c.Eventually(t, "the record of pod "+p.Name+" "+what, func(ctx context.Context) error {
		record := &v1alpha1.PodAttachment{}
		if err := w.c.Client.Get(ctx, client.ObjectKey{Namespace: p.Namespace, Name: pod.AttachmentName(p.Name, p.UID)}, record); err != nil {
			return err
		}
		if !is(record) {
			return fmt.Errorf("it has %+v and %+v", record.Spec.Interfaces, record.Status)
		}
		return nil
	})
}

// waits reports whether a record has both interfaces, and the interface of the cloud is not
// active yet.
func waits(record *v1alpha1.PodAttachment) bool {
	s := record.Status.Interfaces
	return len(record.Spec.Interfaces) == 2 && record.Spec.Interfaces[0].Driver == "native" && record.Spec.Interfaces[1].Driver == cloud.Name &&
		len(s) == 1 && s[0].Name == "net1" && !s[0].Active && strings.Contains(s[0].Message, "the port is DOWN")
}

func activated(record *v1alpha1.PodAttachment) bool {
	return len(record.Status.Interfaces) == 1 && record.Status.Interfaces[0].Active
}

func (w *twoDrivers) delete(t *testing.T, pods ...*corev1.Pod) {
	t.Helper()
	for _, p := range pods {
		if err := w.c.Client.Delete(t.Context(), p, client.GracePeriodSeconds(0)); err != nil {
			t.Fatal(err)
		}
	}
}

// gone waits until there is no record, no taken address and no port in the cloud.
func (w *twoDrivers) gone(t *testing.T) {
	t.Helper()
	w.c.Eventually(t, "nothing to be left", func(ctx context.Context) error {
		if held := w.cloud.Held(); len(held) > 0 {
			return fmt.Errorf("the cloud has %+v", held)
		}
		return w.empty(ctx)
	})
}

// Two drivers in one controller, through ensure, activation, release, garbage collection, a
// restart and a change of the leader. The driver of the cloud is slow, fails, and has
// interfaces that become active later.
func TestTwoDrivers(t *testing.T) {
	c := cluster.Exclusive(t)
	w := startTwoDrivers(t, c)
	leader := leaderOf(t, c)

	t.Run("activation comes as a callback, without calls of ensure", func(t *testing.T) {
		w.cloud.Slow(50 * time.Millisecond)
		pods := w.pods("web", 4)
		for _, p := range pods {
			w.recordOf(t, p, "to wait", waits)
		}
		asked := w.cloud.Calls("ensure")
		<-time.After(1500 * time.Millisecond)
		w.cloud.Activate()
		for _, p := range pods {
			w.recordOf(t, p, "to be active", activated)
		}
		if n := w.cloud.Calls("ensure"); n != asked || asked > 2*len(pods) {
			t.Errorf("%d calls of ensure for %d pods, then %d", asked, len(pods), n)
		}
		if n := w.cloud.Calls("changes"); n > 4 {
			t.Errorf("%d calls of changes, want 4 at most", n)
		}
		w.cloud.Slow(0)
		w.delete(t, pods...)
		w.gone(t)
	})
	t.Run("a driver that fails delays no pod of the other driver", func(t *testing.T) {
		w.cloud.Fail(func(string) bool { return true })
		waiting, plain := w.on("waits", "fast"), w.on("plain", "")
		w.recordOf(t, plain, "to be there", func(r *v1alpha1.PodAttachment) bool { return len(r.Spec.Interfaces) == 1 })
		w.refused(t, waiting, "NetworkUnavailable", "interface net1", "the cloud is away")
		left := w.on("left", "fast")
		w.refused(t, left, "NetworkUnavailable", "interface net1")
		w.delete(t, left) // its default interface is released, though there is no record yet
		c.Eventually(t, "the release of that pod's addresses", func(ctx context.Context) error {
			slots, err := w.slots(ctx)
			if len(slots) > 2 {
				err = fmt.Errorf("taken are %v", slots)
			}
			return err
		})
		w.cloud.Fail(nil)
		w.recordOf(t, waiting, "to wait", waits)
		w.cloud.Fail(func(call string) bool { return call == "release" })
		w.delete(t, waiting, plain)
		w.refused(t, waiting, "IPAddressGarbageCollectionFailed", "the cloud is away")
		w.cloud.Fail(nil)
		w.gone(t)
	})
	t.Run("a driver that does not exist", func(t *testing.T) {
		p := w.on("lost", "lost")
		w.refused(t, p, "NetworkInvalid", "interface net1", `no driver is named "nimbus": must be one of cloud, fixed, native`)
		w.delete(t, p)
		w.gone(t)
	})
	t.Run("another leader continues", func(t *testing.T) {
		pods := w.pods("over", 2)
		for _, p := range pods {
			w.recordOf(t, p, "to wait", waits)
		}
		if err := syscall.Kill(processOf(t, leader), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		w.cloud.Activate() // maybe before the next leader listens
		for _, p := range pods {
			w.recordOf(t, p, "to be active", activated)
		}
		if now := leaderOf(t, c); now == leader {
			t.Errorf("%s still leads", now)
		}
		w.delete(t, pods...)
		w.gone(t)
	})
	t.Run("a cloud that is away at the start", func(t *testing.T) {
		held := w.pods("held", 1)
		w.recordOf(t, held[0], "to wait", waits)
		w.cloud.Fail(func(string) bool { return true })
		for range 2 { // both controllers: the process started after the first kill does not lead yet
			if err := syscall.Kill(processOf(t, leaderOf(t, c)), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			<-time.After(3 * time.Second)
		}
		plain, late := w.on("plain", ""), w.on("late", "fast")
		w.recordOf(t, plain, "to be there", func(r *v1alpha1.PodAttachment) bool { return len(r.Spec.Interfaces) == 1 })
		w.delete(t, held...)
		w.recordOf(t, held[0], "to be leaving", func(r *v1alpha1.PodAttachment) bool { return r.DeletionTimestamp != nil })
		w.cloud.Fail(nil)
		w.recordOf(t, late, "to wait", waits)
		w.delete(t, plain, late)
		w.gone(t)
	})
	t.Run("garbage of both drivers", func(t *testing.T) {
		w.cloud.Put(driver.Owner{PodUID: "9b2e6f4e-1a2b-4c3d-8e9f-000000000009", Interface: "net1", Namespace: c.Namespace, PodName: "ghost", NodeName: "node-x"})
		w.gone(t)
	})
}
