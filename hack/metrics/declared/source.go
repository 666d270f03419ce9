package declared

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/constant"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// library is the package whose constructors declare metrics.
const library = "github.com/prometheus/client_golang/prometheus"

// constructors are those of the library that declare a metric, with its type. Any other
// function whose name begins with New is an error, unless it is in others.
var constructors = map[string]string{
	"NewCounter": "counter", "NewCounterVec": "counter", "NewCounterFunc": "counter",
	"NewGauge": "gauge", "NewGaugeVec": "gauge", "NewGaugeFunc": "gauge",
	"NewHistogram": "histogram", "NewHistogramVec": "histogram",
}

// others are functions that declare no metric.
var others = []string{"NewRegistry"}

// listed are packages with their source and their exported types.
type listed struct {
	packages []*listedPackage
	exports  map[string]string
}

// listedPackage is a package as go list writes it.
type listedPackage struct {
	ImportPath, Name, Dir, Export string
	GoFiles, Imports, Deps        []string
	Standard                      bool
	Module                        *struct{ Main bool }
}

// list returns some packages with all that they link.
func list(root string, packages []string) (*listed, error) {
	cmd := exec.Command("go", append([]string{"list", "-deps", "-export", "-json=ImportPath,Name,Dir,Export,GoFiles,Imports,Deps,Standard,Module"}, packages...)...) //nolint:gosec // constants
	cmd.Dir = root
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("list packages: %w: %s", err, strings.TrimSpace(problems.String()))
	}
	all := &listed{exports: map[string]string{}}
	for d := json.NewDecoder(&out); ; {
		p := &listedPackage{}
		if err := d.Decode(p); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, fmt.Errorf("read the list of packages: %w", err)
		}
		all.packages = append(all.packages, p)
		all.exports[p.ImportPath] = p.Export
	}
}

// programsWith returns the names of the programs that link a package.
func (l *listed) programsWith(pkg string) (names []string) {
	for _, p := range l.packages {
		if p.Name == "main" && (p.ImportPath == pkg || slices.Contains(p.Deps, pkg)) {
			names = append(names, path.Base(p.ImportPath))
		}
	}
	slices.Sort(names)
	return names
}

// read returns the metrics that a package declares.
func (l *listed) read(p *listedPackage) ([]Metric, error) {
	fset := token.NewFileSet()
	files := make([]*ast.File, 0, len(p.GoFiles))
	for _, name := range p.GoFiles {
		f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}}
	conf := types.Config{Importer: importer.ForCompiler(fset, "gc", func(pkg string) (io.ReadCloser, error) {
		return os.Open(l.exports[pkg])
	})}
	if _, err := conf.Check(p.ImportPath, fset, files, info); err != nil {
		return nil, fmt.Errorf("check the types of %s: %w", p.ImportPath, err)
	}
	var (
		out  []Metric
		errs []error
	)
	for _, f := range files {
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			m, err := metricOf(info, call)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", fset.Position(call.Pos()), err))
			}
			if m != nil {
				out = append(out, *m)
			}
			return true
		})
	}
	return out, errors.Join(errs...)
}

// metricOf returns the metric that a call declares, nil if it declares none.
func metricOf(info *types.Info, call *ast.CallExpr) (*Metric, error) {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return nil, nil
	}
	f, ok := info.Uses[sel.Sel].(*types.Func)
	if !ok || f.Pkg() == nil || f.Pkg().Path() != library || f.Signature().Recv() != nil || !strings.HasPrefix(f.Name(), "New") || slices.Contains(others, f.Name()) {
		return nil, nil
	}
	kind, ok := constructors[f.Name()]
	if !ok {
		return nil, fmt.Errorf("prometheus.%s is not read from the source: declare metrics by NewCounter, NewGauge or NewHistogram, with Vec or Func", f.Name())
	}
	options, err := fields(info, call.Args[0])
	if err != nil {
		return nil, err
	}
	m := &Metric{Type: kind, Name: strings.Join(slices.DeleteFunc([]string{options["Namespace"], options["Subsystem"], options["Name"]}, func(s string) bool { return s == "" }), "_")}
	var names []string
	if strings.HasSuffix(f.Name(), "Vec") {
		if names, err = texts(info, call.Args[1]); err != nil {
			return nil, fmt.Errorf("labels of %s: %w", m.Name, err)
		}
	}
	if m.Help, m.Labels, err = describe(options["Help"], names); err != nil {
		return nil, fmt.Errorf("%s: %w", m.Name, err)
	}
	return m, nil
}

// fields returns the texts of a literal with options.
func fields(info *types.Info, e ast.Expr) (map[string]string, error) {
	lit, ok := e.(*ast.CompositeLit)
	if !ok {
		return nil, errors.New("the options of a metric are no literal")
	}
	out := map[string]string{}
	for _, e := range lit.Elts {
		kv, ok := e.(*ast.KeyValueExpr)
		if !ok {
			return nil, errors.New("the options of a metric lack the names of their fields")
		}
		switch name := kv.Key.(*ast.Ident).Name; name {
		case "Namespace", "Subsystem", "Name", "Help":
			text, err := text(info, kv.Value)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			out[name] = text
		case "ConstLabels":
			return nil, errors.New("the metric has constant labels, which are not described")
		}
	}
	return out, nil
}

// texts returns the elements of a literal list of texts.
func texts(info *types.Info, e ast.Expr) ([]string, error) {
	lit, ok := e.(*ast.CompositeLit)
	if !ok {
		return nil, errors.New("not a literal list")
	}
	out := make([]string, 0, len(lit.Elts))
	for _, e := range lit.Elts {
		text, err := text(info, e)
		if err != nil {
			return nil, err
		}
		out = append(out, text)
	}
	return out, nil
}

// text returns the value of a constant text.
func text(info *types.Info, e ast.Expr) (string, error) {
	v := info.Types[e].Value
	if v == nil || v.Kind() != constant.String {
		return "", errors.New("not a constant text")
	}
	return constant.StringVal(v), nil
}
