// Package hostrules finds out whether the packet filters of other programs on the node
// drop packets of pods. In nftables every base chain of a hook has to accept a packet: an
// accept in one chain does not help against a drop in another. So a host firewall that
// drops forwarded packets (ufw, firewalld, Docker) cuts pods off, whatever Fairlead's own
// rules are.
//
// The rules are read from the kernel and evaluated for representative packets: the first
// packet of a TCP connection, without a mark. A condition on a property that these
// packets leave open (ports, sets that are too large, extensions of iptables) may match
// or not.
package hostrules

import (
	"fmt"
	"net/netip"

	"github.com/google/nftables"
)

// Packet is the first packet of a TCP connection.
type Packet struct {
	// In and Out are the links by which the packet arrives and leaves. If Out is empty
	// the packet is evaluated where it enters the host (hook prerouting), otherwise where
	// it is forwarded (hook forward).
	In, Out string
	// Source and Target are of one family.
	Source, Target netip.Addr
	// Astray is true if the packet arrives by another link than the route back to its
	// source.
	Astray bool
}

// Verdict is the fate of a packet.
type Verdict int

// Verdicts.
const (
	// Passes: no rule certainly drops the packet.
	Passes Verdict = iota
	// MayDrop: the packet is dropped unless a rule that could not be evaluated accepts
	// it.
	MayDrop
	// Drops: the packet is dropped.
	Drops
)

// Found is the result for a packet.
type Found struct {
	Verdict Verdict
	// By describes the rule or policy that drops the packet; empty if it passes.
	By string
}

// chainRef names a chain.
type chainRef struct {
	family      nftables.TableFamily
	table, name string
	legacy      bool // of iptables-legacy, not of nftables
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

// baseChain is a chain with a hook.
type baseChain struct {
	chainRef
	hook  nftables.ChainHook
	drops bool // its policy is drop
}

// Look reads the rules of the calling thread's network namespace, except tables with the
// name own, and evaluates them for each packet. It returns one Found per packet, and the
// chains on which the results depend.
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

// follow evaluates all base chains that a packet traverses, and returns the worst result.
func (r *rules) follow(p Packet) (Found, error) {
	var worst Found
	hook := *nftables.ChainHookForward
	if p.Out == "" {
		hook = *nftables.ChainHookPrerouting
	}
	for _, c := range r.base {
		if c.hook != hook || !appliesTo(c.family, p) {
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

// appliesTo reports whether tables of a family apply to the packet's family.
func appliesTo(family nftables.TableFamily, p Packet) bool {
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
