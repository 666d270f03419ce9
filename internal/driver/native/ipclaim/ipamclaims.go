package ipclaim

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver/native"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/ipam/block"
)

// This file serves IPAMClaims, the claims of KubeVirt's networks. An IPAMClaim owns an
// IPClaim, which keeps its addresses and ends with it. References has the IPAMClaims. Their
// status is written when that of the IPClaim changes, in the words of ovn-kubernetes.

const (
	ipamClaimVersion, ipamClaimKind = "k8s.cni.cncf.io/v1alpha1", "IPAMClaim"
	// conditionAllocated is the condition of an IPAMClaim that has addresses.
	conditionAllocated = "IPsAllocated"
	reasonAllocated    = "SuccessfulAllocation"
	reasonExhausted    = "SubnetExhausted"
	reasonAddressInUse = "IPAddressConflict"
	reasonMACInUse     = "MACAddressConflict"
	reasonRefused      = "AllocationRefused" // for another reason

	// maxRequests is the number of addresses that an IPClaim may request.
	maxRequests = 2
)

// ipamClaim has the fields of an IPAMClaim that Fairlead uses.
type ipamClaim struct {
	Spec struct {
		IPRequests []string `json:"ipRequests"`
	} `json:"spec"`
	Status ipamClaimStatus `json:"status"`
}

// ipamClaimStatus is the status of release 0.5 of the CRD. Release 0.4 has the addresses
// alone, and drops the other fields.
type ipamClaimStatus struct {
	IPs        []string           `json:"ips"`
	OwnerPod   *ownerPod          `json:"ownerPod,omitempty"`
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

type ownerPod struct {
	Name string `json:"name"`
}

// references is the part of References that Keeper uses.
type references interface {
	// Get reads an IPAMClaim. Errors: NotFound, NoMatch if the cluster has no IPAMClaims,
	// any other while they are not known.
	Get(ctx context.Context, key types.NamespacedName) (*unstructured.Unstructured, error)
	// Watch has changed called with each IPAMClaim that comes, changes or goes, until ctx
	// ends.
	Watch(ctx context.Context, changed func(types.NamespacedName)) error
}

// readReference returns an IPAMClaim. Errors: fault.ErrNotFound, fault.ErrInvalid if the
// cluster has no such kind, fault.ErrUnavailable.
func (r *Keeper) readReference(ctx context.Context, key types.NamespacedName) (*unstructured.Unstructured, ipamClaim, error) {
	out := ipamClaim{}
	o, err := r.References.Get(ctx, key)
	switch {
	case apierrors.IsNotFound(err):
		return nil, out, fmt.Errorf("%w: ipam-claim-reference: there is no IPAMClaim %s: create it, or leave the reference out", fault.ErrNotFound, key)
	case meta.IsNoMatchError(err):
		return nil, out, fmt.Errorf("%w: ipam-claim-reference: %q: the cluster has no IPAMClaims: install their CRD, or leave the reference out", fault.ErrInvalid, key.Name)
	case err != nil:
		return nil, out, fmt.Errorf("%w: read IPAMClaim %s: %w", fault.ErrUnavailable, key, err)
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &out); err != nil {
		return nil, out, fmt.Errorf("%w: IPAMClaim %s cannot be read: %w", fault.ErrInvalid, key, err)
	}
	return o, out, nil
}

// dropFormer deletes an IPClaim that an IPAMClaim owns which is gone, if there is another of
// its name now: dropped is true. The addresses stay held meanwhile, and the IPClaim that is
// created next keeps them. Errors: fault.ErrUnavailable.
func (r *Keeper) dropFormer(ctx context.Context, claim *v1alpha1.IPClaim, name string) (dropped bool, err error) {
	owner, ok := referenceOf(claim)
	if !ok {
		return false, nil // a person wrote it
	}
	o, _, err := r.readReference(ctx, types.NamespacedName{Namespace: claim.Namespace, Name: name})
	if err != nil || o.GetUID() == owner.UID {
		return false, nil //nolint:nilerr // a pod that has the addresses keeps them
	}
	err = r.Client.Delete(ctx, claim, client.Preconditions{UID: &claim.UID})
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("%w: delete IPClaim %s/%s, which is that of a former IPAMClaim %s: %w", fault.ErrUnavailable, claim.Namespace, claim.Name, name, err)
	}
	return true, nil
}

// referenceEnded reports whether the IPAMClaim that owns a claim does not exist any more. It
// asks the API server before it returns true, since nothing is freed without evidence. A claim
// whose IPAMClaim is not known is left to Kubernetes' garbage collection.
func (r *Keeper) referenceEnded(ctx context.Context, claim *v1alpha1.IPClaim) (bool, error) {
	owner, ok := referenceOf(claim)
	if !ok {
		return false, nil
	}
	key := types.NamespacedName{Namespace: claim.Namespace, Name: owner.Name}
	o, _, err := r.readReference(ctx, key)
	if err != nil && !errors.Is(err, fault.ErrNotFound) || err == nil && o.GetUID() == owner.UID {
		return false, nil // its own event comes when it is known
	}
	live := newReference()
	switch err := r.Live.Get(ctx, key, live); {
	case apierrors.IsNotFound(err):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("read IPAMClaim %s: %w", key, err)
	}
	return live.GetUID() != owner.UID, nil
}

// referenceOf returns the owner of a claim that is an IPAMClaim; ok is false if it has none.
func referenceOf(claim *v1alpha1.IPClaim) (owner metav1.OwnerReference, ok bool) {
	i := slices.IndexFunc(claim.OwnerReferences, func(o metav1.OwnerReference) bool { return o.APIVersion == ipamClaimVersion && o.Kind == ipamClaimKind })
	if i < 0 {
		return metav1.OwnerReference{}, false
	}
	return claim.OwnerReferences[i], true
}

// fromReference makes an IPClaim that is not written yet the claim of an IPAMClaim: it
// requests the same addresses and is owned by it. Errors: those of readReference, and
// fault.ErrInvalid for a request that is no address.
func (r *Keeper) fromReference(ctx context.Context, claim *v1alpha1.IPClaim, name string) error {
	key := types.NamespacedName{Namespace: claim.Namespace, Name: name}
	o, of, err := r.readReference(ctx, key)
	if err != nil {
		return err
	}
	if n := len(of.Spec.IPRequests); n > maxRequests {
		return fmt.Errorf("%w: IPAMClaim %s: spec.ipRequests: %d elements: at most one address per family", fault.ErrInvalid, key, n)
	}
	for i, text := range of.Spec.IPRequests {
		p, err := netip.ParsePrefix(text)
		if err != nil || p.Addr().Is4In6() {
			return fmt.Errorf("%w: IPAMClaim %s: spec.ipRequests[%d]: %.60q is not an address with a prefix length, as 10.0.0.7/24", fault.ErrInvalid, key, i, text)
		}
		claim.Spec.Addresses = append(claim.Spec.Addresses, p.Addr().String())
	}
	claim.Spec.HoldTime = &metav1.Duration{} // until the IPAMClaim is deleted
	claim.OwnerReferences = []metav1.OwnerReference{{APIVersion: ipamClaimVersion, Kind: ipamClaimKind, Name: o.GetName(), UID: o.GetUID()}}
	return nil
}

// showReference writes the leases of a claim into the status of the IPAMClaim that owns it,
// if there is one.
func (r *Keeper) showReference(ctx context.Context, claim *v1alpha1.IPClaim, has []block.Lease) error {
	owner, ok := referenceOf(claim)
	if !ok || len(has) == 0 {
		return nil
	}
	key := types.NamespacedName{Namespace: claim.Namespace, Name: owner.Name}
	o, of, err := r.readReference(ctx, key)
	if errors.Is(err, fault.ErrNotFound) || o != nil && o.GetUID() != owner.UID {
		return nil // the claim is about to end
	}
	if err != nil {
		return err
	}
	status := ipamClaimStatus{IPs: []string{}, Conditions: slices.Clone(of.Status.Conditions)}
	shown := map[ipam.Family]bool{}
	for _, l := range has {
		if shown[ipam.FamilyOf(l.Addr)] {
			continue // as in the status of the IPClaim
		}
		shown[ipam.FamilyOf(l.Addr)] = true
		prefix := netip.PrefixFrom(l.Addr, l.Addr.BitLen())
		if pool, err := r.Pools.Get(r.poolOf(l)); err == nil {
			prefix = pool.Prefix(l.Addr)
		}
		status.IPs = append(status.IPs, prefix.String())
		if status.OwnerPod == nil && l.Holder.Pod != "" {
			status.OwnerPod = &ownerPod{l.Holder.Pod}
		}
	}
	meta.SetStatusCondition(&status.Conditions, metav1.Condition{
		Type: conditionAllocated, Status: metav1.ConditionTrue, Reason: reasonAllocated, ObservedGeneration: o.GetGeneration(),
		Message: "IPClaim " + claim.Name + " keeps the addresses",
	})
	return r.writeReference(ctx, o, of.Status, status)
}

// Refused reports in the status of an IPAMClaim why a pod that references it gets no
// addresses. It leaves an IPAMClaim alone that has some: another pod is waiting for it.
// Errors: fault.ErrUnavailable.
func (r *Keeper) Refused(ctx context.Context, key types.NamespacedName, pod string, why error) error {
	o, of, err := r.readReference(ctx, key)
	if err != nil || len(of.Status.IPs) > 0 {
		return nil //nolint:nilerr // there is no IPAMClaim to write to: why is reported on the pod
	}
	status := ipamClaimStatus{IPs: []string{}, OwnerPod: &ownerPod{pod}, Conditions: slices.Clone(of.Status.Conditions)}
	meta.SetStatusCondition(&status.Conditions, metav1.Condition{
		Type: conditionAllocated, Status: metav1.ConditionFalse, Reason: reasonOf(why), ObservedGeneration: o.GetGeneration(),
		Message: clip(why.Error()),
	})
	if err := r.writeReference(ctx, o, of.Status, status); err != nil {
		return fmt.Errorf("%w: %w", fault.ErrUnavailable, err)
	}
	return nil
}

// reasonOf returns the reason of the condition for an error of Ensure.
func reasonOf(why error) string {
	switch _, mac := errors.AsType[*native.MACTakenError](why); {
	case mac:
		return reasonMACInUse
	case errors.Is(why, fault.ErrExhausted):
		return reasonExhausted
	case errors.Is(why, fault.ErrConflict):
		return reasonAddressInUse
	default:
		return reasonRefused
	}
}

// clip shortens a message for a condition.
func clip(text string) string {
	const longest = 1000
	if runes := []rune(text); len(runes) > longest {
		return string(runes[:longest]) + "..."
	}
	return text
}

// writeReference writes the status of an IPAMClaim, unless it is the same.
func (r *Keeper) writeReference(ctx context.Context, o *unstructured.Unstructured, was, now ipamClaimStatus) error {
	if equality.Semantic.DeepEqual(was, now) {
		return nil
	}
	status, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&now)
	if err != nil {
		return fmt.Errorf("encode status of IPAMClaim %s: %w", o.GetName(), err)
	}
	after := o.DeepCopy()
	after.Object["status"] = status
	if err := r.Client.Status().Patch(ctx, after, client.MergeFrom(o)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("write status of IPAMClaim %s/%s: %w", o.GetNamespace(), o.GetName(), err)
	}
	return nil
}
