package namespace

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/openstack/cloud"
	"fairlead.dev/fairlead/internal/run"
)

// Reasons of the conditions of a NamespaceNetwork.
const (
	reasonMade          = "Made"
	reasonMaking        = "Making"
	reasonChecking      = "Checking"
	reasonPortsLeft     = "PortsLeft"
	reasonNoAddressLeft = "NoAddressLeft"
	reasonAddressesLeft = "AddressesLeft"
	reasonExhausted     = "Exhausted"
	reasonNotFound      = "NotFound"
	reasonInvalid       = "Invalid"
	reasonUnavailable   = "Unavailable"
)

// eventFailed is the reason of events of a NamespaceNetwork.
const eventFailed = "NamespaceNetworkFailed"

// reasonOf returns the reason of a condition for an error of the cloud.
func reasonOf(err error) string {
	switch {
	case errors.Is(err, cloud.ErrQuota), errors.Is(err, cloud.ErrFull), errors.Is(err, cloud.ErrLimit):
		return reasonExhausted
	case errors.Is(err, cloud.ErrNotFound):
		return reasonNotFound
	case errors.Is(err, cloud.ErrInvalid):
		return reasonInvalid
	}
	return reasonUnavailable
}

// message returns the text of an error without the ID of the request, which differs at each
// try.
func message(err error) string {
	text := err.Error()
	if id := cloud.RequestID(err); id != "" {
		text = strings.ReplaceAll(text, ", request "+id, "")
	}
	return run.Clip(text)
}

// write changes the status of a record that has not changed since it was read. A second
// leader gets a conflict, and begins anew with what the first one recorded.
func (n *Networks) write(ctx context.Context, o *v1alpha1.NamespaceNetwork, change func(s *v1alpha1.NamespaceNetworkStatus)) error {
	before := o.DeepCopy()
	change(&o.Status)
	if err := n.cfg.Client.Status().Patch(ctx, o, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		o.Status = before.Status
		return fmt.Errorf("write the status of NamespaceNetwork %s: %w", o.Name, err)
	}
	return nil
}

func (n *Networks) setCondition(ctx context.Context, o *v1alpha1.NamespaceNetwork, c metav1.Condition) error {
	has := meta.FindStatusCondition(o.Status.Conditions, c.Type)
	if has != nil && has.Status == c.Status && has.Reason == c.Reason && has.Message == c.Message {
		return nil
	}
	return n.write(ctx, o, func(s *v1alpha1.NamespaceNetworkStatus) { meta.SetStatusCondition(&s.Conditions, c) })
}

// failed records why a step failed and returns the error. The network stays in use if it is
// ready, and only a further subnet is missing.
func (n *Networks) failed(ctx context.Context, o *v1alpha1.NamespaceNetwork, err error) error {
	c := metav1.Condition{Type: v1alpha1.ConditionNetworkReady, Status: metav1.ConditionFalse, Reason: reasonOf(err), Message: message(err)}
	if o.DeletionTimestamp == nil && meta.IsStatusConditionTrue(o.Status.Conditions, v1alpha1.ConditionNetworkReady) {
		if !meta.IsStatusConditionTrue(o.Status.Conditions, v1alpha1.ConditionNetworkFull) {
			return err // as after a restart: no pod waits
		}
		c.Type, c.Status = v1alpha1.ConditionNetworkFull, metav1.ConditionTrue
	}
	has := meta.FindStatusCondition(o.Status.Conditions, c.Type)
	if has == nil || has.Reason != c.Reason {
		n.cfg.Events.Eventf(o, nil, corev1.EventTypeWarning, eventFailed, "Reconcile", "%s", c.Message)
	}
	return errors.Join(err, n.setCondition(ctx, o, c))
}
