package migration

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"fairlead.dev/fairlead/internal/cli/kube"
	"fairlead.dev/fairlead/internal/cli/output"
	"fairlead.dev/fairlead/internal/config"
	"fairlead.dev/fairlead/internal/migrate/apply"
)

func migrateKuryrCommand(c *kube.Connection) *cobra.Command {
	var (
		out          output.Format
		file, system string
		dryRun       bool
	)
	cmd := &cobra.Command{
		Use:   "kuryr",
		Short: "Show how Fairlead would serve a cluster of Kuryr-Kubernetes",
		Long: "Show how Fairlead would serve a cluster of Kuryr-Kubernetes.\n\n" +
			"It reads Kuryr's configuration and objects and the pods, and changes nothing. The exit\n" +
			"code is 0 if Fairlead serves everything, 1 if it does not serve something, and 2 if the\n" +
			"cluster could not be read.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !dryRun {
				return errors.New("it changes nothing: give --dry-run for the plan")
			}
			k := apply.Kuryr{Own: system}
			var err error
			if file != "" {
				if k.Config, err = os.ReadFile(file); err != nil {
					return fmt.Errorf("--config: %w", err)
				}
			}
			var server string
			if k.API, server, err = c.Client(); err != nil {
				return err
			}
			state, plan, err := k.Plan(cmd.Context())
			if err != nil {
				return explainMigration(err, server)
			}
			view := buildKuryr(state, plan)
			if err := out.Write(cmd.OutOrStdout(), view, func() string { return kuryrText(view) }); err != nil {
				return err
			}
			if !view.OK {
				return output.ErrAttention
			}
			return nil
		},
	}
	out.AddFlag(cmd)
	flags := cmd.Flags()
	flags.BoolVar(&dryRun, "dry-run", false, "show the plan")
	flags.StringVar(&file, "config", "", "`file` with Kuryr's configuration, kuryr.conf; the default is that of its Deployment")
	flags.StringVar(&system, "system-namespace", config.DefaultController().LeaderElection.Namespace, "`namespace` of fairlead-controller, whose networks may name everything")
	return cmd
}
