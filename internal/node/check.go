package node

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"fairlead.dev/fairlead/internal/cniproto"
)

// check compares the kernel with the record: the namespace, every link, every
// address. Routes and MTU are not compared.
func (v *verbs) check(ctx context.Context, r cniproto.Request) error {
	return v.manager.Do(ctx, r.ContainerID, func(ctx context.Context) error {
		rec := v.ledger.get(r.ContainerID)
		if rec == nil || rec.State != attached {
			return because(errGone, "sandbox %s is not plugged on node %s", r.ContainerID, v.node)
		}
		ns, err := v.kernel.Enter(rec.Netns)
		if err != nil {
			return fmt.Errorf("CNI_NETNS: %w", err)
		}
		defer ns.Close()
		if ns.ID() != rec.NetnsID {
			return because(errDiffers, "the namespace at %q is not the one that sandbox %s was plugged in", rec.Netns, r.ContainerID)
		}
		diffs, err := differences(ns, rec)
		if err == nil && len(diffs) > 0 {
			err = because(errDiffers, "sandbox %s of pod %s differs from its record: %s", r.ContainerID, rec.Pod, strings.Join(diffs, "; "))
		}
		return err
	})
}

// differences says, in words, what a namespace lacks of a record.
func differences(ns Sandbox, rec *record) (diffs []string, err error) {
	for _, i := range rec.Interfaces {
		have, err := ns.PodIPs(i.Name)
		if err != nil {
			diffs = append(diffs, err.Error())
			continue
		}
		p, err := i.plug(rec.ContainerID)
		if err != nil {
			return nil, err
		}
		for _, a := range p.Addresses {
			if !slices.Contains(have, a.Addr()) {
				diffs = append(diffs, fmt.Sprintf("interface %s has lost its address %s", i.Name, a))
			}
		}
	}
	return diffs, nil
}
