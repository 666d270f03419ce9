package nft

import (
	"context"
	"fmt"

	"sigs.k8s.io/knftables"
)

// shutTable is the name of the table of links that are shut. WatchTables takes each change
// of a table called Table for one that the Keeper has to repair.
const shutTable = "fairlead-shut"

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
		Family: familyNetdev, Table: shutTable, Name: link,
		Type: &typ, Hook: &hook, Priority: &priority, Policy: &policy, Device: &link,
	}
	tx := nf.NewTransaction()
	tx.Add(&knftables.Table{Family: familyNetdev, Name: shutTable})
	tx.Add(&knftables.Chain{Family: familyNetdev, Table: shutTable, Name: link})
	tx.Delete(&knftables.Chain{Family: familyNetdev, Table: shutTable, Name: link})
	tx.Add(chain)
	if err := nf.Run(ctx, tx); err != nil {
		return fmt.Errorf("nft: shut %s: %w", link, err)
	}
	return nil
}

// Forget removes the chain of a link that is shut. It returns nil if there is none. Linux
// before 6.16 removes the chain with the link, later versions keep it.
func (k *Kernel) Forget(ctx context.Context, link string) error {
	nf, err := k.open()
	if err != nil {
		return err
	}
	tx := nf.NewTransaction()
	tx.Delete(&knftables.Chain{Family: familyNetdev, Table: shutTable, Name: link})
	if err := nf.Run(ctx, tx); err != nil && !knftables.IsNotFound(err) {
		return fmt.Errorf("nft: forget %s: %w", link, err)
	}
	return nil
}
