package native

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/driver/drivertest"
	"fairlead.dev/fairlead/internal/ipam/block/blocktest"
)

// references is an API server with one IPAMClaim, or with an error.
type references struct {
	client.Reader
	spec map[string]any
	err  error
}

func (r references) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	if r.err != nil {
		return r.err
	}
	u := o.(*unstructured.Unstructured)
	u.Object["spec"] = r.spec
	u.SetName(key.Name)
	u.SetUID("reference")
	return nil
}

// The IPClaim of an IPAMClaim requests its addresses, is owned by it, and lasts as long.
// The values that people write into an IPAMClaim are checked.
func TestFromReference(t *testing.T) {
	owned := []metav1.OwnerReference{{APIVersion: "k8s.cni.cncf.io/v1alpha1", Kind: "IPAMClaim", Name: "vm1.lan", UID: "reference"}}
	requests := func(all ...any) map[string]any { return map[string]any{"ipRequests": all} }
	noKind := &meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: "k8s.cni.cncf.io", Kind: "IPAMClaim"}}
	cases := []struct {
		name string
		api  references
		want []string
		err  error
		text string
	}{
		{name: "no requests", api: references{spec: map[string]any{}}},
		{name: "both families", api: references{spec: requests("10.0.0.7/24", "fd00::7/64")}, want: []string{"10.0.0.7", "fd00::7"}},
		{name: "no prefix length", api: references{spec: requests("10.0.0.7")}, err: driver.ErrInvalid, text: "spec.ipRequests[0]"},
		{name: "no address", api: references{spec: requests("fd00::7/64", "x")}, err: driver.ErrInvalid, text: "spec.ipRequests[1]"},
		{name: "mapped", api: references{spec: requests("::ffff:10.0.0.7/120")}, err: driver.ErrInvalid, text: "ipRequests"},
		{name: "another type", api: references{spec: map[string]any{"ipRequests": "10.0.0.7/24"}}, err: driver.ErrInvalid, text: "cannot be read"},
		{name: "absent", api: references{err: apierrors.NewNotFound(schema.GroupResource{Resource: "ipamclaims"}, "vm1.lan")}, err: driver.ErrNotFound, text: "shop/vm1.lan"},
		{name: "no such kind", api: references{err: noKind}, err: driver.ErrInvalid, text: "CRD"},
		{name: "no answer", api: references{err: errors.New("no answer")}, err: driver.ErrUnavailable, text: "no answer"},
	}
	for _, tc := range cases {
		claim := &v1alpha1.IPClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "ipamclaim.vm1.lan"}}
		err := (&Claims{Live: tc.api}).fromReference(t.Context(), claim, "vm1.lan")
		if tc.err != nil {
			if !errors.Is(err, tc.err) || !strings.Contains(err.Error(), tc.text) {
				t.Errorf("%s: %v, want one with %q", tc.name, err, tc.text)
			}
			continue
		}
		if diff := cmp.Diff(tc.want, claim.Spec.Addresses); err != nil || diff != "" || claim.Spec.HoldTime == nil || claim.Spec.HoldTime.Duration != 0 {
			t.Errorf("%s: %v, hold time %v, addresses (-want +got):\n%s", tc.name, err, claim.Spec.HoldTime, diff)
		}
		if diff := cmp.Diff(owned, claim.OwnerReferences); diff != "" {
			t.Errorf("%s: owners (-want +got):\n%s", tc.name, diff)
		}
	}
}

// reporting records the reports about IPAMClaims.
type reporting struct {
	written
	told *[]string
}

func (r reporting) Refused(_ context.Context, key client.ObjectKey, why error) error {
	*r.told = append(*r.told, key.Name+": "+why.Error())
	return nil
}

// A pod that references an IPAMClaim draws by its claim, whatever the pool's stickiness. A
// refusal is reported of the IPAMClaim. A server that does not answer refuses nothing.
func TestReference(t *testing.T) {
	d := start(t, blocktest.NewAPI(), "a")
	var told []string
	d.cfg.Claims = reporting{written{store: d.store}, &told}
	d.pool("a", v1alpha1.IPPoolSpec{Ranges: []string{"10.0.0.1"}, Sticky: v1alpha1.StickyVirtualMachine})
	first, second := drivertest.Request(1), drivertest.Request(2)
	asks(first).Reference, asks(second).Reference = "vm1.lan", "vm2.lan"
	asks(first).Sticky = map[v1alpha1.Sticky]string{v1alpha1.StickyVirtualMachine: "vm1"}
	a, err := d.Ensure(t.Context(), first)
	if err != nil || a.Interface.Claim != first.Namespace+"/ipamclaim.vm1.lan" {
		t.Fatalf("%+v, %v", a, err)
	}
	if _, err := d.Ensure(t.Context(), second); !errors.Is(err, driver.ErrExhausted) {
		t.Errorf("the second: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := d.Ensure(ended, second); !errors.Is(err, driver.ErrUnavailable) && !errors.Is(err, driver.ErrExhausted) {
		t.Errorf("without an answer: %v", err)
	}
	if len(told) == 0 || !strings.HasPrefix(told[0], "vm2.lan: ") || !strings.Contains(told[0], "no IPv4 address left") {
		t.Errorf("reported: %q", told)
	}
}
