package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// architectures are those of the image.
var architectures = []string{"amd64", "arm64"}

// programs are the programs of the image.
var programs = []string{"fairlead-controller", "fairlead-node", "fairlead-cni", "fairlead"}

// build is one build of the image.
type build struct {
	// root is the root of the source, work a directory for programs, cache one for packages.
	root, work, cache string
	version, commit   string
	// at is the time of the commit, which every file has.
	at time.Time
	// log gets the name of the result.
	log io.Writer
}

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
	work, err := os.MkdirTemp("", "fairlead-images-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work) //nolint:errcheck // a directory for temporary files
	b := &build{root: root, work: work, cache: filepath.Join(root, ".cache", "debian"), version: *version, log: os.Stdout}
	lockFile := filepath.Join(root, "tools/packaging/images/debian.lock")
	if *lock {
		return writeLock(ctx, lockFile, b.cache)
	}
	if err := b.readCommit(ctx); err != nil {
		return err
	}
	packages, err := readLock(lockFile)
	if err != nil {
		return err
	}
	return b.all(ctx, packages, filepath.Join(root, *out))
}

// all builds the image for each platform and writes the layout.
func (b *build) all(ctx context.Context, packages []debPackage, out string) error {
	var platforms []platform
	for _, arch := range architectures {
		debs, err := fetch(ctx, packages, arch, b.cache)
		if err != nil {
			return err
		}
		base, err := baseFiles(ctx, debs, arch)
		if err != nil {
			return fmt.Errorf("the base for %s: %w", arch, err)
		}
		dir := filepath.Join(b.work, arch)
		if err := b.compile(ctx, arch, dir); err != nil {
			return err
		}
		own, err := ownFiles(b.root, dir)
		if err != nil {
			return err
		}
		p, err := b.platform(arch, base, own, dir, debs)
		if err != nil {
			return fmt.Errorf("the image for %s: %w", arch, err)
		}
		platforms = append(platforms, p)
	}
	digest, err := writeLayout(out, b.version, platforms)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(b.log, "%s: fairlead:%s, %s, %s\n", out, b.version, strings.Join(architectures, " and "), digest)
	return err
}

// compile builds the programs for an architecture into a directory, as make build does.
func (b *build) compile(ctx context.Context, arch, dir string) error {
	const run, proto = "fairlead.dev/fairlead/internal/run.Version=", "fairlead.dev/fairlead/internal/cniproto.Version="
	for _, program := range programs {
		cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", //nolint:gosec // the version is an argument
			"-ldflags", "-s -w -X "+run+b.version+" -X "+proto+b.version, "-o", filepath.Join(dir, program), "./cmd/"+program)
		cmd.Dir = b.root
		cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOOS=linux", "GOARCH="+arch)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s for %s: %w\n%s", program, arch, err, out)
		}
	}
	return nil
}

// readCommit reads the commit of the source and its time. SOURCE_DATE_EPOCH replaces the
// time where the source is no clone.
func (b *build) readCommit(ctx context.Context) error {
	seconds := os.Getenv("SOURCE_DATE_EPOCH") //nolint:forbidigo // no product: builds of distributions set it
	if raw, err := output(ctx, b.root, "git", "log", "-1", "--format=%H %ct"); err == nil {
		commit, at, _ := strings.Cut(strings.TrimSpace(string(raw)), " ")
		b.commit = commit
		if seconds == "" {
			seconds = at
		}
	}
	n, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return fmt.Errorf("the time of the source: %q: must be a commit, or seconds in SOURCE_DATE_EPOCH", seconds)
	}
	b.at = time.Unix(n, 0).UTC()
	return nil
}

// output runs a program and returns its standard output.
func output(ctx context.Context, dir, program string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); err != nil && errors.As(err, &exit) {
		return nil, fmt.Errorf("%s %s: %w\n%s", program, strings.Join(args, " "), err, exit.Stderr)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", program, err)
	}
	return out, nil
}
