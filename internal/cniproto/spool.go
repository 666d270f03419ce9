package cniproto

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	spoolSuffix = ".json"
	badSuffix   = ".bad"
	tempPrefix  = ".del-"
	// tempAge is how old an unfinished file must be to be the remains of a
	// plugin that was killed.
	tempAge = time.Minute
	// longestName leaves room for badSuffix; names of the spool's own are shorter.
	longestName = 255 - len(badSuffix)
	// spoolSeparator stands between container ID and interface. It can be in no
	// container ID, so that two sandboxes never share a file.
	spoolSeparator = "@"
)

// SpoolDel writes a DEL to the spool, whole and durable or not at all. The same
// sandbox and interface again replace what is there.
func SpoolDel(dir string, r Request) (err error) {
	if r.Verb != VerbDel {
		return fmt.Errorf("spool %s: only DEL can be carried out later", r.Verb)
	}
	if err := r.Validate(); err != nil {
		return err
	}
	raw, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode the DEL of %s: %w", r.ContainerID, err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the spool: %w", err)
	}
	temp, err := os.CreateTemp(dir, tempPrefix) // with mode 0600
	if err != nil {
		return fmt.Errorf("write to the spool: %w", err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(temp.Name())
		}
	}()
	_, err = temp.Write(raw)
	if err := errors.Join(err, temp.Sync(), temp.Close()); err != nil {
		return fmt.Errorf("write to the spool: %w", err)
	}
	if err := os.Rename(temp.Name(), filepath.Join(dir, spoolName(r))); err != nil {
		return fmt.Errorf("write to the spool: %w", err)
	}
	return syncDir(dir)
}

// spoolName begins with the separator, where a container ID would, for addresses
// of another plugin's interface.
func spoolName(r Request) string {
	if r.IPAM != "" {
		return spoolSeparator + r.ContainerID + spoolSeparator + r.IfName + spoolSuffix
	}
	return r.ContainerID + spoolSeparator + r.IfName + spoolSuffix
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("write to the spool: %w", err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("write to the spool: %w", err)
	}
	return nil
}

// Unspool takes a DEL that has been carried out from the spool. It is no error
// when it is not there.
func Unspool(dir string, r Request) error {
	return remove(filepath.Join(dir, spoolName(r)))
}

// Spooled is a DEL of the spool.
type Spooled struct {
	// Request is the DEL that was asked for.
	Request Request
	// Damaged says what is wrong with the file, if anything is. The request has
	// then what the file's name says, which a DEL can do with.
	Damaged error

	path string
}

// Remove takes the DEL, when it has been carried out, from the spool. A damaged
// file is set aside for a person to look at, with the suffix ".bad".
func (s Spooled) Remove() error {
	if s.Damaged != nil {
		return setAside(s.path)
	}
	return remove(s.path)
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
		path := filepath.Join(dir, e.Name())
		switch {
		case strings.HasPrefix(e.Name(), tempPrefix):
			errs = append(errs, removeOld(path, e))
		case strings.HasSuffix(e.Name(), spoolSuffix) && len(e.Name()) <= longestName:
			s, ok, err := readSpooled(path)
			errs = append(errs, err)
			if ok {
				spooled = append(spooled, s)
			}
		}
	}
	return spooled, errors.Join(errs...)
}

// readSpooled reads one file; not ok is one that was taken or set aside.
func readSpooled(path string) (s Spooled, ok bool, err error) {
	raw, err := readFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, false, nil // the plugin reached the daemon after all
	}
	if err == nil {
		s.Request, err = decodeSpooled(filepath.Base(path), raw)
	}
	s.path = path
	if err == nil {
		return s, true, nil
	}
	s.Damaged = err
	s.Request, ok = nameRequest(filepath.Base(path))
	if !ok {
		return s, false, setAside(path)
	}
	return s, true, nil
}

// readFile reads a regular file that is no larger than a request may be.
func readFile(path string) ([]byte, error) {
	info, err := os.Lstat(path)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file", path)
	case info.Size() > MaxRequest:
		return nil, TooLarge("spooled DEL")
	}
	return os.ReadFile(path)
}

// decodeSpooled checks that the content of a file is a DEL, and the one that the
// file's name says.
func decodeSpooled(name string, raw []byte) (Request, error) {
	r, err := DecodeRequest(raw)
	switch {
	case err != nil:
		return Request{}, err
	case r.Verb != VerbDel:
		return Request{}, fmt.Errorf("verb: %q: must be %s", clip(r.Verb), VerbDel)
	case spoolName(r) != name:
		return Request{}, fmt.Errorf("%q holds the DEL of another sandbox, %q", name, clip(r.ContainerID))
	}
	return r, r.Validate()
}

// nameRequest makes a DEL of a file's name.
func nameRequest(name string) (Request, bool) {
	r := Request{Verb: VerbDel}
	name = strings.TrimSuffix(name, spoolSuffix)
	if rest, ipam := strings.CutPrefix(name, spoolSeparator); ipam {
		r.IPAM, name = IPAMPrograms[0], rest
	}
	var ok bool
	r.ContainerID, r.IfName, ok = strings.Cut(name, spoolSeparator)
	return r, ok && r.Validate() == nil
}

func setAside(path string) error {
	if err := os.Rename(path, path+badSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("set aside a damaged file of the spool: %w", err)
	}
	return nil
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("take a DEL from the spool: %w", err)
	}
	return nil
}

func removeOld(path string, e fs.DirEntry) error {
	info, err := e.Info()
	if err != nil || time.Since(info.ModTime()) < tempAge {
		return nil //nolint:nilerr // its plugin has just finished it
	}
	return remove(path)
}
