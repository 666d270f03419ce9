package cniproto

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"strconv"
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
		return errors.New("spool " + r.Verb + ": only DEL can be carried out later")
	}
	if err := r.Validate(); err != nil {
		return err
	}
	raw, err := r.Encode()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return doing("make the spool", err)
	}
	temp, err := os.CreateTemp(dir, tempPrefix) // with mode 0600
	if err != nil {
		return doing("write to the spool", err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(temp.Name())
		}
	}()
	_, err = temp.Write(raw)
	if err := errors.Join(err, temp.Sync(), temp.Close()); err != nil {
		return doing("write to the spool", err)
	}
	if err := os.Rename(temp.Name(), path.Join(dir, spoolName(r))); err != nil {
		return doing("write to the spool", err)
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
		return doing("write to the spool", err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return doing("write to the spool", err)
	}
	return nil
}

// Unspool takes a DEL that has been carried out from the spool. It is no error
// when it is not there.
func Unspool(dir string, r Request) error {
	return remove(path.Join(dir, spoolName(r)))
}

// Spooled is a DEL of the spool.
type Spooled struct {
	// Request is the DEL that was asked for.
	Request Request
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

// ReadSpool returns the DELs in a spool. A file that is damaged beyond its name
// is set aside; should that fail, it is part of the error and stops no other. A
// directory that does not exist is an empty spool.
func ReadSpool(dir string) ([]Spooled, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, doing("read the spool", err)
	}
	var spooled []Spooled
	var errs []error
	for _, e := range entries {
		file := path.Join(dir, e.Name())
		switch {
		case strings.HasPrefix(e.Name(), tempPrefix):
			errs = append(errs, removeOld(file, e))
		case strings.HasSuffix(e.Name(), spoolSuffix) && len(e.Name()) <= longestName:
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
		s.Request, err = decodeSpooled(path.Base(file), raw)
	}
	s.file = file
	if err == nil {
		return s, true, nil
	}
	s.Damaged = err
	s.Request, ok = nameRequest(path.Base(file))
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
		return nil, errors.New(file + " is not a regular file")
	case info.Size() > MaxRequest:
		return nil, TooLarge("spooled DEL")
	}
	return os.ReadFile(file)
}

// decodeSpooled checks that the content of a file is a DEL, and the one that the
// file's name says.
func decodeSpooled(name string, raw []byte) (Request, error) {
	r, err := DecodeRequest(raw)
	switch {
	case err != nil:
		return Request{}, err
	case r.Verb != VerbDel:
		return Request{}, errors.New("verb: " + quoted(r.Verb) + ": must be " + VerbDel)
	case spoolName(r) != name:
		return Request{}, errors.New(strconv.Quote(name) + " holds the DEL of another sandbox, " + quoted(r.ContainerID))
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

func setAside(file string) error {
	if err := os.Rename(file, file+badSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return doing("set aside a damaged file of the spool", err)
	}
	return nil
}

func remove(file string) error {
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return doing("take a DEL from the spool", err)
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
