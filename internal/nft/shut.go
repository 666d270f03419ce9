package nft

import (
	"context"
	"fmt"
	"slices"

	"sigs.k8s.io/knftables"
)

// ShutTable is the name of the table of links that are shut, each with a chain of its name.
// WatchTables takes each change
// of a table called Table for one that the Keeper has to repair.
const ShutTable = "fairlead-shut"

// Shut has the kernel drop all packets that come in by a link, after packet sockets
// (packet(7)) have received their copies. It replaces the chain of an earlier link with the
// name. It runs the program nft.
func (k *Kernel) Shut(ctx context.Context, link string) error {
	nf, err := k.open()
	if err != nil {
		return err
	}
	typ, hook, priority, policy := knftables.FilterType, knftables.IngressHook, knftables.FilterPriority, knftables.DropPolicy
	chain := &knftables.Chain{
		Family: familyNetdev, Table: ShutTable, Name: link,
		Type: &typ, Hook: &hook, Priority: &priority, Policy: &policy, Device: &link,
	}
	tx := nf.NewTransaction()
	tx.Add(&knftables.Table{Family: familyNetdev, Name: ShutTable})
	tx.Add(&knftables.Chain{Family: familyNetdev, Table: ShutTable, Name: link})
	tx.Delete(&knftables.Chain{Family: familyNetdev, Table: ShutTable, Name: link})
	tx.Add(chain)
	if err := nf.Run(ctx, tx); err != nil {
		return fmt.Errorf("nft: shut %s: %w", link, err)
	}
	return nil
}

// IsShut reports whether a link is shut. It runs the program nft.
func (k *Kernel) IsShut(ctx context.Context, link string) (bool, error) {
	nf, err := knftables.New(familyNetdev, ShutTable)
	if err != nil {
		return false, fmt.Errorf("nftables cannot be used on this node: %w", err)
	}
	chains, err := nf.List(ctx, "chains")
	if knftables.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("nft: list the links that are shut: %w", err)
	}
	return slices.Contains(chains, link), nil
}

// Forget removes the chain of a link that is shut. It returns nil if there is none. Linux
// before 6.16 removes the chain with the link, later versions keep it.
func (k *Kernel) Forget(ctx context.Context, link string) error {
	nf, err := k.open()
	if err != nil {
		return err
	}
	tx := nf.NewTransaction()
	tx.Delete(&knftables.Chain{Family: familyNetdev, Table: ShutTable, Name: link})
	if err := nf.Run(ctx, tx); err != nil && !knftables.IsNotFound(err) {
		return fmt.Errorf("nft: forget %s: %w", link, err)
	}
	return nil
}
