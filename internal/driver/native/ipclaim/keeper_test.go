package ipclaim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver/native"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/ipam/block"
)

// refusing is an API server without claims that refuses to create one.
type refusing struct {
	client.Client
	err error
}

func (refusing) Get(_ context.Context, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	return apierrors.NewNotFound(schema.GroupResource{Resource: "ipclaims"}, key.Name)
}

func (r refusing) Create(context.Context, client.Object, ...client.CreateOption) error { return r.err }

// A claim that the API server refuses for its content is no reason to wait.
func TestObtainOfARefusedClaim(t *testing.T) {
	long := strings.Repeat("a", 254)
	invalid := apierrors.NewInvalid(schema.GroupKind{Kind: "IPClaim"}, long, field.ErrorList{field.TooLong(field.NewPath("metadata", "name"), long, 253)})
	for err, want := range map[error]error{invalid: fault.ErrInvalid, errors.New("no answer"): fault.ErrUnavailable} {
		r := &Keeper{Client: refusing{err: err}}
		_, got := r.Obtain(t.Context(), types.NamespacedName{Namespace: "shop", Name: long}, native.Making{Serves: func() error { return nil }})
		if !errors.Is(got, want) || !errors.Is(got, err) {
			t.Errorf("%v: got %v, want %v", err, got, want)
		}
	}
}

func TestDivide(t *testing.T) {
	now := time.UnixMilli(1_753_000_000_000)
	held := func(a string, ago time.Duration) block.Lease {
		return block.Lease{Addr: netip.MustParseAddr(a), Since: now.Add(1000 * time.Hour), Seen: now.Add(-ago)}
	}
	taken := func(a string) block.Lease {
		l := held(a, 100*time.Hour)
		l.Holder = ipam.Holder{PodUID: "uid", Interface: "eth0"}
		return l
	}
	cases := []struct {
		name      string
		hold      string
		wants     []string
		heldSince time.Duration
		has       []block.Lease
		keep, end []string
		again     time.Duration
		over      bool
	}{
		{name: "nothing"},
		{name: "a pod has it", hold: "1h", has: []block.Lease{taken("10.0.0.1")}, keep: []string{"10.0.0.1"}},
		{name: "held", hold: "1h", has: []block.Lease{held("10.0.0.1", time.Minute)}, keep: []string{"10.0.0.1"}, again: 59 * time.Minute},
		{name: "the default", has: []block.Lease{held("10.0.0.1", time.Hour)}, keep: []string{"10.0.0.1"}, again: 23 * time.Hour},
		{name: "for ever", hold: "0s", has: []block.Lease{held("10.0.0.1", 9000*time.Hour)}, keep: []string{"10.0.0.1"}},
		{name: "too long", hold: "1h", has: []block.Lease{held("10.0.0.1", time.Hour), held("fd00::1", time.Hour)}, end: []string{"10.0.0.1", "fd00::1"}, over: true},
		{
			name: "one family sooner", hold: "1h", has: []block.Lease{held("fd00::1", 50*time.Minute), held("10.0.0.1", 40*time.Minute)},
			keep: []string{"10.0.0.1", "fd00::1"}, again: 10 * time.Minute,
		},
		{
			name: "two of a family, from two leaders at once", hold: "1h", has: []block.Lease{held("10.0.0.2", 2*time.Minute), held("10.0.0.1", time.Minute)},
			keep: []string{"10.0.0.2"}, end: []string{"10.0.0.1"}, again: 58 * time.Minute,
		},
		{
			name: "what a pod has goes first", hold: "1h", has: []block.Lease{held("10.0.0.2", 2*time.Minute), taken("10.0.0.1")},
			keep: []string{"10.0.0.1"}, end: []string{"10.0.0.2"},
		},
		{
			name: "another is wanted", hold: "1h", wants: []string{"10.0.0.9"}, has: []block.Lease{held("fd00::1", time.Minute), held("10.0.0.2", time.Minute)},
			keep: []string{"fd00::1"}, end: []string{"10.0.0.2"}, again: 59 * time.Minute,
		},
		{
			name: "the wanted one stays", hold: "1h", wants: []string{"10.0.0.9"}, has: []block.Lease{held("10.0.0.2", 2*time.Minute), held("10.0.0.9", time.Minute)},
			keep: []string{"10.0.0.9"}, end: []string{"10.0.0.2"}, again: 59 * time.Minute,
		},
		{name: "its end was cut off", hold: "1h", heldSince: 2 * time.Hour, over: true},
		{name: "not over yet", hold: "1h", heldSince: time.Minute},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			claim := &v1alpha1.IPClaim{Spec: v1alpha1.IPClaimSpec{Addresses: tc.wants}}
			if tc.hold != "" {
				d, err := time.ParseDuration(tc.hold)
				if err != nil {
					t.Fatal(err)
				}
				claim.Spec.HoldTime = &metav1.Duration{Duration: d}
			}
			if tc.heldSince > 0 {
				claim.Status.HeldSince = new(metav1.NewTime(now.Add(-tc.heldSince)))
			}
			got := divide(claim, tc.has, now)
			list := func(leases []block.Lease) (out []string) {
				for _, l := range leases {
					out = append(out, l.Addr.String())
				}
				return out
			}
			if diff := cmp.Diff([][]string{tc.keep, tc.end}, [][]string{list(got.keep), list(got.end)}, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("kept and ended (-want +got):\n%s", diff)
			}
			if got.requeue != tc.again || got.expired != tc.over {
				t.Errorf("again in %s, over %v; want %s, %v", got.requeue, got.expired, tc.again, tc.over)
			}
		})
	}
}

func TestChangedClaims(t *testing.T) {
	const (
		a1   = "1 A 1 1000 uid default/web-0/eth0 node default/web-0"
		a2   = "2 A 1 1000 uid default/web-1/eth0 node default/web-1"
		held = "2 H 2 2000 default/web-1"
		none = "3 A 1 1000 uid default/web-2/eth0 node"
		odd  = "4 H 2 2000 no-namespace"
	)
	cases := []struct {
		name          string
		before, after []string
		want          []string
	}{
		{name: "a new block", after: []string{a1, a2, none, odd, "?"}, want: []string{"default/web-0", "default/web-1"}},
		{name: "one changes", before: []string{a1, a2}, after: []string{a1, held, none}, want: []string{"default/web-1"}},
		{name: "one goes", before: []string{a1, held}, after: []string{"2 F 3 3000", a1}, want: []string{"default/web-1"}},
		{name: "nothing of a claim", before: []string{a1}, after: []string{a1, none}},
		{name: "a deleted block", before: []string{a1}, want: []string{"default/web-0"}},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			var got []string
			for _, key := range changedClaims(tc.before, tc.after) {
				got = append(got, key.String())
			}
			slices.Sort(got)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// The MAC of a claim is that of its spec, otherwise a unicast address of its own.
func TestMACOf(t *testing.T) {
	claim := func(uid, mac string) *v1alpha1.IPClaim {
		return &v1alpha1.IPClaim{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid)}, Spec: v1alpha1.IPClaimSpec{MAC: mac}}
	}
	if got := macOf(claim("u", "0a:58:0a:f4:00:05")); got != "0a:58:0a:f4:00:05" {
		t.Errorf("the MAC in the spec: %s", got)
	}
	seen := map[string]bool{}
	for i := range 1000 {
		mac := macOf(claim(fmt.Sprint("uid-", i), ""))
		hw, err := net.ParseMAC(mac)
		if err != nil || len(hw) != 6 || hw[0]&3 != 2 || seen[mac] || mac != macOf(claim(fmt.Sprint("uid-", i), "")) {
			t.Fatalf("claim %d has %s (%v), which is not a MAC of its own", i, mac, err)
		}
		seen[mac] = true
	}
}
