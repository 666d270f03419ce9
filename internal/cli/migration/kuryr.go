package migration

import (
	"fmt"
	"strconv"
	"strings"

	"fairlead.dev/fairlead/internal/cli/output"
	"fairlead.dev/fairlead/internal/migrate/kuryr"
)

// KuryrView is the output of `migrate kuryr --dry-run -o json`.
type KuryrView struct {
	// OK is true if Fairlead serves everything, and each port could be kept.
	OK bool `json:"ok"`
	// Source of Kuryr's configuration; empty if it is not known.
	Source        string          `json:"source"`
	Settings      []kuryr.Setting `json:"settings"`
	Ports         []kuryr.Port    `json:"ports"`
	Objects       []kuryr.Thing   `json:"objects"`
	Configuration string          `json:"configuration"`
}

func buildKuryr(s kuryr.State, p kuryr.Plan) KuryrView {
	v := KuryrView{OK: p.Complete(), Settings: append([]kuryr.Setting{}, p.Settings...), Ports: p.Ports, Objects: p.Things, Configuration: p.Configuration}
	if s.Config != nil {
		v.Source = s.Config.Source
	}
	return v
}

// maxShown is the number of ports of one outcome that the text lists; -o json lists all.
const maxShown = 50

// kuryrText lists settings, ports and other objects, then the configuration; the last line is
// the outcome.
func kuryrText(v KuryrView) string {
	var b strings.Builder
	if v.Source == "" {
		b.WriteString("KURYR: its configuration was not found in the cluster: give a kuryr.conf by --config\n\n")
	} else {
		rows := [][]string{{"OPTION", "VALUE", "SERVED", "HOW"}}
		for _, s := range v.Settings {
			rows = append(rows, []string{s.Name, output.OneLine(s.Value), string(s.Served), s.Text})
		}
		fmt.Fprintf(&b, "KURYR: %s\n%s\n", output.OneLine(v.Source), output.Table(rows))
	}
	count, rows := map[kuryr.Outcome]int{}, [][]string{{"POD", "INTERFACE", "PORT", "ADDRESSES", "KIND", "VLAN", "OUTCOME", "WHY"}}
	for _, p := range v.Ports {
		if count[p.Outcome]++; count[p.Outcome] > maxShown {
			continue
		}
		vlan := ""
		if p.VLAN != 0 {
			vlan = strconv.FormatInt(p.VLAN, 10)
		}
		rows = append(rows, []string{p.Pod, output.OneLine(p.Interface), p.ID, strings.Join(p.Addresses, ","), output.OneLine(p.Kind), vlan, string(p.Outcome), output.OneLine(p.Reason)})
	}
	fmt.Fprintf(&b, "PORTS: %d adoptable, %d new, %d left, %d unreadable\n", count[kuryr.Adoptable], count[kuryr.New], count[kuryr.Left], count[kuryr.Unreadable])
	if len(v.Ports) > 0 {
		b.WriteString(output.Table(rows))
	}
	if more := len(v.Ports) - len(rows) + 1; more > 0 {
		fmt.Fprintf(&b, "and %d more: see -o json\n", more)
	}
	fmt.Fprintf(&b, "\nOBJECTS: %d\n", len(v.Objects))
	if len(v.Objects) > 0 {
		rows = [][]string{{"KIND", "NAME", "IN OPENSTACK", "SERVED", "HOW"}}
		for _, t := range v.Objects {
			rows = append(rows, []string{t.Kind, t.Name, output.OneLine(t.Cloud), string(t.Served), output.OneLine(t.Text)})
		}
		b.WriteString(output.Table(rows))
	}
	fmt.Fprintf(&b, "\nCONFIGURATION of fairlead-controller:\n\n%s\n", indented(v.Configuration))
	if v.OK {
		return b.String() + "OK: Fairlead serves everything\n"
	}
	return b.String() + "ATTENTION: Fairlead does not serve everything\n"
}
