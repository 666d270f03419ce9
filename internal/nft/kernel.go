package nft

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"sigs.k8s.io/knftables"
)

// Change is one transaction.
type Change struct {
	// Whole replaces all tables by the tables of a node; nil changes elements only.
	Whole *Node
	// Delete is executed before Add.
	Delete, Add []Element
	// Revision is written with the change, to distinguish it from changes by other
	// programs.
	Revision uint32
}

// Element is an element of a set, or of a map if it has a Value.
type Element struct{ Family, Set, Key, Value string }

// Kernel applies changes to the network namespace of the calling thread.
type Kernel struct {
	mu sync.Mutex
	nf knftables.Interface
}

// open finds nft and checks that it works.
func (k *Kernel) open() (knftables.Interface, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.nf == nil {
		nf, err := knftables.New("", "")
		if err != nil {
			return nil, fmt.Errorf("nftables cannot be used on this node: %w", err)
		}
		k.nf = nf
	}
	return k.nf, nil
}

// Apply makes a change, completely or not at all. It runs the program nft.
func (k *Kernel) Apply(ctx context.Context, c Change) error {
	nf, err := k.open()
	if err != nil {
		return err
	}
	tx := nf.NewTransaction()
	if c.Whole != nil {
		replaceTables(tx, c.Whole)
	}
	for _, e := range c.Delete {
		tx.Delete(e.object())
	}
	for _, e := range c.Add {
		tx.Add(e.object())
	}
	tx.Flush(&knftables.Set{Family: familyInet, Table: Table, Name: "revision"})
	tx.Add(Element{Family: familyInet, Set: "revision", Key: strconv.FormatUint(uint64(c.Revision), 10)}.object())
	if err := nf.Run(ctx, tx); err != nil {
		return fmt.Errorf("nft: %w", err)
	}
	return nil
}

// String formats the element as nft(8) prints it.
func (e Element) String() string {
	kind, value := "set", ""
	if isMap(e.Set) {
		kind, value = "map", " : "+e.Value
	}
	return fmt.Sprintf("{ %s%s } of %s %s %s %s", e.Key, value, kind, e.Family, Table, e.Set)
}

func (e Element) object() *knftables.Element {
	o := &knftables.Element{Family: knftables.Family(e.Family), Table: Table, Key: []string{e.Key}}
	if isMap(e.Set) {
		o.Map = e.Set
	} else {
		o.Set = e.Set
	}
	if e.Value != "" {
		o.Value = []string{e.Value}
	}
	return o
}

// replaceTables creates the tables anew, without elements. Packets meet the old or the
// new tables, never none.
func replaceTables(tx *knftables.Transaction, n *Node) {
	for _, family := range []knftables.Family{familyInet, familyARP, familyBridge} {
		table := &knftables.Table{Family: family, Name: Table}
		tx.Add(table)
		tx.Delete(table)
		tx.Add(table)
	}
	for _, s := range sets {
		var flags []knftables.SetFlag
		if s.interval {
			flags = append(flags, knftables.IntervalFlag)
		}
		var timeout *time.Duration
		var size *uint64
		if s.learned {
			flags = append(flags, knftables.DynamicFlag, knftables.TimeoutFlag)
			timeout, size = new(learnedFor), new(uint64(learnedMost))
		}
		family := knftables.Family(s.family)
		if s.isMap {
			tx.Add(&knftables.Map{Family: family, Table: Table, Name: s.name, Type: s.typ, TypeOf: s.typeOf, Flags: flags})
		} else {
			tx.Add(&knftables.Set{Family: family, Table: Table, Name: s.name, Type: s.typ, TypeOf: s.typeOf, Flags: flags, Timeout: timeout, Size: size})
		}
	}
	for _, c := range chains(n) {
		object := &knftables.Chain{Family: knftables.Family(c.family), Table: Table, Name: c.name}
		if c.hook != "" {
			object.Type, object.Hook, object.Priority = &c.typ, &c.hook, &c.priority
		}
		tx.Add(object)
		for _, r := range c.rules {
			rule := &knftables.Rule{Family: knftables.Family(c.family), Table: Table, Chain: c.name, Rule: r.text}
			if r.comment != "" {
				rule.Comment = &r.comment
			}
			tx.Add(rule)
		}
	}
}

// Remove removes all tables, and returns a description of each removed table. It returns
// an error if nft does not work on the node.
func (k *Kernel) Remove(ctx context.Context) (removed []string, err error) {
	nf, err := k.open()
	if err != nil {
		return nil, err
	}
	for _, t := range []knftables.Table{
		{Family: familyInet, Name: Table}, {Family: familyARP, Name: Table}, {Family: familyBridge, Name: Table}, {Family: familyNetdev, Name: ShutTable},
	} {
		tx := nf.NewTransaction()
		tx.Delete(&t)
		err := nf.Run(ctx, tx)
		if knftables.IsNotFound(err) {
			continue
		}
		if err != nil {
			return removed, fmt.Errorf("remove the nftables table %s %s: %w", t.Family, t.Name, err)
		}
		removed = append(removed, fmt.Sprintf("nftables table %s %s", t.Family, t.Name))
	}
	return removed, nil
}
