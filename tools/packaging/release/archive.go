package release

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"fairlead.dev/fairlead/tools/packaging/programs"
)

// packed writes the files below a directory as a tar archive, with gzip if its name ends in
// gz. The files are sorted, of root and of one time, and only programs can be executed.
func packed(path, dir string, at time.Time) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if !strings.HasSuffix(path, ".gz") {
		return pack(f, dir, at)
	}
	z := gzip.NewWriter(f)
	return errors.Join(pack(z, dir, at), z.Close())
}

func pack(to io.Writer, dir string, at time.Time) error {
	w := tar.NewWriter(to)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		mode := int64(0o644)
		if slices.Contains(programs.Names, d.Name()) {
			mode = 0o755
		}
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: info.Size(), ModTime: at, Format: tar.FormatPAX}); err != nil {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		_, err = io.Copy(w, f)
		return errors.Join(err, f.Close())
	})
	return errors.Join(err, w.Close())
}

func copyFile(from, to string) error {
	raw, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, raw, 0o644) //nolint:gosec // a public file
}
