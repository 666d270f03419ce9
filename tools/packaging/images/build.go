package images

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"fairlead.dev/fairlead/tools/packaging/programs"
)

// lockFile and cacheDir are paths in the source.
const (
	lockFile = "tools/packaging/images/debian.lock"
	cacheDir = ".cache/debian"
)

// Base is the files of an image below the programs, for an architecture.
type Base struct {
	files files
	debs  []debPackage
}

// Bases returns the base of each architecture, of the packages in debian.lock.
func Bases(ctx context.Context, root string) (map[string]Base, error) {
	packages, err := readLock(filepath.Join(root, lockFile))
	if err != nil {
		return nil, err
	}
	out := map[string]Base{}
	for _, arch := range programs.Architectures {
		debs, err := fetch(ctx, packages, arch, filepath.Join(root, cacheDir))
		if err != nil {
			return nil, err
		}
		base, err := baseFiles(ctx, debs, arch)
		if err != nil {
			return nil, fmt.Errorf("the base for %s: %w", arch, err)
		}
		out[arch] = Base{files: base, debs: debs}
	}
	return out, nil
}

// Write writes the image for each architecture that has a base as one OCI layout, which replaces
// an earlier one. The programs are below dir, in a directory for each architecture. It returns the
// digest of the index.
func Write(s programs.Source, bases map[string]Base, dir, out string) (v1.Hash, error) {
	var platforms []platform
	for _, arch := range programs.Architectures {
		base, found := bases[arch]
		if !found {
			continue
		}
		compiled := filepath.Join(dir, arch)
		own, err := ownFiles(s.Root, compiled)
		if err != nil {
			return v1.Hash{}, err
		}
		p, err := newPlatform(s, arch, base, own, compiled)
		if err != nil {
			return v1.Hash{}, fmt.Errorf("the image for %s: %w", arch, err)
		}
		platforms = append(platforms, p)
	}
	return writeLayout(out, s.Version, platforms)
}

// Lock pins the present packages of Debian in debian.lock.
func Lock(ctx context.Context, root string) error {
	return writeLock(ctx, filepath.Join(root, lockFile), filepath.Join(root, cacheDir))
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
