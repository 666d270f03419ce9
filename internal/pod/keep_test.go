package pod

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
)

func TestWishesOf(t *testing.T) {
	addrs := func(all ...string) (out []netip.Addr) {
		for _, a := range all {
			out = append(out, netip.MustParseAddr(a))
		}
		return out
	}
	owner := func(apiVersion, kind string, controls bool) []metav1.OwnerReference {
		return []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: "web", UID: "uid", Controller: &controls}}
	}
	machine := func(name string) []metav1.OwnerReference {
		return []metav1.OwnerReference{{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachineInstance", Name: name, UID: "uid", Controller: new(true), BlockOwnerDeletion: new(true)}}
	}
	machines := func(name string) Wishes {
		w := Wishes{
			Sticky: map[v1alpha1.Sticky]string{v1alpha1.StickyVirtualMachine: name},
			Owners: map[v1alpha1.Sticky]metav1.OwnerReference{v1alpha1.StickyVirtualMachine: {APIVersion: "kubevirt.io/v1", Kind: "VirtualMachineInstance", Name: name, UID: "uid"}},
		}
		return w
	}
	long := strings.Repeat("long-", 40) + "name"
	cases := []struct {
		name             string
		addresses, claim string
		owners           []metav1.OwnerReference
		vm               string
		want             Wishes
		wantErr          []string
	}{
		{name: "nothing"},
		{name: "both families", addresses: "10.0.0.7, fd00::7", want: Wishes{Addresses: addrs("10.0.0.7", "fd00::7")}},
		{name: "a claim", claim: "db.main-0", want: Wishes{Claim: "db.main-0"}},
		{name: "a text", claim: "Rack 4, Drucker Süd", want: Wishes{Claim: "text-b907383b70bcb0b5", ClaimText: "Rack 4, Drucker Süd"}},
		{name: "a text with a slash", claim: "other/web-0", want: Wishes{Claim: "text-477397dd5aecbea4", ClaimText: "other/web-0"}},
		{name: "a long text", claim: strings.Repeat("Ä", 253), want: Wishes{Claim: "text-64e42dd14e4a9008", ClaimText: strings.Repeat("Ä", 253)}},
		{
			name: "a pod of a StatefulSet", owners: owner("apps/v1", "StatefulSet", true),
			want: Wishes{
				Sticky: map[v1alpha1.Sticky]string{v1alpha1.StickyStatefulSet: "web-0"},
				Owners: map[v1alpha1.Sticky]metav1.OwnerReference{v1alpha1.StickyStatefulSet: {APIVersion: "apps/v1", Kind: "StatefulSet", Name: "web", UID: "uid"}},
			},
		},
		{name: "a StatefulSet of somebody else", owners: owner("example.com/v1", "StatefulSet", true)},
		{name: "a StatefulSet that does not control it", owners: owner("apps/v1", "StatefulSet", false)},
		{name: "a pod of a Deployment", owners: owner("apps/v1", "ReplicaSet", true)},
		{name: "a virtual machine", owners: machine("vm1"), vm: "vm1", want: machines("vm1")},
		{name: "one of a newer KubeVirt, without the label", owners: machine("vm1"), want: machines("vm1")},
		{name: "two machines of one host name: this", owners: machine("db.prod"), vm: "db", want: machines("db.prod")},
		{name: "two machines of one host name: that", owners: machine("db.test"), vm: "db", want: machines("db.test")},
		{name: "a name longer than a label", owners: machine(long), vm: long[:63], want: machines(long)},
		{name: "a label that names no claim", owners: machine("vm1"), vm: "VM_1", want: machines("vm1")},
		{name: "a label alone", vm: "vm1"},
		{name: "an instance of somebody else", owners: owner("example.com/v1", "VirtualMachineInstance", true), vm: "vm1"},

		{name: "not an address", addresses: "10.0.0.7,web", wantErr: []string{v1alpha1.AnnotationAddresses, `"web"`, "10.0.0.7,fd00::7"}},
		{name: "a prefix", addresses: "10.0.0.7/24", wantErr: []string{`"10.0.0.7/24"`}},
		{name: "a zone", addresses: "fe80::1%eth0", wantErr: []string{`"fe80::1%eth0"`}},
		{name: "IPv4 in IPv6", addresses: "::ffff:10.0.0.7", wantErr: []string{`"::ffff:10.0.0.7"`}},
		{name: "a comma at the end", addresses: "10.0.0.7,", wantErr: []string{`""`}},
		{name: "two of a family", addresses: "fd00::7,fd00::8", wantErr: []string{"fd00::7 and fd00::8", "one family"}},
		{name: "a blank at the end", claim: "Web 0 ", wantErr: []string{v1alpha1.AnnotationClaim, `"Web 0 "`, "printable"}},
		{name: "a line break", claim: "Web\n0", wantErr: []string{`"Web\n0"`}},
		{name: "not UTF-8", claim: "Web\xff", wantErr: []string{`"Web\xff"`}},
		{name: "a text that is too long", claim: strings.Repeat("Ä", 254), wantErr: []string{"253"}},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
				Name: "web-0", OwnerReferences: tc.owners, Labels: map[string]string{"vm.kubevirt.io/name": tc.vm},
				Annotations: map[string]string{v1alpha1.AnnotationAddresses: tc.addresses, v1alpha1.AnnotationClaim: tc.claim},
			}}
			got, err := WishesOf(p)
			if tc.wantErr == nil {
				if diff := cmp.Diff(tc.want, got, cmpopts.EquateComparable(netip.Addr{}), cmpopts.EquateEmpty()); err != nil || diff != "" {
					t.Errorf("error %v, -want +got:\n%s", err, diff)
				}
				return
			}
			for _, text := range tc.wantErr {
				if err == nil || !strings.Contains(err.Error(), text) {
					t.Errorf("error %v, want one that says %q", err, text)
				}
			}
		})
	}
}

// The IPAMClaim of the default interface is named by an annotation of KubeVirt's
// ipam-extensions.
func TestPrimaryClaim(t *testing.T) {
	for _, tc := range []struct{ reference, claim, want, fails string }{
		{reference: "vm1.default", want: "vm1.default"},
		{reference: "", claim: "web-0"},
		{reference: "no name", fails: `"no name": must be the name of an IPAMClaim`},
		{reference: strings.Repeat("n", 257), fails: "at most 256"},
		{reference: "vm1.default", claim: "web-0", fails: "must not stand beside " + v1alpha1.AnnotationClaim},
	} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{AnnotationPrimaryClaim: tc.reference, v1alpha1.AnnotationClaim: tc.claim}}}
		w, err := WishesOf(p)
		if tc.fails != "" {
			if err == nil || !strings.Contains(err.Error(), tc.fails) || !strings.Contains(err.Error(), "annotation "+AnnotationPrimaryClaim) {
				t.Errorf("%.20q: %v, want an error with %q", tc.reference, err, tc.fails)
			}
		} else if err != nil || w.Reference != tc.want || w.Claim != tc.claim {
			t.Errorf("%.20q: %+v, %v", tc.reference, w, err)
		}
	}
}

// Every interface of a pod has a claim of its own, with a name that is valid in
// Kubernetes.
func TestClaimOn(t *testing.T) {
	cases := []struct{ iface, want string }{
		{"net1", "web-0.net1"},
		{"eth-blue", "web-0.eth-blue"},
		{"Net1", "web-0.if-d206d8ff"},
		{"net_1", "web-0.if-184e6ecd"},
		{"net1.7", "web-0.if-31f664ce"},
	}
	for _, tc := range cases {
		if got := ClaimOn("web-0", tc.iface); got != tc.want || !claimName(got) {
			t.Errorf("%s: got %q, want %q", tc.iface, got, tc.want)
		}
	}
}

// The claim of an IPAMClaim has a valid name, and each IPAMClaim its own.
func TestClaimOfReference(t *testing.T) {
	long := strings.Repeat("n", 253)
	for name, want := range map[string]string{
		"vm1.lan": "ipamclaim.vm1.lan",
		long:      "ipamclaim-d8a32f1a66e0a1ee1b0ea1d4ab2dbf09",
		"Not One": "ipamclaim-",
		"":        "ipamclaim-",
	} {
		if got := ClaimOfReference(name); !claimName(got) || !strings.HasPrefix(got, want[:10]) || len(name) < 10 && name != "" && !strings.Contains(name, " ") && got != want {
			t.Errorf("%.20q: %q, want %q", name, got, want)
		}
	}
	if ClaimOfReference(long) == ClaimOfReference(long[1:]+"m") {
		t.Error("two IPAMClaims have one claim")
	}
}

func FuzzWishesOf(f *testing.F) {
	for _, seed := range []string{"", "10.0.0.7,fd00::7", ",", "fe80::1%eth0", "::ffff:1.2.3.4", "10.0.0.7/32", "\x00"} {
		f.Add(seed, "web-0", "")
	}
	f.Add("", "Rack 4", "")
	f.Add("", "\xff", "")
	f.Add("", "", "vm1.default")
	f.Fuzz(func(t *testing.T, addresses, claim, reference string) {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
			v1alpha1.AnnotationAddresses: addresses, v1alpha1.AnnotationClaim: claim, AnnotationPrimaryClaim: reference,
		}}}
		w, err := WishesOf(p)
		if err != nil {
			if !strings.Contains(err.Error(), "annotation fairlead.dev/") && !strings.Contains(err.Error(), "annotation "+AnnotationPrimaryClaim) {
				t.Fatalf("the error does not name the annotation: %v", err)
			}
			return
		}
		if w.Reference != reference || w.Reference != "" && (!claimName(w.Reference) || w.Claim != "") {
			t.Fatalf("%q beside claim %q gave %+v", reference, claim, w)
		}
		if w.Claim != "" && !claimName(w.Claim) || (w.ClaimText != "") != (claim != w.Claim) {
			t.Fatalf("%q gave claim %q for %q", claim, w.Claim, w.ClaimText)
		}
		if len(w.Addresses) > 2 || len(w.Addresses) == 2 && w.Addresses[0].Is4() == w.Addresses[1].Is4() {
			t.Fatalf("%q gave %v", addresses, w.Addresses)
		}
	})
}
