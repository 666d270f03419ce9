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

// multusFlags are the flags of `migrate multus`.
type multusFlags struct {
	out                      output.Format
	config, flatFile, system string
	dryRun                   bool
}

func migrateMultusCommand(c *kube.Connection) *cobra.Command {
	var f multusFlags
	cmd := &cobra.Command{
		Use:   "multus",
		Short: "Show how Fairlead would serve the networks that Multus serves",
		Long: "Show how Fairlead would serve the networks that Multus serves.\n\n" +
			"It reads Multus' configuration, the NetworkAttachmentDefinitions and the pods, and\n" +
			"changes nothing. The exit code is 0 if Fairlead serves everything, 1 if it does not\n" +
			"serve something, and 2 if the cluster could not be read.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !f.dryRun {
				return errors.New("it changes nothing by itself: give --dry-run for the plan, then switch one node after the other by fairlead migrate multus node NAME")
			}
			return planMultus(c, cmd, f)
		},
	}
	f.out.AddFlag(cmd)
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "show the plan")
	f.addFlags(cmd)
	cmd.AddCommand(switchNodeCommand(c))
	return cmd
}

func switchNodeCommand(c *kube.Connection) *cobra.Command {
	var f multusFlags
	cmd := &cobra.Command{
		Use:   "node NAME",
		Short: "Have Fairlead attach the pods that start on a node from now on",
		Long: "Have Fairlead attach the pods that start on a node from now on.\n\n" +
			"It labels the Node, if everything that its pods use is served. Running pods keep\n" +
			"their interfaces. The exit code is 0 if the Node has the label, 1 if something bars\n" +
			"the switch, and 2 if the cluster could not be read or written.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return switchNode(c, cmd, f, args[0]) },
	}
	f.out.AddFlag(cmd)
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "examine the node, and do not label it")
	f.addFlags(cmd)
	return cmd
}

func (f *multusFlags) addFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.config, "config", "", "`file` with Multus' configuration, as a node's 00-multus.conf; the default is that of its DaemonSet")
	flags.StringVar(&f.flatFile, "flat-file", "", "`path` of a copy of the nodes' whereabouts.conf, for networks that rely on its options")
	flags.StringVar(&f.system, "system-namespace", config.DefaultController().LeaderElection.Namespace, "`namespace` of fairlead-controller, whose networks may use all parts of the nodes")
}

// installation returns the installation of Multus that the flags name.
func (f *multusFlags) installation(c *kube.Connection) (m apply.Multus, server string, err error) {
	m.Own = f.system
	if f.config != "" {
		if m.Config, err = os.ReadFile(f.config); err != nil {
			return m, "", fmt.Errorf("--config: %w", err)
		}
	}
	if m.FlatFile, err = readFlatFile(f.flatFile); err != nil {
		return m, "", err
	}
	m.API, server, err = c.Client()
	return m, server, err
}

func planMultus(c *kube.Connection, cmd *cobra.Command, f multusFlags) error {
	m, server, err := f.installation(c)
	if err != nil {
		return err
	}
	state, plan, err := m.Plan(cmd.Context())
	if err != nil {
		return explainMigration(err, server)
	}
	view := buildMultus(state, plan)
	if err := f.out.Write(cmd.OutOrStdout(), view, func() string { return multusText(view) }); err != nil {
		return err
	}
	if !view.OK {
		return output.ErrAttention
	}
	return nil
}

func switchNode(c *kube.Connection, cmd *cobra.Command, f multusFlags, node string) error {
	m, server, err := f.installation(c)
	if err != nil {
		return err
	}
	found, err := m.Switch(cmd.Context(), node, !f.dryRun)
	if err != nil {
		return explainMigration(err, server)
	}
	view := buildSwitch(node, found, f.dryRun)
	if err := f.out.Write(cmd.OutOrStdout(), view, func() string { return switchText(view) }); err != nil {
		return err
	}
	if len(view.Obstacles) > 0 {
		return output.ErrAttention
	}
	return nil
}
