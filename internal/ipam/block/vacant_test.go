package block

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/test/blocktest"
)

// A pool's blocks are deleted when no address of them is in use, and not before. Blocks
// of other pools and of nodes stay.
func TestDropVacant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := blocktest.NewAPI()
		s := run(t, api, Config{FreeLinger: -1})
		p, other := shared(t, "10.0.0.0/25"), shared(t, "10.9.0.0/26")
		routed := perNode(t, "10.0.0.0/24")
		take := func(p *ipam.Pool, h ipam.Holder, addr string) {
			t.Helper()
			if _, err := s.Take(t.Context(), p, Request{Holder: h, Addresses: []netip.Addr{netip.MustParseAddr(addr)}}); err != nil {
				t.Fatal(err)
			}
		}
		drop := func(rest bool, blocks int) {
			t.Helper()
			got, err := s.DropVacant(t.Context(), p)
			if n := len(api.List()); err != nil || got != rest || n != blocks {
				t.Errorf("error %v, rest %v, %d blocks; want %v, %d", err, got, n, rest, blocks)
			}
		}
		take(p, holder(1), "10.0.0.7")
		take(p, holder(2), "10.0.0.70")
		take(other, holder(3), "10.9.0.7")
		take(routed, holder(4), "10.0.0.200")
		drop(false, 4)
		mustFree(t, s.Store, holder(1))
		mustFree(t, s.Store, holder(3))
		mustFree(t, s.Store, holder(4))
		drop(true, 4)
		advance(p.Cooldown() + time.Second)
		drop(false, 3)
		if _, err := s.Take(t.Context(), p, Request{Holder: holder(5), Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.7")}}); err != nil {
			t.Errorf("a block that was dropped: %v", err)
		}
	})
}

// A block whose CIDR disagrees with its name was made or edited by hand. It is left to the
// person who did it: its slots may be of living pods.
func TestDropVacantLeavesForeignBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := blocktest.NewAPI()
		api.Put(&v1alpha1.IPBlock{
			ObjectMeta: metav1.ObjectMeta{Name: "default.4-0a000000"},
			Spec:       v1alpha1.IPBlockSpec{Domain: "default", CIDR: "10.0.0.64/26", Slots: []string{"7 A 1 946684800000 9b2e6f4e-1a2b-4c3d-8e9f-000000000001 default/web-1/eth0 node-1"}},
		})
		s := run(t, api, Config{FreeLinger: -1})
		p := shared(t, "10.0.0.0/25")
		// The store reads the block.
		_, _ = s.Take(t.Context(), p, Request{Holder: holder(1), Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.7")}})
		advance(p.Cooldown() + time.Second)
		if rest, err := s.DropVacant(t.Context(), p); err != nil || rest || len(api.List()) != 1 {
			t.Errorf("rest %v, error %v, and %d blocks are left, want the foreign one", rest, err, len(api.List()))
		}
	})
}
