package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cli/kube"
	"fairlead.dev/fairlead/internal/cli/output"
)

func poolsCommand(c *kube.Connection) *cobra.Command {
	var (
		out   output.Format
		drawn bool
		ports bool
	)
	cmd := &cobra.Command{
		Use:   "pools [NAME]",
		Short: "Show how full each pool is, and what is wrong with it",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if ports {
				if drawn || len(args) > 0 {
					return errors.New("--ports shows the pools of ready ports of all nodes: leave out --map and NAME")
				}
				return showPortPools(c, cmd, &out)
			}
			if drawn && len(args) == 0 {
				return errors.New("--map draws one pool: name it, as in fairlead pools default --map")
			}
			snap, err := c.Snapshot(cmd.Context(), kube.Wanted{Pools: true, Addresses: drawn})
			if err != nil {
				return err
			}
			pools := snap.Pools
			if len(args) == 1 {
				if pools, err = poolNamed(pools, args[0]); err != nil {
					return err
				}
			}
			if drawn {
				return drawPool(cmd, &out, &pools[0], snap)
			}
			view := poolList{Pools: buildPools(pools)}
			return out.Write(cmd.OutOrStdout(), view, func() string { return poolsText(view, snap.Now) })
		},
	}
	out.AddFlag(cmd)
	cmd.Flags().BoolVar(&drawn, "map", false, "draw every address of the pool NAME, one row per block")
	cmd.Flags().BoolVar(&ports, "ports", false, "show the pools of ready ports of OpenStack, by node")
	return cmd
}

// drawPool shows every address of a pool.
func drawPool(cmd *cobra.Command, out *output.Format, p *v1alpha1.IPPool, snap kube.Snapshot) error {
	view, err := buildMap(p, snap)
	if err != nil {
		return err
	}
	return out.Write(cmd.OutOrStdout(), view, func() string { return mapText(view) })
}

// showPortPools shows the pools of ready ports.
func showPortPools(c *kube.Connection, cmd *cobra.Command, out *output.Format) error {
	pools, err := c.PortPools(cmd.Context())
	if err != nil {
		return err
	}
	view := portPoolList{Pools: buildPortPools(pools)}
	return out.Write(cmd.OutOrStdout(), view, func() string { return portPoolsText(view) })
}

// poolNamed returns the pool with the given name; an error lists the pools that exist.
func poolNamed(pools []v1alpha1.IPPool, name string) ([]v1alpha1.IPPool, error) {
	var names []string
	for i := range pools {
		if pools[i].Name == name {
			return pools[i : i+1], nil
		}
		names = append(names, pools[i].Name)
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("there is no pool %q: there are no pools", name)
	}
	slices.Sort(names)
	return nil, fmt.Errorf("there is no pool %q: there are %s", name, strings.Join(names, ", "))
}
