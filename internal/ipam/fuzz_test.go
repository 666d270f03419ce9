package ipam

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// FuzzParsePool separates the entries of a list by blanks.
func FuzzParsePool(f *testing.F) {
	for _, seed := range [][3]string{
		{"10.0.0.0/24", "10.0.0.0/28 10.0.0.77", "10.0.0.1"},
		{"10.0.0.10-10.0.0.20/24 fd00::/64", "", "10.0.0.1 fd00::1"},
		{"10.0.0.5/24", "10.0.0.0-", "%"},
		{"fe80::1%eth0 ::ffff:1.2.3.4 -/", "x", "10.0.0.1/24"},
		{"0.0.0.0-255.255.255.255 ::/1", "", ""},
		{"10.0.0.0/31 fd00::/127 10.0.0.9/32", "10.0.0.1", ""},
	} {
		f.Add(seed[0], seed[1], seed[2], false, int64(0))
	}
	f.Fuzz(func(t *testing.T, rs, es, gs string, flag bool, cooldown int64) {
		spec := PoolSpec{
			Name: "fuzz", Ranges: strings.Fields(rs), Excludes: strings.Fields(es), Gateways: strings.Fields(gs),
			UseEdges: flag, PerNode: !flag, Cooldown: time.Duration(cooldown),
		}
		p, err := ParsePool(spec)
		if (p == nil) == (err == nil) {
			t.Fatalf("ParsePool() = %v, %v", p, err)
		}
		if err != nil {
			fieldErrors(t, err)
			return
		}
		if len(p.Families()) == 0 || p.Usable() == 0 || p.Cooldown() < MinCooldown {
			t.Fatalf("%d usable, cooldown %s", p.Usable(), p.Cooldown())
		}
		for _, fam := range p.Families() {
			fuzzFamily(t, p, fam)
		}
	})
}

func fuzzFamily(t *testing.T, p *Pool, f Family) {
	t.Helper()
	if g, ok := p.Gateway(f); ok && p.Allows(g) {
		t.Fatalf("the gateway %s is handed out", g)
	}
	checkMasks(t, p)
	for _, s := range p.space(f).allowed {
		for _, n := range []num{s.first, s.last} {
			a := n.addr(f)
			if !p.Allows(a) || !p.Covers(a) || p.Prefix(a).Addr() != a || !BlockOf(a).Contains(a) {
				t.Fatalf("%s: allowed %v, covered %v", a, p.Allows(a), p.Covers(a))
			}
			b := NewBlock(BlockOf(a), "")
			if err := b.TakeAddr(p, holder(1), a, "", t0()); err != nil {
				t.Fatal(err)
			}
		}
	}
	seen := 0
	for block := range p.Candidates(f, "node") {
		if p.UsableIn(block) == 0 {
			t.Fatalf("candidate %s has nothing", block)
		}
		if seen++; seen == 100 {
			break
		}
	}
	if seen == 0 {
		t.Fatal("no candidate")
	}
}

// FuzzDecodeBlock separates slots by line breaks.
func FuzzDecodeBlock(f *testing.F) {
	for _, seed := range []string{
		"",
		"5 A 1 1753000000000 uid-5 ns/pod/eth0 node",
		"5 F 2 1753000000000\n6 F 9 0\n7 H 1 1000 StatefulSet/ns/web-0",
		"5 A 1 0 u -/-/- - ns/web-0\n6 F 2 9 u ns/pod/eth0 node 7\n7 F 2 9 u ns/pod/eth0 node 07",
		"5 A 1 0 u -/-/- -\n5 F 1 0\n?\n64 F 1 0\n05 F 1 0",
		"1 A 1 0 u a/b/c d\n1 A 1 0 u a/b/c d\n2",
		"5 A 1 9 u ns/pod/eth0 node u ns/pod/eth0 node 1 2\n6 F 2 9 u ns/pod/eth0 node 7 u ns/pod/eth0 node 1 2 v -/-/x - 0 1\n7 H 2 9 c u ns/pod/eth0 node 1 2",
		"5 A 1 9 u ns/pod/eth0 node c u ns/pod/eth0 node 1 2\n6 F 2 9 u ns/pod/eth0 node 01 2\n7 H 2 9 c u ns/pod/eth0 node 1 2 3",
		"18446463705355360228 A 1 0 uid ns/pod/eth0 node",
		"5 M 2 9 u ns/pod/eth0 node ns/vm v ns/pod2/eth0 node2 10\n6 M 2 9 u ns/pod/eth0 node ns/vm v ns/pod2/eth0 node2 10 w ns/pod/eth0 node 1 2\n7 M 2 9 u ns/pod/eth0 node ns/vm u ns/pod/eth0 node2 10\n8 M 2 9 u ns/pod/eth0 node ns/vm",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		slots := strings.Split(text, "\n")
		prefix := netip.MustParsePrefix("10.0.0.64/26")
		b := DecodeBlock(prefix, "n", slots)
		once := b.Encode()
		again := DecodeBlock(prefix, "n", once)
		if diff := cmp.Diff(once, again.Encode()); diff != "" {
			t.Fatalf("round trip (-once +twice):\n%s", diff)
		}
		if b.Used() != again.Used() || b.noOrdinal != again.noOrdinal || b.slots != again.slots {
			t.Fatalf("the block is another after a round trip")
		}
		// No record is dropped or invented.
		have := map[string]int{}
		for _, s := range slots {
			have[s]++
		}
		for _, s := range once {
			have[s]--
		}
		for s, n := range have {
			if n != 0 {
				t.Fatalf("%q was there %+d times more before", s, n)
			}
		}
		p := mustPool(t, PoolSpec{Ranges: []string{"10.0.0.64/26"}, UseEdges: true})
		c := b.Counts(p, t0())
		if c.Usable != 64 || c.Usable != c.Free+c.Allocated+c.Cooling+c.Held+c.Reserved {
			t.Fatalf("counts %v", c)
		}
		fuzzTake(t, b, p, len(slots))
	})
}

// fuzzTake takes until the pool is exhausted. Taken and damaged addresses stay as they
// are.
func fuzzTake(t *testing.T, b *Block, p *Pool, records int) {
	t.Helper()
	before := b.Clone()
	for i := range 65 {
		h := holder(i)
		h.Interface = "fuzz"
		a, err := b.Take(p, h, false, t0().Add(MaxCooldown))
		if err != nil {
			break
		}
		if was, ok := before.Slot(a); ok && was.State != Freed {
			t.Fatalf("%s was %c and is handed out", a, was.State)
		}
	}
	if n := len(b.Encode()); n > max(records, slotsPerBlock) {
		t.Fatalf("%d records, %d before", n, records)
	}
	for s := range before.Slots() {
		now, _ := b.Slot(s.Addr)
		if s.State != Freed && now != s {
			t.Fatalf("%s was %+v and is %+v", s.Addr, s, now)
		}
		for _, past := range b.History(s.Addr) {
			if past.Holder.Validate() != nil {
				t.Fatalf("%s remembers %+v", s.Addr, past)
			}
		}
	}
}
