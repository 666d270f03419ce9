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
	// tempAge is how old an unfinished file must be to be the remains of a
	// plugin that was killed.
	tempAge = time.Minute
	// longestName leaves room for badSuffix; names of the spool's own are shorter.
	longestName = 255 - len(badSuffix)
)

// Spooled is a DEL of the spool.
type Spooled struct {
	// Request is the DEL that was asked for.
	Request cniproto.Request
	// Damaged says what is wrong with the file, if anything is. The request has
	// then what the file's name says, which a DEL can do with.
	Damaged error

	file string
}

// Remove takes the DEL, when it has been carried out, from the spool. A damaged
// file is set aside for a person to look at, with the suffix ".bad".
func (s Spooled) Remove() error {
	if s.Damaged != nil {
		return setAside(s.file)
	}
	return remove(s.file)
}

// MakeSpool makes the directory of a spool as the plugin wants it, this user's with
// mode 0700. One that is there is made so; a symbolic link or a file in its place is an
// error.
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

// ReadSpool returns the DELs in a spool. A file that is damaged beyond its name
// is set aside; should that fail, it is part of the error and stops no other. A
// directory that does not exist is an empty spool.
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

// readSpooled reads one file; not ok is one that was taken or set aside.
func readSpooled(file string) (s Spooled, ok bool, err error) {
	raw, err := readFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return s, false, nil // the plugin reached the daemon after all
	}
	if err == nil {
		s.Request, err = decodeSpooled(filepath.Base(file), raw)
	}
	s.file = file
	if err == nil {
		return s, true, nil
	}
	s.Damaged = err
	s.Request, ok = cniproto.SpoolNamed(filepath.Base(file))
	if !ok {
		return s, false, setAside(file)
	}
	return s, true, nil
}

// readFile reads a regular file that is no larger than a request may be.
func readFile(file string) ([]byte, error) {
	info, err := os.Lstat(file)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file", file)
	case info.Size() > cniproto.MaxRequest:
		return nil, cniproto.TooLarge("spooled DEL")
	}
	return os.ReadFile(file)
}

// decodeSpooled checks that the content of a file is a DEL, and the one that the
// file's name says.
func decodeSpooled(name string, raw []byte) (cniproto.Request, error) {
	r, err := decode(raw)
	switch {
	case err != nil:
		return cniproto.Request{}, err
	case r.Verb != cniproto.VerbDel:
		return cniproto.Request{}, fmt.Errorf("verb: %.20q: must be %s", r.Verb, cniproto.VerbDel)
	case cniproto.SpoolName(r) != name:
		return cniproto.Request{}, fmt.Errorf("%q holds the DEL of another sandbox, %.200q", name, r.ContainerID)
	}
	return r, validate(&r)
}

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

func removeOld(file string, e fs.DirEntry) error {
	info, err := e.Info()
	if err != nil || time.Since(info.ModTime()) < tempAge {
		return nil //nolint:nilerr // its plugin has just finished it
	}
	return remove(file)
}
