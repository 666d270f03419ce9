package ipam

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"
)

func reserved(tb testing.TB, ranges ...string) *Reservation {
	tb.Helper()
	r, err := ParseReservation("", ranges)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

func TestParseReservation(t *testing.T) {
	tests := []struct {
		name   string
		domain string
		ranges []string
		in     []string
		out    []string
		text   []string
	}{
		{
			"all forms, also overlapping and outside every pool", "lan",
			[]string{"10.0.0.0/30", "10.0.0.2-10.0.0.6", "10.0.0.9", "fd00::/126", "224.0.0.1"},
			[]string{"10.0.0.0", "10.0.0.3", "10.0.0.6", "10.0.0.9", "fd00::", "fd00::3", "224.0.0.1"},
			[]string{"10.0.0.7", "10.0.0.8", "10.0.0.10", "fd00::4"},
			nil,
		},
		{
			"a mistake leaves the other entries in force", "",
			[]string{"10.0.0.1/24", "10.0.0.9"},
			[]string{"10.0.0.9"},
			[]string{"10.0.0.1", "10.0.0.7"},
			[]string{"spec.ranges[0]", "10.0.0.1/24", "write 10.0.0.0/24"},
		},
		{"none", "", nil, nil, []string{"10.0.0.1"}, []string{"spec.ranges", "must have an entry"}},
		{"a domain that is none", "A B", []string{"10.0.0.1"}, []string{"10.0.0.1"}, nil, []string{"spec.domain", "A B"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, err := ParseReservation(tt.domain, tt.ranges)
			if (err != nil) != (tt.text != nil) {
				t.Fatalf("error %v", err)
			}
			for _, want := range tt.text {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in: %v", want, err)
				}
			}
			for _, a := range tt.in {
				if !r.Contains(addr(a)) || !r.Touches(BlockOf(addr(a))) {
					t.Errorf("%s is not reserved", a)
				}
			}
			for _, a := range tt.out {
				if r.Contains(addr(a)) {
					t.Errorf("%s is reserved", a)
				}
			}
		})
	}
}

// Reserved addresses are usable and not handed out. A reservation of another domain
// changes nothing, and a deleted reservation has no effect any more.
func TestPoolWithoutReservations(t *testing.T) {
	p := mustPool(t, ranges("10.0.0.0/24", "fd00::/64"))
	other, err := ParseReservation("elsewhere", []string{"10.0.0.0/8"})
	if err != nil {
		t.Fatal(err)
	}
	q := p.Without([]*Reservation{other, reserved(t, "10.0.0.0/26", "10.0.0.70"), reserved(t, "fd00::-fd00::ff")})
	for _, a := range []string{"10.0.0.5", "10.0.0.70", "fd00::8"} {
		if q.Allows(addr(a)) || !p.Allows(addr(a)) || !q.Covers(addr(a)) {
			t.Errorf("%s: allowed %v, covered %v", a, q.Allows(addr(a)), q.Covers(addr(a)))
		}
	}
	if !q.Allows(addr("10.0.0.71")) || q.HandsOut(BlockOf(addr("10.0.0.5"))) || q.UsableIn(BlockOf(addr("10.0.0.5"))) != 63 {
		t.Error("the wrong addresses are withheld")
	}
	for b := range q.Candidates(IPv4, "node-1") {
		if b == BlockOf(addr("10.0.0.5")) {
			t.Errorf("block %s is a candidate", b)
		}
	}
	if usable, reserved := q.Size(IPv4); usable != 254 || reserved != 64 {
		t.Errorf("%d usable, %d reserved", usable, reserved)
	}
	if back := q.Without(nil); !back.Allows(addr("10.0.0.5")) {
		t.Error("10.0.0.5 is still reserved")
	}
}

// I7 holds when counts reach the largest number of the API.
func TestSizeOfHugePools(t *testing.T) {
	const most = math.MaxInt64
	tests := []struct {
		name             string
		spec             PoolSpec
		reserved         []string
		usable, withheld uint64
	}{
		{"a /64", ranges("fd00::/64"), nil, most, 0},
		{"a /64, all reserved", ranges("fd00::/64"), []string{"fd00::/64"}, most, most},
		{"a /64, half reserved", ranges("fd00::/64"), []string{"fd00::/65"}, most, most / 2},
		{"a /64, a little reserved", ranges("fd00::/64"), []string{"fd00::10-fd00::13"}, most, 4},
		{"dual stack, the /64 reserved", ranges("fd00::/64", "10.0.0.0/24"), []string{"fd00::/64"}, most, most - 254},
		{"a whole IPv4 pool", ranges("10.0.0.0/24"), []string{"0.0.0.0-255.255.255.255"}, 254, 254},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := mustPool(t, tt.spec)
			if tt.reserved != nil {
				p = p.Without([]*Reservation{reserved(t, tt.reserved...)})
			}
			usable, withheld := p.Size(p.Families()...)
			if usable != tt.usable || withheld != tt.withheld {
				t.Errorf("%d usable, %d reserved, want %d, %d", usable, withheld, tt.usable, tt.withheld)
			}
		})
	}
}

// Reservations come and go while addresses are taken and freed. Reserved addresses are
// never taken (I6) and stay with their holders (I4), and the counts add up (I7).
func TestRandomReservations(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 11))
			bare := mustPool(t, PoolSpec{Ranges: []string{"10.0.0.0/26"}, Excludes: []string{"10.0.0.32/30"}})
			p, b, now := bare, newBlock("10.0.0.0/26"), t0()
			holders := map[netip.Addr]Holder{}
			for i := range 400 {
				now = now.Add(time.Duration(rnd.Int64N(int64(2 * time.Second))))
				switch rnd.IntN(4) {
				case 0:
					first := rnd.IntN(64)
					last := first + rnd.IntN(64-first)
					p = bare.Without([]*Reservation{reserved(t, fmt.Sprintf("%s-%s", b.addr(first), b.addr(last)))})
				case 1, 2:
					if a, err := b.Take(p, holder(i), false, now); err == nil {
						if !p.Allows(a) {
							t.Fatalf("I6: %s is reserved and taken", a)
						}
						holders[a] = holder(i)
					}
				default:
					for a, h := range holders {
						if rnd.IntN(6) == 0 && b.Free(h, a, now) {
							delete(holders, a)
						}
					}
				}
				c := b.Counts(p, now)
				if c.Usable != c.Free+c.Allocated+c.Cooling+c.Held+c.Reserved || c.Usable != bare.UsableIn(b.Prefix()) {
					t.Fatalf("I7: %v", c)
				}
				if int(c.Allocated) != len(holders) || int(c.Free) != b.Eligible(p, now, false) {
					t.Fatalf("%v, but %d have an address and %d are eligible", c, len(holders), b.Eligible(p, now, false))
				}
			}
		})
	}
}
