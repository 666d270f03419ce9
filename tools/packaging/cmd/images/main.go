// Command images builds the image of Fairlead as an OCI layout; see tools/packaging/images.
//
// usage: images [--version V] [--out DIR] ROOT; images --lock ROOT writes debian.lock anew.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"

	"fairlead.dev/fairlead/tools/packaging/images"
	"fairlead.dev/fairlead/tools/packaging/programs"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("images", flag.ContinueOnError)
	version := flags.String("version", "unreleased", "version of the programs and tag of the image")
	out := flags.String("out", "bin/images/fairlead", "directory of the OCI layout, in the source")
	lock := flags.Bool("lock", false, "pin the present packages of Debian in debian.lock, and build nothing")
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
	if *lock {
		return images.Lock(ctx, root)
	}
	source, err := programs.Open(ctx, root, *version)
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "fairlead-images-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work) //nolint:errcheck // a directory for temporary files
	bases, err := images.Bases(ctx, root)
	if err != nil {
		return err
	}
	for arch := range bases {
		if err := source.Compile(ctx, arch, filepath.Join(work, arch)); err != nil {
			return err
		}
	}
	layout := filepath.Join(root, *out)
	digest, err := images.Write(source, bases, work, layout)
	if err != nil {
		return err
	}
	_, err = fmt.Printf("%s: fairlead:%s, %s, %s\n", layout, *version, strings.Join(programs.Architectures, " and "), digest) //nolint:forbidigo // the result
	return err
}
