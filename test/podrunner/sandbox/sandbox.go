// Package sandbox stores the pod runner's state: one record for each sandbox, so that a
// restart forgets none, and one line for each execution of the plugin, for measurements.
package sandbox

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// State of a sandbox.
type State string

const (
	// Creating sandboxes have a network namespace and no network: ADD has not succeeded,
	// and DEL is pending.
	Creating State = "creating"
	// Ready sandboxes have a network.
	Ready State = "ready"
	// Stopped sandboxes had their first DEL and lost their namespace; the second DEL is
	// pending.
	Stopped State = "stopped"
)

// Record is one sandbox.
type Record struct {
	// ID is 64 hexadecimal digits.
	ID string `json:"id"`
	// Namespace, Pod and UID are the pod's.
	Namespace string    `json:"namespace"`
	Pod       string    `json:"pod"`
	UID       types.UID `json:"uid"`
	// NetnsPath is the path at which the network namespace is mounted.
	NetnsPath string `json:"netnsPath"`
	// BootID of the kernel that has the namespace.
	BootID string `json:"bootID"`
	State  State  `json:"state"`
	// IPs are the addresses of eth0, the primary one first.
	IPs []string `json:"ips,omitempty"`
	// Capabilities are passed to ADD and again to DEL, when the pod may be gone.
	Capabilities map[string]any `json:"capabilities,omitempty"`
	// StartedAt is when the sandbox became ready.
	StartedAt time.Time `json:"startedAt,omitzero"`
}

// NewID returns a new sandbox ID as containerd does.
func NewID() string {
	var raw [32]byte
	_, _ = rand.Read(raw[:]) // never fails, see crypto/rand
	return hex.EncodeToString(raw[:])
}

// Op is one execution of a plugin.
type Op struct {
	Pod     string    `json:"pod"` // namespace/name
	UID     types.UID `json:"uid"`
	Sandbox string    `json:"sandbox"`
	// Verb is ADD or DEL.
	Verb string `json:"verb"`
	// Netns is the plugin's CNI_NETNS.
	Netns string `json:"netns"`
	// MS is the time from the start of the plugin's process to its result, in
	// milliseconds.
	MS float64 `json:"ms"`
	// Error is empty on success.
	Error string `json:"error,omitempty"`
}

const opsFile = "adds.jsonl"

// Store is a directory of records. Several goroutines may use it at once.
type Store struct {
	dir string // <state-dir>

	mu      sync.Mutex
	records map[string]Record
}

// Open reads the records of a state directory, which it creates if there is none. Damaged
// records are an error, because they may stand for a live sandbox.
func Open(stateDir string) (*Store, error) {
	s := &Store{dir: stateDir, records: map[string]Record{}}
	if err := os.MkdirAll(s.boxes(), 0o700); err != nil {
		return nil, fmt.Errorf("make the state directory: %w", err)
	}
	records, err := Read(stateDir)
	if err != nil {
		return nil, err
	}
	for _, record := range records {
		s.records[record.ID] = record
	}
	return s, nil
}

// Read returns the records of a state directory, by ID. It is for other programs; a
// missing directory has no records.
func Read(stateDir string) ([]Record, error) {
	entries, err := os.ReadDir(boxes(stateDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the sandbox records: %w", err)
	}
	var records []Record
	for _, entry := range entries {
		if !strings.HasSuffix(entry.Name(), ".json") {
			continue // a temporary file
		}
		raw, err := os.ReadFile(filepath.Join(boxes(stateDir), entry.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // it has just been removed
		}
		if err != nil {
			return nil, fmt.Errorf("read a sandbox record: %w", err)
		}
		var record Record
		if err := json.Unmarshal(raw, &record); err != nil {
			return nil, fmt.Errorf("decode the sandbox record %s: %w", entry.Name(), err)
		}
		records = append(records, record)
	}
	return records, nil
}

func boxes(stateDir string) string     { return filepath.Join(stateDir, "sandboxes") }
func (s *Store) boxes() string         { return boxes(s.dir) }
func (s *Store) path(id string) string { return filepath.Join(s.boxes(), id+".json") }

// Put writes a record atomically.
func (s *Store) Put(record Record) error {
	raw, err := json.Marshal(record)
	if err != nil {
		return fmt.Errorf("encode the record of sandbox %s: %w", record.ID, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	temp := s.path(record.ID) + ".tmp"
	if err := os.WriteFile(temp, raw, 0o600); err != nil {
		return fmt.Errorf("write the record of sandbox %s: %w", record.ID, err)
	}
	if err := os.Rename(temp, s.path(record.ID)); err != nil {
		return fmt.Errorf("write the record of sandbox %s: %w", record.ID, err)
	}
	s.records[record.ID] = record
	return nil
}

// Remove removes a record; a missing record is no error.
func (s *Store) Remove(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := os.Remove(s.path(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the record of sandbox %s: %w", id, err)
	}
	delete(s.records, id)
	return nil
}

// OfPod returns the records of a pod, by ID.
func (s *Store) OfPod(uid types.UID) []Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Record
	for _, record := range s.records {
		if record.UID == uid {
			out = append(out, record)
		}
	}
	slices.SortFunc(out, func(a, b Record) int { return strings.Compare(a.ID, b.ID) })
	return out
}

// Pods returns the UIDs of the pods that have a record.
func (s *Store) Pods() []types.UID {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []types.UID
	for _, record := range s.records {
		if !slices.Contains(out, record.UID) {
			out = append(out, record.UID)
		}
	}
	return out
}

// Log appends an execution to adds.jsonl.
func (s *Store) Log(op Op) error {
	line, err := json.Marshal(op)
	if err != nil {
		return fmt.Errorf("encode an execution: %w", err)
	}
	file, err := os.OpenFile(filepath.Join(s.dir, opsFile), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("log an execution: %w", err)
	}
	// Each line is one write, so that lines of several writers do not mix.
	if _, err := file.Write(append(line, '\n')); err != nil {
		return errors.Join(fmt.Errorf("log an execution: %w", err), file.Close())
	}
	return file.Close()
}

// ReadOps returns the lines that Log wrote into a state directory, in order.
func ReadOps(stateDir string) ([]Op, error) {
	raw, err := os.ReadFile(filepath.Join(stateDir, opsFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the executions: %w", err)
	}
	var out []Op
	for line := range strings.Lines(string(raw)) {
		var op Op
		if err := json.Unmarshal([]byte(line), &op); err != nil {
			return nil, fmt.Errorf("decode the execution %q: %w", line, err)
		}
		out = append(out, op)
	}
	return out, nil
}
