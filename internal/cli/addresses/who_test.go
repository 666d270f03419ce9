package addresses

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/test/clitest"
)

func TestWho(t *testing.T) {
	type answer struct {
		State    addressState
		Holder   string // name of the pod
		Former   string // names of the pods
		Claim    string
		Since    time.Duration // ago
		Until    time.Duration // from now
		Withheld string        // by pool lan
	}
	snap := clitest.Addressed()
	snap.Claims = []v1alpha1.IPClaim{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart-3"},
		Spec:       v1alpha1.IPClaimSpec{HoldTime: &metav1.Duration{Duration: time.Hour}},
	}}
	for _, tt := range []struct {
		name string
		addr string
		ago  time.Duration // 0 for now
		want answer
	}{
		{"taken", "192.168.4.2", 0, answer{State: addressAllocated, Holder: "cart-0", Since: 10 * time.Minute}},
		{"taken by then", "192.168.4.2", 10 * time.Minute, answer{State: addressAllocated, Holder: "cart-0", Since: 10 * time.Minute}},
		{"before it was taken", "192.168.4.2", 11 * time.Minute, answer{State: addressUnknown}},
		{"taken, excluded since", "192.168.4.9", 0, answer{State: addressAllocated, Holder: "cart-9", Since: time.Hour, Withheld: "excluded"}},
		{"cooling", "192.168.4.64", 0, answer{State: addressCooling, Former: "cart-9", Since: time.Second, Until: 29 * time.Second}},
		{"rested", "192.168.4.65", 0, answer{State: addressFree, Former: "cart-9", Since: time.Minute}},
		{"while the last holder had it", "192.168.4.65", 30 * time.Minute, answer{State: addressAllocated, Holder: "cart-9", Since: time.Hour, Until: -time.Minute}},
		{"when it cooled down", "192.168.4.65", 50 * time.Second, answer{State: addressCooling, Former: "cart-9", Since: time.Minute}},
		{"when it had rested", "192.168.4.65", 10 * time.Second, answer{State: addressFree, Former: "cart-9", Since: time.Minute}},
		{"before the last holder", "192.168.4.65", 2 * time.Hour, answer{State: addressUnknown}},
		{"held", "192.168.4.70", 0, answer{State: addressHeld, Claim: "shop/cart-3", Since: 5 * time.Minute, Until: 55 * time.Minute}},
		{"held by then", "192.168.4.70", time.Minute, answer{State: addressHeld, Claim: "shop/cart-3", Since: 5 * time.Minute}},
		{"before it was held", "192.168.4.70", time.Hour, answer{State: addressUnknown}},
		{"taken again", "192.168.4.66", 0, answer{State: addressAllocated, Holder: "cart-0", Former: "cart-9 cart-8", Since: time.Hour}},
		{"while the holder before had it", "192.168.4.66", 8 * time.Hour, answer{State: addressAllocated, Holder: "cart-9", Former: "cart-8", Since: 9 * time.Hour, Until: -2 * time.Hour}},
		{"while the one before that had it", "192.168.4.66", 19 * time.Hour, answer{State: addressAllocated, Holder: "cart-8", Since: 20 * time.Hour, Until: -10 * time.Hour}},
		{"between two holders", "192.168.4.66", 90 * time.Minute, answer{State: addressFree, Former: "cart-9 cart-8", Since: 2 * time.Hour, Until: -time.Hour}},
		{"cooling between two holders", "192.168.4.66", 10*time.Hour - time.Second, answer{State: addressCooling, Former: "cart-8", Since: 10 * time.Hour, Until: -9 * time.Hour}},
		{"before all that is remembered", "192.168.4.66", 21 * time.Hour, answer{State: addressUnknown}},
		{"held, had before", "192.168.4.71", 2 * time.Hour, answer{State: addressAllocated, Holder: "cart-9", Since: 3 * time.Hour, Until: -time.Hour}},
		{"reserved", "192.168.4.50", 0, answer{State: addressReserved}},
		{"damaged", "192.168.4.5", 0, answer{State: addressDamaged}},
		{"damaged, then", "192.168.4.5", time.Minute, answer{State: addressUnknown}},
		{"gateway", "192.168.4.1", 0, answer{State: addressWithheld, Withheld: "its gateway"}},
		{"edge", "192.168.4.0", 0, answer{State: addressWithheld, Withheld: "an edge of its range"}},
		{"never used", "192.168.4.20", 0, answer{State: addressFree}},
		{"never used, then", "192.168.4.20", time.Minute, answer{State: addressUnknown}},
		{"no block", "192.168.9.9", 0, answer{State: addressFree}},
		{"no pool", "192.0.2.1", 0, answer{State: addressOutside}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			q := question{addr: netip.MustParseAddr(tt.addr), domain: "default"}
			if tt.ago > 0 {
				q.at = clitest.Now.Add(-tt.ago)
			}
			v := buildWho(q, snap)
			if len(v.Domains) != 1 {
				t.Fatalf("got %d domains, want 1", len(v.Domains))
			}
			d := v.Domains[0]
			got := answer{State: d.State, Claim: d.Claim}
			if d.Holder != nil {
				got.Holder = d.Holder.Pod
			}
			var former []string
			for _, h := range d.Former {
				former = append(former, h.Pod)
			}
			got.Former = strings.Join(former, " ")
			if d.Since != nil {
				got.Since = clitest.Now.Sub(*d.Since)
			}
			if d.Until != nil {
				got.Until = d.Until.Sub(clitest.Now)
			}
			for _, p := range d.Pools {
				if p.Name == "lan" {
					got.Withheld = p.Withheld
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
			between := tt.ago > 0 && d.Holder == nil && d.Until != nil
			if noted := d.State == addressUnknown || d.State == addressDamaged || between; noted != (d.Note != "") {
				t.Errorf("state %s with the note %q", d.State, d.Note)
			}
		})
	}
}

// TestWhoNamesWhatDoesNotAgree: a PodAttachment and the block contradict each other, and
// a pool that cannot be parsed is named.
func TestWhoNamesWhatDoesNotAgree(t *testing.T) {
	snap := clitest.Addressed()
	snap.Pools = append(snap.Pools, clitest.PoolOf("broken", clitest.Ranges("10.0.0.1/8")))
	v := buildWho(question{addr: netip.MustParseAddr("10.244.21.130")}, snap)
	if diff := cmp.Diff([]string{"broken"}, v.UnreadPools); diff != "" {
		t.Error(diff)
	}
	d := v.Domains[0]
	if diff := cmp.Diff([]string{"shop/cart-1-8f14e45f"}, d.Records); diff != "" {
		t.Error(diff)
	}
	if d.State != addressFree || !strings.Contains(d.Note, "does not agree") {
		t.Errorf("got state %s and note %q", d.State, d.Note)
	}
}

func TestBadQuestions(t *testing.T) {
	for _, tt := range []struct{ name, addr, at, want string }{
		{"no address", "web", "", `"web" is not an IP address`},
		{"a prefix", "10.0.0.1/24", "", "without a prefix length"},
		{"a zone", "fe80::1%eth0", "", "is not an IP address"},
		{"no time", "10.0.0.1", "yesterday", `--at: "yesterday" is not an RFC 3339 time: write it as 2026-03-02T09:30:00Z`},
		{"the future", "10.0.0.1", "2026-03-02T09:30:01Z", "lies in the future"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := parseQuestion(tt.addr, "", tt.at, clitest.Now); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}
