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

// Refuse tells what the machine lacks for a program, and how to get each, and
// returns the exit code. what the program is called in a sentence: "the demo".
func Refuse(program, what string, lacks []string, out io.Writer) int {
	_, _ = fmt.Fprintf(out, "%s: this machine lacks what %s needs; nothing was done:\n", program, what)
	for _, lack := range lacks {
		_, _ = fmt.Fprintln(out, "  -", lack)
	}
	return 3
}

// MissingPrograms says of each of the names that is no program in a directory
// how to make it.
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
