package block

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/ipam/block/blocktest"
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
