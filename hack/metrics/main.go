// The metrics program writes the tables of docs/operator/metrics.md from the source of the
// programs. It runs in the folder of the module, by hack/generate.sh.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"fairlead.dev/fairlead/hack/metrics/declared"
)

// page is the page with the tables.
const page = "docs/operator/metrics.md"

func main() {
	if err := write("."); err != nil {
		fmt.Fprintln(os.Stderr, "metrics:", err)
		os.Exit(1)
	}
}

// write brings the page of a module up to date.
func write(root string) error {
	metrics, err := declared.Of(root)
	if err != nil {
		return err
	}
	path := filepath.Join(root, page)
	before, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	after, err := fill(string(before), metrics)
	if err != nil {
		return fmt.Errorf("%s: %w", page, err)
	}
	return os.WriteFile(path, []byte(after), 0o644) //nolint:gosec // a page that everybody reads
}
