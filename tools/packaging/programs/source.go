// Package programs compiles the programs of Fairlead for a release, and describes them: with
// a list of their contents and with the statement of how they were built.
package programs

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Architectures are those of the programs, as Go and Debian name them.
var Architectures = []string{"amd64", "arm64"}

// Names are the names of the programs, and of their directories below cmd.
var Names = []string{"fairlead-controller", "fairlead-node", "fairlead-cni", "fairlead"}

// Licences are the files of the source that go with the programs.
var Licences = []string{"LICENSE", "THIRD_PARTY_NOTICES"}

// Source is the source of a build.
type Source struct {
	// Root is its directory, Version that of the programs.
	Root, Version string
	// Commit is empty if the source is no clone.
	Commit string
	// At is the time of the commit, which every file of a build has.
	At time.Time
}

// Open returns the source in a directory. SOURCE_DATE_EPOCH replaces the time of the commit,
// and is needed if the source is no clone.
func Open(ctx context.Context, root, version string) (Source, error) {
	s := Source{Root: root, Version: version}
	seconds := os.Getenv("SOURCE_DATE_EPOCH") //nolint:forbidigo // no product: builds of distributions set it
	if raw, err := s.git(ctx, "log", "-1", "--format=%H %ct"); err == nil {
		commit, at, _ := strings.Cut(strings.TrimSpace(raw), " ")
		s.Commit = commit
		if seconds == "" {
			seconds = at
		}
	}
	n, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return Source{}, fmt.Errorf("the time of the source: %q: must be a commit, or seconds in SOURCE_DATE_EPOCH", seconds)
	}
	s.At = time.Unix(n, 0).UTC()
	return s, nil
}

// Changed returns the files that differ from the commit, or that it does not have.
func (s Source) Changed(ctx context.Context) ([]string, error) {
	raw, err := s.git(ctx, "status", "--porcelain")
	return strings.Split(strings.TrimSuffix(raw, "\n"), "\n")[:strings.Count(raw, "\n")], err
}

func (s Source) git(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...) //nolint:gosec // the commands are ours
	cmd.Dir = s.Root
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s in %s: %w", strings.Join(args, " "), s.Root, err)
	}
	return string(out), nil
}

// Compile builds the programs for an architecture into a directory, as make build does.
func (s Source) Compile(ctx context.Context, arch, dir string) error {
	const run, proto = "fairlead.dev/fairlead/internal/run.Version=", "fairlead.dev/fairlead/internal/cniproto.Version="
	for _, program := range Names {
		cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", //nolint:gosec // the version is an argument
			"-ldflags", "-s -w -X "+run+s.Version+" -X "+proto+s.Version, "-o", filepath.Join(dir, program), "./cmd/"+program)
		cmd.Dir = s.Root
		// Settings of this machine that Go compiles in differently.
		cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off", "GOEXPERIMENT=", "GOAMD64=v1", "GOARM64=v8.0", "GOOS=linux", "GOARCH="+arch)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s for %s: %w\n%s", program, arch, err, out)
		}
	}
	return nil
}
