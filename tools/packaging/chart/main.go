package main

import (
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: chart ROOT")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "chart:", err)
		os.Exit(1)
	}
}

// write writes all files below the root of the source.
func write(root string) error {
	s, err := schema(root)
	if err != nil {
		return err
	}
	schemaJSON, err := schemaFile(s)
	if err != nil {
		return err
	}
	files := map[string][]byte{
		"deploy/chart/values.schema.json": schemaJSON,
		"deploy/chart/values.yaml":        valuesFile(s),
		"docs/operator/values.md":         page(s),
	}
	if err := addDefinitions(root, files); err != nil {
		return err
	}
	if err := writeFiles(root, files); err != nil {
		return err
	}
	// The templates read the values that were just written.
	rendered, err := manifests(filepath.Join(root, "deploy", "chart"))
	if err != nil {
		return err
	}
	return writeFiles(root, rendered)
}

func writeFiles(root string, files map[string][]byte) error {
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(root, name), content, 0o644); err != nil { //nolint:gosec // files of the source
			return err
		}
	}
	return nil
}
