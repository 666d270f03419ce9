package monitoring

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"
)

// panel is the part of a panel of Grafana that is read here.
type panel struct {
	ID                       int
	Title, Description, Type string
	GridPos                  struct{ H, W, X, Y int }
	Datasource               struct{ Type, UID string }
	FieldConfig              struct{ Defaults struct{ Unit string } }
	Targets                  []target
}

// target is a query of a panel.
type target struct{ Expr, LegendFormat, RefID string }

// expression returns the query with the variables of Grafana replaced.
func (t target) expression() string {
	return strings.ReplaceAll(t.Expr, "$__rate_interval", "5m")
}

func panels(t *testing.T) []panel {
	t.Helper()
	var d struct{ Panels []panel }
	text, err := os.ReadFile(dashboard)
	if err == nil {
		err = json.Unmarshal(text, &d)
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(d.Panels) == 0 {
		t.Fatal("the dashboard has no panels")
	}
	return d.Panels
}

// Each panel answers a question: it has a title, a query, a unit and a place of its own.
// Rows ask the questions in the order in which a reader has them.
func TestDashboard(t *testing.T) {
	ids, taken := map[int]string{}, map[[2]int]string{}
	for _, p := range panels(t) {
		if other, ok := ids[p.ID]; ok || p.Title == "" {
			t.Errorf("panel %d %q: its ID is that of %q, or it has no title", p.ID, p.Title, other)
		}
		ids[p.ID] = p.Title
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other, ok := taken[[2]int{x, y}]; ok || x >= 24 {
					t.Fatalf("%q covers %q, or is wider than the page", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			if !strings.HasSuffix(p.Title, "?") {
				t.Errorf("the row %q asks nothing", p.Title)
			}
			continue
		}
		if len(p.Targets) == 0 || p.FieldConfig.Defaults.Unit == "" || p.Description == "" || p.Datasource.UID != "${datasource}" {
			t.Errorf("%q: %d queries, unit %q, description %q, data source %q", p.Title, len(p.Targets), p.FieldConfig.Defaults.Unit, p.Description, p.Datasource.UID)
		}
		checkLegends(t, p)
	}
}

// A legend names labels that the result of its query has.
func checkLegends(t *testing.T, p panel) {
	t.Helper()
	ids := map[string]bool{}
	for _, target := range p.Targets {
		if ids[target.RefID] || target.LegendFormat == "" {
			t.Errorf("%q: two queries %q, or one without a legend", p.Title, target.RefID)
		}
		ids[target.RefID] = true
		for _, label := range regexp.MustCompile(`\{\{(\w+)\}\}`).FindAllStringSubmatch(target.LegendFormat, -1) {
			if by := regexp.MustCompile(`\b` + label[1] + `\b`); !by.MatchString(target.Expr) {
				t.Errorf("%q: the legend has the label %s, and the query %q does not keep it", p.Title, label[1], target.Expr)
			}
		}
	}
}
