package release

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"fairlead.dev/fairlead/tools/packaging/images"
	"fairlead.dev/fairlead/tools/packaging/programs"
)

// Bases returns the base of the image of each architecture. It is called after the source
// was checked.
type Bases func(ctx context.Context, root string) (map[string]images.Base, error)

// Write writes a release of a source to a directory, which it replaces; errors: ErrVersion,
// ErrChanged and ErrChangelog when the source cannot be released.
func Write(ctx context.Context, s programs.Source, bases Bases, out string) error {
	number, text, err := check(ctx, s)
	if err != nil {
		return err
	}
	of, err := bases(ctx, s.Root)
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "fairlead-release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work) //nolint:errcheck // a directory for temporary files
	fresh := out + ".new"
	if err := os.RemoveAll(fresh); err != nil {
		return err
	}
	if err := os.MkdirAll(fresh, 0o755); err != nil { //nolint:gosec // public files
		return err
	}
	if err := os.WriteFile(filepath.Join(fresh, "RELEASE_NOTES.md"), []byte(text), 0o644); err != nil { //nolint:gosec // a public file
		return err
	}
	if err := objects(s, number, work, fresh); err != nil {
		return err
	}
	if err := compiled(ctx, s, of, work, fresh); err != nil {
		return err
	}
	if err := describe(s, fresh); err != nil {
		return err
	}
	if err := os.RemoveAll(out); err != nil {
		return err
	}
	return os.Rename(fresh, out)
}

// objects writes the chart, the manifests, and an archive of the folders that an
// installation with kustomize reads.
func objects(s programs.Source, number, work, out string) error {
	// The archive has one directory, with the name that docs/operator/install.md uses.
	above := filepath.Join(work, "manifests")
	if err := stage(s, number, filepath.Join(above, "fairlead"), out); err != nil {
		return err
	}
	if err := packed(filepath.Join(out, "fairlead-manifests-"+s.Version+".tar.gz"), above, s.At); err != nil {
		return err
	}
	return manifests(s.Version, above, out)
}

// archives are the archives of programs, by their names.
var archives = map[string][]string{
	"fairlead-cli":      {"fairlead"},
	"fairlead-programs": {"fairlead-controller", "fairlead-node", "fairlead-cni"},
}

// compiled writes the programs of each architecture, in archives and in the image.
func compiled(ctx context.Context, s programs.Source, bases map[string]images.Base, work, out string) error {
	bin := filepath.Join(work, "bin")
	for arch := range bases {
		dir, suffix := filepath.Join(bin, arch), s.Version+"-linux-"+arch
		if err := s.Compile(ctx, arch, dir); err != nil {
			return err
		}
		if err := list(s, arch, dir, filepath.Join(out, "fairlead-"+suffix+".spdx.json")); err != nil {
			return err
		}
		for name, members := range archives {
			if err := archive(s, dir, members, filepath.Join(out, name+"-"+suffix+".tar.gz")); err != nil {
				return err
			}
		}
	}
	layout := filepath.Join(work, "image")
	digest, err := images.Write(s, bases, bin, layout)
	if err != nil {
		return err
	}
	if err := packed(filepath.Join(out, "fairlead-image-"+s.Version+".tar"), layout, s.At); err != nil {
		return fmt.Errorf("the archive of the image: %w", err)
	}
	return os.WriteFile(filepath.Join(out, "image.digest"), []byte(digest.String()+"\n"), 0o644) //nolint:gosec // a public file
}

// archive writes programs of a directory, and the licences, as an archive.
func archive(s programs.Source, dir string, members []string, path string) error {
	content, err := os.MkdirTemp(dir, "archive-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(content) //nolint:errcheck // a directory for temporary files
	for _, program := range members {
		if err := os.Link(filepath.Join(dir, program), filepath.Join(content, program)); err != nil {
			return err
		}
	}
	for _, licence := range programs.Licences {
		if err := copyFile(filepath.Join(s.Root, licence), filepath.Join(content, licence)); err != nil {
			return err
		}
	}
	return packed(path, content, s.At)
}
