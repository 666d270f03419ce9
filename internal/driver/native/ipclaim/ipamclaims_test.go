package ipclaim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver/native"
	"fairlead.dev/fairlead/internal/fault"
)

// oneReference has one IPAMClaim, or an error.
type oneReference struct {
	references
	spec map[string]any
	err  error
}

func (r oneReference) Get(_ context.Context, key client.ObjectKey) (*unstructured.Unstructured, error) {
	if r.err != nil {
		return nil, r.err
	}
	o := newReference()
	o.Object["spec"] = r.spec
	o.SetName(key.Name)
	o.SetUID("reference")
	return o, nil
}

// The IPClaim of an IPAMClaim requests its addresses, is owned by it, and lasts as long.
// The values that people write into an IPAMClaim are checked.
func TestFromReference(t *testing.T) {
	owned := []metav1.OwnerReference{{APIVersion: "k8s.cni.cncf.io/v1alpha1", Kind: "IPAMClaim", Name: "vm1.lan", UID: "reference"}}
	requests := func(all ...any) map[string]any { return map[string]any{"ipRequests": all} }
	noKind := &meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: "k8s.cni.cncf.io", Kind: "IPAMClaim"}}
	cases := []struct {
		name string
		api  oneReference
		want []string
		err  error
		text string
	}{
		{name: "no requests", api: oneReference{spec: map[string]any{}}},
		{name: "both families", api: oneReference{spec: requests("10.0.0.7/24", "fd00::7/64")}, want: []string{"10.0.0.7", "fd00::7"}},
		{name: "no prefix length", api: oneReference{spec: requests("10.0.0.7")}, err: fault.ErrInvalid, text: "spec.ipRequests[0]"},
		{name: "no address", api: oneReference{spec: requests("fd00::7/64", "x")}, err: fault.ErrInvalid, text: "spec.ipRequests[1]"},
		{name: "more than an IPClaim may request", api: oneReference{spec: requests("10.0.0.7/24", "fd00::7/64", "10.0.0.8/24")}, err: fault.ErrInvalid, text: "spec.ipRequests: 3 elements"},
		{name: "mapped", api: oneReference{spec: requests("::ffff:10.0.0.7/120")}, err: fault.ErrInvalid, text: "ipRequests"},
		{name: "another type", api: oneReference{spec: map[string]any{"ipRequests": "10.0.0.7/24"}}, err: fault.ErrInvalid, text: "cannot be read"},
		{name: "absent", api: oneReference{err: apierrors.NewNotFound(schema.GroupResource{Resource: "ipamclaims"}, "vm1.lan")}, err: fault.ErrNotFound, text: "shop/vm1.lan"},
		{name: "no such kind", api: oneReference{err: noKind}, err: fault.ErrInvalid, text: "CRD"},
		{name: "no answer", api: oneReference{err: errors.New("no answer")}, err: fault.ErrUnavailable, text: "no answer"},
	}
	for _, tc := range cases {
		claim := &v1alpha1.IPClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "ipamclaim.vm1.lan"}}
		err := (&Keeper{References: tc.api}).fromReference(t.Context(), claim, "vm1.lan")
		if tc.err != nil {
			if !errors.Is(err, tc.err) || !strings.Contains(err.Error(), tc.text) {
				t.Errorf("%s: %v, want one with %q", tc.name, err, tc.text)
			}
			continue
		}
		if diff := gocmp.Diff(tc.want, claim.Spec.Addresses); err != nil || diff != "" || claim.Spec.HoldTime == nil || claim.Spec.HoldTime.Duration != 0 {
			t.Errorf("%s: %v, hold time %v, addresses (-want +got):\n%s", tc.name, err, claim.Spec.HoldTime, diff)
		}
		if diff := gocmp.Diff(owned, claim.OwnerReferences); diff != "" {
			t.Errorf("%s: owners (-want +got):\n%s", tc.name, diff)
		}
	}
}

// referenceAPI is an API server with one IPAMClaim at most. It records the deletions.
type referenceAPI struct {
	client.Client
	uid     types.UID // of the IPAMClaim; empty for none
	err     error
	deleted *[]string
}

func (a referenceAPI) Get(_ context.Context, _ client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	if a.err != nil || a.uid == "" {
		return cmp.Or(a.err, error(apierrors.NewNotFound(schema.GroupResource{Resource: "ipamclaims"}, "vm1.lan")))
	}
	o.SetUID(a.uid)
	return nil
}

func (a referenceAPI) Delete(_ context.Context, o client.Object, _ ...client.DeleteOption) error {
	*a.deleted = append(*a.deleted, o.GetName())
	return a.err
}

// owned returns the IPClaim of the IPAMClaim with a UID.
func ownedByReference(uid types.UID) *v1alpha1.IPClaim {
	return &v1alpha1.IPClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: "ipamclaim.vm1.lan", OwnerReferences: []metav1.OwnerReference{{APIVersion: ipamClaimVersion, Kind: ipamClaimKind, Name: "vm1.lan", UID: uid}},
	}}
}

// An IPClaim ends when the API server reports that its IPAMClaim is gone. A cache that does not
// have it, or does not answer, is no evidence.
func TestReferenceEnded(t *testing.T) {
	gone := apierrors.NewNotFound(schema.GroupResource{Resource: "ipamclaims"}, "vm1.lan")
	noKind := &meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: "k8s.cni.cncf.io", Kind: "IPAMClaim"}}
	for _, tc := range []struct {
		name   string
		claim  *v1alpha1.IPClaim
		cached error
		live   referenceAPI
		want   bool
		fails  bool
	}{
		{name: "no IPAMClaim's", claim: &v1alpha1.IPClaim{}, cached: gone},
		{name: "exists", claim: ownedByReference("reference")},
		{name: "gone", claim: ownedByReference("reference"), cached: gone, want: true},
		{name: "the cache is behind", claim: ownedByReference("reference"), cached: gone, live: referenceAPI{uid: "reference"}},
		{name: "another of its name", claim: ownedByReference("former"), live: referenceAPI{uid: "reference"}, want: true},
		{name: "the cache has the former", claim: ownedByReference("new"), live: referenceAPI{uid: "new"}},
		{name: "not listed yet", claim: ownedByReference("reference"), cached: errors.New("being listed")},
		{name: "no such kind", claim: ownedByReference("reference"), cached: noKind},
		{name: "no answer", claim: ownedByReference("reference"), cached: gone, live: referenceAPI{err: errors.New("no answer")}, fails: true},
	} {
		r := &Keeper{References: oneReference{err: tc.cached}, Live: tc.live}
		got, err := r.referenceEnded(t.Context(), tc.claim)
		if got != tc.want || (err != nil) != tc.fails {
			t.Errorf("%s: %v, %v", tc.name, got, err)
		}
	}
}

// The IPClaim of a former IPAMClaim is not that of the next one: Kubernetes' garbage
// collection would delete it while a pod has its addresses.
func TestDropFormer(t *testing.T) {
	for _, tc := range []struct {
		name    string
		claim   *v1alpha1.IPClaim
		cached  error
		deletes error
		want    bool
		err     error
	}{
		{name: "of this IPAMClaim", claim: ownedByReference("reference")},
		{name: "of a former", claim: ownedByReference("former"), want: true},
		{name: "not deleted", claim: ownedByReference("former"), deletes: errors.New("no answer"), err: fault.ErrUnavailable},
		{name: "a person's", claim: &v1alpha1.IPClaim{}},
		{name: "the IPAMClaim is not known", claim: ownedByReference("former"), cached: errors.New("being listed")},
	} {
		var deleted []string
		r := &Keeper{References: oneReference{err: tc.cached}, Client: referenceAPI{err: tc.deletes, deleted: &deleted}}
		got, err := r.dropFormer(t.Context(), tc.claim, "vm1.lan")
		if got != tc.want || !errors.Is(err, tc.err) || tc.err == nil && len(deleted) > 0 != tc.want {
			t.Errorf("%s: %v, %v, deleted %q", tc.name, got, err, deleted)
		}
	}
}

// The reasons in the condition are those of ovn-kubernetes.
func TestReasonOfRefusal(t *testing.T) {
	for want, err := range map[string]error{
		"SubnetExhausted":    fmt.Errorf("pool a: %w: no address left", fault.ErrExhausted),
		"IPAddressConflict":  fmt.Errorf("pool a: %w: 10.0.0.7 is held", fault.ErrConflict),
		"MACAddressConflict": fmt.Errorf("pool a: %w: %w", fault.ErrConflict, &native.MACTakenError{MAC: "02:00:00:00:00:01"}),
		"AllocationRefused":  fmt.Errorf("%w: 10.9.0.7 is in no range", fault.ErrInvalid),
	} {
		if got := reasonOf(err); got != want {
			t.Errorf("%v: %s, want %s", err, got, want)
		}
	}
}

// A pod that waits for its IPAMClaim is tried again when it comes. Each change of an IPAMClaim,
// and its end, reconcile its IPClaim. Nothing is watched before the
// first Get.
func TestReferencesWatch(t *testing.T) {
	api := &informertest.FakeInformers{Scheme: runtime.NewScheme()}
	kind, err := api.FakeInformerFor(t.Context(), newReference())
	if err != nil {
		t.Fatal(err)
	}
	r := NewReferences(api)
	changed, added := make(chan types.NamespacedName, 9), make(chan bool, 9)
	r.OnAdded(func() { added <- true })
	if err := r.Watch(t.Context(), func(key types.NamespacedName) { changed <- key }); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Get(t.Context(), types.NamespacedName{Namespace: "shop", Name: "vm1.lan"}); err == nil || !strings.Contains(err.Error(), "still being listed") {
		t.Fatalf("before they are listed: %v", err)
	}
	<-added // all are listed
	if _, err := r.Get(t.Context(), types.NamespacedName{Namespace: "shop", Name: "vm1.lan"}); err != nil {
		t.Errorf("when they are listed: %v", err)
	}
	o := newReference()
	o.SetNamespace("shop")
	o.SetName("vm1.lan")
	kind.Add(o)
	<-added
	kind.Update(o, o)
	kind.Delete(o)
	for range 3 {
		if key := <-changed; key.String() != "shop/vm1.lan" {
			t.Errorf("changed: %s", key)
		}
	}
}
