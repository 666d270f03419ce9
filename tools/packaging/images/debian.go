package images

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"fairlead.dev/fairlead/tools/packaging/programs"
)

// names are the packages of the base: nft with its libraries, and certificates.
var names = []string{
	"ca-certificates", "libbsd0", "libc6", "libedit2", "libgmp10", "libjansson4", "libmd0", "libmnl0",
	"libnftables1", "libnftnl11", "libtinfo6", "libxtables12", "nftables",
}

// sources are the archives of the release whose nft the tests run.
const (
	keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
	sources = "deb [signed-by=" + keyring + "] http://deb.debian.org/debian bookworm main\n" +
		"deb [signed-by=" + keyring + "] http://deb.debian.org/debian-security bookworm-security main\n"
)

// debPackage is a package for an architecture. Path is its file, once it was fetched.
type debPackage struct{ arch, name, version, sum, path string }

func (p debPackage) file() string {
	return p.name + "_" + url.QueryEscape(p.version) + "_" + p.arch + ".deb"
}

// purl names a package for scanners.
func (p debPackage) purl() string {
	return "pkg:deb/debian/" + p.name + "@" + p.version + "?arch=" + p.arch
}

// readLock reads debian.lock: architecture, name, version and SHA-256 of a package in a line.
func readLock(path string) ([]debPackage, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var out []debPackage
	for line := range strings.Lines(string(raw)) {
		f := strings.Fields(line)
		if len(f) == 0 || f[0] == "#" {
			continue
		}
		if len(f) != 4 || !slices.Contains(programs.Architectures, f[0]) || !slices.Contains(names, f[1]) || len(f[3]) != sha256.Size*2 {
			return nil, fmt.Errorf("%s: %q: must be an architecture, a package, its version and its SHA-256", path, strings.TrimSpace(line))
		}
		out = append(out, debPackage{arch: f[0], name: f[1], version: f[2], sum: f[3]})
	}
	if len(out) != len(programs.Architectures)*len(names) {
		return nil, fmt.Errorf("%s has %d packages; must be %d", path, len(out), len(programs.Architectures)*len(names))
	}
	return out, nil
}

// fetch returns the packages of an architecture with their files, which it downloads to a
// directory unless they are there. Each has the digest of the lock.
func fetch(ctx context.Context, packages []debPackage, arch, cache string) ([]debPackage, error) {
	var out, missing []debPackage
	for _, p := range packages {
		if p.arch != arch {
			continue
		}
		p.path = filepath.Join(cache, p.file())
		if sum, err := programs.Sum(p.path); err != nil || sum != p.sum {
			missing = append(missing, p)
		}
		out = append(out, p)
	}
	if len(missing) == 0 {
		return out, nil
	}
	archive, err := openArchive(ctx, arch, cache)
	if err != nil {
		return nil, err
	}
	for _, p := range missing {
		if err := archive.download(ctx, p); err != nil {
			return nil, fmt.Errorf("%w\nIf the archive has another version now, pin it: make images-lock", err)
		}
		sum, err := programs.Sum(p.path)
		if err != nil {
			return nil, err
		}
		if sum != p.sum {
			return nil, fmt.Errorf("package %s %s for %s has the SHA-256 %s; debian.lock has %s", p.name, p.version, arch, sum, p.sum)
		}
	}
	return out, nil
}

// writeLock pins the present versions of the packages.
func writeLock(ctx context.Context, path, cache string) error {
	lines := []string{"# The packages of Debian in the image: make images-lock writes this file."}
	for _, arch := range programs.Architectures {
		archive, err := openArchive(ctx, arch, cache)
		if err != nil {
			return err
		}
		for _, name := range names {
			p, err := archive.candidate(ctx, name)
			if err == nil {
				err = archive.download(ctx, p)
			}
			if err != nil {
				return err
			}
			if p.sum, err = programs.Sum(p.path); err != nil {
				return err
			}
			lines = append(lines, strings.Join([]string{arch, name, p.version, p.sum}, " "))
		}
	}
	return os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o644) //nolint:gosec // a file of the source
}

// archive is Debian's archive for an architecture, with lists of its own: those of this
// machine are of another release, perhaps.
type archive struct {
	arch, cache string
	options     []string
}

func openArchive(ctx context.Context, arch, cache string) (*archive, error) {
	state := filepath.Join(cache, "apt-"+arch)
	for _, dir := range []string{"lists/partial", "archives/partial"} {
		if err := os.MkdirAll(filepath.Join(state, dir), 0o755); err != nil { //nolint:gosec // public files
			return nil, err
		}
	}
	list, status := filepath.Join(state, "sources.list"), filepath.Join(state, "status")
	if err := errors.Join(os.WriteFile(list, []byte(sources), 0o600), os.WriteFile(status, nil, 0o600)); err != nil {
		return nil, err
	}
	a := &archive{arch: arch, cache: cache}
	for _, o := range []string{
		"Dir::State=" + state, "Dir::State::status=" + status, "Dir::Cache=" + state, "Dir::Etc::sourcelist=" + list,
		"Dir::Etc::sourceparts=/dev/null", "APT::Architecture=" + arch, "APT::Architectures=" + arch, "APT::Sandbox::User=",
		"Acquire::Languages=none",
	} {
		a.options = append(a.options, "-o", o)
	}
	if _, err := output(ctx, cache, "apt-get", append(a.options, "update", "-q")...); err != nil {
		return nil, err
	}
	return a, nil
}

// candidate returns the present version of a package.
func (a *archive) candidate(ctx context.Context, name string) (debPackage, error) {
	raw, err := output(ctx, a.cache, "apt-cache", append(a.options, "show", "--no-all-versions", name)...)
	if err != nil {
		return debPackage{}, err
	}
	for line := range strings.Lines(string(raw)) {
		if version, found := strings.CutPrefix(line, "Version: "); found {
			p := debPackage{arch: a.arch, name: name, version: strings.TrimSpace(version)}
			p.path = filepath.Join(a.cache, p.file())
			return p, nil
		}
	}
	return debPackage{}, fmt.Errorf("apt-cache show %s: no version", name)
}

// download downloads a package. apt checks the archive's signature.
func (a *archive) download(ctx context.Context, p debPackage) error {
	dir, err := os.MkdirTemp(a.cache, "download-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a directory for one download
	if _, err := output(ctx, dir, "apt-get", append(a.options, "download", "-q", p.name+"="+p.version)...); err != nil {
		return err
	}
	debs, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil || len(debs) != 1 {
		return fmt.Errorf("apt-get download %s left %q; must be one package: %w", p.name, debs, err)
	}
	return os.Rename(debs[0], p.path)
}
