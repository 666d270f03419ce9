// Package sources makes the go command repeat a test when a program that the test builds has changed.
//
// The go command reuses the result of a test until the test's own packages change, or a file that the test stats. It
// does not know which programs a test builds.
package sources

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// files lists the folder and the files of each package of this module, and its go.mod.
const files = `{{with .Module}}{{if .Main}}{{.GoMod}}
{{$.Dir}}
{{range $.GoFiles}}{{$.Dir}}/{{.}}
{{end}}{{range $.EmbedFiles}}{{$.Dir}}/{{.}}
{{end}}{{end}}{{end}}`

// Look stats all source files of this module that these programs are built from. It returns an error if a program does
// not exist or the go command fails. Call it from a test: the go command does not record the files that TestMain stats
// before it runs the tests.
func Look(programs ...string) error {
	out, err := exec.Command("go", append([]string{"list", "-deps", "-f", files}, programs...)...).Output()
	if err != nil {
		return fmt.Errorf("list the sources of %q: %w", programs, err)
	}
	for file := range strings.Lines(string(out)) {
		if file = strings.TrimSpace(file); file == "" {
			continue
		}
		if _, err := os.Stat(file); err != nil {
			return err
		}
	}
	return nil
}

// Module stats go.mod and go.sum of another module, in dir, which choose the versions of the programs that a test builds
// of it.
func Module(dir string) error {
	for _, file := range []string{"go.mod", "go.sum"} {
		if _, err := os.Stat(filepath.Join(dir, file)); err != nil {
			return err
		}
	}
	return nil
}
