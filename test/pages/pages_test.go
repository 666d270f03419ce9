package pages

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestBlocks(t *testing.T) {
	tests := []struct {
		name, page string
		want       []Block
	}{
		{"none", "# A\n\ntext\n    not a block\n", nil},
		{"fenced", "a\n\n```console openstack\n$ b\n\n    c\n```\nd\n", []Block{{"console openstack", 3, []string{"$ b", "", "    c"}}}},
		{"fenced, in a list", "- a\n\n  ```yaml\n  b:\n    c: 1\n  ```\n", []Block{{"yaml", 3, []string{"b:", "  c: 1"}}}},
		{"fenced, without a language", "```\na\n```\n", []Block{{"text", 1, []string{"a"}}}},
		{"indented", "a\n\n    b   # c\n\n      d\n\ne\n", []Block{{"", 3, []string{"b   # c", "", "  d"}}}},
		{"indented, at the end", "a\n\n    b\n", []Block{{"", 3, []string{"b"}}}},
		{"indented, in a list", "1. a\n\n       b\n         c\n\n2. d\n", []Block{{"", 3, []string{"b", "  c"}}}},
		{"one after the other", "\n    a\n\n```sh\nb\n```\n\n    c\n", []Block{{"", 2, []string{"a"}}, {"sh", 4, []string{"b"}}, {"", 8, []string{"c"}}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, Blocks(tt.page)); diff != "" {
				t.Errorf("blocks (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCommands(t *testing.T) {
	got := Block{Lines: []string{"# first", "make up", "", "curl http://a/#b   # on the node", "label '!x' {#y}"}}.Commands()
	if diff := cmp.Diff([]string{"make up", "curl http://a/#b", "label '!x' {#y}"}, got); diff != "" {
		t.Errorf("commands (-want +got):\n%s", diff)
	}
	got = Block{Lines: []string{"$ make demo   # here", "...", "demo: OK"}}.Commands()
	if diff := cmp.Diff([]string{"make demo"}, got); diff != "" {
		t.Errorf("commands with prompts (-want +got):\n%s", diff)
	}
}

func TestWhyNotRun(t *testing.T) {
	for command, is := range map[string]bool{"make up": true, "makeup": false, "kubectl get pods": false, "skopeo copy a b": true} {
		if entry, why := WhyNotRun(command); (why != "") != is || (entry != "") != is {
			t.Errorf("%s: entry %q, reason %q; want one: %v", command, entry, why, is)
		}
	}
}
