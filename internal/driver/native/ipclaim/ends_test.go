package ipclaim

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver/native"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/ipam/block"
	"fairlead.dev/fairlead/internal/run"
)

// A claim of the controller that never had an address is deleted. A claim that a person
// wrote stays.
func TestEmptyClaimsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var e empty
		made := &v1alpha1.IPClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0", UID: "1", Labels: map[string]string{run.LabelManagedBy: run.ManagedBy}}}
		persons := &v1alpha1.IPClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "mine", UID: "2"}}
		expect := func(what string, claim *v1alpha1.IPClaim, has []block.Lease, want time.Duration) {
			t.Helper()
			if got := e.left(claim, has); got != want {
				t.Errorf("%s: %v, want %v", what, got, want)
			}
		}
		expect("at first", made, nil, emptyFor)
		<-time.After(emptyFor / 2)
		expect("later", made, nil, emptyFor/2)
		expect("a person's", persons, nil, 0)
		again := made.DeepCopy()
		again.UID = "3"
		expect("another of the name", again, nil, emptyFor)
		<-time.After(emptyFor)
		expect("long enough", again, nil, -1)
		expect("it has something", again, []block.Lease{{Holder: ipam.Holder{PodUID: "uid"}}}, 0)
		if len(e.m) > 0 {
			t.Errorf("remembered: %v", e.m)
		}
		expect("and gave it back", again, nil, emptyFor)
		again.Status.Addresses = []string{"10.0.0.1"}
		expect("it had something until now", again, nil, 0)
	})
}

// machines is an API server with virtual machines, or with an error.
type machines struct {
	client.Reader
	err  error
	have []string
}

func (m machines) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	if m.err != nil {
		return m.err
	}
	if gvk := o.GetObjectKind().GroupVersionKind(); gvk.String() != "kubevirt.io/v1, Kind=VirtualMachine" || !slices.Contains(m.have, key.Name) {
		return apierrors.NewNotFound(schema.GroupResource{Resource: gvk.Kind}, key.Name)
	}
	o.SetName(key.Name)
	o.SetUID("machine")
	return nil
}

// A claim is deleted with its owner. A VirtualMachineInstance is deleted whenever the
// machine is stopped, the VirtualMachine is not.
func TestOwnersOfClaims(t *testing.T) {
	ref := func(apiVersion, kind, name, uid string) metav1.OwnerReference {
		return metav1.OwnerReference{APIVersion: apiVersion, Kind: kind, Name: name, UID: types.UID(uid)}
	}
	set := ref("apps/v1", "StatefulSet", "web", "set")
	instance := ref("kubevirt.io/v1", "VirtualMachineInstance", "vm1", "instance")
	noKind := &meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: "kubevirt.io", Kind: "VirtualMachine"}}
	cases := []struct {
		name  string
		owner *metav1.OwnerReference
		api   machines
		want  []metav1.OwnerReference
		err   error
	}{
		{name: "none that is known"},
		{name: "a StatefulSet", owner: &set, want: []metav1.OwnerReference{set}},
		{name: "a machine", owner: &instance, api: machines{have: []string{"vm1"}}, want: []metav1.OwnerReference{ref("kubevirt.io/v1", "VirtualMachine", "vm1", "machine")}},
		{name: "an instance without a machine", owner: &instance, want: []metav1.OwnerReference{instance}},
		{name: "no KubeVirt", owner: &instance, api: machines{err: noKind}},
		{name: "no answer", owner: &instance, api: machines{err: errors.New("no answer")}, err: fault.ErrUnavailable},
	}
	for _, tc := range cases {
		got, err := (&Keeper{Live: tc.api}).owners(t.Context(), "shop", native.Making{Owner: tc.owner})
		if diff := cmp.Diff(tc.want, got); diff != "" || !errors.Is(err, tc.err) {
			t.Errorf("%s: error %v, -want +got:\n%s", tc.name, err, diff)
		}
	}
}

// sets is an API server with the StatefulSet web, or with an error.
type sets struct {
	client.Reader
	err  error
	spec appsv1.StatefulSetSpec
}

func (s sets) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	if s.err != nil {
		return s.err
	}
	set := o.(*appsv1.StatefulSet)
	set.Name, set.UID, set.Spec = key.Name, "set", s.spec
	return nil
}

// A claim that was made for an ordinal ends if the StatefulSet is scaled down and no pod has
// the address. A pod that only restarts keeps it. The claims that people write stay.
func TestOrdinalRemoved(t *testing.T) {
	replicas := func(first, n int32) sets {
		return sets{spec: appsv1.StatefulSetSpec{Replicas: &n, Ordinals: &appsv1.StatefulSetOrdinals{Start: first}}}
	}
	held, taken := []block.Lease{{}}, []block.Lease{{Holder: ipam.Holder{PodUID: "uid"}}}
	claim := func(name, uid, by string) *v1alpha1.IPClaim {
		return &v1alpha1.IPClaim{ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: name, Labels: map[string]string{run.LabelManagedBy: by},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "web", UID: types.UID(uid)}},
		}}
	}
	cases := []struct {
		name  string
		claim *v1alpha1.IPClaim
		has   []block.Lease
		api   sets
		want  bool
		fails bool
	}{
		{name: "it restarts", claim: claim("web-2", "set", run.ManagedBy), has: held, api: replicas(0, 3)},
		{name: "scaled down", claim: claim("web-2", "set", run.ManagedBy), has: held, api: replicas(0, 2), want: true},
		{name: "scaled to none", claim: claim("web-0", "set", run.ManagedBy), has: held, api: replicas(0, 0), want: true},
		{name: "on a further network", claim: claim("web-2.net1.wb-10.0.0.0-24", "set", run.ManagedBy), has: held, api: replicas(0, 2), want: true},
		{name: "the pod has not ended", claim: claim("web-2", "set", run.ManagedBy), has: taken, api: replicas(0, 2)},
		{name: "ordinals from 5", claim: claim("web-5", "set", run.ManagedBy), has: held, api: replicas(5, 1)},
		{name: "below the first", claim: claim("web-2", "set", run.ManagedBy), has: held, api: replicas(5, 3), want: true},
		{name: "no replicas are named", claim: claim("web-0", "set", run.ManagedBy), has: held, api: sets{}},
		{name: "a person's claim", claim: claim("web-2", "set", ""), has: held, api: replicas(0, 0)},
		{name: "another set of the name", claim: claim("web-2", "former", run.ManagedBy), has: held, api: replicas(0, 0)},
		{name: "no ordinal", claim: claim("web-02", "set", run.ManagedBy), has: held, api: replicas(0, 0)},
		{name: "another's name", claim: claim("db-2", "set", run.ManagedBy), has: held, api: replicas(0, 0)},
		{name: "the set is gone", claim: claim("web-2", "set", run.ManagedBy), has: held, api: sets{err: apierrors.NewNotFound(schema.GroupResource{}, "web")}},
		{name: "no answer", claim: claim("web-2", "set", run.ManagedBy), has: held, api: sets{err: errors.New("no answer")}, fails: true},
	}
	for _, tc := range cases {
		got, err := (&Keeper{Live: tc.api}).ordinalRemoved(t.Context(), tc.claim, tc.has)
		if got != tc.want || (err != nil) != tc.fails {
			t.Errorf("%s: %v, %v, want %v", tc.name, got, err, tc.want)
		}
	}
}
