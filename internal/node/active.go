package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// reasonNotActive is the reason of the event on a pod whose ADD was given up.
const reasonNotActive = "InterfaceNotActive"

// awaitActive waits, after the kernel's part is done, until the drivers' networks
// carry the traffic of the interfaces that have to wait for it: a driver often
// gets there only because the interface is plugged. The errors are errGone when
// the pod is, errNotReady when ctx ended first or the PodAttachment is given back.
func (v *verbs) awaitActive(ctx context.Context, rec *record) error {
	waits := func(i recordedInterface) bool { return i.WaitForActive }
	if !slices.ContainsFunc(rec.Interfaces, waits) { // as a rule
		return nil
	}
	defer v.metrics.step("active", time.Now())
	changed, done := v.registry.subscribe(rec.Pod)
	defer done()
	for {
		pa := v.registry.get(rec.attachmentKey())
		if pa == nil || pa.UID != rec.Attachment.UID || pa.DeletionTimestamp != nil {
			if _, err := v.ask(ctx, rec.Pod, true); err != nil {
				return err
			}
			return because(errNotReady, "pod %s: PodAttachment %s is being deleted, while its ADD waited for interfaces to become active", rec.Pod, rec.Attachment.Name)
		}
		name := inactive(pa)
		if name == "" {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			if err := context.Cause(ctx); !errors.Is(err, context.DeadlineExceeded) {
				return fmt.Errorf("pod %s: ADD ended while it waited for interface %s: %w", rec.Pod, name, err)
			}
			err := because(errNotReady, "pod %s: %s", rec.Pod, v.notActive(pa, name))
			v.reporter.report(report{pod: rec.Pod, reason: reasonNotActive, note: err.Error()})
			return err
		}
	}
}

// inactive names the first interface that has to become active and is not.
func inactive(pa *v1alpha1.PodAttachment) string {
	active := map[string]bool{}
	for _, s := range pa.Status.Interfaces {
		active[s.Name] = s.Active
	}
	for _, i := range pa.Spec.Interfaces {
		if i.WaitForActive && !active[i.Name] {
			return i.Name
		}
	}
	return ""
}

// notActive says what an ADD waited for in vain, with what the controller knows
// of it.
func (v *verbs) notActive(pa *v1alpha1.PodAttachment, name string) string {
	msg := fmt.Sprintf("interface %s of PodAttachment %s did not become active within %s", name, pa.Name, v.addTimeout)
	for _, s := range pa.Status.Interfaces {
		if s.Name == name && s.Message != "" {
			return msg + ": " + s.Message
		}
	}
	if c := meta.FindStatusCondition(pa.Status.Conditions, v1alpha1.ConditionReady); c != nil && c.Message != "" {
		return msg + ": " + c.Message
	}
	return msg + ": the controller has not said why"
}
