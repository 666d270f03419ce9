// Package cli is the operator's command: it reads a cluster and shows what Fairlead does
// in it. Pure functions build the output from lists of objects. Only fetch.go and
// connect.go talk to the API server; only migrate writes.
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"fairlead.dev/fairlead/internal/config"
	"fairlead.dev/fairlead/internal/run"
)

// Exit codes.
const (
	exitOK        = 0
	exitAttention = 1 // status or an audit found something that needs attention
	exitError     = 2 // the question could not be answered
)

// errAttention is the error of a command that has shown something that needs attention.
var errAttention = errors.New("something needs attention")

// Program is one call of the command.
type Program struct{ root *cobra.Command }

// New returns the command under the name by which it was called; the help of
// "kubectl-fairlead" reads "kubectl fairlead". Stdout gets the output, and nothing if
// there is an error. Stderr gets errors and the API server's warnings.
func New(name string, stdout, stderr io.Writer) *Program {
	c := &connection{stderr: stderr}
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
	flags.StringVar(&c.kubeconfig, "kubeconfig", "", "kubeconfig `file`; the default is $KUBECONFIG, then ~/.kube/config")
	flags.StringVar(&c.context, "context", "", "`name` of the kubeconfig's context to use")
	root.AddCommand(statusCommand(c), podsCommand(c), poolsCommand(c), whoCommand(c), explainCommand(c), ipamCommand(c), migrateCommand(c), versionCommand())
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
	case errors.Is(err, errAttention):
		return exitAttention
	}
	p.root.PrintErrln("fairlead:", err)
	return exitError
}

func statusCommand(c *connection) *cobra.Command {
	var (
		out    output
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
			snap, err := c.snapshot(cmd.Context(), wanted{lease: true, system: system, pools: true, pods: true})
			if err != nil {
				return err
			}
			view := buildStatus(snap)
			if err := out.write(cmd.OutOrStdout(), view, func() string { return statusText(view, snap.now) }); err != nil {
				return err
			}
			if !view.OK {
				return errAttention
			}
			return nil
		},
	}
	out.addFlag(cmd)
	cmd.Flags().StringVar(&system, "system-namespace", config.DefaultController().LeaderElection.Namespace,
		"`namespace` of the controller's Lease; others are searched when it is not there")
	return cmd
}

func podsCommand(c *connection) *cobra.Command {
	var (
		out       output
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
				if where, err = c.namespace(); err != nil {
					return err
				}
			}
			snap, err := c.snapshot(cmd.Context(), wanted{pods: true, namespace: where})
			if err != nil {
				return err
			}
			view := podList{Pods: buildPods(snap)}
			return out.write(cmd.OutOrStdout(), view, func() string { return podsText(view, where, snap.now) })
		},
	}
	out.addFlag(cmd)
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
	var out output
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Show the version of this program",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			view := versionView{Version: run.Version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
			return out.write(cmd.OutOrStdout(), view, func() string {
				return fmt.Sprintf("fairlead %s (%s, %s)\n", view.Version, view.Go, view.Platform)
			})
		},
	}
	out.addFlag(cmd)
	return cmd
}

// output is the value of -o.
type output string

const (
	outputTable output = "table"
	outputJSON  output = "json"
)

func (o *output) addFlag(cmd *cobra.Command) {
	*o = outputTable
	cmd.Flags().VarP(o, "output", "o", "output `format`: table or json")
}

// String implements pflag.Value.
func (o *output) String() string { return string(*o) }

// Type implements pflag.Value.
func (o *output) Type() string { return "format" }

// Set implements pflag.Value.
func (o *output) Set(s string) error {
	switch output(s) {
	case outputTable, outputJSON:
		*o = output(s)
		return nil
	}
	return fmt.Errorf("must be %q or %q", outputTable, outputJSON)
}

// write writes a view in one piece: as JSON, or as the text that text returns.
func (o *output) write(w io.Writer, view any, text func() string) error {
	var raw []byte
	if *o == outputJSON {
		var err error
		if raw, err = json.MarshalIndent(view, "", "  "); err != nil {
			return fmt.Errorf("encode the answer: %w", err)
		}
		raw = append(raw, '\n')
	} else {
		raw = []byte(text())
	}
	if _, err := w.Write(raw); err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	return nil
}

// timestamp returns a time for JSON: in UTC, to the second, nil if t is zero.
func timestamp(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC().Truncate(time.Second)
	return &t
}

// list returns a list for JSON, which is never null.
func list(items []string) []string {
	if items == nil {
		return []string{}
	}
	return items
}
