package ledger

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev"
	"fairlead.dev/fairlead/internal/nft"
)

// Version is the version of the records' form. A record of another
// version is set aside and rebuilt from the kernel.
const Version = 1

// RecordsDir is the directory of records, below that of the daemon's state.
const RecordsDir = "attachments"

// State is how far a sandbox has come.
type State string

const (
	// Attaching says that an ADD is plugging. Such a record is in memory alone.
	Attaching State = "attaching"
	// Attached says that ADD has answered, or was about to.
	Attached State = "attached"
	// Deleting says that DEL has answered, or was about to; the links are going.
	Deleting State = "deleting"
)

// Record is all that the daemon knows of a sandbox. It is put into the ledger
// before the first link is made, written before ADD answers, and removed after
// the last link is gone. A record that is in the ledger is never changed, only
// replaced.
type Record struct {
	Version     int    `json:"version"`
	ContainerID string `json:"containerID"`
	BootID      string `json:"bootID"`
	State       State  `json:"state"`

	// Netns is the path that the runtime gave and what it led to.
	Netns   string             `json:"netns,omitempty"`
	NetnsID netdev.NamespaceID `json:"netnsID"`
	// IfName is the name that the runtime gave to the default interface.
	IfName string `json:"ifName,omitempty"`

	Pod        Pod        `json:"pod"`
	Attachment Attachment `json:"attachment"`

	Interfaces []Interface `json:"interfaces"`
	// HostPorts lead to the default interface.
	HostPorts []nft.Port `json:"hostPorts,omitempty"`
	// Result is the CNI result, in the version in which ADD answered.
	Result json.RawMessage `json:"result,omitempty"`

	StartedAt time.Time `json:"startedAt"`
	// AttachedAt is when ADD was about to answer. The file was prepared before, and
	// says when that was.
	AttachedAt time.Time `json:"attachedAt,omitzero"`
}

// Pod names a pod.
type Pod struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid,omitempty"`
}

func (p Pod) String() string { return p.Namespace + "/" + p.Name }

// Is reports whether another reference may be to the same pod: old runtimes do not
// pass its UID.
func (p Pod) Is(o Pod) bool {
	return p.Namespace == o.Namespace && p.Name == o.Name && (o.UID == "" || p.UID == o.UID)
}

// Attachment names one PodAttachment, for all time by its UID.
type Attachment struct {
	Name string    `json:"name,omitempty"`
	UID  types.UID `json:"uid,omitempty"`
}

// Interface is one interface as it was resolved for this sandbox: what
// the PodAttachment says later does not matter to a DEL.
type Interface struct {
	v1alpha1.Interface
	// HostName is known before the link is made.
	HostName string `json:"hostName"`
	// Bandwidth limits it; nil does not.
	Bandwidth *netdev.Bandwidth `json:"bandwidth,omitempty"`
}

// With returns a changed copy.
func (r *Record) With(change func(*Record)) *Record {
	c := *r
	change(&c)
	return &c
}

// AttachmentKey names the PodAttachment that the sandbox holds.
func (r *Record) AttachmentKey() types.NamespacedName {
	return types.NamespacedName{Namespace: r.Pod.Namespace, Name: r.Attachment.Name}
}

// IsOf tells whether a CNI_IFNAME is that of the ADD which made the sandbox. It is not
// known of a record that was lost, nor by a DEL without one: then it is.
func (r *Record) IsOf(ifName string) bool {
	return ifName == "" || r.IfName == "" || ifName == r.IfName
}

// HostNames are the links that the sandbox has on the host.
func (r *Record) HostNames() []string {
	names := make([]string, len(r.Interfaces))
	for i, ifc := range r.Interfaces {
		names[i] = ifc.HostName
	}
	return names
}

// files keeps the records on tmpfs, one file per sandbox, named after it.
type files struct{ dir string }

// How the names of files begin and end that are not written yet, are records, or could
// not be read.
const (
	TempPrefix    = ".new-"
	RecordSuffix  = ".json"
	DamagedSuffix = ".bad"
)

func (f files) path(containerID string) string {
	return filepath.Join(f.dir, containerID+RecordSuffix)
}

func (f files) temp(containerID string) string {
	return filepath.Join(f.dir, TempPrefix+containerID)
}

// prepare writes what the file of a record is to say beside it; publish puts that
// in its place, as a whole. The directory is on tmpfs and dies with the boot, as
// sandboxes do, so nothing is synced. Whoever writes a sandbox's record is alone.
func (f files) prepare(r *Record) error {
	raw, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode the record of sandbox %s: %w", r.ContainerID, err)
	}
	if err := prepareRecord(f.temp(r.ContainerID), raw); err != nil {
		return fmt.Errorf("write the record of sandbox %s: %w", r.ContainerID, err)
	}
	return nil
}

// publish makes a record that was prepared the sandbox's.
func (f files) publish(containerID string) error {
	if err := publishRecord(f.temp(containerID), f.path(containerID)); err != nil {
		return fmt.Errorf("write the record of sandbox %s: %w", containerID, err)
	}
	return nil
}

// prepareRecord writes a file on tmpfs that publishRecord is to rename; each leaves
// none after an error. Nothing is synced: a pod waits for them.
func prepareRecord(temp string, raw []byte) error {
	if err := os.WriteFile(temp, raw, 0o600); err != nil {
		_ = os.Remove(temp)
		return err
	}
	return nil
}

func publishRecord(temp, path string) error {
	if err := os.Rename(temp, path); err != nil {
		_ = os.Remove(temp)
		return err
	}
	return nil
}

// discard takes away what was prepared and is not to be published. There may be none.
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

// read makes the directory if need be and reads every record in it. What a
// killed daemon left half-written is removed; what cannot be read is renamed
// to <name>.bad and reported.
func (f files) read() ([]*Record, []damaged, error) {
	if err := os.MkdirAll(f.dir, 0o700); err != nil {
		return nil, nil, fmt.Errorf("make the directory of records: %w", err)
	}
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		return nil, nil, fmt.Errorf("read the directory of records: %w", err)
	}
	var records []*Record
	var bad []damaged
	for _, e := range entries {
		name := e.Name()
		path := filepath.Join(f.dir, name)
		containerID, ok := strings.CutSuffix(name, RecordSuffix)
		if strings.HasPrefix(name, TempPrefix) {
			if err := os.Remove(path); err != nil {
				return nil, nil, fmt.Errorf("remove a half-written record: %w", err)
			}
			continue
		}
		if !ok {
			continue
		}
		r, err := readRecord(path, containerID)
		if err == nil {
			records = append(records, r)
			continue
		}
		if err := os.Rename(path, path+DamagedSuffix); err != nil {
			return nil, nil, fmt.Errorf("set a damaged record aside: %w", err)
		}
		bad = append(bad, damaged{ContainerID: containerID, Err: err})
	}
	return records, bad, nil
}

func readRecord(path, containerID string) (*Record, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read record: %w", err)
	}
	return decodeRecord(raw, containerID)
}

// decodeRecord accepts what write writes, and nothing that would make the
// daemon touch links of another sandbox.
func decodeRecord(raw []byte, containerID string) (*Record, error) {
	r := &Record{}
	if err := json.Unmarshal(raw, r); err != nil {
		return nil, fmt.Errorf("decode record: %w", err)
	}
	switch {
	case r.Version != Version:
		return nil, fmt.Errorf("record has version %d: this build reads %d", r.Version, Version)
	case r.ContainerID != containerID:
		return nil, fmt.Errorf("record names sandbox %q: its file says %q", r.ContainerID, containerID)
	case r.State != Attached && r.State != Deleting:
		return nil, fmt.Errorf("record has state %q: must be %s or %s", r.State, Attached, Deleting)
	}
	return r, nil
}
