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
	Source   string          `json:"source"`
	Settings []kuryr.Setting `json:"settings"`
	Ports    []kuryr.Port    `json:"ports"`
	Objects  []kuryr.Thing   `json:"objects"`
	// OpenStack is nil if it was not asked.
	OpenStack     *OpenStackView `json:"openstack,omitempty"`
	Configuration string         `json:"configuration"`
}

// OpenStackView is the part of a KuryrView that OpenStack has.
type OpenStackView struct {
	// Project of the credentials.
	Project string        `json:"project"`
	Trunks  []kuryr.Trunk `json:"trunks"`
	// Foreign is what no object of Kuryr names.
	Foreign []kuryr.Foreign `json:"foreign"`
}

func buildKuryr(s kuryr.State, p kuryr.Plan) KuryrView {
	v := KuryrView{OK: p.Complete(), Settings: append([]kuryr.Setting{}, p.Settings...), Ports: p.Ports, Objects: p.Things, Configuration: p.Configuration}
	if s.Config != nil {
		v.Source = s.Config.Source
	}
	if s.Cloud != nil {
		v.OpenStack = &OpenStackView{s.Cloud.Project, p.Trunks, p.Foreign}
	}
	return v
}

// maxShown is the number of ports of one outcome, or of foreign things, that the text lists; -o
// json lists all.
const maxShown = 50

// kuryrText lists settings, ports and other objects, then the configuration; the last line is
// the outcome.
func kuryrText(v KuryrView) string {
	var b strings.Builder
	var settings []setting
	for _, s := range v.Settings {
		settings = append(settings, setting{s.Name, s.Value, string(s.Served), s.Text})
	}
	b.WriteString(settingsText("KURYR", v.Source, "OPTION", "give a kuryr.conf by --config", settings))
	b.WriteString(portsText(v.Ports))
	if v.OpenStack != nil {
		b.WriteString(openStackText(*v.OpenStack))
	}
	fmt.Fprintf(&b, "\nOBJECTS: %d\n", len(v.Objects))
	if len(v.Objects) > 0 {
		rows := [][]string{{"KIND", "NAME", "IN OPENSTACK", "SERVED", "HOW"}}
		for _, t := range v.Objects {
			rows = append(rows, []string{t.Kind, t.Name, output.OneLine(t.Cloud), string(t.Served), output.OneLine(t.Text)})
		}
		b.WriteString(output.Table(rows))
	}
	fmt.Fprintf(&b, "\nCONFIGURATION of fairlead-controller:\n\n%s\n", indented(v.Configuration))
	if v.OpenStack == nil {
		b.WriteString("OpenStack was not asked: give --cloud, the name of an entry of clouds.yaml\n")
	}
	return b.String() + outcomeText(v.OK)
}

// portsText lists the ports of KuryrPorts.
func portsText(ports []kuryr.Port) string {
	count, rows := map[kuryr.Outcome]int{}, [][]string{{"POD", "INTERFACE", "PORT", "ADDRESSES", "KIND", "VLAN", "IN OPENSTACK", "OUTCOME", "WHY"}}
	for _, p := range ports {
		if count[p.Outcome]++; count[p.Outcome] > maxShown {
			continue
		}
		vlan := ""
		if p.VLAN != 0 {
			vlan = strconv.FormatInt(p.VLAN, 10)
		}
		rows = append(rows, []string{p.Pod, output.OneLine(p.Interface), p.ID, strings.Join(p.Addresses, ","), output.OneLine(p.Kind), vlan, output.OneLine(p.Cloud), string(p.Outcome), output.OneLine(p.Reason)})
	}
	text := fmt.Sprintf("PORTS: %d adoptable, %d new, %d missing, %d different, %d left, %d unreadable\n",
		count[kuryr.Adoptable], count[kuryr.New], count[kuryr.Missing], count[kuryr.Differs], count[kuryr.Left], count[kuryr.Unreadable])
	if len(ports) > 0 {
		text += output.Table(rows)
	}
	return text + andMore(len(ports)-len(rows)+1)
}

// openStackText lists the trunks, and what no object of Kuryr names.
func openStackText(v OpenStackView) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\nTRUNKS in project %s: %d\n", output.OneLine(v.Project), len(v.Trunks))
	if len(v.Trunks) > 0 {
		rows := [][]string{{"TRUNK", "NAME", "PARENT", "NODES", "SUBPORTS", "OF KURYRPORTS"}}
		for _, t := range v.Trunks {
			rows = append(rows, []string{t.ID, output.OneLine(t.Name), t.Parent, output.OneLine(strings.Join(t.Nodes, ",")), strconv.Itoa(t.Subports), strconv.Itoa(t.Named)})
		}
		b.WriteString(output.Table(rows))
	}
	fmt.Fprintf(&b, "\nFOREIGN, which no object of Kuryr names: %d\n", len(v.Foreign))
	if len(v.Foreign) > 0 {
		rows := [][]string{{"KIND", "ID", "NAME", "WHERE", "WHAT"}}
		for _, f := range v.Foreign[:min(len(v.Foreign), maxShown)] {
			rows = append(rows, []string{f.Kind, f.ID, output.OneLine(f.Name), output.OneLine(f.Where), output.OneLine(f.Text)})
		}
		b.WriteString(output.Table(rows))
	}
	return b.String() + andMore(len(v.Foreign)-maxShown)
}

func andMore(n int) string {
	if n <= 0 {
		return ""
	}
	return fmt.Sprintf("and %d more: see -o json\n", n)
}
