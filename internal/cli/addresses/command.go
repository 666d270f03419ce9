// Package addresses has the commands that account for addresses: they show the holder of
// each, what the records do not explain, and what garbage collection releases next.
package addresses

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/spf13/cobra"

	"fairlead.dev/fairlead/internal/cli/kube"
	"fairlead.dev/fairlead/internal/cli/output"
)

// Commands returns the commands `who`, `ipam` and `gc`.
func Commands(c *kube.Connection) []*cobra.Command {
	return []*cobra.Command{whoCommand(c), ipamCommand(c), gcCommand(c)}
}

func whoCommand(c *kube.Connection) *cobra.Command {
	var (
		out        output.Format
		domain, at string
	)
	cmd := &cobra.Command{
		Use:   "who ADDRESS",
		Short: "Show who has an address, or had it",
		Long: "Show who has an address, or had it.\n\n" +
			"The blocks remember the last three holders of an address, the present one among\n" +
			"them. A time that lies before that gets the answer that the history does not reach\n" +
			"back that far.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			now := time.Now()
			q, err := parseQuestion(args[0], domain, at, now)
			if err != nil {
				return err
			}
			snap, err := c.Snapshot(cmd.Context(), kube.Wanted{Pools: true, Records: true, Addresses: true})
			if err != nil {
				return err
			}
			view := buildWho(q, snap)
			return out.Write(cmd.OutOrStdout(), view, func() string { return whoText(view, snap.Now) })
		},
	}
	out.AddFlag(cmd)
	cmd.Flags().StringVar(&domain, "domain", "", "`name` of the address domain; the default is every domain that knows the address")
	cmd.Flags().StringVar(&at, "at", "", "who had it at this `time` (RFC 3339); the default is now")
	return cmd
}

func parseQuestion(address, domain, at string, now time.Time) (question, error) {
	q := question{domain: domain}
	var err error
	if q.addr, err = netip.ParseAddr(address); err != nil || q.addr.Zone() != "" {
		return q, fmt.Errorf("%q is not an IP address: write it as 10.0.0.7 or fd00::7, without a prefix length", address)
	}
	q.addr = q.addr.Unmap()
	if at == "" {
		return q, nil
	}
	if q.at, err = time.Parse(time.RFC3339, at); err != nil {
		return q, fmt.Errorf("--at: %q is not an RFC 3339 time: write it as %s", at, now.UTC().Format(time.RFC3339))
	}
	if q.at.After(now) {
		return q, fmt.Errorf("--at: %s lies in the future", at)
	}
	return q, nil
}
