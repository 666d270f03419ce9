package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/fault"
)

// isReason is how reasons of conditions and events are written.
var isReason = regexp.MustCompile(`^[A-Z][A-Za-z]+$`)

// TestReasons compares the page of conditions and events with the source: every type and
// every reason is described, and nothing is that is not there.
func TestReasons(t *testing.T) {
	source := map[string]bool{}
	for _, dir := range []string{"../api", "../internal"} {
		eachSource(t, dir, func(path string, text []byte) {
			if strings.HasPrefix(path, "../internal/cli") || strings.HasPrefix(path, "../internal/ipam") {
				return // the CLI's words are on its page, the allocator's are no conditions
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, text, 0)
			if err != nil {
				t.Fatal(err)
			}
			maps.Copy(source, reasonsIn(file))
		})
	}
	for _, err := range []error{fault.ErrInvalid, fault.ErrExhausted, fault.ErrNotFound, fault.ErrConflict, fault.ErrUnavailable} {
		source[driver.Result(err)] = true
		source["Network"+driver.Result(err)] = true
	}
	source[driver.Result(fs.ErrInvalid)] = true // any other error

	described := map[string]bool{}
	rows := regexp.MustCompile(`(?m)^\|.*\|$`).FindAllString(pages(t)["operator/events.md"], -1)
	for _, row := range rows {
		cells := strings.Split(row, "|")
		for _, cell := range cells[1 : len(cells)-2] { // the last is prose
			for _, m := range regexp.MustCompile("`([A-Z][A-Za-z]+)`").FindAllStringSubmatch(cell, -1) {
				described[m[1]] = true
			}
		}
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(source)), slices.Sorted(maps.Keys(described))); diff != "" {
		t.Errorf("reasons in the source and in operator/events.md differ (-source +page):\n%s", diff)
	}
}

// reasonsIn are the reasons and types that a file has.
func reasonsIn(file *ast.File) map[string]bool {
	out := map[string]bool{}
	note := func(e ast.Expr) {
		if lit, ok := e.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if text, err := strconv.Unquote(lit.Value); err == nil && isReason.MatchString(text) {
				out[text] = true
			}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.KeyValueExpr:
			if key, ok := n.Key.(*ast.Ident); ok && key.Name == "Reason" {
				note(n.Value)
			}
		case *ast.AssignStmt:
			for i, left := range n.Lhs {
				if s, ok := left.(*ast.SelectorExpr); ok && s.Sel.Name == "Reason" && len(n.Rhs) == len(n.Lhs) {
					note(n.Rhs[i])
				}
			}
		case *ast.CallExpr:
			if s, ok := n.Fun.(*ast.SelectorExpr); ok && s.Sel.Name == "Eventf" && len(n.Args) > 4 {
				note(n.Args[3])
			}
		case *ast.ValueSpec:
			for i, name := range n.Names {
				word := strings.ToLower(name.Name)
				if i >= len(n.Values) {
					continue
				}
				if strings.HasPrefix(word, "reason") || strings.HasPrefix(word, "event") || strings.HasPrefix(word, "condition") {
					note(n.Values[i])
				}
				if table, ok := n.Values[i].(*ast.CompositeLit); ok && strings.HasSuffix(word, "reasons") {
					for _, e := range table.Elts {
						if kv, ok := e.(*ast.KeyValueExpr); ok {
							note(kv.Value)
						}
					}
				}
			}
		case *ast.ReturnStmt:
			for _, r := range n.Results {
				if lit, ok := r.(*ast.BasicLit); ok && strings.HasPrefix(lit.Value, `"Network`) {
					note(lit)
				}
			}
		}
		return true
	})
	return out
}
