// Package migration has the commands that take over from whereabouts and Multus, the only
// commands that write.
package migration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"

	"github.com/spf13/cobra"

	"fairlead.dev/fairlead/internal/cli/kube"
	"fairlead.dev/fairlead/internal/cli/output"
	"fairlead.dev/fairlead/internal/migrate"
	"fairlead.dev/fairlead/internal/migrate/apply"
)

// Command returns the command `migrate`.
func Command(c *kube.Connection) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Take over from another system: whereabouts' addresses or Multus' networks",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(migrateWhereaboutsCommand(c), migrateMultusCommand(c))
	return cmd
}

// migrateFlags are the flags of `migrate whereabouts`.
type migrateFlags struct {
	out                          output.Format
	namespace, flatFile          string
	dryRun, drop, rollback, hold bool
}

func migrateWhereaboutsCommand(c *kube.Connection) *cobra.Command {
	var f migrateFlags
	cmd := &cobra.Command{
		Use:   "whereabouts",
		Short: "Import what whereabouts has given to pods, without restarting one",
		Long: "Import what whereabouts has given to pods, without restarting one.\n\n" +
			"It takes whereabouts' own Lease, so that nothing is allocated or freed meanwhile,\n" +
			"imports the addresses of running pods, withholds those that no running pod explains,\n" +
			"and reads everything again to verify it. The Lease stays taken until --rollback, which\n" +
			"writes everything back into whereabouts' objects. It can be repeated, also after an\n" +
			"interruption. The exit code is 0 if no finding needs a person, 1 if one does and 2 if\n" +
			"the migration failed.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.rollback && (f.drop || f.hold) {
				return errors.New("--rollback excludes --drop-orphans and --hold: give it alone or with --dry-run")
			}
			if f.dryRun && f.hold {
				return errors.New("--dry-run and --hold exclude each other: give one of them")
			}
			return takeOver(c, cmd, f)
		},
	}
	f.out.AddFlag(cmd)
	flags := cmd.Flags()
	flags.StringVar(&f.namespace, "whereabouts-namespace", "", "`namespace` of whereabouts' objects; the default is where they are")
	flags.StringVar(&f.flatFile, "flat-file", "", "`path` of a copy of the nodes' whereabouts.conf, for networks that rely on its options")
	flags.BoolVar(&f.dryRun, "dry-run", false, "show what would be done, and change nothing")
	flags.BoolVar(&f.drop, "drop-orphans", false, "leave addresses free that no running pod explains, instead of withholding them")
	flags.BoolVar(&f.rollback, "rollback", false, "give everything back to whereabouts")
	flags.BoolVar(&f.hold, "hold", false, "go on renewing whereabouts' Lease until interrupted: for old releases of it, which ignore the Lease's duration")
	return cmd
}

func takeOver(c *kube.Connection, cmd *cobra.Command, f migrateFlags) error {
	flat, err := readFlatFile(f.flatFile)
	if err != nil {
		return err
	}
	api, server, err := c.Client()
	if err != nil {
		return err
	}
	controller, err := c.ControllerClient(cmd.Context(), api)
	if err != nil {
		return explainMigration(err, server)
	}
	m := apply.Migration{API: api, Controller: controller, Namespace: f.namespace, FlatFile: flat, Drop: f.drop}
	run := importAddresses
	if f.rollback {
		run = rollback
	}
	err = run(cmd, m, f)
	if errors.Is(err, output.ErrAttention) || err == nil {
		return err
	}
	return explainMigration(err, server)
}

// readFlatFile returns the contents of a whereabouts.conf; nil if path is empty.
func readFlatFile(path string) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("--flat-file: %w", err)
	}
	var options map[string]json.RawMessage
	if err := json.Unmarshal(raw, &options); err != nil {
		return nil, fmt.Errorf("--flat-file %s: must be a JSON object, as whereabouts.conf is on the nodes: %w", path, err)
	}
	return raw, nil
}

func importAddresses(cmd *cobra.Command, m apply.Migration, f migrateFlags) error {
	step := m.Import
	if f.dryRun {
		step = m.Plan
	}
	found, plan, err := step(cmd.Context())
	if err != nil {
		return err
	}
	view := buildMigration(found, plan, f.dryRun)
	if err := f.out.Write(cmd.OutOrStdout(), view, func() string { return migrationText(view) }); err != nil {
		return err
	}
	if f.hold {
		if err := m.Barrier(found).Hold(cmd.Context()); err != nil && !errors.Is(err, context.Canceled) {
			return err
		}
	}
	return attentionTo(plan.Findings)
}

func rollback(cmd *cobra.Command, m apply.Migration, f migrateFlags) error {
	step := m.Rollback
	if f.dryRun {
		step = m.PlanRollback
	}
	found, export, err := step(cmd.Context())
	if err != nil {
		return err
	}
	view := buildRollback(found, export, f.dryRun)
	if err := f.out.Write(cmd.OutOrStdout(), view, func() string { return rollbackText(view) }); err != nil {
		return err
	}
	return attentionTo(export.Findings)
}

// attentionTo returns output.ErrAttention if a finding needs a person: every kind but
// NoReservation and NoAllocation.
func attentionTo(findings []migrate.Finding) error {
	for _, f := range findings {
		if f.Kind != migrate.NoReservation && f.Kind != migrate.NoAllocation {
			return output.ErrAttention
		}
	}
	return nil
}

// explainMigration translates an error of a migration into terms that the user can act
// on.
func explainMigration(err error, server string) error {
	var transport *url.Error
	switch {
	case errors.Is(err, apply.ErrNoMultus):
		return fmt.Errorf("%w: neither its DaemonSet nor a NetworkAttachmentDefinition (at %s)", err, server)
	case errors.Is(err, apply.ErrNothing):
		return fmt.Errorf("%w: neither its IPPools nor a NetworkAttachmentDefinition that names it (at %s)", err, server)
	case errors.As(err, &transport):
		return fmt.Errorf("no answer from the API server at %s: %w", server, transport.Err)
	}
	return err
}
