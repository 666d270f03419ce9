package host

import (
	"context"
	"net/netip"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/nettest"
)

// Every link of the node has rp_filter 1 (own review 14). Only the tunnel's is loose,
// without which the kernel would drop the packets that off-link nodes send themselves.
func TestWaysBack(t *testing.T) {
	nettest.NeedIPv6(t)
	nodes, _ := newRouted(t, 2, netip.Addr.Is4, netip.Addr.Is6)
	for i, k := range nodes {
		apply(t, k, routedState(i, netip.Addr.Is4, netip.Addr.Is6))
	}
	k := nodes[0]
	arrival := func(link, source string) Arrival { return Arrival{Link: link, Source: nettest.Addr(source)} }
	local, remote := blocksOf(0), blocksOf(1)
	all := []Arrival{
		{nettest.DefaultBridge, local[0].Addr().Next()},
		{nettest.DefaultBridge, local[1].Addr().Next()},
		{"fairlead-vx4", remote[0].Addr().Next()},
		{"fairlead-vx6", remote[1].Addr().Next()},
		{"fairlead-vx4", routedIP(1, netip.Addr.Is4)},
		{"fairlead-vx6", routedIP(1, netip.Addr.Is6)},
		{"up0", routedIP(1, netip.Addr.Is4)},
		arrival("not-there", "192.0.2.1"),
		arrival("up0", local[0].Addr().Next().String()),
	}
	want := []WayBack{{}, {}, {}, {}, {Astray: true}, {Astray: true}, {}, {}, {Astray: true, Refused: true}}
	check := func() {
		t.Helper()
		got, err := k.WaysBack(all)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	check()
	nettest.In(t, k.Namespace(), func() error {
		_, err := link.SetSysctl("net/ipv4/conf/fairlead-vx4/rp_filter", "1")
		return err
	})
	want[4].Refused = true
	check()
	apply(t, k, routedState(0, netip.Addr.Is4, netip.Addr.Is6)) // which makes it loose again
	want[4].Refused = false
	check()
}

// Changes in other programs' tables are reported with their chain, changes in Fairlead's
// table are not.
func TestWatchTablesOfOthers(t *testing.T) {
	nettest.NeedRoot(t)
	k := newHostNode(t)
	ctx, cancel := context.WithCancel(t.Context())
	heard := make(chan RuleChange, 100)
	var running sync.WaitGroup
	running.Go(func() {
		if err := k.WatchTables(ctx, "ours", func(uint32) {}, func(c RuleChange) { heard <- c }); err != nil {
			t.Error(err)
		}
	})
	defer running.Wait()
	defer cancel()
	next := func() (c RuleChange) {
		t.Helper()
		select {
		case c = <-heard:
		case <-time.After(time.Minute):
			t.Fatal("nothing is heard")
		}
		return c
	}
	if c := next(); c != (RuleChange{}) {
		t.Errorf("at the beginning %+v", c)
	}
	nettest.In(t, k.Namespace(), func() error {
		cmd := exec.CommandContext(ctx, "nft", "-f", "-")
		cmd.Stdin = strings.NewReader(`
			table inet ours { chain f { type filter hook forward priority 0; accept; }
			}
			table ip filter { chain FORWARD { type filter hook forward priority 0; policy drop; counter accept; }
			chain beside { counter; }
			set s { type ipv4_addr; elements = { 192.0.2.1 }; }
			}
			delete table ip filter
			`)
		return cmd.Run()
	})
	table := RuleChange{Family: unix.NFPROTO_IPV4, Table: "filter"}
	chain, beside := table, table
	chain.Chain, beside.Chain = "FORWARD", "beside"
	base := chain
	base.Base = true
	deleted := func(c RuleChange) RuleChange { c.Deleted = true; return c }
	seen := map[RuleChange]int{}
	for seen[deleted(table)] < 1 {
		seen[next()]++
	}
	for _, c := range []RuleChange{table, base, chain, beside, deleted(table), deleted(beside)} {
		if seen[c] < 1 {
			t.Errorf("%+v is not told of: %v", c, seen)
		}
		delete(seen, c)
	}
	if seen[deleted(chain)]+seen[deleted(base)] == 0 { // some kernels leave its hook out
		t.Errorf("the deletion of the chain with a hook is not told of: %v", seen)
	}
	delete(seen, deleted(chain))
	delete(seen, deleted(base))
	if len(seen) > 0 {
		t.Errorf("also told of: %v", seen)
	}
}
