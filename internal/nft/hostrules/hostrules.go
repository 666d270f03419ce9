// Package hostrules tells what the packet filters of other programs on the node do
// with what pods send. In nftables every chain of a hook has to let a packet through:
// that one accepts it does not help against another that drops it. So a host firewall
// that drops what is forwarded (ufw, firewalld, Docker) cuts pods off, whatever our own
// rules say.
//
// The rules are read from the kernel and followed with packets that stand for many: a
// first packet of a TCP connection, with no mark. Of what a rule looks at and is not
// known of these (ports, sets that are too large, extensions of iptables) both answers
// are taken to be possible.
package hostrules

import (
	"fmt"
	"net/netip"

	"github.com/google/nftables"
)

// Packet is the first of a TCP connection.
type Packet struct {
	// In and Out are the links that it comes by and leaves by. Without Out it is
	// looked at where it enters the host (hook prerouting), else where it is passed on
	// (hook forward).
	In, Out string
	// Source and Target are of one family.
	Source, Target netip.Addr
	// Astray packets come by another link than the way back to their source.
	Astray bool
}

// Verdict is what becomes of a packet.
type Verdict int

// Verdicts.
const (
	// Passes: no rule that is known drops it.
	Passes Verdict = iota
	// MayDrop: it is dropped unless a rule that could not be followed lets it through.
	MayDrop
	// Drops: it is dropped.
	Drops
)

// Found is what becomes of a packet, and where.
type Found struct {
	Verdict Verdict
	// By says in words what drops it, empty when it passes.
	By string
}

// chainRef names a chain.
type chainRef struct {
	family      nftables.TableFamily
	table, name string
	legacy      bool // of iptables, not of nftables
}

func (c chainRef) String() string {
	switch {
	case c.legacy && c.family == nftables.TableFamilyIPv6:
		return fmt.Sprintf("chain %s of the ip6tables-legacy %s", c.name, c.table)
	case c.legacy:
		return fmt.Sprintf("chain %s of the iptables-legacy %s", c.name, c.table)
	}
	return fmt.Sprintf("chain %s of the nftables %s %s", c.name, familyName(c.family), c.table)
}

// baseChain is a chain that packets come to by themselves.
type baseChain struct {
	chainRef
	hook  nftables.ChainHook
	drops bool // what no rule decides on
}

// Look reads the rules of the calling thread's network namespace but for those of
// tables with our name, and follows each packet.
func Look(own string, packets []Packet) ([]Found, *Interest, error) {
	r, err := read(own)
	if err != nil {
		return nil, nil, err
	}
	defer r.close()
	out := make([]Found, len(packets))
	for i, p := range packets {
		if out[i], err = r.follow(p); err != nil {
			return nil, nil, err
		}
	}
	return out, r.interest(), nil
}

// follow sees what becomes of a packet in all base chains that it comes to.
func (r *rules) follow(p Packet) (Found, error) {
	var worst Found
	hook := *nftables.ChainHookForward
	if p.Out == "" {
		hook = *nftables.ChainHookPrerouting
	}
	for _, c := range r.base {
		if c.hook != hook || !sees(c.family, p) {
			continue
		}
		w := walk{rules: r, packet: p}
		end, err := w.chain(c.chainRef, 0)
		if err != nil {
			return Found{}, err
		}
		if end == none {
			end = accepted
			if c.drops {
				end, w.by = dropped, "the policy of "+c.String()
			}
		}
		if end != dropped {
			continue
		}
		v := Drops
		if w.mayAccept {
			v = MayDrop
		}
		if v > worst.Verdict {
			worst = Found{Verdict: v, By: w.by}
		}
	}
	return worst, nil
}

// sees tells whether chains of tables of a family see packets of the family of this.
func sees(family nftables.TableFamily, p Packet) bool {
	switch family {
	case nftables.TableFamilyINet:
		return true
	case nftables.TableFamilyIPv4:
		return p.Source.Is4()
	case nftables.TableFamilyIPv6:
		return !p.Source.Is4()
	default:
		return false
	}
}

func familyName(f nftables.TableFamily) string {
	switch f {
	case nftables.TableFamilyIPv4:
		return "ip"
	case nftables.TableFamilyIPv6:
		return "ip6"
	case nftables.TableFamilyINet:
		return "inet"
	default:
		return fmt.Sprint("family ", f)
	}
}
