package lint

import (
	"flag"
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// show lists every sentence of one folder, or one page, that the patterns find.
var show = flag.String("show", "", "list the sentences of one folder or page, as internal/ipam or README.md, that the patterns of words find")

// patterns find sentences that a reader has to read twice. Each is rare in projects that
// are easy to read: MetalLB, kindnet, statedb and raft have less than one in a hundred
// sentences, and Fairlead had ten of the first alone.
var patterns = []struct {
	name string
	is   *regexp.Regexp
	// instead is what to write.
	instead string
}{
	{"says, tells", regexp.MustCompile(`\b(say|says|said|tell|tells|told)\b`), "returns, reports, means, describes, names"},
	{"of which, of whom", regexp.MustCompile(`\b(of which|of whom|whomever|of that (is|are|has|was))\b`), "two sentences"},
	{"one that, that one", regexp.MustCompile(`\b(one that|one which|one of which|that one)\b`), "the noun"},
	{"a clause as the subject", regexp.MustCompile(`(^|[.:;] )(What|Whoever|Who|Whatever|That which)\b`), "the thing itself as the subject"},
	{"what as a noun", regexp.MustCompile(`\b[Ww]hat (is|was|has|had|are|were|it|they|he|she|comes|came|belongs|lacks|others|nobody|somebody|must|cannot|can)\b`), "the noun"},
	{"nobody, somebody", regexp.MustCompile(`\b(nobody|somebody|everybody|whoever)\b`), "the program or the person"},
	{"should as if, else", regexp.MustCompile(`\b(should the|should it|should a|should one|else)\b`), "if, otherwise"},
}

// The budget of a folder or page: the number of sentences found per 100 sentences, and the
// number for a small one.
const (
	perHundred = 1
	atLeast    = 2
)

// found is a sentence that a pattern finds.
type found struct{ at, pattern, sentence string }

// Comments and documents are plain English: the subject of a sentence is the thing that
// is described, and a sentence has one idea.
func TestWords(t *testing.T) {
	root := filepath.Join("..", "..")
	texts, err := sentences(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range slices.Sorted(maps.Keys(texts)) {
		hits := hitsOf(texts[folder])
		if *show == folder {
			for _, h := range hits {
				fmt.Printf("%s: %s: %s\n", h.at, h.pattern, h.sentence)
			}
		}
		allowed := max(atLeast, len(texts[folder])*perHundred/100)
		if len(hits) > allowed {
			t.Errorf("%s: %d of %d sentences are found, %d are allowed; `go test ./test/lint -run TestWords -args -show %s` lists them", folder, len(hits), len(texts[folder]), allowed, folder)
		}
	}
}

func hitsOf(sentences []sentence) (out []found) {
	for _, s := range sentences {
		for _, p := range patterns {
			if p.is.MatchString(s.text) {
				out = append(out, found{s.at, p.name + " (better: " + p.instead + ")", s.text})
			}
		}
	}
	return out
}

// sentence is one of a comment or a document, with its place.
type sentence struct{ at, text string }

// sentences returns the sentences of all comments and documents, by folder.
func sentences(root string) (map[string][]sentence, error) {
	out := map[string][]sentence{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if path != root && (strings.HasPrefix(name, ".") && name != ".ci" || name == "testdata" || name == "bin") {
				return filepath.SkipDir
			}
			return nil
		}
		relative, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		folder := filepath.ToSlash(filepath.Dir(relative))
		switch {
		case strings.HasPrefix(name, "zz_"), name == "words_test.go":
		case strings.HasSuffix(name, ".go"):
			found, err := ofComments(path, relative)
			out[folder] = append(out[folder], found...)
			return err
		case strings.HasSuffix(name, ".md") && name != "THIRD_PARTY_NOTICES.md":
			text, err := os.ReadFile(path)
			out[filepath.ToSlash(relative)] = ofDocument(string(text), relative)
			return err
		case hasComments(path):
			text, err := os.ReadFile(path)
			out[folder] = append(out[folder], ofLines(string(text), relative)...)
			return err
		}
		return nil
	})
	return out, err
}

// hasComments reports whether a file is one of configuration, a script or a page, whose comments
// are lines of their own.
func hasComments(path string) bool {
	switch name := filepath.Base(path); {
	case name == "Makefile", name == "Dockerfile", filepath.Base(filepath.Dir(path)) == ".ci":
		return true
	default:
		return slices.Contains([]string{".yaml", ".yml", ".sh", ".awk", ".js", ".css", ".html", ".tpl"}, filepath.Ext(name))
	}
}

// ofLines returns the sentences of the comments of a file that is not Go: of lines that begin with
// # or //, and of /* */ and <!-- -->.
func ofLines(text, name string) (out []sentence) {
	var paragraph []string
	start, within := 0, false
	flush := func() {
		out = append(out, split(strings.Join(paragraph, " "), fmt.Sprintf("%s:%d", name, start))...)
		paragraph = nil
	}
	for n, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		begin := comment.FindString(line)
		opens := !within && begin != "" && !slices.Contains([]string{"#", "# ", "//"}, begin)
		words := ""
		if within || begin != "" {
			words = strings.TrimSpace(endOfComment.ReplaceAllString(strings.TrimPrefix(line, begin), ""))
		}
		within = (within || opens) && !endOfComment.MatchString(line)
		if opens || words == "" {
			flush()
		}
		if words == "" {
			continue
		}
		if len(paragraph) == 0 {
			start = n + 1
		}
		paragraph = append(paragraph, words)
	}
	flush()
	return out
}

var (
	// comment finds the beginning of a line of comment. A # before a letter is a value that is
	// switched off, or #! of a script.
	comment      = regexp.MustCompile(`^(#$|# |//|\{\{-? ?/\*|/\*\*?( |$)|<!--)`)
	endOfComment = regexp.MustCompile(`\*/( ?-?\}\})?|-->`)
)

// ofDocument returns the sentences of a page, without examples, headings and tables.
func ofDocument(text, name string) (out []sentence) {
	var paragraph []string
	start, fenced := 0, false
	flush := func() {
		out = append(out, split(strings.Join(paragraph, " "), fmt.Sprintf("%s:%d", name, start))...)
		paragraph = nil
	}
	for n, line := range strings.Split(text, "\n") {
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
		}
		trimmed := strings.TrimSpace(line)
		switch {
		case fenced, trimmed == "", strings.HasPrefix(line, "```"), strings.HasPrefix(line, "    "), strings.HasPrefix(line, "#"), strings.HasPrefix(line, "|"):
			flush()
		default:
			if strings.HasPrefix(trimmed, "- ") {
				flush()
			}
			if len(paragraph) == 0 {
				start = n + 1
			}
			paragraph = append(paragraph, trimmed)
		}
	}
	flush()
	return out
}

// ofComments returns the sentences of the comments of a file.
func ofComments(path, name string) ([]sentence, error) {
	files := token.NewFileSet()
	f, err := parser.ParseFile(files, path, nil, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	var out []sentence
	for _, group := range f.Comments {
		out = append(out, split(group.Text(), fmt.Sprintf("%s:%d", name, files.Position(group.Pos()).Line))...)
	}
	return out, nil
}

// split returns the sentences of a text.
func split(text, at string) (out []sentence) {
	for text := range strings.SplitSeq(strings.Join(strings.Fields(text), " "), ". ") {
		if text = strings.TrimSpace(text); text != "" {
			out = append(out, sentence{at, text})
		}
	}
	return out
}

func TestOfLines(t *testing.T) {
	text := "#!/bin/sh\n# A script. It ends\n# here.\nset -e # not read\n\n  # Another one\n#port: 80\n" +
		"// Of a page.\n/* Of a\n   style. */\na { }\n{{- /* Of a chart. */}}\n<!-- Of\nHTML -->\n<p>\n"
	var got []string
	for _, s := range ofLines(text, "f") {
		got = append(got, s.at+" "+s.text)
	}
	want := []string{"f:2 A script", "f:2 It ends here.", "f:6 Another one", "f:8 Of a page.", "f:9 Of a style.", "f:12 Of a chart.", "f:13 Of HTML"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("sentences of comments (-want +got):\n%s", diff)
	}
}
