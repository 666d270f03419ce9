package block

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/test/blocktest"
)

// Takes wait for a slow write of other takes. If their address is reserved meanwhile,
// it is not written, and the take gets another. A write under way is finished, and
// until then Taking reports it.
func TestReservedWhileATakeWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := blocktest.NewAPI()
		api.Hook(slow(time.Second))
		s := run(t, api, Config{FreeLinger: -1})
		p := pool(t, ipam.PoolSpec{Ranges: []string{"10.0.0.1-10.0.0.9"}, Order: ipam.Lowest})
		now := func() *ipam.Pool { return p }
		got := make([]netip.Addr, 3)
		take := func(i int, wanted ...netip.Addr) {
			go func() {
				leases, err := s.Take(t.Context(), p, Request{Holder: holder(i), Addresses: wanted, Now: now})
				if err == nil {
					got[i] = leases[0].Addr
				}
			}()
			synctest.Wait()
		}
		take(0) // its write is under way
		take(1) // 1 and 2 wait for the write, 2 with a requested address
		take(2, netip.MustParseAddr("10.0.0.5"))
		r, err := ipam.ParseReservation("", []string{"10.0.0.1-10.0.0.2", "10.0.0.5"})
		if err != nil {
			t.Fatal(err)
		}
		p = p.Without([]*ipam.Reservation{r})
		if !s.Taking(r) {
			t.Error("the address that is being written cannot be seen")
		}
		advance(1500 * time.Millisecond)
		synctest.Wait()
		if s.Taking(r) {
			t.Error("an address is still being taken")
		}
		if held := s.Within(r); len(held) != 1 || held[0].Addr.String() != "10.0.0.1" {
			t.Errorf("in use: %v, want what was being written", held)
		}
		advance(time.Second)
		synctest.Wait()
		if got[0].String() != "10.0.0.1" || got[1].String() != "10.0.0.3" || got[2].IsValid() {
			t.Errorf("got %v", got)
		}
		if held := s.Within(r); len(held) != 1 {
			t.Errorf("in use: %v", held)
		}
	})
}
