package probe

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
)

// maxPlan bounds a plan in bytes: 20 nodes with 8 networks need a tenth.
const maxPlan = 16 << 20

// Command returns the command `probe`, which only pods of `fairlead check` execute.
func Command() *cobra.Command {
	root := &cobra.Command{
		Use:    "probe",
		Short:  "Serve and make the probes of fairlead check, in its pods",
		Hidden: true,
		Args:   cobra.NoArgs,
	}
	root.AddCommand(serveCommand(), holdCommand(), runCommand())
	return root
}

func serveCommand() *cobra.Command {
	var port uint16
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Answer at a port, by TCP and UDP, with the name of the pod",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			name, err := os.Hostname()
			if err != nil {
				return err
			}
			s, err := listen(cmd.Context(), "", port, name)
			if err != nil {
				return err
			}
			return s.serve(cmd.Context())
		},
	}
	cmd.Flags().Uint16Var(&port, "port", 0, "`port` to answer at")
	return cmd
}

func holdCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "hold",
		Short: "Do nothing until the pod ends",
		Args:  cobra.NoArgs,
		Run:   func(cmd *cobra.Command, _ []string) { <-cmd.Context().Done() },
	}
}

func runCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "run",
		Short: "Read a plan as JSON, make its probes, and write their outcomes as JSON",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var plan Plan
			if err := json.NewDecoder(io.LimitReader(cmd.InOrStdin(), maxPlan)).Decode(&plan); err != nil {
				return fmt.Errorf("read the plan: %w", err)
			}
			return json.NewEncoder(cmd.OutOrStdout()).Encode(Run(cmd.Context(), plan))
		},
	}
}
