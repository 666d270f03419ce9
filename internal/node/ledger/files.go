package ledger

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Version is the version of the format of records. A record of any other version counts as
// damaged.
const Version = 2

// RecordsDir is the directory of records, inside the daemon's state directory.
const RecordsDir = "attachments"

// The parts of a file's name. The name of a file that is not complete yet begins with
// TempPrefix. The name of a record ends with RecordSuffix, followed by DamagedSuffix if
// the record could not be read.
const (
	TempPrefix    = ".new-"
	RecordSuffix  = ".json"
	DamagedSuffix = ".bad"
)

// files keeps the records on tmpfs, one file per sandbox, named after its container ID.
type files struct{ dir string }

func (f files) path(containerID string) string {
	return filepath.Join(f.dir, containerID+RecordSuffix)
}

func (f files) temp(containerID string) string {
	return filepath.Join(f.dir, TempPrefix+containerID)
}

// prepare writes a record into a temporary file beside the record's file. publish
// renames it over that file, so that readers see the old or the new content. Both remove
// the temporary file after an error. Nothing is synced: the directory is on tmpfs and,
// like the sandboxes, does not outlive the boot. Each sandbox has one writer at a time.
func (f files) prepare(r *Record) error {
	raw, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode the record of sandbox %s: %w", r.ContainerID, err)
	}
	temp := f.temp(r.ContainerID)
	if err := os.WriteFile(temp, raw, 0o600); err != nil {
		_ = os.Remove(temp)
		return fmt.Errorf("write the record of sandbox %s: %w", r.ContainerID, err)
	}
	return nil
}

// publish puts the prepared file in place of the sandbox's record.
func (f files) publish(containerID string) error {
	if err := os.Rename(f.temp(containerID), f.path(containerID)); err != nil {
		_ = os.Remove(f.temp(containerID))
		return fmt.Errorf("write the record of sandbox %s: %w", containerID, err)
	}
	return nil
}

func (f files) write(r *Record) error {
	if err := f.prepare(r); err != nil {
		return err
	}
	return f.publish(r.ContainerID)
}

// discard removes the prepared file, if there is one.
func (f files) discard(containerID string) { _ = os.Remove(f.temp(containerID)) }

func (f files) remove(containerID string) error {
	err := os.Remove(f.path(containerID))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the record of sandbox %s: %w", containerID, err)
	}
	return nil
}

// damaged is a record that could not be read. Its file has been renamed.
type damaged struct {
	ContainerID string
	Err         error
}

// read reads every record in the directory, which it creates if necessary. A file that a
// killed daemon left half-written is removed. A record that cannot be decoded is renamed
// to <name>.bad and returned as damaged.
func (f files) read() ([]*Record, []damaged, error) {
	if err := os.MkdirAll(f.dir, 0o700); err != nil {
		return nil, nil, fmt.Errorf("make the directory of records: %w", err)
	}
	names, err := recordNames(f.dir)
	if err != nil {
		return nil, nil, err
	}
	var records []*Record
	var bad []damaged
	for _, name := range names {
		containerID, ok := strings.CutSuffix(name, RecordSuffix)
		if !ok {
			continue
		}
		r, err := f.readRecord(containerID)
		if err == nil {
			records = append(records, r)
			continue
		}
		// The file stays until AdoptDamaged replaces it: otherwise the next daemon would know
		// nothing of the sandbox if that fails.
		if err := f.setAside(containerID); err != nil {
			return nil, nil, fmt.Errorf("set a damaged record aside: %w", err)
		}
		bad = append(bad, damaged{ContainerID: containerID, Err: err})
	}
	return records, bad, nil
}

// recordNames returns the names of the files in a directory, without those that a killed
// daemon left half-written, which it removes.
func recordNames(dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read the directory of records: %w", err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), TempPrefix) {
			names = append(names, e.Name())
		} else if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
			return nil, fmt.Errorf("remove a half-written record: %w", err)
		}
	}
	return names, nil
}

func (f files) readRecord(containerID string) (*Record, error) {
	raw, err := os.ReadFile(f.path(containerID))
	if err != nil {
		return nil, fmt.Errorf("read record: %w", err)
	}
	return decodeRecord(raw, containerID)
}

// decodeRecord decodes a record. It rejects content that would make the daemon touch links
// of another sandbox.
func decodeRecord(raw []byte, containerID string) (*Record, error) {
	r := &Record{}
	if err := json.Unmarshal(raw, r); err != nil {
		return nil, fmt.Errorf("decode record: %w", err)
	}
	if r.Version != Version {
		return nil, fmt.Errorf("record has version %d: this build reads %d", r.Version, Version)
	}
	if r.ContainerID != containerID {
		return nil, fmt.Errorf("record names sandbox %q: its file is named after %q", r.ContainerID, containerID)
	}
	if (len(r.Adds) == 0) != r.Damaged {
		return nil, errors.New("record has no ADD, or is damaged and has some")
	}
	for _, a := range r.Adds {
		if err := a.validate(); err != nil {
			return nil, err
		}
		if a.AddressOnly() && r.Attachment.UID == "" {
			return nil, fmt.Errorf("record has addresses of interface %s and names no PodAttachment", a.IfName)
		}
	}
	return r, nil
}

// validate returns an error if a state of an ADD is not known.
func (a *Add) validate() error {
	if a.State != Attaching && a.State != Attached && a.State != Deleting {
		return fmt.Errorf("record has state %q: must be %s, %s or %s", a.State, Attaching, Attached, Deleting)
	}
	for _, i := range a.Interfaces {
		if i.State != "" && i.State != Attaching && i.State != Deleting {
			return fmt.Errorf("record has state %q of interface %s: must be empty, %s or %s", i.State, i.Name, Attaching, Deleting)
		}
	}
	return nil
}

// setAside gives the file of a record a second name for inspection.
func (f files) setAside(containerID string) error {
	aside := f.path(containerID) + DamagedSuffix
	if err := os.Remove(aside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Link(f.path(containerID), aside)
}
