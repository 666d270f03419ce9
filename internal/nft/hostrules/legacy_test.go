package hostrules

import (
	"encoding/binary"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"unsafe"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"

	"fairlead.dev/fairlead/test/netlab"
)

// legacyRule is a rule as iptables-legacy writes it.
type legacyRule struct {
	in, out string       // names of links
	source  netip.Prefix // or not valid
	not     byte         // bits of invflags
	verdict int          // or jump
	jump    string
}

// table returns a filter table with these rules in FORWARD and in user-defined chains.
func (l layout) table(policy int, forward []legacyRule, own map[string][]legacyRule) (blob []byte, hooks, unders [5]uint32, count uint32) {
	starts := map[string]int{}
	var fix []func()
	put := func(r legacyRule) {
		at := len(blob)
		b := make([]byte, l.matches+40)
		binary.NativeEndian.PutUint16(b[l.targetOffset:], uint16(l.matches))
		binary.NativeEndian.PutUint16(b[l.nextOffset:], uint16(len(b)))
		for i, name := range []string{r.in, r.out} {
			if name != "" {
				copy(b[l.in+i*ifNameSize:], name)
				for n := range len(name) + 1 {
					b[l.in+(2+i)*ifNameSize+n] = 0xff
				}
			}
		}
		if r.source.IsValid() {
			copy(b, r.source.Addr().AsSlice())
			for n := range r.source.Bits() {
				b[2*l.addressSize+n/8] |= 0x80 >> (n % 8)
			}
		}
		b[l.inverted] = r.not
		binary.NativeEndian.PutUint16(b[l.matches:], 40)
		blob = append(blob, b...)
		verdict := at + l.matches + sizeofPart
		binary.NativeEndian.PutUint32(blob[verdict:], uint32(int32(r.verdict)))
		if r.jump != "" {
			fix = append(fix, func() { binary.NativeEndian.PutUint32(blob[verdict:], uint32(starts[r.jump])) })
		}
		count++
	}
	mark := func(name string) {
		b := make([]byte, l.matches+64)
		binary.NativeEndian.PutUint16(b[l.targetOffset:], uint16(l.matches))
		binary.NativeEndian.PutUint16(b[l.nextOffset:], uint16(len(b)))
		binary.NativeEndian.PutUint16(b[l.matches:], 64)
		copy(b[l.matches+partName:], errorTarget)
		copy(b[l.matches+sizeofPart:], name)
		blob = append(blob, b...)
		count++
	}
	for _, hook := range []int{unix.NF_INET_LOCAL_IN, unix.NF_INET_FORWARD, unix.NF_INET_LOCAL_OUT} {
		hooks[hook] = uint32(len(blob))
		last := legacyAccept
		if hook == unix.NF_INET_FORWARD {
			last = policy
			for _, r := range forward {
				put(r)
			}
		}
		unders[hook] = uint32(len(blob))
		put(legacyRule{verdict: last})
	}
	for name, rules := range own {
		mark(name)
		starts[name] = len(blob)
		for _, r := range rules {
			put(r)
		}
		put(legacyRule{verdict: legacyReturn})
	}
	mark(errorTarget)
	for _, f := range fix {
		f()
	}
	return blob, hooks, unders, count
}

// replace writes a table into the kernel, as iptables-legacy does.
func (f legacyFamily) replace(blob []byte, hooks, unders [5]uint32, count uint32) error {
	info, _, err := f.read("filter")
	if err != nil {
		return err
	}
	old := binary.NativeEndian.Uint32(info[sizeAt-4:])
	counters := make([]byte, 16*old)
	b := make([]byte, 96, 96+len(blob))
	copy(b, "filter")
	for i, v := range append([]uint32{1<<unix.NF_INET_LOCAL_IN | 1<<unix.NF_INET_FORWARD | 1<<unix.NF_INET_LOCAL_OUT, count, uint32(len(blob))},
		append(append(hooks[:], unders[:]...), old)...) {
		binary.NativeEndian.PutUint32(b[tableNameSize+4*i:], v)
	}
	binary.NativeEndian.PutUint64(b[88:], uint64(uintptr(unsafe.Pointer(&counters[0]))))
	b = append(b, blob...)
	fd, err := unix.Socket(f.domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), uintptr(f.level), 64, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), 0)
	runtime.KeepAlive(counters)
	if errno != 0 {
		return errno
	}
	return nil
}

func TestLegacy(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("making network namespaces needs root")
	}
	among := map[bool]Packet{
		true:  {In: "fairlead0", Out: "fairlead0", Source: netip.MustParseAddr("10.244.1.5"), Target: netip.MustParseAddr("10.244.1.6")},
		false: {In: "fairlead0", Out: "fairlead0", Source: netip.MustParseAddr("fd00:10::5"), Target: netip.MustParseAddr("fd00:10::6")},
	}
	block := map[bool]netip.Prefix{true: netip.MustParsePrefix("10.244.0.0/17"), false: netip.MustParsePrefix("fd00:10::/63")}
	for _, f := range legacyFamilies {
		is4 := f.domain == unix.AF_INET
		program := "iptables-legacy"
		if !is4 {
			program = "ip6tables-legacy"
		}
		if _, err := os.Stat(f.names); err != nil {
			t.Logf("this kernel has no %s", program)
			continue
		}
		byPolicy := "the policy of chain FORWARD of the " + program + " filter"
		for _, tc := range []struct {
			name    string
			policy  int
			forward []legacyRule
			own     map[string][]legacyRule
			want    Found
		}{
			{name: "accept", policy: legacyAccept},
			{name: "policy of drop", policy: legacyDrop, want: Found{Drops, byPolicy}},
			{name: "our link is let through", policy: legacyDrop, forward: []legacyRule{{in: "fairlead0", verdict: legacyAccept}}},
			{name: "another is", policy: legacyDrop, forward: []legacyRule{{in: "docker0", verdict: legacyAccept}}, want: Found{Drops, byPolicy}},
			{name: "all but another are", policy: legacyDrop, forward: []legacyRule{{in: "docker0", not: notIn, verdict: legacyAccept}}},
			{name: "the pods' network is", policy: legacyDrop, forward: []legacyRule{{source: block[is4], verdict: legacyAccept}}},
			{name: "all but the pods' network are", policy: legacyDrop, forward: []legacyRule{{source: block[is4], not: notSource, verdict: legacyAccept}}, want: Found{Drops, byPolicy}},
			{
				name: "a chain lets it through", policy: legacyDrop, forward: []legacyRule{{jump: "DOCKER-USER"}},
				own: map[string][]legacyRule{"DOCKER-USER": {{out: "docker0", verdict: legacyDrop}, {out: "fairlead0", verdict: legacyAccept}}},
			},
			{
				name: "a chain drops it", policy: legacyAccept, forward: []legacyRule{{jump: "mine"}},
				own:  map[string][]legacyRule{"mine": {{in: "fairlead0", verdict: legacyDrop}}, "beside": {{verdict: legacyAccept}}},
				want: Found{Drops, "a rule in chain mine of the " + program + " filter"},
			},
			{
				name: "a chain returns", policy: legacyDrop, forward: []legacyRule{{jump: "mine"}},
				own:  map[string][]legacyRule{"mine": {{verdict: legacyReturn}, {verdict: legacyAccept}}},
				want: Found{Drops, byPolicy},
			},
		} {
			t.Run(program+" "+tc.name, func(t *testing.T) {
				ns, err := netlab.NewNamespace()
				if err != nil {
					t.Fatal(err)
				}
				defer ns.Close()
				err = ns.Do(func() error {
					// Without a table there is no request, which would create one.
					before, _, err := Look("fairlead", []Packet{among[is4]})
					if err != nil {
						return err
					}
					names, err := os.ReadFile(f.names)
					if len(names) > 0 || err != nil || before[0].Verdict != Passes {
						t.Errorf("before: tables %q (%v), %+v", names, err, before)
					}
					if err := f.replace(f.entry.table(tc.policy, tc.forward, tc.own)); err != nil {
						return err
					}
					got, _, err := Look("fairlead", []Packet{among[is4]})
					if err == nil && got[0] != tc.want {
						t.Errorf("%+v, want %+v", got[0], tc.want)
					}
					return err
				})
				if err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}

// Any bytes from the kernel are parsed without a read past their end.
func FuzzEntries(f *testing.F) {
	blob, _, _, _ := layout4.table(legacyDrop, []legacyRule{{in: "fairlead0", jump: "x"}}, map[string][]legacyRule{"x": {{verdict: legacyAccept}}})
	f.Add(blob, true)
	f.Add(blob[:200], false)
	f.Fuzz(func(_ *testing.T, blob []byte, is4 bool) {
		l := layout6
		if is4 {
			l = layout4
		}
		all, err := l.entries(blob)
		if err != nil {
			return
		}
		names := chainNames(all)
		for _, e := range all {
			l.exprs(e, names)
		}
	})
}

func TestExtensions(t *testing.T) {
	base := func(match, invert uint16) xt.ConntrackMtinfoBase {
		return xt.ConntrackMtinfoBase{MatchFlags: match, InvertFlags: invert}
	}
	three := func(match, invert, mask uint16) *xt.ConntrackMtinfo3 {
		return &xt.ConntrackMtinfo3{ConntrackMtinfo2: xt.ConntrackMtinfo2{ConntrackMtinfoBase: base(match, invert), StateMask: mask}}
	}
	bytesOf := func(b ...byte) *xt.Unknown {
		u := xt.Unknown(b)
		return &u
	}
	const state, alias, proto, related, established = 1, 1 << 13, 2, 4, 2
	for _, tc := range []struct {
		name   string
		match  expr.Match
		astray bool
		want   answer
	}{
		{"a comment", expr.Match{Name: "comment"}, false, yes},
		{"established and related", expr.Match{Name: "conntrack", Info: three(state, 0, related|established)}, false, no},
		{"the same, as -m state", expr.Match{Name: "conntrack", Info: three(state|alias, 0, related|established)}, false, no},
		{"new", expr.Match{Name: "conntrack", Info: three(state, 0, stateNew)}, false, yes},
		{"not new", expr.Match{Name: "conntrack", Info: three(state, state, stateNew)}, false, no},
		{"revision 1", expr.Match{Name: "conntrack", Info: &xt.ConntrackMtinfo1{ConntrackMtinfoBase: base(state, 0), StateMask: established}}, false, no},
		{"revision 2", expr.Match{Name: "conntrack", Info: &xt.ConntrackMtinfo2{ConntrackMtinfoBase: base(state, 0), StateMask: stateNew}}, false, yes},
		{"new, and a protocol", expr.Match{Name: "conntrack", Info: three(state|proto, 0, stateNew)}, false, maybe},
		{"established, and a protocol", expr.Match{Name: "conntrack", Info: three(state|proto, 0, established)}, false, no},
		{"a protocol", expr.Match{Name: "conntrack", Info: three(proto, 0, 0)}, false, maybe},
		{"the way back", expr.Match{Name: "rpfilter", Info: bytesOf(0)}, false, yes},
		{"another way back", expr.Match{Name: "rpfilter", Info: bytesOf(0)}, true, no},
		{"another way back, inverted", expr.Match{Name: "rpfilter", Info: bytesOf(8)}, true, yes},
		{"another way back, loosely", expr.Match{Name: "rpfilter", Info: bytesOf(1 | 8)}, true, no},
		{"a mark", expr.Match{Name: "mark", Info: bytesOf(0, 0x40, 0, 0, 0, 0x40, 0, 0, 0, 0, 0, 0)}, false, no},
		{"no mark", expr.Match{Name: "mark", Info: bytesOf(0, 0x40, 0, 0, 0, 0x40, 0, 0, 1, 0, 0, 0)}, false, yes},
		{"what nobody knows", expr.Match{Name: "bpf", Info: bytesOf(1)}, false, maybe},
		{"without its data", expr.Match{Name: "conntrack"}, false, maybe},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := machine{walk: &walk{packet: Packet{Astray: tc.astray}}}
			if got := m.extension(&tc.match); got != tc.want {
				t.Errorf("%d, want %d", got, tc.want)
			}
		})
	}
}
