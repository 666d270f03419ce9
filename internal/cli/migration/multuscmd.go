package migration

import (
	"errors"

	"github.com/spf13/cobra"

	"fairlead.dev/fairlead/internal/cli/kube"
	"fairlead.dev/fairlead/internal/migrate/apply"
)

// multusFlags are the flags of `migrate multus`.
type multusFlags struct {
	planFlags
	flatFile string
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
	f.addFlags(cmd, "show the plan")
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
	f.addFlags(cmd, "examine the node, and do not label it")
	return cmd
}

func (f *multusFlags) addFlags(cmd *cobra.Command, dryRun string) {
	f.add(cmd, "Multus' configuration, as a node's 00-multus.conf; the default is that of its DaemonSet", dryRun)
	cmd.Flags().StringVar(&f.flatFile, "flat-file", "", "`path` of a copy of the nodes' whereabouts.conf, for networks that rely on its options")
}

// installation returns the installation of Multus that the flags name.
func (f *multusFlags) installation(c *kube.Connection) (m apply.Multus, server string, err error) {
	m.Own = f.system
	if m.Config, err = f.read(); err != nil {
		return m, "", err
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
	return f.show(cmd, view, view.OK, func() string { return multusText(view) })
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
	return f.show(cmd, view, len(view.Obstacles) == 0, func() string { return switchText(view) })
}
