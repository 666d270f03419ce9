package migration

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"fairlead.dev/fairlead/internal/cli/output"
	"fairlead.dev/fairlead/internal/config"
)

// planFlags are the flags of commands that show a plan.
type planFlags struct {
	out            output.Format
	config, system string
	dryRun         bool
}

// add adds the flags for a program whose configuration is in a file.
func (f *planFlags) add(cmd *cobra.Command, file, dryRun string) {
	f.out.AddFlag(cmd)
	flags := cmd.Flags()
	flags.BoolVar(&f.dryRun, "dry-run", false, dryRun)
	flags.StringVar(&f.config, "config", "", "`file` with "+file)
	flags.StringVar(&f.system, "system-namespace", config.DefaultController().LeaderElection.Namespace, "`namespace` of fairlead-controller, whose networks may use everything")
}

// read returns the content of the file of --config; nil without the flag.
func (f *planFlags) read() ([]byte, error) {
	if f.config == "" {
		return nil, nil
	}
	raw, err := os.ReadFile(f.config)
	if err != nil {
		return nil, fmt.Errorf("--config: %w", err)
	}
	return raw, nil
}

// show writes a plan. Errors: output.ErrAttention unless it is ok.
func (f *planFlags) show(cmd *cobra.Command, view any, ok bool, text func() string) error {
	if err := f.out.Write(cmd.OutOrStdout(), view, text); err != nil {
		return err
	}
	if !ok {
		return output.ErrAttention
	}
	return nil
}

// setting is an option of another program in a plan.
type setting struct{ name, value, served, text string }

// settingsText lists the options of a program, which has a configuration unless source is
// empty. missing is the way to give one.
func settingsText(program, source, column, missing string, all []setting) string {
	if source == "" {
		return program + ": its configuration was not found in the cluster: " + missing + "\n\n"
	}
	rows := [][]string{{column, "VALUE", "SERVED", "HOW"}}
	for _, s := range all {
		rows = append(rows, []string{s.name, output.OneLine(s.value), s.served, s.text})
	}
	return fmt.Sprintf("%s: %s\n%s\n", program, output.OneLine(source), output.Table(rows))
}

// outcomeText is the last line of a plan.
func outcomeText(ok bool) string {
	if ok {
		return "OK: Fairlead serves everything\n"
	}
	return "ATTENTION: Fairlead does not serve everything\n"
}

func indented(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString("    " + line)
	}
	return b.String()
}
