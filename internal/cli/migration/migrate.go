package migration

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"fairlead.dev/fairlead/internal/cli/output"
	"fairlead.dev/fairlead/internal/migrate"
	"fairlead.dev/fairlead/internal/migrate/apply"
)

// View is the output of `migrate whereabouts -o json`.
type View struct {
	// DryRun is true if nothing was written.
	DryRun bool `json:"dryRun"`
	// Namespace of whereabouts' objects.
	Namespace string `json:"namespace"`
	// Leases that stop whereabouts from writing.
	Leases []string `json:"leases"`
	// Pools that are created.
	Pools []string `json:"pools"`
	// Addresses of running pods, also those that were imported before.
	Addresses []importedAddress `json:"addresses"`
	// New counts addresses that are not imported yet, NewRecords PodAttachments that are
	// not created yet.
	New        int `json:"new"`
	NewRecords int `json:"newRecords"`
	// Withheld counts addresses that no pod gets until a person has decided about them.
	Withheld int               `json:"withheld"`
	Findings []migrate.Finding `json:"findings"`
	Warnings []string          `json:"warnings"`
}

// importedAddress is an address of a running pod.
type importedAddress struct {
	migrate.Address
	Pod       string `json:"pod"` // namespace/name
	Interface string `json:"interface"`
	Node      string `json:"node"`
	Network   string `json:"network"`
	New       bool   `json:"new"`
}

func buildMigration(c *apply.Cluster, plan *migrate.Plan, dryRun bool) View {
	v := View{
		DryRun: dryRun, Namespace: c.Namespace, Leases: migrate.Leases(c.State), Pools: []string{}, Addresses: []importedAddress{},
		New: plan.Slots(), NewRecords: len(plan.Records), Withheld: plan.Held, Findings: plan.Findings, Warnings: output.List(c.Warnings),
	}
	for i := range plan.Pools {
		v.Pools = append(v.Pools, plan.Pools[i].Name)
	}
	for _, h := range plan.Holdings {
		v.Addresses = append(v.Addresses, importedAddress{
			Address: h.Address, Pod: h.Holder.Namespace + "/" + h.Holder.Pod, Interface: h.Holder.Interface, Node: h.Holder.Node, Network: h.Network, New: h.Slot,
		})
	}
	slices.SortStableFunc(v.Addresses, func(a, b importedAddress) int { return cmp.Compare(a.Pod, b.Pod) })
	return v
}

// migrationText lists every address, then every finding; the last line is the outcome.
func migrationText(v View) string {
	var b strings.Builder
	if len(v.Addresses) > 0 {
		rows := [][]string{{"POD", "INTERFACE", "ADDRESS", "DOMAIN", "NODE", "NETWORK", "STATE"}}
		for _, a := range v.Addresses {
			state := "imported"
			switch {
			case a.New && v.DryRun:
				state = "to import"
			case !a.New:
				state = "there"
			}
			rows = append(rows, []string{a.Pod, a.Interface, a.Addr.String(), a.Domain, a.Node, a.Network, state})
		}
		b.WriteString(output.Table(rows) + "\n")
	}
	b.WriteString(findingsText(v.Findings))
	for _, w := range v.Warnings {
		b.WriteString("warning: " + output.OneLine(w) + "\n")
	}
	if len(v.Pools) > 0 {
		fmt.Fprintf(&b, "pools: %s\n", strings.Join(v.Pools, ", "))
	}
	sum := fmt.Sprintf("%s and %s of running pods, %s withheld, %s", output.Plural(v.New, "new address"), output.Plural(v.NewRecords, "new record"), output.Plural(v.Withheld, "address"), output.Plural(len(v.Findings), "finding"))
	if v.DryRun {
		return b.String() + "DRY RUN, nothing was changed: " + sum + "\n"
	}
	return b.String() + "IMPORTED: " + sum + "\n" +
		"whereabouts is kept from writing by " + output.Plural(len(v.Leases), "Lease") + " in namespace " + v.Namespace + ": go on with the nodes, or roll back\n"
}

func findingsText(findings []migrate.Finding) string {
	if len(findings) == 0 {
		return ""
	}
	rows := [][]string{{"FINDING", "DOMAIN", "ADDRESS", "OUTCOME", "WHAT"}}
	for _, f := range findings {
		rows = append(rows, []string{string(f.Kind), f.Domain, f.Address, string(f.Outcome), output.OneLine(f.Text)})
	}
	return output.Table(rows) + "\n"
}

// rollbackView is the output of `migrate whereabouts --rollback -o json`.
type rollbackView struct {
	DryRun    bool   `json:"dryRun"`
	Namespace string `json:"namespace"`
	// Addresses counts the addresses that Fairlead has given to pods.
	Addresses int `json:"addresses"`
	// Pools and Reservations are the objects that are written, Deleted the reservations
	// that are deleted, by name.
	Pools        []string          `json:"pools"`
	Reservations []string          `json:"reservations"`
	Deleted      []string          `json:"deleted"`
	Findings     []migrate.Finding `json:"findings"`
}

func buildRollback(c *apply.Cluster, e *migrate.Export, dryRun bool) rollbackView {
	v := rollbackView{
		DryRun: dryRun, Namespace: c.Namespace, Addresses: len(e.Given), Findings: e.Findings,
		Pools: []string{}, Reservations: []string{}, Deleted: []string{},
	}
	for _, p := range e.Pools {
		v.Pools = append(v.Pools, p.Name)
	}
	for _, r := range e.Reservations {
		v.Reservations = append(v.Reservations, r.Name)
	}
	for _, r := range e.Delete {
		v.Deleted = append(v.Deleted, r.Name)
	}
	return v
}

func rollbackText(v rollbackView) string {
	var b strings.Builder
	b.WriteString(findingsText(v.Findings))
	for _, l := range []struct {
		what  string
		names []string
	}{{"IPPools", v.Pools}, {"reservations", v.Reservations}, {"deleted reservations", v.Deleted}} {
		if len(l.names) > 0 {
			fmt.Fprintf(&b, "%s: %s\n", l.what, strings.Join(l.names, ", "))
		}
	}
	if v.DryRun {
		return b.String() + "DRY RUN, nothing was changed: " + output.Plural(v.Addresses, "address") + " of pods to give to whereabouts\n"
	}
	return b.String() + "ROLLED BACK: whereabouts has " + output.Plural(v.Addresses, "address") + " of pods and may write again\n"
}
