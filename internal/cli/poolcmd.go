package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cli/kube"
)

// maxDesired is the largest number of ready ports of one pool.
const maxDesired = 64

func poolCommand(c *kube.Connection) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pool",
		Short: "Fill and drain the pools of ready ports of nodes",
	}
	var ports int32
	fill := &cobra.Command{
		Use:   "fill NODE...",
		Short: "Keep a number of ports ready in each pool of the nodes",
		Long: "Keep a number of ports ready in each pool of the nodes.\n\n" +
			"Without --ports the marks of the controller's configuration decide again, as before a\n" +
			"fill or a drain. A node has pools once pods ran on it.",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, nodes []string) error {
			if !cmd.Flags().Changed("ports") {
				return desire(c, cmd, nodes, nil)
			}
			if ports < 1 || ports > maxDesired {
				return fmt.Errorf("--ports %d: must be 1 to %d; fairlead pool drain empties pools", ports, maxDesired)
			}
			return desire(c, cmd, nodes, &ports)
		},
	}
	fill.Flags().Int32Var(&ports, "ports", 0, "`number` of ready ports of each pool")
	drain := &cobra.Command{
		Use:   "drain NODE...",
		Short: "Delete the ready ports of the nodes; pods get ports of their own until the pools are filled",
		Args:  cobra.MinimumNArgs(1),
		RunE:  func(cmd *cobra.Command, nodes []string) error { return desire(c, cmd, nodes, new(int32)) },
	}
	cmd.AddCommand(fill, drain)
	return cmd
}

// desire writes the desired number of ready ports into each pool of nodes; nil leaves it to
// the configuration of the controller.
func desire(c *kube.Connection, cmd *cobra.Command, nodes []string, desired *int32) error {
	pools, err := c.PortPools(cmd.Context())
	if err != nil {
		return err
	}
	var without []string
	for _, node := range nodes {
		if !slices.ContainsFunc(pools, func(p v1alpha1.PortPool) bool { return p.Spec.Node == node }) {
			without = append(without, node)
		}
	}
	if len(without) > 0 {
		return fmt.Errorf("no pool of ports on %s: a node has pools once pods with ports of OpenStack ran on it, and openstack.ports.pools.low is set", strings.Join(without, ", "))
	}
	shown := "by the configuration"
	if desired != nil {
		shown = fmt.Sprint(*desired)
	}
	var errs []error
	for _, p := range pools {
		// The first object of a pool has its desired count.
		if !slices.Contains(nodes, p.Spec.Node) || !strings.HasSuffix(p.Name, "-0") {
			continue
		}
		if err := c.DesirePorts(cmd.Context(), p.Name, desired); err != nil {
			errs = append(errs, err)
			continue
		}
		if _, err := fmt.Fprintf(cmd.OutOrStdout(), "%s: ready ports: %s\n", p.Name, shown); err != nil {
			return fmt.Errorf("write the answer: %w", err)
		}
	}
	return errors.Join(errs...)
}
