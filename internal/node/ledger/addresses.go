package ledger

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev"
)

// AddressesDir holds one file for each interface of another plugin.
const AddressesDir = "addresses"

// AddressKey names an interface of another plugin, as CNI does.
type AddressKey struct{ ContainerID, IfName string }

// KeySeparator can be in no container ID.
const KeySeparator = "@"

func (k AddressKey) String() string { return k.ContainerID + KeySeparator + k.IfName }

// AddressRecord says that an interface of another plugin has the addresses of a
// PodAttachment's interface. It is written before ADD answers. One that is in the
// ledger is never changed, only replaced.
type AddressRecord struct {
	Version     int                `json:"version"`
	ContainerID string             `json:"containerID"`
	IfName      string             `json:"ifName"`
	BootID      string             `json:"bootID"`
	Netns       string             `json:"netns,omitempty"`
	NetnsID     netdev.NamespaceID `json:"netnsID"`
	// Config is the name of the network configuration, whose GC it is for.
	Config     string     `json:"config,omitempty"`
	Pod        Pod        `json:"pod"`
	Attachment Attachment `json:"attachment"`
	// Interface is the name in the PodAttachment.
	Interface string `json:"interface"`
	// Addresses without prefix lengths.
	Addresses []string `json:"addresses"`
	// Result is the CNI result, in the version in which ADD answered. Before that
	// the record is a claim, in memory alone.
	Result     json.RawMessage `json:"result"`
	AttachedAt time.Time       `json:"attachedAt"`
}

// Key names the interface that the record is of.
func (r *AddressRecord) Key() AddressKey { return AddressKey{r.ContainerID, r.IfName} }

// Sandbox is what the status of the PodAttachment says when no interface of ours
// is plugged.
func (r *AddressRecord) Sandbox() *Record {
	return &Record{
		ContainerID: r.ContainerID, BootID: r.BootID, State: Attached, Netns: r.Netns, NetnsID: r.NetnsID,
		Pod: r.Pod, Attachment: r.Attachment, AttachedAt: r.AttachedAt,
	}
}

// addressBook is the part of the ledger that is about interfaces of other
// plugins. The ledger's lock guards it.
type addressBook struct {
	dir string
	m   map[AddressKey]*AddressRecord
	// damaged are those whose record could not be read: of which PodAttachment
	// they are is not known, only the container.
	damaged map[AddressKey]bool
}

func (b *addressBook) path(k AddressKey) string {
	return filepath.Join(b.dir, k.String()+RecordSuffix)
}

// of returns the newest record of a PodAttachment: an earlier sandbox may not have
// given everything back. There may be some that are claims yet: then it returns none.
func (b *addressBook) of(uid types.UID) (answered *AddressRecord, some bool) {
	for _, r := range b.m {
		if r.Attachment.UID != uid {
			continue
		}
		some = true
		if r.Result != nil && (answered == nil || r.AttachedAt.After(answered.AttachedAt)) {
			answered = r
		}
	}
	return answered, some
}

// unclear says whether a damaged record may be of a PodAttachment.
func (b *addressBook) unclear(s *v1alpha1.Sandbox) bool {
	for k := range b.damaged {
		if k.MaybeOf(s) {
			return true
		}
	}
	return false
}

// MaybeOf tells whether a damaged record may be of a PodAttachment: its status names
// that sandbox, or none.
func (k AddressKey) MaybeOf(s *v1alpha1.Sandbox) bool {
	return s == nil || s.ID == k.ContainerID && s.State == v1alpha1.SandboxAttached
}

// DamagedAlone returns the interfaces whose record is damaged, of containers that
// have no other record.
func (l *Ledger) DamagedAlone() []AddressKey {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	others := map[string]bool{}
	for k := range l.book.m {
		others[k.ContainerID] = true
	}
	var out []AddressKey
	for k := range l.book.damaged {
		if l.Records[k.ContainerID] == nil && !others[k.ContainerID] {
			out = append(out, k)
		}
	}
	return out
}

// AddressesRecorded tells whether an interface of a PodAttachment has a record.
func (l *Ledger) AddressesRecorded(uid types.UID, name string) bool {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	for _, r := range l.book.m {
		if r.Attachment.UID == uid && r.Interface == name {
			return true
		}
	}
	return false
}

// AddressesOf returns the record of an interface, or nil.
func (l *Ledger) AddressesOf(k AddressKey) *AddressRecord {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	return l.book.m[k]
}

// AddressesHeldBy returns which of a PodAttachment's interfaces the sandbox of k has
// addresses of under other names than that of k, with these names.
func (l *Ledger) AddressesHeldBy(k AddressKey) map[string]string {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	out := map[string]string{}
	for other, r := range l.book.m {
		if other.ContainerID == k.ContainerID && other != k {
			out[r.Interface] = other.IfName
		}
	}
	return out
}

// AddressesHeld returns the interfaces of other plugins that have addresses of a
// PodAttachment.
func (l *Ledger) AddressesHeld(uid types.UID) []AddressKey {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	var out []AddressKey
	for k, r := range l.book.m {
		if r.Attachment.UID == uid {
			out = append(out, k)
		}
	}
	return out
}

// AllAddresses returns every record of an interface of another plugin.
func (l *Ledger) AllAddresses() []*AddressRecord {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	return slices.Collect(maps.Values(l.book.m))
}

// AddressClaim is what came of an attempt to claim an interface's addresses.
type AddressClaim struct {
	// sealed: it was said that nothing is plugged, and never will be.
	Sealed bool
	// Before is another interface, of an earlier sandbox, that has them.
	Before *AddressRecord
	// Gone is closed when some record is removed.
	Gone <-chan struct{}
}

// ClaimAddresses puts a record down, so that nobody says from here on that the
// PodAttachment is unplugged. Nothing was put down when it is sealed or another
// sandbox has the interface.
func (l *Ledger) ClaimAddresses(r *AddressRecord) AddressClaim {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	if _, sealed := l.sealed[r.Attachment.UID]; sealed {
		return AddressClaim{Sealed: true}
	}
	for k, other := range l.book.m {
		if k != r.Key() && other.Attachment.UID == r.Attachment.UID && other.Interface == r.Interface {
			return AddressClaim{Before: other, Gone: l.gone}
		}
	}
	l.book.m[r.Key()] = r
	return AddressClaim{}
}

// ReplaceAddresses takes over a record that was written.
func (l *Ledger) ReplaceAddresses(r *AddressRecord) {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	l.book.m[r.Key()] = r
}

// WriteAddresses writes a record that was claimed, as a whole.
func (l *Ledger) WriteAddresses(r *AddressRecord) error {
	raw, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode the record of the addresses of %s: %w", r.Key(), err)
	}
	temp := filepath.Join(l.book.dir, TempPrefix+r.Key().String())
	if err = prepareRecord(temp, raw); err == nil {
		err = publishRecord(temp, l.book.path(r.Key()))
	}
	if err != nil {
		return fmt.Errorf("write the record of the addresses of %s: %w", r.Key(), err)
	}
	return nil
}

// RemoveAddresses forgets the addresses of an interface, on disk first, and
// returns what was known of them; nil when nothing was.
func (l *Ledger) RemoveAddresses(k AddressKey) (*AddressRecord, error) {
	for _, path := range []string{l.book.path(k), l.book.path(k) + DamagedSuffix} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("remove the record of the addresses of %s: %w", k, err)
		}
	}
	l.Mu.Lock()
	defer l.Mu.Unlock()
	r := l.book.m[k]
	delete(l.book.m, k)
	delete(l.book.damaged, k)
	if r != nil {
		l.ended[r.Attachment.UID] = time.Now()
	}
	close(l.gone)
	l.gone = make(chan struct{})
	return r, nil
}

// ReadAddresses takes over the records that the daemon before left. It returns
// an error for each that is damaged: that one is set aside, and its interface
// remembered until its DEL, or the sweep sees that it is no more.
func (l *Ledger) ReadAddresses() (bad []error, err error) {
	if err := os.MkdirAll(l.book.dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of address records: %w", err)
	}
	entries, err := os.ReadDir(l.book.dir)
	if err != nil {
		return nil, fmt.Errorf("read the directory of address records: %w", err)
	}
	l.Mu.Lock()
	defer l.Mu.Unlock()
	for _, e := range entries {
		path := filepath.Join(l.book.dir, e.Name())
		if strings.HasPrefix(e.Name(), TempPrefix) {
			if err := os.Remove(path); err != nil {
				return nil, fmt.Errorf("remove a half-written record: %w", err)
			}
			continue
		}
		// What was set aside before is still missing.
		name, isBad := strings.CutSuffix(e.Name(), RecordSuffix+DamagedSuffix)
		name = strings.TrimSuffix(name, RecordSuffix)
		containerID, ifName, ok := strings.Cut(name, KeySeparator)
		k := AddressKey{containerID, ifName}
		if !ok {
			continue
		}
		if isBad {
			l.book.damaged[k] = true
			continue
		}
		raw, err := os.ReadFile(path)
		if err == nil {
			var r *AddressRecord
			if r, err = DecodeAddresses(raw, k); err == nil {
				l.book.m[k] = r
				continue
			}
		}
		if err := os.Rename(path, path+DamagedSuffix); err != nil {
			return nil, fmt.Errorf("set a damaged record aside: %w", err)
		}
		l.book.damaged[k] = true
		bad = append(bad, fmt.Errorf("addresses of %s: %w", k, err))
	}
	return bad, nil
}

// DecodeAddresses accepts what writeAddresses writes.
func DecodeAddresses(raw []byte, k AddressKey) (*AddressRecord, error) {
	r := &AddressRecord{}
	if err := json.Unmarshal(raw, r); err != nil {
		return nil, fmt.Errorf("decode record: %w", err)
	}
	switch {
	case r.Version != Version:
		return nil, fmt.Errorf("record has version %d: this build reads %d", r.Version, Version)
	case r.Key() != k:
		return nil, fmt.Errorf("record is of %q: its file says %q", r.Key(), k)
	case r.Attachment.UID == "":
		return nil, errors.New("record names no PodAttachment")
	}
	return r, nil
}
