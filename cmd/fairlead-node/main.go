// The fairlead-node plugs the pods of one node. It runs as a DaemonSet and serves the CNI
// plugin on a unix socket.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"fairlead.dev/fairlead/internal/config"
	"fairlead.dev/fairlead/internal/run"
)

const program = "fairlead-node"

func main() {
	run.Slacken()
	os.Exit(execute(os.Args[1:]))
}

func execute(args []string) int {
	ctx, stop := run.SignalContext()
	defer stop()
	cmd := command()
	cmd.SetArgs(args)
	if err := cmd.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, program+":", err)
		return 1
	}
	return 0
}

func command() *cobra.Command {
	cmd := &cobra.Command{
		Use:           program,
		Short:         "Plugs the pods of one node",
		Version:       run.Version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	cmd.AddCommand(runCommand(), cleanupCommand(), &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), program, run.Version)
			return err
		},
	})
	return cmd
}

// flags select the configuration.
type flags struct{ file, nodeName string }

func (f *flags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.file, "config", "", "configuration file (YAML)")
	cmd.Flags().StringVar(&f.nodeName, "node-name", "", "name of this machine's Node (default: nodeName of the configuration, or the host name)")
}

// load returns the configuration. Flags override the file, and the machine supplies values
// that neither sets.
func (f *flags) load() (config.Node, error) {
	cfg := config.DefaultNode()
	err := config.Load(f.file, &cfg, func() error {
		if f.nodeName != "" {
			cfg.NodeName = f.nodeName
		}
		if err := cfg.Complete(); err != nil {
			return err
		}
		return cfg.Validate()
	})
	return cfg, err
}

func runCommand() *cobra.Command {
	var (
		flags   flags
		logging run.Logging
	)
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Serve this node's pods until a signal comes",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, err := logging.Start(cmd.Context(), os.Stderr, program)
			if err != nil {
				return err
			}
			cfg, err := flags.load()
			if err != nil {
				return err
			}
			return serve(ctx, cfg)
		},
	}
	flags.add(cmd)
	logging.AddFlags(cmd.Flags())
	return cmd
}

func cleanupCommand() *cobra.Command {
	var (
		flags flags
		cni   bool
		wait  bool
	)
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove everything of Fairlead from this machine",
		Long: `Removes everything of Fairlead from this machine: the interfaces of pods,
the routes, the socket and the records. Pods that still run lose their network,
so drain the node and stop fairlead-node first. The network configuration and the
plugin stay, so that the runtime can stop its pods, unless --cni is given.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := flags.load()
			if err != nil {
				return err
			}
			if err := cleanup(cmd.Context(), cfg, cni, cmd.OutOrStdout()); err != nil || !wait {
				return err
			}
			if _, err := fmt.Fprintln(cmd.OutOrStdout(), "clean; waiting to be stopped"); err != nil {
				return err
			}
			<-cmd.Context().Done()
			return nil
		},
	}
	flags.add(cmd)
	cmd.Flags().BoolVar(&cni, "cni", false, "also remove the network configuration and the plugin")
	cmd.Flags().BoolVar(&wait, "wait", false, "afterwards wait to be stopped, in a container that would be started again")
	return cmd
}
