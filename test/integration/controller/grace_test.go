package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/test/cluster"
)

// The grace period of a deleted Node continues when the leader is killed, since the standby
// has seen the deletion, too. It ends no earlier, and it does not begin anew. The message
// in the record's condition stays the same throughout.
func TestNodeGraceGoesOn(t *testing.T) {
	t.Parallel()
	const grace, killedAfter = 20 * time.Second, 14 * time.Second
	c := cluster.Exclusive(t)
	freeLease(t, c)
	t.Cleanup(func() { freeLease(t, c) })
	w := &observer{c: c, domain: "default"}
	create(t, c, &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "default"}, Spec: v1alpha1.IPPoolSpec{Ranges: []string{"10.1.0.0/24"}}})
	node := c.Node("doomed")
	ended := make(chan struct{})
	for range 2 {
		supervise(t, c.Account(cluster.ControllerAccount, ""), fmt.Sprintf("nodeGrace: %v", grace), mediumLease).setOnExit(func() { <-ended })
	}
	t.Cleanup(func() { close(ended) }) // until then no killed process is started again, which would begin a new grace period
	p := c.Pod("web", "doomed")
	addressOf(t, c, p)
	key := client.ObjectKey{Namespace: p.Namespace, Name: pod.AttachmentName(p.Name, p.UID)}
	record := &v1alpha1.PodAttachment{}
	if err := c.Client.Get(t.Context(), key, record); err != nil {
		t.Fatal(err)
	}
	at := metav1.NowMicro()
	if err := w.writeSandbox(t.Context(), record, v1alpha1.Sandbox{ID: "c0ffee", BootID: "boot-1", State: v1alpha1.SandboxAttached, AttachedAt: &at}); err != nil {
		t.Fatal(err)
	}
	for _, o := range []client.Object{p, node} {
		if err := c.Client.Delete(t.Context(), o, client.GracePeriodSeconds(0)); client.IgnoreNotFound(err) != nil {
			t.Fatal(err)
		}
	}
	message := ""
	c.Eventually(t, "the condition that the Node was found deleted", func(ctx context.Context) error {
		var err error
		message, err = releaseMessage(ctx, c, key)
		if err == nil && !strings.Contains(message, "Node doomed was found deleted at ") {
			err = errors.New(message)
		}
		return err
	})
	found := time.Now()
	<-time.After(killedAfter)
	leader := leaderOf(t, c)
	if err := syscall.Kill(processOf(t, leader), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for gone := false; !gone; {
		<-time.After(100 * time.Millisecond)
		now, err := releaseMessage(t.Context(), c, key)
		switch gone = apierrors.IsNotFound(err); {
		case gone:
		case err != nil:
			t.Fatal(err)
		case now != message:
			t.Errorf("the condition is %q, it was %q", now, message)
			message = now
		}
		if time.Since(found) > killedAfter+grace {
			t.Fatal("the grace has begun anew")
		}
	}
	if took := time.Since(found); took < grace-2*time.Second {
		t.Errorf("given back after %v of %v", took, grace)
	}
	if now := leaderOf(t, c); now == leader {
		t.Errorf("%s still leads", now)
	}
}

// releaseMessage returns the message of a record's condition Released, or "" if it has none.
func releaseMessage(ctx context.Context, c *cluster.Cluster, key client.ObjectKey) (string, error) {
	record := &v1alpha1.PodAttachment{}
	if err := c.Client.Get(ctx, key, record); err != nil {
		return "", err
	}
	if s := meta.FindStatusCondition(record.Status.Conditions, v1alpha1.ConditionReleased); s != nil {
		return s.Message, nil
	}
	return "", nil
}
