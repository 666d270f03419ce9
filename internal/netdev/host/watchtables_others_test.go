package host

import (
	"context"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/test/nettest"
)

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
