package harness

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// Reporter prints progress with the time since the start.
type Reporter struct {
	Out   io.Writer
	Start time.Time
}

// Say prints a line.
func (r Reporter) Say(format string, args ...any) {
	_, _ = fmt.Fprintf(r.Out, "[%5.1fs] %s\n", time.Since(r.Start).Seconds(), fmt.Sprintf(format, args...))
}

// Refuse prints the missing requirements of a program, each with its remedy, and returns
// the exit code 3. The argument what names the program in a sentence, for example "the
// demo".
func Refuse(program, what string, lacks []string, out io.Writer) int {
	_, _ = fmt.Fprintf(out, "%s: this machine lacks what %s needs; nothing was done:\n", program, what)
	for _, lack := range lacks {
		_, _ = fmt.Fprintln(out, "  -", lack)
	}
	return 3
}

// MissingPrograms returns, for each name that is not a program in the directory, a text
// with the way to make it.
func MissingPrograms(dir string, names ...string) []string {
	var lacks []string
	for _, name := range names {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
			lacks = append(lacks, fmt.Sprintf("the program %s in %s: make bin/%s, or name its directory with --bin", name, dir, name))
		}
	}
	return lacks
}
