package addresses

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"fairlead.dev/fairlead/internal/cli/kube"
	"fairlead.dev/fairlead/internal/cli/output"
	"fairlead.dev/fairlead/internal/ipam/audit"
)

// auditPause is the time between the two passes of an audit. The controller gathers
// changes for a second before it writes a pool's status, and reads them again a second
// later.
const auditPause = 5 * time.Second

// auditView is the output of `ipam audit -o json`.
type auditView struct {
	// OK is true if there are no findings.
	OK bool `json:"ok"`
	audit.Report
}

func ipamCommand(c *kube.Connection) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ipam",
		Short: "Look into how addresses are kept",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(auditCommand(c))
	return cmd
}

func auditCommand(c *kube.Connection) *cobra.Command {
	var out output.Format
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Prove that every address has one holder at most and every slot is explained",
		Long: "Prove, against pods, PodAttachments, claims and blocks, that\n" +
			"  I1  no address has two holders,\n" +
			"  I2  every slot that is not free is explained,\n" +
			"  I7  the counts of the pools add up.\n\n" +
			"Each finding is checked again " + auditPause.String() + " later, and shown if it is still there. The exit\n" +
			"code is 0 if there are no findings, 1 if there are findings and 2 if the audit failed.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			report, err := auditTwice(cmd.Context(), c)
			if err != nil {
				return err
			}
			view := auditView{OK: len(report.Findings) == 0, Report: report}
			if err := out.Write(cmd.OutOrStdout(), view, func() string { return auditText(view) }); err != nil {
				return err
			}
			if !view.OK {
				return output.ErrAttention
			}
			return nil
		},
	}
	out.AddFlag(cmd)
	return cmd
}

// auditTwice inspects the cluster, and a second time if it finds something. It returns the
// findings that both passes have.
func auditTwice(ctx context.Context, c *kube.Connection) (audit.Report, error) {
	first, err := auditOnce(ctx, c)
	if err != nil || len(first.Findings) == 0 {
		return first, err
	}
	select {
	case <-ctx.Done():
		return audit.Report{}, ctx.Err()
	case <-time.After(auditPause):
	}
	second, err := auditOnce(ctx, c)
	if err != nil {
		return audit.Report{}, err
	}
	return audit.Confirm(first, second), nil
}

func auditOnce(ctx context.Context, c *kube.Connection) (audit.Report, error) {
	snap, err := c.Snapshot(ctx, kube.Wanted{Pools: true, Pods: true, Addresses: true})
	if err != nil {
		return audit.Report{}, err
	}
	return auditOf(snap), nil
}

func auditOf(snap kube.Snapshot) audit.Report {
	return audit.Look(audit.Cluster{
		Now: snap.Now, Pools: snap.Pools, Blocks: snap.Blocks, Reservations: snap.Reservations,
		Claims: snap.Claims, Attachments: pointers(snap.Attachments), Pods: pointers(snap.Pods),
	})
}

func pointers[T any](list []T) []*T {
	out := make([]*T, len(list))
	for i := range list {
		out[i] = &list[i]
	}
	return out
}

// auditText returns a line per finding; the last line is the verdict.
func auditText(v auditView) string {
	var b strings.Builder
	looked := fmt.Sprintf("%s in %s against %s", output.Plural(v.Slots, "slot"), output.Plural(v.Blocks, "block"), output.Plural(v.Attachments, "PodAttachment"))
	if v.OK {
		return "OK: " + looked + ", nothing unexplained\n"
	}
	rows := [][]string{{"INVARIANT", "DOMAIN", "ADDRESS", "WHAT"}}
	for _, f := range v.Findings {
		rows = append(rows, []string{f.Invariant, f.Domain, f.Address, output.OneLine(f.What + ": " + f.Evidence)})
	}
	b.WriteString(output.Table(rows))
	fmt.Fprintf(&b, "\nFINDINGS: %d, in %s\n", len(v.Findings), looked)
	return b.String()
}
