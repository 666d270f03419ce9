package addresses

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cli/kube"
	"fairlead.dev/fairlead/internal/cli/output"
	"fairlead.dev/fairlead/internal/ipam/audit"
)

// gcView is the output of `gc --dry-run -o json`.
type gcView struct {
	// OK is true if a record explains everything.
	OK bool `json:"ok"`
	// Addresses that are taken in a block, and that nothing explains.
	Addresses []audit.Finding `json:"addresses"`
	// Clouds that serve the cluster, with the ports that nothing explains.
	Clouds []gcCloud `json:"clouds"`
	// Nodes that are gone, with the entries of the fabric that the cloud still has.
	Nodes []gcNode `json:"nodes"`
}

// gcCloud has the ports of one cloud, as the controller last saw them.
type gcCloud struct {
	Name      string     `json:"name"`
	CheckedAt *time.Time `json:"checkedAt,omitempty"`
	// LeftCount is the number of all ports, and Left the first of them.
	LeftCount int64    `json:"leftCount"`
	Left      []gcPort `json:"left"`
}

// gcPort is one port.
type gcPort struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	// Collected is true if the next pass of garbage collection releases it.
	Collected bool   `json:"collected"`
	Reason    string `json:"reason"`
}

// gcNode has the entries of the fabric for one node.
type gcNode struct {
	Name   string                 `json:"name"`
	Port   string                 `json:"port,omitempty"`
	Pairs  []string               `json:"pairs"`
	Group  string                 `json:"group,omitempty"`
	Router string                 `json:"router,omitempty"`
	Routes []v1alpha1.FabricRoute `json:"routes"`
	Reason string                 `json:"reason"`
}

func gcCommand(c *kube.Connection) *cobra.Command {
	var (
		out    output.Format
		dryRun bool
	)
	cmd := &cobra.Command{
		Use:   "gc",
		Short: "Show the addresses, ports and entries of the fabric that are about to be released",
		Long: "Show the addresses, ports and entries of the fabric that are about to be released.\n\n" +
			"The controller collects garbage by itself. Ports of OpenStack are those that its last\n" +
			"pass found: the next one releases them. Entries of the fabric are those of nodes that\n" +
			"are gone. The exit code is 0 if there is nothing, 1 if there is something and 2 if the\n" +
			"cluster could not be read.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !dryRun {
				return errors.New("the controller collects garbage by itself, at every gcInterval: give --dry-run to see what it finds")
			}
			found, err := auditTwice(cmd.Context(), c)
			if err != nil {
				return err
			}
			snap, err := c.Snapshot(cmd.Context(), kube.Wanted{Clouds: true, Nodes: true})
			if err != nil {
				return err
			}
			view := buildGC(found, snap)
			if err := out.Write(cmd.OutOrStdout(), view, func() string { return gcText(view, snap.Now) }); err != nil {
				return err
			}
			if !view.OK {
				return output.ErrAttention
			}
			return nil
		},
	}
	out.AddFlag(cmd)
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "show, and change nothing")
	return cmd
}

func buildGC(found audit.Report, snap kube.Snapshot) gcView {
	v := gcView{OK: true, Addresses: []audit.Finding{}, Clouds: []gcCloud{}, Nodes: gcNodes(snap.Nodes)}
	for _, f := range found.Findings {
		if f.Invariant == audit.Explained {
			v.Addresses = append(v.Addresses, f)
		}
	}
	for i := range snap.Clouds {
		s := &snap.Clouds[i].Status
		cloud := gcCloud{Name: snap.Clouds[i].Name, LeftCount: s.LeftCount, Left: []gcPort{}}
		if s.CheckedAt != nil {
			cloud.CheckedAt = output.Timestamp(s.CheckedAt.Time)
		}
		for _, l := range s.Left {
			cloud.Left = append(cloud.Left, gcPort(l))
		}
		v.Clouds = append(v.Clouds, cloud)
		v.OK = v.OK && s.LeftCount == 0
	}
	slices.SortFunc(v.Clouds, func(a, b gcCloud) int { return strings.Compare(a.Name, b.Name) })
	v.OK = v.OK && len(v.Addresses) == 0 && len(v.Nodes) == 0
	return v
}

// gcNodes returns the nodes that are gone and whose entries in the cloud the fabric takes
// back.
func gcNodes(all []v1alpha1.NodeNetwork) []gcNode {
	out := []gcNode{}
	for i := range all {
		nn := &all[i]
		f := nn.Spec.Fabric
		if nn.DeletionTimestamp.IsZero() || f == nil || !slices.Contains(nn.Finalizers, v1alpha1.FabricFinalizer) {
			continue
		}
		n := gcNode{
			Name: nn.Name, Port: f.Port, Pairs: append([]string{}, f.Pairs...), Group: f.Group,
			Router: f.Router, Routes: append([]v1alpha1.FabricRoute{}, f.Routes...), Reason: "its Node is gone",
		}
		if c := meta.FindStatusCondition(f.Conditions, v1alpha1.ConditionFabricReady); c != nil && c.Status == metav1.ConditionFalse {
			n.Reason += ", and the last try failed: " + c.Message
		}
		out = append(out, n)
	}
	slices.SortFunc(out, func(a, b gcNode) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// entries returns the entries of a node in the cloud in a few words.
func (n gcNode) entries() string {
	var parts []string
	if n.Port != "" {
		parts = append(parts, fmt.Sprintf("port %s: pairs %s", n.Port, orNone(n.Pairs)))
		if n.Group != "" {
			parts = append(parts, "security group "+n.Group)
		}
	}
	if len(n.Routes) > 0 {
		var to []string
		for _, r := range n.Routes {
			to = append(to, r.Destination+" via "+r.NextHop)
		}
		parts = append(parts, fmt.Sprintf("router %s: %s", n.Router, strings.Join(to, ", ")))
	}
	return orNone(parts)
}

func orNone(all []string) string {
	if len(all) == 0 {
		return "none"
	}
	return strings.Join(all, ", ")
}

// gcText returns a line for each address, port and node; the last line is the outcome.
func gcText(v gcView, now time.Time) string {
	var b strings.Builder
	if len(v.Addresses) > 0 {
		rows := [][]string{{"DOMAIN", "ADDRESS", "WHY"}}
		for _, f := range v.Addresses {
			rows = append(rows, []string{f.Domain, f.Address, output.OneLine(f.What + ": " + f.Evidence)})
		}
		fmt.Fprintf(&b, "ADDRESSES: %d\n%s\n", len(v.Addresses), output.Table(rows))
	}
	var ports int64
	for _, c := range v.Clouds {
		ports += c.LeftCount
		fmt.Fprintf(&b, "OPENSTACK %s: %s, as seen %s ago\n", c.Name, output.Plural(int(c.LeftCount), "port"), output.Age(c.CheckedAt, now))
		if len(c.Left) > 0 {
			rows := [][]string{{"PORT", "NAME", "RELEASED", "WHY"}}
			for _, l := range c.Left {
				rows = append(rows, []string{l.ID, l.Name, output.YesNo(l.Collected), output.OneLine(l.Reason)})
			}
			b.WriteString(output.Table(rows))
		}
		if more := c.LeftCount - int64(len(c.Left)); more > 0 {
			fmt.Fprintf(&b, "and %d more\n", more)
		}
		b.WriteString("\n")
	}
	if len(v.Nodes) > 0 {
		rows := [][]string{{"NODE", "IN THE CLOUD", "WHY"}}
		for _, n := range v.Nodes {
			rows = append(rows, []string{n.Name, n.entries(), output.OneLine(n.Reason)})
		}
		fmt.Fprintf(&b, "FABRIC: %s\n%s\n", output.Plural(len(v.Nodes), "node"), output.Table(rows))
	}
	if v.OK {
		return b.String() + "OK: nothing to collect\n"
	}
	return b.String() + fmt.Sprintf("DRY RUN, nothing was changed: %s and %s that nothing explains, entries of the fabric for %s\n",
		output.Plural(len(v.Addresses), "address"), output.Plural(int(ports), "port"), output.Plural(len(v.Nodes), "node"))
}
