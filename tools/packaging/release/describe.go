package release

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"fairlead.dev/fairlead/tools/packaging/programs"
)

// list writes the list of contents (SPDX) of the programs of an architecture, which are in a
// directory.
func list(s programs.Source, arch, dir, path string) error {
	sums, all := map[string]string{}, sha256.New()
	for _, program := range programs.Names {
		sum, err := programs.Sum(filepath.Join(dir, program))
		if err != nil {
			return err
		}
		sums[program] = sum
		_, _ = io.WriteString(all, sum)
	}
	c := s.Contents("programs of fairlead "+s.Version+" linux/"+arch, hex.EncodeToString(all.Sum(nil)))
	for _, program := range programs.Names {
		if err := c.AddProgram(programs.Document, "DESCRIBES", filepath.Join(dir, program), sums[program]); err != nil {
			return err
		}
	}
	raw, err := json.MarshalIndent(c.Document(), "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(raw, '\n'), 0o644) //nolint:gosec // a public file
}

// describe writes the provenance of all files in a directory, and the sums of all.
func describe(s programs.Source, dir string) error {
	subjects, err := subjectsIn(dir)
	if err != nil {
		return err
	}
	statement, err := programs.Statement(subjects, programs.Provenance, s.Provenance("release", "", nil))
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "provenance.json"), append(statement, '\n'), 0o644); err != nil { //nolint:gosec // a public file
		return err
	}
	if subjects, err = subjectsIn(dir); err != nil {
		return err
	}
	var sums strings.Builder
	for _, f := range subjects {
		fmt.Fprintf(&sums, "%s  %s\n", f.SHA256, f.Name)
	}
	return os.WriteFile(filepath.Join(dir, "SHA256SUMS"), []byte(sums.String()), 0o644) //nolint:gosec // a public file
}

// subjectsIn returns the files of a directory, sorted.
func subjectsIn(dir string) (out []programs.Subject, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		sum, err := programs.Sum(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		out = append(out, programs.Subject{Name: e.Name(), SHA256: sum})
	}
	return out, nil
}
