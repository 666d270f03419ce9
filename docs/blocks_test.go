package docs

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	testpages "fairlead.dev/fairlead/test/pages"
)

// use is a test that uses code on pages: it gives the commands, or compares or checks the
// blocks.
type use struct {
	// pages are relative to docs; empty for all.
	pages []string
	// language is that of the blocks, "" for indented ones.
	language string
	// begins limits the use to blocks, or to commands of indented blocks, that begin so.
	begins string
	// by is the folder of the test, and its name.
	by string
}

// uses has a test for each block, but for the commands that test/pages lists as not run. A
// test named here uses all such blocks of the pages, or fails.
var uses = []use{
	{nil, "go", "", "docs.TestQuotes"},
	{nil, "yaml", "# fairlead-", "docs.TestExamples"},
	{nil, "yaml", "# part of fairlead-", "docs.TestExamples"},
	{nil, "yaml", "# part of a pod\n", "docs.TestExamples"},
	{nil, "yaml", "apiVersion: ", "docs.TestExamples"},
	{[]string{"operator/install.md"}, "yaml", "# cluster/", "test/deploy.TestInstallPage"},
	{[]string{"operator/install.md"}, "yaml", "# removal/", "test/deploy.TestInstallPage"},
	{[]string{"operator/install.md"}, "yaml", "# part of cluster/kustomization.yaml", "test/deploy.TestInstallation"},
	{[]string{"operator/openstack.md", "operator/delegation.md"}, "yaml", "# kustomization.yaml", "test/deploy.TestInstallation"},
	{[]string{"operator/observe.md"}, "yaml", "# part of prometheus.yml", "test/monitoring.TestPage"},

	{[]string{"user/cli.md"}, "console", "", "internal/cli.TestManualShowsRealOutput"},
	{[]string{"operator/check.md"}, "console", "$ fairlead check\n", "internal/cli/check.TestManualShowsTheOutput"},
	{[]string{"operator/migrate-multus.md"}, "console", "", "internal/cli/migration.TestMigrationShowsRealOutput"},
	{[]string{
		"user/getting-started.md", "user/pools.md", "user/further-networks.md",
		"user/tour.md", "user/tour-machines.md", "user/tour-networks.md",
		"operator/events.md", "operator/network.md", "operator/packet-filter.md", "operator/openstack-fabric.md",
		"operator/runbook.md", "operator/recover.md", "operator/migrate-calico-cilium.md", "operator/lost-nodes.md",
	}, "console", "", "test/demo.TestTours"},
	{[]string{"user/tour-openstack.md", "operator/openstack.md", "operator/recover.md"}, "console openstack", "", "test/demo.TestTours"},
	{[]string{"operator/migrate-multus.md"}, "sh", "", "test/integration/node.TestSwitchFromMultus"},
	{[]string{"operator/migrate-calico-cilium.md"}, "sh", "", "test/integration/node.TestBesideAnotherOverlay"},
	{[]string{"operator/recover.md"}, "sh", "", "test/integration/node.TestEtcdRestored"},

	{[]string{"operator/install.md", "operator/upgrade.md"}, "", "", "test/deploy.TestInstallPage"},
	{[]string{
		"operator/check.md", "operator/observe.md", "operator/openstack.md", "operator/openstack-fabric.md", "operator/runbook.md",
		"operator/migrate-kuryr.md", "operator/migrate-multus.md", "operator/migrate-whereabouts.md", "user/keeping-an-address.md",
	}, "", "kubectl ", "test/deploy.TestPages"},
	{[]string{"operator/scale.md"}, "", "apiVersion: flowcontrol.apiserver.k8s.io/v1\n", "test/deploy.TestPages"},
	{[]string{"operator/migrate-kuryr.md"}, "", "openstack ", "test/openstack.TestKuryrPage"},
	{[]string{"operator/migrate-whereabouts.md"}, "", "fairlead ", "internal/cli.TestMigrateWhereabouts"},
	{[]string{"user/cli.md"}, "", "fairlead bugreport", "internal/cli.TestBugReport"},
}

// piece is a block, or a command of an indented block.
type piece struct{ page, language, text string }

// pieces returns the blocks and the commands of a page that need a test.
func pieces(page, text string) []piece {
	var out []piece
	for _, b := range testpages.Blocks(text) {
		whole := strings.Join(b.Lines, "\n") + "\n"
		switch {
		case b.Language == "text":
		case b.Language != "" || strings.HasPrefix(whole, "apiVersion: "):
			out = append(out, piece{page, b.Language, whole})
		default:
			for _, command := range b.Commands() {
				out = append(out, piece{page, "", command})
			}
		}
	}
	return out
}

func (u use) has(p piece) bool {
	return p.language == u.language && strings.HasPrefix(p.text, u.begins) && (len(u.pages) == 0 || slices.Contains(u.pages, p.page))
}

// TestEveryBlockIsTested fails if a block on a page is in no test, neither by uses nor by
// the list of commands that no test runs, and if an entry of either is for nothing.
func TestEveryBlockIsTested(t *testing.T) {
	all := pages(t)
	for _, page := range []string{"README.md", "CONTRIBUTING.md", "SECURITY.md"} {
		text, err := os.ReadFile(filepath.Join("..", page))
		if err != nil {
			t.Fatal(err)
		}
		all["../"+page] = string(text)
	}
	needed := map[string]bool{}
	for page, text := range all {
		for _, p := range pieces(page, text) {
			entry, why := testpages.WhyNotRun(p.text)
			tested := p.language == "" && why != ""
			for _, u := range uses {
				if u.has(p) && !tested {
					tested, needed[fmt.Sprint(u)], needed[u.by+" "+page] = true, true, true
				}
			}
			if !tested {
				t.Errorf("%s: no test uses this block of language %q: give it to one of the tests in uses, or name the reason in test/pages/notrun.go:\n%s", page, p.language, p.text)
			}
			needed[entry] = true
		}
	}
	for _, u := range uses {
		if !needed[fmt.Sprint(u)] {
			t.Errorf("no block is for %+v", u)
		}
		for _, page := range u.pages {
			if !needed[u.by+" "+page] {
				t.Errorf("%s has no block for %s", page, u.by)
			}
		}
	}
	for _, entry := range testpages.NotRun() {
		if !needed[entry] {
			t.Errorf("test/pages/notrun.go: no page has a command that begins with %q and needs a reason", entry)
		}
	}
}

// TestUsesName checks that the tests in uses exist, and that the folder of each names the
// pages and, of scripts, their titles.
func TestUsesName(t *testing.T) {
	tests := testFiles(t)
	all := pages(t)
	for _, u := range uses {
		dir, name, _ := strings.Cut(u.by, ".")
		source := tests[dir]
		if !strings.Contains(source, "\nfunc "+name+"(") {
			t.Errorf("there is no %s", u.by)
		}
		for _, page := range u.pages {
			if name := filepath.Base(page) + `"`; !strings.Contains(source, "/"+name) && !strings.Contains(source, `"`+name) {
				t.Errorf("%s does not name %s", dir, filepath.Base(page))
			}
			for _, p := range pieces(page, all[page]) {
				title, _, _ := strings.Cut(strings.TrimPrefix(p.text, "# on the node: "), "\n")
				if p.language == "sh" && u.language == "sh" && !strings.Contains(source, `"`+title+`"`) {
					t.Errorf("%s does not execute the script of %s to %s", dir, page, title)
				}
			}
		}
	}
}

// TestTextHasNoCommands keeps commands out of the blocks that are only shown.
func TestTextHasNoCommands(t *testing.T) {
	command := regexp.MustCompile(`(?m)^\s*(\$|(kubectl|helm|make|nft|ip|openstack|bin/\S+) [a-z-])`)
	for page, text := range pages(t) {
		for _, b := range testpages.Blocks(text) {
			if found := command.FindString(strings.Join(b.Lines, "\n")); b.Language == "text" && found != "" {
				t.Errorf("%s, line %d: a block of text has a command, %q: make it a block of console", page, b.Line, found)
			}
		}
	}
}

// TestTargets looks for each target of make on the pages, and for its variables.
func TestTargets(t *testing.T) {
	makefile, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for page, text := range pages(t) {
		for _, p := range pieces(page, text) {
			words := strings.Fields(p.text)
			if p.language != "" || words[0] != "make" {
				continue
			}
			found++
			for i, word := range words[1:] {
				variable, _, assigned := strings.Cut(word, "=")
				switch {
				case i == 0 && !regexp.MustCompile(`(?m)^(bin/\S+ )*`+regexp.QuoteMeta(word)+`( [^:\n]*)?:( |$)`).Match(makefile):
					t.Errorf("%s: %q: there is no target %s", page, p.text, word)
				case i > 0 && assigned && regexp.MustCompile(`^[A-Z0-9_]+$`).MatchString(variable) && !strings.HasPrefix(variable, "FAIRLEAD_") &&
					!strings.Contains(string(makefile), "$("+variable+")"):
					t.Errorf("%s: %q: the Makefile has no variable %s", page, p.text, variable)
				}
			}
		}
	}
	if found == 0 {
		t.Error("no targets found")
	}
}

// TestPreflightHasThePrograms checks that hack/preflight.sh installs the programs which the
// pages run on nodes and in pods, unless each Debian has them or the demo itself needs them.
func TestPreflightHasThePrograms(t *testing.T) {
	script, err := os.ReadFile("../hack/preflight.sh")
	if err != nil {
		t.Fatal(err)
	}
	_, function, _ := strings.Cut(string(script), "\nwants_pages() {\n")
	function, _, _ = strings.Cut(function, "\n}\n")
	essential := []string{"sh", "ls", "rm", "pidof", "nft"}
	inShell := regexp.MustCompile(`\bshell \S+ ([a-z0-9-]+)`)
	found := 0
	for page, text := range pages(t) {
		for _, p := range pieces(page, text) {
			if !strings.HasPrefix(p.language, "console") {
				continue
			}
			for _, m := range inShell.FindAllStringSubmatch(p.text, -1) {
				found++
				if !slices.Contains(essential, m[1]) && !strings.Contains(function, "\twants "+m[1]+" ") {
					t.Errorf("%s runs %s, which wants_pages of hack/preflight.sh does not install", page, m[1])
				}
			}
		}
	}
	if found == 0 {
		t.Error("no page runs a program")
	}
}
