package docs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestQuotes compares each block of Go on a page with the source that its first line names.
// The line "// ..." stands for lines that are left out.
func TestQuotes(t *testing.T) {
	block := regexp.MustCompile("(?ms)^```go\n(.*?)^```$")
	found := 0
	for page, text := range pages(t) {
		for _, m := range block.FindAllStringSubmatch(text, -1) {
			found++
			if err := isQuote(m[1]); err != nil {
				t.Errorf("%s: %v, in the quote\n%s", page, err, m[1])
			}
		}
	}
	if found == 0 {
		t.Error("no quotes found")
	}
}

// isQuote returns nil if the parts of a quote are in its source, in their order.
func isQuote(quote string) error {
	first, rest, _ := strings.Cut(quote, "\n")
	path, ok := strings.CutPrefix(first, "// from ")
	if !ok {
		return errors.New("its first line must be: // from PATH, with the path of a file of this repository")
	}
	raw, err := os.ReadFile(filepath.Join("..", filepath.FromSlash(path)))
	if err != nil {
		return err
	}
	source := string(raw)
	for part := range strings.SplitSeq(rest, "// ...\n") {
		part = strings.Trim(part, "\n") + "\n"
		_, after, found := strings.Cut(source, part)
		if !found {
			return fmt.Errorf("%s has no such lines, or not in this order:\n%s", path, part)
		}
		source = after
	}
	return nil
}

func TestIsQuote(t *testing.T) {
	const from = "// from docs/quotes_test.go\n"
	for _, tt := range []struct {
		name, quote string
		right       bool
	}{
		{"lines", from + "package docs\n", true},
		{"lines left out", from + "package docs\n// ...\nfunc TestQuotes(t *testing.T) {\n", true},
		{"another order", from + "func TestQuotes(t *testing.T) {\n// ...\npackage docs\n", false},
		{"a changed line", from + "package  docs\n", false},
		{"no source", "package docs\n", false},
		{"no such source", "// from docs/none.go\npackage docs\n", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if err := isQuote(tt.quote); (err == nil) != tt.right {
				t.Errorf("error %v", err)
			}
		})
	}
}
