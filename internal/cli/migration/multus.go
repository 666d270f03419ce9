package migration

import (
	"fmt"
	"strconv"
	"strings"

	"fairlead.dev/fairlead/internal/cli/output"
	"fairlead.dev/fairlead/internal/migrate/multus"
	"fairlead.dev/fairlead/internal/run"
)

// MultusView is the output of `migrate multus --dry-run -o json`.
type MultusView struct {
	// OK is true if Fairlead serves everything.
	OK bool `json:"ok"`
	// Source of Multus' configuration; empty if it is not known.
	Source        string           `json:"source"`
	Settings      []multus.Setting `json:"settings"`
	Networks      []multus.Network `json:"networks"`
	Problems      []multus.Problem `json:"problems"`
	Configuration string           `json:"configuration"`
	Pools         string           `json:"pools,omitempty"`
}

func buildMultus(s multus.State, p multus.Plan) MultusView {
	v := MultusView{
		OK: p.Served(), Settings: append([]multus.Setting{}, p.Settings...), Networks: p.Networks, Problems: append([]multus.Problem{}, p.Problems...),
		Configuration: p.Configuration, Pools: p.Pools,
	}
	if s.Config != nil {
		v.Source = s.Config.Source
	}
	return v
}

// maxNamed is the number of pods that a line names; -o json names all.
const maxNamed = 5

// multusText lists settings, networks and problems, then the files; the last line is the
// outcome.
func multusText(v MultusView) string {
	var b strings.Builder
	var settings []setting
	for _, s := range v.Settings {
		settings = append(settings, setting{s.Name, s.Value, output.YesNo(s.Served), s.Text})
	}
	b.WriteString(settingsText("MULTUS", v.Source, "SETTING", "give a node's file by --config", settings))
	served, rows := 0, [][]string{{"NAME", "TYPE", "IPAM", "SERVED", "EXECUTES", "LEAVES", "PODS"}}
	var notes []string
	for _, n := range v.Networks {
		rows = append(rows, []string{n.Name, n.Type, n.IPAM, n.Served, strings.Join(n.Plugins, ","), strings.Join(n.Leaves, ","), strconv.Itoa(n.Pods)})
		if n.Served != multus.No {
			served++
		}
		if n.Reason != "" {
			notes = append(notes, n.Name+": not served: "+n.Reason)
		}
		for _, remark := range n.Remarks {
			notes = append(notes, n.Name+": "+remark)
		}
	}
	fmt.Fprintf(&b, "NETWORKS: %d of %d served\n%s%s\n", served, len(v.Networks), output.Table(rows), output.Notes(notes))
	if len(v.Problems) > 0 {
		fmt.Fprintf(&b, "PODS: %s\n", output.Plural(len(v.Problems), "problem"))
		for _, p := range v.Problems {
			if p.Network != "" {
				b.WriteString(p.Network + ": ")
			}
			fmt.Fprintf(&b, "%s: %s\n", output.OneLine(p.Text), run.Few(p.Pods, maxNamed))
		}
		b.WriteString("\n")
	}
	fmt.Fprintf(&b, "CONFIGURATION of fairlead-controller, which opens what the networks use:\n\n%s\n", indented(v.Configuration))
	if v.Pools != "" {
		fmt.Fprintf(&b, "POOLS in place of host-local, if you want one address space for all nodes:\n\n%s\n", indented(v.Pools))
	}
	return b.String() + outcomeText(v.OK)
}

// SwitchView is the output of `migrate multus node -o json`.
type SwitchView struct {
	Node string `json:"node"`
	// Switched is true if the Node has the label.
	Switched  bool          `json:"switched"`
	DryRun    bool          `json:"dryRun"`
	Obstacles []string      `json:"obstacles"`
	Left      []multus.Left `json:"left"`
}

func buildSwitch(node string, s multus.Switch, dryRun bool) SwitchView {
	return SwitchView{
		Node: node, Switched: len(s.Obstacles) == 0 && !dryRun, DryRun: dryRun, Obstacles: output.List(s.Obstacles), Left: append([]multus.Left{}, s.Left...),
	}
}

func switchText(v SwitchView) string {
	var b strings.Builder
	for _, o := range v.Obstacles {
		b.WriteString("obstacle: " + output.OneLine(o) + "\n")
	}
	for _, l := range v.Left {
		fmt.Fprintf(&b, "left: the end of %s leaves something of %s on the node, of network %s: drain the node, or clean up after the switch\n", l.Pod, strings.Join(l.Plugins, ", "), l.Network)
	}
	switch {
	case len(v.Obstacles) > 0:
		return b.String() + "NOT SWITCHED: " + output.Plural(len(v.Obstacles), "obstacle") + "\n"
	case v.DryRun:
		return b.String() + "DRY RUN, nothing was changed: node " + v.Node + " can be switched\n"
	}
	return b.String() + "SWITCHED: Fairlead attaches the pods that start on " + v.Node + "; now take Multus' file from the runtime's configuration there\n"
}
