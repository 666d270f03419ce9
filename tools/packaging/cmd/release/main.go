// Command release makes the files of a release; see tools/packaging/release.
//
// usage: release --version V [--out DIR] ROOT.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"

	"fairlead.dev/fairlead/tools/packaging/images"
	"fairlead.dev/fairlead/tools/packaging/programs"
	"fairlead.dev/fairlead/tools/packaging/release"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	version := flags.String("version", "", "version of the release, as v0.2.0")
	out := flags.String("out", "", "directory of the release; bin/release/VERSION of the source by default")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 1 {
		return fmt.Errorf("%d arguments; must be the root of the source", flags.NArg())
	}
	root, err := filepath.Abs(flags.Arg(0))
	if err != nil {
		return err
	}
	// The version is part of a path.
	if _, err := release.Number(*version); err != nil {
		return err
	}
	source, err := programs.Open(ctx, root, *version)
	if err != nil {
		return err
	}
	dir := filepath.Join(root, "bin", "release", *version)
	if *out != "" {
		if dir, err = filepath.Abs(*out); err != nil {
			return err
		}
	}
	if err := release.Write(ctx, source, images.Bases, dir); err != nil {
		return err
	}
	_, err = fmt.Printf("%s: Fairlead %s of commit %s\n", dir, *version, source.Commit) //nolint:forbidigo // the result
	return err
}
