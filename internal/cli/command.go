// Package cli is the operator's command: it reads a cluster and shows what Fairlead does
// in it. Pure functions build the output from lists of objects. Only kube talks to the API
// server; only check, migration and pool write.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"fairlead.dev/fairlead/internal/cli/addresses"
	"fairlead.dev/fairlead/internal/cli/bugreport"
	"fairlead.dev/fairlead/internal/cli/check"
	"fairlead.dev/fairlead/internal/cli/check/probe"
	"fairlead.dev/fairlead/internal/cli/kube"
	"fairlead.dev/fairlead/internal/cli/migration"
	"fairlead.dev/fairlead/internal/cli/output"
	"fairlead.dev/fairlead/internal/config"
	"fairlead.dev/fairlead/internal/run"
)

// Exit codes.
const (
	exitOK        = 0
	exitAttention = 1 // status or an audit found something that needs attention
	exitError     = 2 // the question could not be answered
)

// Program is one call of the command.
type Program struct{ root *cobra.Command }

// New returns the command under the name by which it was called; the help of
// "kubectl-fairlead" reads "kubectl fairlead". Stdout gets the output, and nothing if
// there is an error. Stderr gets errors and the API server's warnings.
func New(name string, stdout, stderr io.Writer) *Program {
	c := &kube.Connection{Stderr: stderr}
	root := &cobra.Command{
		Use:               "fairlead",
		Short:             "Shows what Fairlead does in a cluster",
		SilenceUsage:      true,
		SilenceErrors:     true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	if strings.HasPrefix(name, "kubectl-") {
		root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl fairlead"}
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	flags := root.PersistentFlags()
	flags.StringVar(&c.Kubeconfig, "kubeconfig", "", "kubeconfig `file`; the default is $KUBECONFIG, then ~/.kube/config")
	flags.StringVar(&c.Context, "context", "", "`name` of the kubeconfig's context to use")
	root.AddCommand(statusCommand(c), podsCommand(c), poolsCommand(c), poolCommand(c), explainCommand(c), uiCommand(c), migration.Command(c), check.Command(c), bugreport.Command(c), versionCommand(), probe.Command())
	root.AddCommand(addresses.Commands(c)...)
	return &Program{root: root}
}

// Run executes the command line args, without the program's name. It returns the exit
// code: 0 if all is well, 1 if status or an audit found something that needs attention, 2
// if the question could not be answered.
func (p *Program) Run(ctx context.Context, args []string) int {
	p.root.SetArgs(args)
	err := p.root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, output.ErrAttention):
		return exitAttention
	}
	p.root.PrintErrln("fairlead:", err)
	return exitError
}

func statusCommand(c *kube.Connection) *cobra.Command {
	var (
		out    output.Format
		system string
	)
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the programs, the nodes, the pools and the pods by state",
		Long: "Show the programs, the nodes, the pools and the pods by state.\n\n" +
			"The last line lists everything that needs attention. The exit code is 0 if all is\n" +
			"well, 1 if something needs attention and 2 if status failed.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			snap, err := c.Snapshot(cmd.Context(), kube.Wanted{Lease: true, System: system, Pools: true, Pods: true, Clouds: true})
			if err != nil {
				return err
			}
			view := buildStatus(snap)
			if err := out.Write(cmd.OutOrStdout(), view, func() string { return statusText(view, snap.Now) }); err != nil {
				return err
			}
			if !view.OK {
				return output.ErrAttention
			}
			return nil
		},
	}
	out.AddFlag(cmd)
	cmd.Flags().StringVar(&system, "system-namespace", config.DefaultController().LeaderElection.Namespace,
		"`namespace` of the controller's Lease; others are searched when it is not there")
	return cmd
}

func podsCommand(c *kube.Connection) *cobra.Command {
	var (
		out       output.Format
		namespace string
		all       bool
	)
	cmd := &cobra.Command{
		Use:   "pods",
		Short: "Show what each pod got, or why it has not got it",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if all && namespace != "" {
				return errors.New("--all-namespaces and --namespace exclude each other: give one of them")
			}
			where := namespace
			if !all && where == "" {
				var err error
				if where, err = c.Namespace(); err != nil {
					return err
				}
			}
			snap, err := c.Snapshot(cmd.Context(), kube.Wanted{Pods: true, Namespace: where})
			if err != nil {
				return err
			}
			view := podList{Pods: buildPods(snap)}
			return out.Write(cmd.OutOrStdout(), view, func() string { return podsText(view, where, snap.Now) })
		},
	}
	out.AddFlag(cmd)
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "`namespace` to show; the default is the context's")
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "show every namespace")
	return cmd
}

// versionView is the output of `version -o json`.
type versionView struct {
	Version  string `json:"version"`
	Go       string `json:"go"`
	Platform string `json:"platform"` // as linux/amd64
}

func versionCommand() *cobra.Command {
	var out output.Format
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Show the version of this program",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			view := versionView{Version: run.Version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
			return out.Write(cmd.OutOrStdout(), view, func() string {
				return fmt.Sprintf("fairlead %s (%s, %s)\n", view.Version, view.Go, view.Platform)
			})
		},
	}
	out.AddFlag(cmd)
	return cmd
}
