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

// Version is the version of the form of records. A record of version 1 is read and
// written anew; a record of any other version is set aside and rebuilt from the
// kernel.
const Version = 2

// RecordsDir is the directory of records, below that of the daemon's state.
const RecordsDir = "attachments"

// The parts of a file's name: a file that is not written to its end begins with
// TempPrefix, a record ends with RecordSuffix, a record that could not be read ends
// with DamagedSuffix after that.
const (
	TempPrefix    = ".new-"
	RecordSuffix  = ".json"
	DamagedSuffix = ".bad"
)

// files keeps the records on tmpfs, one file per sandbox, named after it.
type files struct{ dir string }

func (f files) path(containerID string) string {
	return filepath.Join(f.dir, containerID+RecordSuffix)
}

func (f files) temp(containerID string) string {
	return filepath.Join(f.dir, TempPrefix+containerID)
}

// prepare writes the new content of a record's file beside it; publish puts that in
// its place, as a whole. Neither leaves anything after an error. The directory is on
// tmpfs and dies with the boot, as sandboxes do, so nothing is synced. Each sandbox
// has one writer at a time.
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

// publish makes the record that was prepared the sandbox's.
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

// discard removes the file that was prepared and is not to be published, if there is
// one.
func (f files) discard(containerID string) { _ = os.Remove(f.temp(containerID)) }

func (f files) remove(containerID string) error {
	err := os.Remove(f.path(containerID))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the record of sandbox %s: %w", containerID, err)
	}
	return nil
}

// damaged is a record that could not be read. Its file was set aside.
type damaged struct {
	ContainerID string
	Err         error
}

// read makes the directory if need be and reads every record in it. A file that a
// killed daemon left half-written is removed; a file that cannot be read is renamed
// to <name>.bad and reported.
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
		if err := os.Rename(f.path(containerID), f.path(containerID)+DamagedSuffix); err != nil {
			return nil, nil, fmt.Errorf("set a damaged record aside: %w", err)
		}
		bad = append(bad, damaged{ContainerID: containerID, Err: err})
	}
	return records, bad, nil
}

// recordNames lists a directory and removes what a killed daemon left half-written.
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

// decodeRecord accepts the content that prepare writes, also that of version 1, and
// nothing that would make the daemon touch links of another sandbox.
func decodeRecord(raw []byte, containerID string) (*Record, error) {
	var form struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(raw, &form); err != nil {
		return nil, fmt.Errorf("decode record: %w", err)
	}
	r := &Record{}
	switch form.Version {
	case Version:
		if err := json.Unmarshal(raw, r); err != nil {
			return nil, fmt.Errorf("decode record: %w", err)
		}
	case 1:
		var old recordV1
		if err := json.Unmarshal(raw, &old); err != nil {
			return nil, fmt.Errorf("decode record of version 1: %w", err)
		}
		r = old.record()
	default:
		return nil, fmt.Errorf("record has version %d: this build reads 1 and %d", form.Version, Version)
	}
	if r.ContainerID != containerID {
		return nil, fmt.Errorf("record names sandbox %q: its file says %q", r.ContainerID, containerID)
	}
	if len(r.Adds) == 0 && !r.Incomplete {
		return nil, errors.New("record has no ADD")
	}
	for _, a := range r.Adds {
		if a.State != Attached && a.State != Deleting {
			return nil, fmt.Errorf("record has state %q: must be %s or %s", a.State, Attached, Deleting)
		}
		if a.AddressOnly() && r.Attachment.UID == "" {
			return nil, fmt.Errorf("record has addresses of interface %s and names no PodAttachment", a.IfName)
		}
	}
	return r, nil
}
