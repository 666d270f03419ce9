package node

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

// addressesDir holds one file for each interface of another plugin.
const addressesDir = "addresses"

// addressKey names an interface of another plugin, as CNI does.
type addressKey struct{ containerID, ifName string }

// separator can be in no container ID.
const keySeparator = "@"

func (k addressKey) String() string { return k.containerID + keySeparator + k.ifName }

// addressRecord says that an interface of another plugin has the addresses of a
// PodAttachment's interface. It is written before ADD answers. One that is in the
// ledger is never changed, only replaced.
type addressRecord struct {
	Version     int                `json:"version"`
	ContainerID string             `json:"containerID"`
	IfName      string             `json:"ifName"`
	BootID      string             `json:"bootID"`
	Netns       string             `json:"netns,omitempty"`
	NetnsID     netdev.NamespaceID `json:"netnsID"`
	// Config is the name of the network configuration, whose GC it is for.
	Config     string        `json:"config,omitempty"`
	Pod        podRef        `json:"pod"`
	Attachment attachmentRef `json:"attachment"`
	// Interface is the name in the PodAttachment.
	Interface string `json:"interface"`
	// Addresses without prefix lengths.
	Addresses []string `json:"addresses"`
	// Result is the CNI result, in the version in which ADD answered. Before that
	// the record is a claim, in memory alone.
	Result     json.RawMessage `json:"result"`
	AttachedAt time.Time       `json:"attachedAt"`
}

func (r *addressRecord) key() addressKey { return addressKey{r.ContainerID, r.IfName} }

// sandbox is what the status of the PodAttachment says when no interface of ours
// is plugged.
func (r *addressRecord) sandbox() *record {
	return &record{
		ContainerID: r.ContainerID, BootID: r.BootID, State: attached, Netns: r.Netns, NetnsID: r.NetnsID,
		Pod: r.Pod, Attachment: r.Attachment, AttachedAt: r.AttachedAt,
	}
}

// addressBook is the part of the ledger that is about interfaces of other
// plugins. The ledger's lock guards it.
type addressBook struct {
	dir string
	m   map[addressKey]*addressRecord
	// damaged are those whose record could not be read: of which PodAttachment
	// they are is not known, only the container.
	damaged map[addressKey]bool
}

func (b *addressBook) path(k addressKey) string {
	return filepath.Join(b.dir, k.String()+recordSuffix)
}

// of returns the newest record of a PodAttachment: an earlier sandbox may not have
// given everything back. There may be some that are claims yet: then it returns none.
func (b *addressBook) of(uid types.UID) (answered *addressRecord, some bool) {
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
		if k.maybeOf(s) {
			return true
		}
	}
	return false
}

// maybeOf tells whether a damaged record may be of a PodAttachment: its status names
// that sandbox, or none.
func (k addressKey) maybeOf(s *v1alpha1.Sandbox) bool {
	return s == nil || s.ID == k.containerID && s.State == v1alpha1.SandboxAttached
}

// damagedAlone returns the interfaces whose record is damaged, of containers that
// have no other record.
func (l *ledger) damagedAlone() []addressKey {
	l.mu.Lock()
	defer l.mu.Unlock()
	others := map[string]bool{}
	for k := range l.book.m {
		others[k.containerID] = true
	}
	var out []addressKey
	for k := range l.book.damaged {
		if l.records[k.containerID] == nil && !others[k.containerID] {
			out = append(out, k)
		}
	}
	return out
}

// addressesRecorded tells whether an interface of a PodAttachment has a record.
func (l *ledger) addressesRecorded(uid types.UID, name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.book.m {
		if r.Attachment.UID == uid && r.Interface == name {
			return true
		}
	}
	return false
}

// addressesOf returns the record of an interface, or nil.
func (l *ledger) addressesOf(k addressKey) *addressRecord {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.book.m[k]
}

// addressesHeldBy returns which of a PodAttachment's interfaces the sandbox of k has
// addresses of under other names than that of k, with these names.
func (l *ledger) addressesHeldBy(k addressKey) map[string]string {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := map[string]string{}
	for other, r := range l.book.m {
		if other.containerID == k.containerID && other != k {
			out[r.Interface] = other.ifName
		}
	}
	return out
}

// addressesHeld returns the interfaces of other plugins that have addresses of a
// PodAttachment.
func (l *ledger) addressesHeld(uid types.UID) []addressKey {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []addressKey
	for k, r := range l.book.m {
		if r.Attachment.UID == uid {
			out = append(out, k)
		}
	}
	return out
}

// allAddresses returns every record of an interface of another plugin.
func (l *ledger) allAddresses() []*addressRecord {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Values(l.book.m))
}

// addressClaim is what came of an attempt to claim an interface's addresses.
type addressClaim struct {
	// sealed: it was said that nothing is plugged, and never will be.
	sealed bool
	// before is another interface, of an earlier sandbox, that has them.
	before *addressRecord
	// gone is closed when some record is removed.
	gone <-chan struct{}
}

// claimAddresses puts a record down, so that nobody says from here on that the
// PodAttachment is unplugged. Nothing was put down when it is sealed or another
// sandbox has the interface.
func (l *ledger) claimAddresses(r *addressRecord) addressClaim {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, sealed := l.sealed[r.Attachment.UID]; sealed {
		return addressClaim{sealed: true}
	}
	for k, other := range l.book.m {
		if k != r.key() && other.Attachment.UID == r.Attachment.UID && other.Interface == r.Interface {
			return addressClaim{before: other, gone: l.gone}
		}
	}
	l.book.m[r.key()] = r
	return addressClaim{}
}

// replaceAddresses takes over a record that was written.
func (l *ledger) replaceAddresses(r *addressRecord) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.book.m[r.key()] = r
}

// writeAddresses writes a record that was claimed, as a whole.
func (l *ledger) writeAddresses(r *addressRecord) error {
	raw, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode the record of the addresses of %s: %w", r.key(), err)
	}
	temp := filepath.Join(l.book.dir, newPrefix+r.key().String())
	if err = prepareRecord(temp, raw); err == nil {
		err = publishRecord(temp, l.book.path(r.key()))
	}
	if err != nil {
		return fmt.Errorf("write the record of the addresses of %s: %w", r.key(), err)
	}
	return nil
}

// removeAddresses forgets the addresses of an interface, on disk first, and
// returns what was known of them; nil when nothing was.
func (l *ledger) removeAddresses(k addressKey) (*addressRecord, error) {
	for _, path := range []string{l.book.path(k), l.book.path(k) + damagedSuffix} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("remove the record of the addresses of %s: %w", k, err)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
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

// readAddresses takes over the records that the daemon before left. It returns
// an error for each that is damaged: that one is set aside, and its interface
// remembered until its DEL, or the sweep sees that it is no more.
func (l *ledger) readAddresses() (bad []error, err error) {
	if err := os.MkdirAll(l.book.dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of address records: %w", err)
	}
	entries, err := os.ReadDir(l.book.dir)
	if err != nil {
		return nil, fmt.Errorf("read the directory of address records: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range entries {
		path := filepath.Join(l.book.dir, e.Name())
		if strings.HasPrefix(e.Name(), newPrefix) {
			if err := os.Remove(path); err != nil {
				return nil, fmt.Errorf("remove a half-written record: %w", err)
			}
			continue
		}
		// What was set aside before is still missing.
		name, isBad := strings.CutSuffix(e.Name(), recordSuffix+damagedSuffix)
		name = strings.TrimSuffix(name, recordSuffix)
		containerID, ifName, ok := strings.Cut(name, keySeparator)
		k := addressKey{containerID, ifName}
		if !ok {
			continue
		}
		if isBad {
			l.book.damaged[k] = true
			continue
		}
		raw, err := os.ReadFile(path)
		if err == nil {
			var r *addressRecord
			if r, err = decodeAddresses(raw, k); err == nil {
				l.book.m[k] = r
				continue
			}
		}
		if err := os.Rename(path, path+damagedSuffix); err != nil {
			return nil, fmt.Errorf("set a damaged record aside: %w", err)
		}
		l.book.damaged[k] = true
		bad = append(bad, fmt.Errorf("addresses of %s: %w", k, err))
	}
	return bad, nil
}

// decodeAddresses accepts what writeAddresses writes.
func decodeAddresses(raw []byte, k addressKey) (*addressRecord, error) {
	r := &addressRecord{}
	if err := json.Unmarshal(raw, r); err != nil {
		return nil, fmt.Errorf("decode record: %w", err)
	}
	switch {
	case r.Version != recordVersion:
		return nil, fmt.Errorf("record has version %d: this build reads %d", r.Version, recordVersion)
	case r.key() != k:
		return nil, fmt.Errorf("record is of %q: its file says %q", r.key(), k)
	case r.Attachment.UID == "":
		return nil, errors.New("record names no PodAttachment")
	}
	return r, nil
}
