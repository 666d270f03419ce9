package server

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"fairlead.dev/fairlead/internal/cniproto"
)

const (
	badSuffix = ".bad"
	// tempAge is the age from which an unfinished file is taken for the remains of a
	// plugin that was killed.
	tempAge = time.Minute
	// longestName is the longest name of a file that ReadSpool reads, in bytes. It leaves
	// room for badSuffix. The names that the plugin writes are shorter.
	longestName = 255 - len(badSuffix)
)

// Spooled is a DEL of the spool.
type Spooled struct {
	// Request is the DEL.
	Request cniproto.Request
	// Damaged describes the damage of the file, nil if there is none. If the file is
	// damaged, Request has only the values that its name contains: container ID and
	// interface, which are enough for a DEL.
	Damaged error

	file string
}

// Remove removes the DEL from the spool after it has been carried out. It keeps a damaged
// file for inspection and adds the suffix ".bad" to its name.
func (s Spooled) Remove() error {
	if s.Damaged != nil {
		return setAside(s.file)
	}
	return remove(s.file)
}

// MakeSpool creates the directory of a spool as the plugin requires it, owned by this user
// with mode 0700. It changes owner and mode of an existing directory. It returns an error
// if the path is a symbolic link or a file.
func MakeSpool(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the spool: %w", err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("make the spool: %w", err)
	}
	if !info.IsDir() {
		return fmt.Errorf("make the spool: %s is a %s: must be a directory", dir, info.Mode().Type())
	}
	if err := errors.Join(os.Chown(dir, os.Geteuid(), -1), os.Chmod(dir, 0o700)); err != nil {
		return fmt.Errorf("make the spool: %w", err)
	}
	return nil
}

// ReadSpool returns the DELs in a spool. It sets a damaged file aside, with the suffix
// ".bad", if the file's name names no sandbox either. If that fails for a file, the error
// includes it and ReadSpool still returns the other DELs. A directory that does not exist
// is an empty spool.
func ReadSpool(dir string) ([]Spooled, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the spool: %w", err)
	}
	var spooled []Spooled
	var errs []error
	for _, e := range entries {
		file := filepath.Join(dir, e.Name())
		switch {
		case strings.HasPrefix(e.Name(), cniproto.SpoolTemp):
			errs = append(errs, removeOld(file, e))
		case strings.HasSuffix(e.Name(), cniproto.SpoolSuffix) && len(e.Name()) <= longestName:
			s, ok, err := readSpooled(file)
			errs = append(errs, err)
			if ok {
				spooled = append(spooled, s)
			}
		}
	}
	return spooled, errors.Join(errs...)
}

// readSpooled reads one file. ok is false if the file no longer exists, or if it is damaged
// and its name describes no DEL: readSpooled then sets it aside.
func readSpooled(file string) (s Spooled, ok bool, err error) {
	s.file = file
	s.Request, err = decodeSpooled(file)
	switch {
	case err == nil:
		return s, true, nil
	case errors.Is(err, fs.ErrNotExist):
		return s, false, nil // the plugin reached the daemon and removed the file
	}
	s.Damaged = err
	if s.Request, ok = cniproto.SpoolNamed(filepath.Base(file)); !ok {
		return s, false, setAside(file)
	}
	return s, true, nil
}

// decodeSpooled reads a regular file. It returns an error unless the content is a valid DEL
// that belongs to the file's name.
func decodeSpooled(file string) (r cniproto.Request, err error) {
	info, err := os.Lstat(file)
	if err != nil {
		return r, err
	}
	if !info.Mode().IsRegular() { // to open a pipe could wait for ever
		return r, fmt.Errorf("%s is not a regular file", file)
	}
	in, err := os.Open(file)
	if err != nil {
		return r, err
	}
	defer in.Close() //nolint:errcheck // nothing was written
	if r, err = cniproto.DecodeRequest(in); err != nil {
		return r, err
	}
	switch name := filepath.Base(file); {
	case r.Verb != cniproto.VerbDel:
		return r, fmt.Errorf("verb: %.20q: must be %s", r.Verb, cniproto.VerbDel)
	case cniproto.SpoolName(r) != name:
		return r, fmt.Errorf("%q holds the DEL of another sandbox, %.200q", name, r.ContainerID)
	}
	err = r.Validate()
	return r, err
}

// setAside adds badSuffix to the name of a file.
func setAside(file string) error {
	if err := os.Rename(file, file+badSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("set aside a damaged file of the spool: %w", err)
	}
	return nil
}

func remove(file string) error {
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("take a DEL from the spool: %w", err)
	}
	return nil
}

// removeOld removes an unfinished file that is older than tempAge.
func removeOld(file string, e fs.DirEntry) error {
	info, err := e.Info()
	if err != nil || time.Since(info.ModTime()) < tempAge {
		return nil //nolint:nilerr // after an error: the plugin has just renamed the file
	}
	return remove(file)
}
