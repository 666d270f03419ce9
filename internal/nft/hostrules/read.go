package hostrules

import (
	"fmt"
	"net"

	"github.com/google/nftables"
)

// rules are the kernel's rules. Chains and sets are read when a packet reaches them.
type rules struct {
	conn   *nftables.Conn
	base   []baseChain
	chains map[chainRef][]*nftables.Rule
	sets   map[setRef]readSet
	links  map[string][]byte
}

type setRef struct {
	family      nftables.TableFamily
	table, name string
}

type readSet struct {
	set      *nftables.Set
	elements []nftables.SetElement
}

func read(own string) (*rules, error) {
	conn, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return nil, fmt.Errorf("read the nftables of others: %w", err)
	}
	r := &rules{conn: conn, chains: map[chainRef][]*nftables.Rule{}, sets: map[setRef]readSet{}, links: map[string][]byte{}}
	for _, family := range []nftables.TableFamily{nftables.TableFamilyINet, nftables.TableFamilyIPv4, nftables.TableFamilyIPv6} {
		chains, err := conn.ListChainsOfTableFamily(family)
		if err != nil {
			r.close()
			return nil, fmt.Errorf("read the nftables of others: chains of %s: %w", familyName(family), err)
		}
		for _, c := range chains {
			if c.Hooknum == nil || c.Table == nil || c.Table.Name == own || c.Type != nftables.ChainTypeFilter {
				continue
			}
			if h := *c.Hooknum; h == *nftables.ChainHookForward || h == *nftables.ChainHookPrerouting {
				r.base = append(r.base, baseChain{
					chainRef: chainRef{family: family, table: c.Table.Name, name: c.Name}, hook: h,
					drops: c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop,
				})
			}
		}
	}
	if err := r.readLegacy(); err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

func (r *rules) close() { _ = r.conn.CloseLasting() }

// rulesOf returns the rules of a chain.
func (r *rules) rulesOf(ref chainRef) ([]*nftables.Rule, error) {
	if all, ok := r.chains[ref]; ok {
		return all, nil
	}
	if ref.legacy {
		return nil, fmt.Errorf("read the iptables of others: %s: there is none", ref)
	}
	table := &nftables.Table{Family: ref.family, Name: ref.table}
	all, err := r.conn.GetRules(table, &nftables.Chain{Name: ref.name, Table: table})
	if err != nil {
		return nil, fmt.Errorf("read the nftables of others: %s: %w", ref, err)
	}
	for _, rule := range all {
		rule.Table = table
	}
	r.chains[ref] = all
	return all, nil
}

// set returns a set with its elements; nil if it cannot be read.
func (r *rules) set(table *nftables.Table, name string) (*nftables.Set, []nftables.SetElement) {
	ref := setRef{table.Family, table.Name, name}
	if s, ok := r.sets[ref]; ok {
		return s.set, s.elements
	}
	set, err := r.conn.GetSetByName(table, name)
	var elements []nftables.SetElement
	if err == nil {
		set.Table = table
		elements, err = r.conn.GetSetElements(set)
	}
	if err != nil {
		set, elements = nil, nil
	}
	r.sets[ref] = readSet{set, elements}
	return set, elements
}

// index returns a link's number as a register holds it; nil if there is no such link.
func (r *rules) index(name string) []byte {
	b, ok := r.links[name]
	if !ok {
		if link, err := net.InterfaceByName(name); err == nil {
			b = native32(uint32(link.Index)) //nolint:gosec // the kernel's are positive
		}
		r.links[name] = b
	}
	return b
}

// Interest is the set of chains on which the results of Look depend.
type Interest struct{ chains map[chainRef]bool }

func (r *rules) interest() *Interest {
	i := &Interest{chains: map[chainRef]bool{}}
	for ref := range r.chains {
		i.chains[ref] = true
	}
	for _, c := range r.base {
		i.chains[c.chainRef] = true
	}
	return i
}

// Chain reports whether a change of a chain or its rules may change the results. Every
// change may if the Interest is nil.
func (i *Interest) Chain(family uint8, table, name string) bool {
	return i == nil || i.chains[chainRef{family: nftables.TableFamily(family), table: table, name: name}]
}
