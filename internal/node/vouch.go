package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// vouch has the API server know, before anything of a claimed sandbox is plugged,
// that it is of this boot. As long as the status names an earlier one, the end of
// that boot is proof for the controller that nothing holds the addresses (ADR
// 0003), and a node that is cut off after it plugged the pod again could not deny
// it.
//
// The error is errNotReady when that cannot be written.
func (v *verbs) vouch(ctx context.Context, rec *record) error {
	key := rec.attachmentKey()
	if !ofEarlierBoot(v.registry.get(key), rec.BootID) { // as a rule
		return nil
	}
	defer v.metrics.step("vouch", time.Now())
	changed, done := v.registry.subscribe(rec.Pod)
	defer done()
	for {
		pa := v.registry.get(key)
		switch {
		case pa == nil || pa.UID != rec.Attachment.UID || pa.DeletionTimestamp != nil:
			return because(errNotReady, "pod %s: its PodAttachment %s is being deleted, and is of the boot before", rec.Pod, key.Name)
		case !ofEarlierBoot(pa, rec.BootID):
			return nil
		}
		not := metav1.Condition{Status: metav1.ConditionFalse, Reason: "Plugging", Message: "is being plugged again after the node has booted"}
		err := v.acks.write(ctx, pa, v1alpha1.Sandbox{ID: rec.ContainerID, BootID: rec.BootID, State: v1alpha1.SandboxAttached}, not, not)
		if !apierrors.IsConflict(err) {
			if err != nil {
				err = because(errNotReady, "pod %s: it was plugged before node %s booted, and that it is plugged again must be written first: %w", rec.Pod, v.node, err)
			}
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			if cause := context.Cause(ctx); !errors.Is(cause, context.DeadlineExceeded) {
				return fmt.Errorf("pod %s: %w", rec.Pod, cause)
			}
			return because(errNotReady, "pod %s: PodAttachment %s did not arrive as it is now within %s", rec.Pod, key.Name, v.addTimeout)
		}
	}
}

// ofEarlierBoot tells whether the status is of a sandbox of another boot. One
// whose boot is not known is never judged by it.
func ofEarlierBoot(pa *v1alpha1.PodAttachment, bootID string) bool {
	if pa == nil || pa.Status.Sandbox == nil {
		return false
	}
	of := pa.Status.Sandbox.BootID
	return of != "" && of != bootID
}
