// Package lint has the rules that the linter lacks: arrows between packages, words, and verdicts
// that are no verdicts. It tests the linter's configuration too: every forbidden call has an
// example.
package lint

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

const (
	modulePath = "fairlead.dev/fairlead"
	configName = ".golangci.yml"
)

// TestRules lays the examples of testdata out as a module, each at the path
// its first line names, runs the linter once over all and compares what it
// finds, line by line, with what the examples expect: `// want: linter:rule`
// on the lines that break a rule, nothing on the others.
func TestRules(t *testing.T) {
	if testing.Short() {
		t.Skip("runs golangci-lint; make verify does")
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	config := readConfig(t, filepath.Join(root, configName))
	examples := readExamples(t)
	want := map[string][]string{}
	for _, e := range examples {
		maps.Copy(want, e.want)
	}

	t.Run("every rule has an example", func(t *testing.T) {
		broken := slices.Concat(slices.Collect(maps.Values(want))...)
		slices.Sort(broken)
		if diff := cmp.Diff(config.rules(), slices.Compact(broken)); diff != "" {
			t.Errorf("rules of %s and rules the examples break differ (-config +examples):\n%s", configName, diff)
		}
	})

	dir := t.TempDir()
	layOut(t, dir, examples)
	linter := linterPath(t, root)

	t.Run("every example breaks its rules and no other", func(t *testing.T) {
		if diff := cmp.Diff(want, findings(t, linter, dir, config)); diff != "" {
			t.Errorf("findings differ from the examples' want comments (-want +found):\n%s", diff)
		}
	})

	// A comparison that cannot fail proves nothing: with rules that forbid
	// nothing that is there, every expectation has to be missed.
	t.Run("without the rules every example is missed", func(t *testing.T) {
		if found := findings(t, linter, dir, config.disarmed()); len(found) != 0 {
			t.Errorf("findings without rules: %v", found)
		}
	})
}

// config is the part of the linter's configuration that this test reads, and
// the whole of it to write back.
type config struct {
	whole map[string]any
	parts struct {
		Linters struct {
			Settings struct {
				Forbidigo struct {
					Forbid []struct {
						Msg string `json:"msg"`
					} `json:"forbid"`
				} `json:"forbidigo"`
			} `json:"settings"`
		} `json:"linters"`
	}
}

func readConfig(t *testing.T, path string) config {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var c config
	if err := yaml.Unmarshal(raw, &c.whole); err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(raw, &c.parts); err != nil {
		t.Fatal(err)
	}
	return c
}

// rules returns "linter:rule" for every rule, sorted. A rule of forbidigo has
// no name of its own: its message begins with one.
func (c config) rules() []string {
	var out []string
	for _, rule := range c.parts.Linters.Settings.Forbidigo.Forbid {
		name, _, _ := strings.Cut(rule.Msg, ":")
		out = append(out, "forbidigo:"+name)
	}
	slices.Sort(out)
	return out
}

// disarmed returns the configuration with rules that match nothing.
func (c config) disarmed() config {
	linters := maps.Clone(c.whole["linters"].(map[string]any))
	settings := maps.Clone(linters["settings"].(map[string]any))
	settings["forbidigo"] = map[string]any{"forbid": []any{map[string]any{"pattern": "^nothing$"}}}
	linters["settings"] = settings
	c.whole = maps.Clone(c.whole)
	c.whole["linters"] = linters
	return c
}

// example is one file of testdata.
type example struct {
	at     string // slash separated path in the module
	source []byte
	want   map[string][]string // "path:line" to the sorted rules that line breaks
}

var (
	atLine   = regexp.MustCompile(`^// at: (\S+)$`)
	wantPart = regexp.MustCompile(`// want: (.+)$`)
)

func readExamples(t *testing.T) []example {
	t.Helper()
	files, err := filepath.Glob("testdata/*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("examples in testdata: %v, error %v", files, err)
	}
	out := make([]example, 0, len(files))
	for _, f := range files {
		e, err := readExample(f)
		if err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		out = append(out, e)
	}
	return out
}

func readExample(file string) (example, error) {
	source, err := os.ReadFile(file)
	if err != nil {
		return example{}, err
	}
	lines := strings.Split(string(source), "\n")
	at := atLine.FindStringSubmatch(lines[0])
	if at == nil {
		return example{}, fmt.Errorf("first line is %q, want %q", lines[0], "// at: path/in/the/module.go")
	}
	e := example{at: at[1], source: source, want: map[string][]string{}}
	for i, line := range lines {
		if m := wantPart.FindStringSubmatch(line); m != nil {
			rules := strings.Fields(m[1])
			slices.Sort(rules)
			e.want[position(e.at, i+1)] = rules
		}
	}
	return e, nil
}

func position(path string, line int) string { return path + ":" + strconv.Itoa(line) }

// layOut writes the module of the examples, which import the standard library alone.
func layOut(t *testing.T, dir string, examples []example) {
	t.Helper()
	for _, e := range examples {
		write(t, filepath.Join(dir, filepath.FromSlash(e.at)), e.source)
	}
	write(t, filepath.Join(dir, "go.mod"), []byte("module "+modulePath+"\n\ngo 1.26.0\n"))
}

func write(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// linterPath builds the linter, or finds it built, and returns its path.
func linterPath(t *testing.T, root string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "tool", "-n", "-modfile=tools/go.mod", "golangci-lint")
	cmd.Dir = root
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v", cmd, err)
	}
	return strings.TrimSpace(string(out))
}

// findings runs the linter over the module in dir and returns "path:line"
// to the sorted rules that line breaks.
func findings(t *testing.T, linter, dir string, c config) map[string][]string {
	t.Helper()
	raw, err := yaml.Marshal(c.whole)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, configName), raw)
	report := filepath.Join(dir, "report.json")
	cmd := exec.CommandContext(t.Context(), linter, "run", "--enable-only=forbidigo", "--uniq-by-line=false",
		"--allow-parallel-runners", "--issues-exit-code=0", "--output.json.path="+report)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOPROXY=off", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, out)
	}
	content, err := os.ReadFile(report)
	if err != nil {
		t.Fatal(err)
	}
	var result struct {
		Issues []struct {
			FromLinter, Text string
			Pos              struct {
				Filename string
				Line     int
			}
		}
	}
	if err := json.Unmarshal(content, &result); err != nil {
		t.Fatal(err)
	}
	found := map[string][]string{}
	for _, issue := range result.Issues {
		at := position(filepath.ToSlash(issue.Pos.Filename), issue.Pos.Line)
		found[at] = append(found[at], ruleOf(issue.FromLinter, issue.Text))
		slices.Sort(found[at])
	}
	return found
}

// ruleOf names the rule behind a finding, or gives the whole text of one that
// is none of a rule's, such as an example that does not compile.
func ruleOf(linter, text string) string {
	// use of `time.Sleep` forbidden because "sleep: ..."
	if _, msg, ok := strings.Cut(text, `because "`); ok && linter == "forbidigo" {
		name, _, _ := strings.Cut(msg, ":")
		return "forbidigo:" + name
	}
	return linter + ": " + text
}
