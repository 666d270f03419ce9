package ledger

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// LostID is the key of the record that stands for those that were lost with their directory,
// until the PodAttachments are known. It counts as damaged. No container ID has a colon.
const LostID = "lost:"

// isNamed reports whether the container ID of the sandbox is known. The key of another record has a
// colon.
func (r *Record) isNamed() bool { return !strings.Contains(r.ContainerID, ":") }

// Restore makes the directory of records if there is none: at the first start in a boot, or
// because it was lost. found are the sandboxes that have links on the host: a daemon made the
// directory before their ADD, so their records are lost. They are damaged from then on, and
// LostID stands for sandboxes without such a link. The directory is renamed into place when it
// is complete: a daemon that is killed before leaves none.
func (l *Ledger) Restore(found []string) error {
	dir := l.files.dir
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		if err != nil {
			return fmt.Errorf("look for the directory of records: %w", err)
		}
		return nil
	}
	draft := files{dir: Draft(dir)}
	if err := errors.Join(os.RemoveAll(draft.dir), os.MkdirAll(draft.dir, 0o700)); err != nil {
		return fmt.Errorf("make the directory of records: %w", err)
	}
	for _, id := range append(found, LostID) {
		if err := draft.write(l.damaged(id)); err != nil {
			return err
		}
	}
	if err := os.Rename(draft.dir, dir); err != nil {
		return fmt.Errorf("make the directory of records: %w", err)
	}
	return nil
}

// Draft returns the directory that Restore renames to dir.
func Draft(dir string) string { return filepath.Join(filepath.Dir(dir), TempPrefix+filepath.Base(dir)) }

// IsLost reports whether records were lost and their sandboxes are not known yet.
func (l *Ledger) IsLost() bool { return l.Get(LostID) != nil }

// NoteEnd notes, while IsLost, that a sandbox without a record got its DEL. end has the namespace
// that the DEL named, or Ended.
func (l *Ledger) NoteEnd(end *Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ends[end.ContainerID] = end
}

// AdoptLost enters a sandbox of a PodAttachment whose record was lost, unless the sandbox or the
// PodAttachment has a record. It is on disk for the next daemon; after an error it is in memory
// alone.
func (l *Ledger) AdoptLost(containerID string, pa *v1alpha1.PodAttachment) (adopted bool, err error) {
	r := l.damaged(containerID)
	r.Pod, r.Attachment, r.Wanted = PodOf(pa), Attachment{Name: pa.Name, UID: pa.UID}, pa.Spec.Interfaces
	l.mu.Lock()
	if end := l.ends[containerID]; end != nil {
		r.Netns, r.NetnsID, r.Ended = end.Netns, end.NetnsID, end.Ended
	}
	if held, _ := l.holder(pa); held || l.records[containerID] != nil {
		l.mu.Unlock()
		return false, nil
	}
	l.set(r)
	l.mu.Unlock()
	return true, l.files.write(r)
}

// damaged returns the record of a sandbox whose record was damaged or lost.
func (l *Ledger) damaged(containerID string) *Record {
	return &Record{Version: Version, ContainerID: containerID, BootID: l.BootID, Damaged: true}
}
