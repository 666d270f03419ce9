package ipclaim

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver/native"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/ipam/block"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/internal/run"
)

// This file decides when a claim that the controller created ends.

// emptyFor is how long a claim may be without any address. Such a claim was created for a
// pod that did not get an address in the end.
const emptyFor = time.Minute

// empty records when this process first saw each claim that has never had an address.
type empty struct {
	mu sync.Mutex
	m  map[types.NamespacedName]emptySince
}

type emptySince struct {
	uid types.UID
	at  time.Time
}

// left returns how long a claim may stay without any address: 0 if it has or had one, or
// if the controller did not create it; negative if the time is over.
func (e *empty) left(claim *v1alpha1.IPClaim, has []block.Lease) time.Duration {
	key := client.ObjectKeyFromObject(claim)
	if len(has) > 0 || len(claim.Status.Addresses) > 0 || claim.Labels[run.LabelManagedBy] != run.ManagedBy {
		e.forget(key)
		return 0
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	since, ok := e.m[key]
	if !ok || since.uid != claim.UID {
		since = emptySince{claim.UID, time.Now()}
		if e.m == nil {
			e.m = map[types.NamespacedName]emptySince{}
		}
		e.m[key] = since
	}
	if left := emptyFor - time.Since(since.at); left > 0 {
		return left
	}
	return -1
}

func (e *empty) forget(key types.NamespacedName) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.m, key)
}

// owners returns the owner references of a claim: Kubernetes' garbage collection deletes
// the claim with its owner. A VirtualMachineInstance is deleted whenever its machine is
// stopped, so the owner is the VirtualMachine of the same name instead, if there is one and
// the claim is not made until the machine stops. Errors: fault.ErrUnavailable.
func (r *Keeper) owners(ctx context.Context, namespace string, making native.Making) ([]metav1.OwnerReference, error) {
	owner := making.Owner
	if owner == nil {
		return nil, nil
	}
	if owner.Kind != pod.InstanceKind || making.UntilStopped {
		return []metav1.OwnerReference{*owner}, nil
	}
	vm := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: owner.APIVersion, Kind: "VirtualMachine"}}
	err := r.Live.Get(ctx, types.NamespacedName{Namespace: namespace, Name: owner.Name}, vm)
	switch {
	case err == nil:
		return []metav1.OwnerReference{{APIVersion: owner.APIVersion, Kind: "VirtualMachine", Name: vm.Name, UID: vm.UID}}, nil
	case meta.IsNoMatchError(err):
		return nil, nil // the pod is not KubeVirt's: its address is held for the default time
	case apierrors.IsNotFound(err):
		return []metav1.OwnerReference{*owner}, nil // an instance without a machine
	default:
		return nil, fmt.Errorf("%w: read VirtualMachine %s/%s: %w", fault.ErrUnavailable, namespace, owner.Name, err)
	}
}

// ordinalRemoved reports whether a claim was made for an ordinal that its StatefulSet does
// not have any more, and keeps an address without a pod: the set was scaled down. It asks the
// API server, since nothing is freed without evidence.
func (r *Keeper) ordinalRemoved(ctx context.Context, claim *v1alpha1.IPClaim, has []block.Lease) (bool, error) {
	i := slices.IndexFunc(claim.OwnerReferences, func(o metav1.OwnerReference) bool { return o.APIVersion == "apps/v1" && o.Kind == "StatefulSet" })
	held := func(l block.Lease) bool { return l.Holder == (ipam.Holder{}) }
	if i < 0 || claim.Labels[run.LabelManagedBy] != run.ManagedBy || !slices.ContainsFunc(has, held) {
		return false, nil
	}
	owner := claim.OwnerReferences[i]
	ordinal, ok := ordinalOf(claim.Name, owner.Name)
	if !ok {
		return false, nil
	}
	set := &appsv1.StatefulSet{}
	err := r.Live.Get(ctx, types.NamespacedName{Namespace: claim.Namespace, Name: owner.Name}, set)
	switch {
	case apierrors.IsNotFound(err), err == nil && set.UID != owner.UID:
		return false, nil // Kubernetes' garbage collection deletes the claim
	case err != nil:
		return false, fmt.Errorf("read StatefulSet %s/%s: %w", claim.Namespace, owner.Name, err)
	}
	first, replicas := int32(0), int32(1)
	if set.Spec.Ordinals != nil {
		first = set.Spec.Ordinals.Start
	}
	if set.Spec.Replicas != nil {
		replicas = *set.Spec.Replicas
	}
	return ordinal < int64(first) || ordinal >= int64(first)+int64(replicas), nil
}

// ordinalOf returns the ordinal of the pod that a claim was made for: 3 for web-3 and
// web-3.net1 of the set web. ok is false if the name is that of no such pod.
func ordinalOf(claim, set string) (ordinal int64, ok bool) {
	rest, ok := strings.CutPrefix(claim, set+"-")
	if !ok {
		return 0, false
	}
	digits, _, _ := strings.Cut(rest, ".")
	ordinal, err := strconv.ParseInt(digits, 10, 32)
	return ordinal, err == nil && ordinal >= 0 && strconv.FormatInt(ordinal, 10) == digits
}
