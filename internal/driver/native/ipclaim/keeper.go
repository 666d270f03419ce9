// Package ipclaim keeps addresses beyond the lives of pods: it creates IPClaims, also for
// IPAMClaims, and ends them.
package ipclaim

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver/native"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/ipam/block"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/internal/run"
)

const (
	// claimGrace is how long an address of a claim that does not exist stays held after
	// the last pod gave it back: the claim may be deleted only to be created anew.
	claimGrace = 5 * time.Second
	// defaultHold applies to claims without spec.holdTime.
	defaultHold = 24 * time.Hour
)

// Keeper creates IPClaims, writes their status, and ends the holding of their addresses.
type Keeper struct {
	Client client.Client
	// Live reads without a cache.
	Live  client.Reader
	Pools *native.Pools
	Store *block.Store
	// References are the IPAMClaims.
	References references
	// Synced reports whether the store knows all taken and held addresses. Until then,
	// and while the store is Behind, no claim is reconciled.
	Synced func() bool

	empty empty
}

// SetupWithManager registers the reconciler. A write of the status triggers another
// Reconcile, as with native.PoolStatus.
func (r *Keeper) SetupWithManager(mgr ctrl.Manager, lead native.Lead) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("claims").
		For(&v1alpha1.IPClaim{}).
		Watches(&v1alpha1.IPBlock{}, r.BlockEvents()).
		WatchesRawSource(source.Func(func(ctx context.Context, q queue) error {
			return r.References.Watch(ctx, func(key types.NamespacedName) {
				q.Add(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: key.Namespace, Name: pod.ClaimOfReference(key.Name)}})
			})
		})).
		Complete(lead(r))
}

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// BlockEvents maps a change of a block to the claims whose slots it changed. It enqueues
// them after native.StatusDelay: this gathers changes, and the store observes them first.
func (r *Keeper) BlockEvents() handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q queue) { enqueueClaims(nil, e.Object, q) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) { enqueueClaims(e.ObjectOld, e.ObjectNew, q) },
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q queue) { enqueueClaims(e.Object, nil, q) },
	}
}

func enqueueClaims(before, after client.Object, q queue) {
	slots := func(o client.Object) []string {
		if o == nil {
			return nil
		}
		return o.(*v1alpha1.IPBlock).Spec.Slots
	}
	for _, key := range changedClaims(slots(before), slots(after)) {
		q.AddAfter(reconcile.Request{NamespacedName: key}, native.StatusDelay)
	}
}

// changedClaims returns the claims of the slots that the two lists do not share.
func changedClaims(before, after []string) []types.NamespacedName {
	count := map[string]int{}
	for _, s := range before {
		count[s]--
	}
	for _, s := range after {
		count[s]++
	}
	seen := map[types.NamespacedName]bool{}
	for text, n := range count {
		if n == 0 {
			continue
		}
		if ns, name, ok := strings.Cut(ipam.ClaimOf(text), "/"); ok {
			seen[types.NamespacedName{Namespace: ns, Name: name}] = true
		}
	}
	return slices.Collect(maps.Keys(seen))
}

// Obtain returns the addresses and the MAC of a claim. A claim that does not exist is
// created as making describes. Errors: fault.ErrInvalid, fault.ErrUnavailable, and the
// errors of making.Serves.
func (r *Keeper) Obtain(ctx context.Context, key types.NamespacedName, making native.Making) (native.Obtained, error) {
	claim, err := r.find(ctx, key, making.Reference)
	if err != nil {
		return native.Obtained{}, err
	}
	if claim == nil {
		if err := making.Serves(); err != nil {
			return native.Obtained{}, err
		}
		claim = &v1alpha1.IPClaim{}
		claim.Namespace, claim.Name = key.Namespace, key.Name
		claim.Labels = map[string]string{run.LabelManagedBy: run.ManagedBy} // deleted once no address is held for it
		claim.Spec.Text = making.Text
		if making.UntilStopped {
			claim.Spec.HoldTime = &metav1.Duration{} // as long as the claim exists
		}
		if making.Reference != "" {
			if err := r.fromReference(ctx, claim, making.Reference); err != nil {
				return native.Obtained{}, err
			}
		} else if claim.OwnerReferences, err = r.owners(ctx, key.Namespace, making); err != nil {
			return native.Obtained{}, err
		}
		if err = r.Client.Create(ctx, claim); apierrors.IsAlreadyExists(err) {
			err = r.Live.Get(ctx, key, claim) // the cache is behind
		}
	}
	switch {
	case apierrors.IsInvalid(err): // as a name that is too long
		return native.Obtained{}, fmt.Errorf("%w: IPClaim %s: %w", fault.ErrInvalid, key, err)
	case err != nil:
		return native.Obtained{}, fmt.Errorf("%w: IPClaim %s: %w", fault.ErrUnavailable, key, err)
	}
	out := native.Obtained{MAC: macOf(claim)}
	for i, text := range claim.Spec.Addresses {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return native.Obtained{}, fmt.Errorf("%w: IPClaim %s: spec.addresses[%d]: %q is not an IP address, as 10.0.0.7", fault.ErrInvalid, key, i, text)
		}
		out.Addresses = append(out.Addresses, a)
	}
	return out, nil
}

// find returns a claim; nil if it does not exist, or was that of a former IPAMClaim of the
// name reference. Errors: fault.ErrUnavailable.
func (r *Keeper) find(ctx context.Context, key types.NamespacedName, reference string) (*v1alpha1.IPClaim, error) {
	claim := &v1alpha1.IPClaim{}
	err := r.Client.Get(ctx, key, claim)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("%w: IPClaim %s: %w", fault.ErrUnavailable, key, err)
	case reference == "":
		return claim, nil
	}
	dropped, err := r.dropFormer(ctx, claim, reference)
	if err != nil || dropped {
		return nil, err
	}
	return claim, nil
}

// macOf returns the MAC of a claim: that of its spec, otherwise a locally administered
// unicast address from its UID. It needs no write to be the same for all pods of the claim,
// and differs from those of other claims, also in other clusters on the link.
func macOf(claim *v1alpha1.IPClaim) string {
	if claim.Spec.MAC != "" {
		return claim.Spec.MAC
	}
	const multicast, local = 1, 2
	sum := sha256.Sum256([]byte(claim.UID))
	sum[0] = sum[0]&^multicast | local
	return net.HardwareAddr(sum[:6]).String()
}

// Has returns the addresses that are taken or held for a claim, the oldest first.
func (r *Keeper) Has(key types.NamespacedName) []block.Lease { return r.Store.Claimed(key.String()) }

// Reconcile ends the holding of addresses that a claim no longer needs, deletes a claim of
// the controller that has ended, and writes the claim's status.
func (r *Keeper) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if !r.Synced() || r.Store.Behind() {
		return ctrl.Result{RequeueAfter: native.StatusDelay}, nil
	}
	has := r.Has(req.NamespacedName)
	claim := &v1alpha1.IPClaim{}
	err := r.Client.Get(ctx, req.NamespacedName, claim)
	if apierrors.IsNotFound(err) {
		r.empty.forget(req.NamespacedName)
		return r.orphaned(ctx, req.NamespacedName, has)
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	if ended, err := r.referenceEnded(ctx, claim); err != nil {
		return ctrl.Result{}, err
	} else if ended {
		return ctrl.Result{}, r.remove(ctx, claim, "IPAMClaim is gone")
	}
	now := time.Now()
	s := divide(claim, has, now)
	if removed, err := r.ordinalRemoved(ctx, claim, has); err != nil {
		return ctrl.Result{}, err
	} else if removed {
		s.endHeld()
	}
	for _, l := range s.end {
		if err := r.Store.Unhold(ctx, l); err != nil {
			return ctrl.Result{}, fmt.Errorf("end the holding of %s: %w", l.Addr, err)
		}
	}
	left := r.empty.left(claim, has)
	if left > 0 && (s.requeue == 0 || left < s.requeue) {
		s.requeue = left
	}
	if (s.expired || left < 0) && claim.Labels[run.LabelManagedBy] == run.ManagedBy {
		return ctrl.Result{}, r.remove(ctx, claim, "addresses are held no longer")
	}
	again := ctrl.Result{RequeueAfter: s.requeue}
	after := claim.DeepCopy()
	after.Status = r.status(s.keep)
	after.Status.MAC = macOf(claim)
	if equality.Semantic.DeepEqual(claim.Status, after.Status) {
		return again, nil
	}
	if err := r.showReference(ctx, claim, s.keep); err != nil {
		return ctrl.Result{}, err // before its own status, which shows that this is done
	}
	if err := r.Client.Status().Patch(ctx, after, client.MergeFrom(claim)); client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, fmt.Errorf("write status of IPClaim %s: %w", req.NamespacedName, err)
	}
	return again, nil
}

// remove deletes a claim as it was read. why names the part of it that has ended.
func (r *Keeper) remove(ctx context.Context, claim *v1alpha1.IPClaim, why string) error {
	err := r.Client.Delete(ctx, claim, client.Preconditions{UID: &claim.UID, ResourceVersion: &claim.ResourceVersion})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete IPClaim %s, whose %s: %w", client.ObjectKeyFromObject(claim), why, err)
	}
	return nil
}

// orphaned ends the holding of addresses whose claim does not exist. It asks the API
// server, not a cache, since nothing is freed without evidence.
func (r *Keeper) orphaned(ctx context.Context, key types.NamespacedName, has []block.Lease) (ctrl.Result, error) {
	var again time.Duration
	for _, l := range has {
		left := time.Until(l.Seen.Add(claimGrace))
		if l.Holder != (ipam.Holder{}) {
			continue // its release changes the block, which triggers another Reconcile
		}
		if left > 0 {
			again = max(again, left)
			continue
		}
		err := r.Live.Get(ctx, key, &v1alpha1.IPClaim{})
		if err == nil {
			return ctrl.Result{RequeueAfter: native.StatusDelay}, nil
		}
		if !apierrors.IsNotFound(err) {
			return ctrl.Result{}, err
		}
		if err := r.Store.Unhold(ctx, l); err != nil {
			return ctrl.Result{}, fmt.Errorf("end the holding of %s: %w", l.Addr, err)
		}
	}
	return ctrl.Result{RequeueAfter: again}, nil
}

// division divides the addresses of a claim.
type division struct {
	// keep stay taken or held; the holding of end ends.
	keep, end []block.Lease
	// requeue is the time until the next holding ends; 0 is never.
	requeue time.Duration
	// expired is true if the holding has ended and no address is left.
	expired bool
}

// divide decides which addresses a claim keeps. Of each family it keeps the addresses that
// pods have. If there are none, it keeps the address that the claim requests, or the oldest
// if the claim requests none. A held address is kept until this process has seen it held
// for the claim's holdTime.
func divide(claim *v1alpha1.IPClaim, has []block.Lease, now time.Time) division {
	hold := defaultHold
	if claim.Spec.HoldTime != nil {
		hold = claim.Spec.HoldTime.Duration
	}
	var s division
	var ended time.Time // when the last holding ended or will end
	if claim.Status.HeldSince != nil {
		ended = claim.Status.HeldSince.Add(hold)
	}
	kept := map[ipam.Family]bool{}
	for _, l := range byPreference(claim, has) {
		f, held := ipam.FamilyOf(l.Addr), l.Holder == (ipam.Holder{})
		end := l.Seen.Add(hold)
		switch {
		case !held:
			kept[f] = true
			s.keep = append(s.keep, l)
			continue
		case kept[f] || unwanted(claim, l.Addr):
			s.end = append(s.end, l)
			continue
		case hold > 0 && !end.After(now):
			s.end = append(s.end, l)
		default:
			kept[f] = true
			s.keep = append(s.keep, l)
			if left := end.Sub(now); hold > 0 && (s.requeue == 0 || left < s.requeue) {
				s.requeue = left
			}
		}
		ended = end
	}
	s.expired = len(s.keep) == 0 && hold > 0 && !ended.IsZero() && !ended.After(now)
	slices.SortStableFunc(s.keep, func(a, b block.Lease) int { return a.Addr.Compare(b.Addr) })
	return s
}

// endHeld ends the holding of all addresses that no pod has.
func (s *division) endHeld() {
	s.requeue = 0
	s.keep = slices.DeleteFunc(s.keep, func(l block.Lease) bool {
		held := l.Holder == (ipam.Holder{})
		if held {
			s.end = append(s.end, l)
		}
		return held
	})
	s.expired = len(s.keep) == 0
}

// byPreference returns the leases in the order in which divide prefers them: those of
// pods, those that the claim requests, the others. Equal ones keep their order.
func byPreference(claim *v1alpha1.IPClaim, has []block.Lease) []block.Lease {
	rank := func(l block.Lease) int {
		switch {
		case l.Holder != (ipam.Holder{}):
			return 0
		case slices.Contains(claim.Spec.Addresses, l.Addr.String()):
			return 1
		default:
			return 2
		}
	}
	out := slices.Clone(has)
	slices.SortStableFunc(out, func(a, b block.Lease) int { return rank(a) - rank(b) })
	return out
}

// unwanted reports whether the claim requests another address of a's family, and not a.
func unwanted(claim *v1alpha1.IPClaim, a netip.Addr) bool {
	other := false
	for _, text := range claim.Spec.Addresses {
		want, err := netip.ParseAddr(text)
		if err == nil && want == a {
			return false
		}
		other = other || err == nil && ipam.FamilyOf(want) == ipam.FamilyOf(a)
	}
	return other
}

// status returns the status of a claim with the given leases, one per family.
func (r *Keeper) status(has []block.Lease) v1alpha1.IPClaimStatus {
	var s v1alpha1.IPClaimStatus
	shown := map[ipam.Family]bool{}
	for _, l := range has {
		f := ipam.FamilyOf(l.Addr)
		if shown[f] {
			continue // the second launcher of a machine; or two leaders at once served two pods, and one address goes away with its pod
		}
		shown[f] = true
		s.Addresses = append(s.Addresses, l.Addr.String())
		s.Domain = l.Domain
		s.Pool = r.poolOf(l)
		if l.Holder != (ipam.Holder{}) {
			s.Pod = l.Holder.Pod
		} else if s.HeldSince == nil || s.HeldSince.Time.Before(l.Since) {
			s.HeldSince = new(metav1.NewTime(l.Since.Truncate(time.Second)))
		}
	}
	if s.Pod != "" {
		s.HeldSince = nil
	}
	return s
}

// poolOf returns the first pool that covers an address; empty if none does.
func (r *Keeper) poolOf(l block.Lease) string {
	for _, name := range r.Pools.InDomain(l.Domain) {
		if p, err := r.Pools.Get(name); err == nil && p.Covers(l.Addr) {
			return name
		}
	}
	return ""
}
