// The fairlead-controller decides and records each pod's network. It runs as a
// Deployment; one replica leads.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"fairlead.dev/fairlead/internal/config"
	"fairlead.dev/fairlead/internal/run"
)

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
		fmt.Fprintln(os.Stderr, "fairlead-controller:", err)
		return 1
	}
	return 0
}

func command() *cobra.Command {
	var (
		file    string
		logging run.Logging
	)
	cmd := &cobra.Command{
		Use:           "fairlead-controller",
		Short:         "Decides and records the network of every pod",
		Version:       run.Version,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, err := logging.Start(cmd.Context(), os.Stderr, "fairlead-controller")
			if err != nil {
				return err
			}
			cfg := config.DefaultController()
			if err := config.Load(file, &cfg, func() error { return cfg.Validate(driverNames()) }); err != nil {
				return err
			}
			return serve(ctx, cfg)
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "configuration file (YAML)")
	logging.AddFlags(cmd.Flags())
	return cmd
}

// serve runs until ctx ends.
func serve(ctx context.Context, cfg config.Controller) error {
	c, err := newController(ctx, cfg)
	if err != nil {
		return err
	}
	return c.Run(ctx)
}
