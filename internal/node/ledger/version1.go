package ledger

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/nft"
)

// recordV1 is a record of version 1. It has the interfaces that Fairlead plugs. The
// interfaces of other plugins have records of their own (addressesV1).
type recordV1 struct {
	ContainerID string           `json:"containerID"`
	BootID      string           `json:"bootID"`
	State       State            `json:"state"`
	Netns       string           `json:"netns"`
	NetnsID     link.NamespaceID `json:"netnsID"`
	IfName      string           `json:"ifName"`
	Pod         Pod              `json:"pod"`
	Attachment  Attachment       `json:"attachment"`
	Interfaces  []interfaceV1    `json:"interfaces"`
	HostPorts   []nft.Port       `json:"hostPorts"`
	Result      json.RawMessage  `json:"result"`
	StartedAt   time.Time        `json:"startedAt"`
	AttachedAt  time.Time        `json:"attachedAt"`
}

// interfaceV1 is an interface in a record of version 1, always on a bridge.
type interfaceV1 struct {
	Interface
	HostName string `json:"hostName"`
}

func (r *recordV1) record() *Record {
	at := link.Place{Path: r.Netns, ID: r.NetnsID}
	interfaces := make([]Interface, len(r.Interfaces))
	for n, i := range r.Interfaces {
		i.Made = plug.Made{Kind: plug.KindBridge, ContainerID: r.ContainerID, Name: i.Name, Namespace: at, HostLink: i.HostName}
		if b := i.Binding.Bridge; b != nil {
			i.Made.Bridge = b.Name
		}
		interfaces[n] = i.Interface
	}
	return &Record{
		Version: Version, ContainerID: r.ContainerID, BootID: r.BootID, Netns: r.Netns, NetnsID: r.NetnsID, Pod: r.Pod, Attachment: r.Attachment,
		Adds: []Add{{
			IfName: r.IfName, State: r.State, Interfaces: interfaces, HostPorts: r.HostPorts,
			Result: r.Result, StartedAt: r.StartedAt, AttachedAt: r.AttachedAt,
		}},
	}
}

// AddressesDir is the directory, beside RecordsDir, in which version 1 kept one file for
// each interface of another plugin, named <container ID>@<CNI_IFNAME>.json.
const AddressesDir = "addresses"

// addressesV1 is the record of an interface of another plugin in version 1.
type addressesV1 struct {
	Version     int              `json:"version"`
	ContainerID string           `json:"containerID"`
	IfName      string           `json:"ifName"`
	BootID      string           `json:"bootID"`
	Netns       string           `json:"netns"`
	NetnsID     link.NamespaceID `json:"netnsID"`
	Pod         Pod              `json:"pod"`
	Attachment  Attachment       `json:"attachment"`
	// Interface is the name in the PodAttachment.
	Interface string `json:"interface"`
	// Addresses have no prefix lengths.
	Addresses  []string        `json:"addresses"`
	Result     json.RawMessage `json:"result"`
	AttachedAt time.Time       `json:"attachedAt"`
}

// record returns the record of a sandbox that has no other interface.
func (r *addressesV1) record() (*Record, error) {
	made := plug.Made{Kind: plug.KindAddressOnly, ContainerID: r.ContainerID, Name: r.IfName, Namespace: link.Place{Path: r.Netns, ID: r.NetnsID}}
	i := v1alpha1.Interface{Name: r.Interface, Binding: v1alpha1.Binding{AddressOnly: &v1alpha1.AddressOnlyBinding{}}}
	for n, s := range r.Addresses {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return nil, fmt.Errorf("addresses[%d]: %w", n, err)
		}
		i.Addresses = append(i.Addresses, netip.PrefixFrom(a, a.BitLen()).String())
	}
	return &Record{
		Version: Version, ContainerID: r.ContainerID, BootID: r.BootID, Netns: r.Netns, NetnsID: r.NetnsID, Pod: r.Pod, Attachment: r.Attachment,
		Adds: []Add{{IfName: r.IfName, State: Attached, Interfaces: []Interface{{Interface: i, Made: made}}, Result: r.Result, AttachedAt: r.AttachedAt}},
	}, nil
}

// decodeAddresses decodes a record of version 1 for an interface of another plugin.
func decodeAddresses(raw []byte, containerID, ifName string) (*Record, error) {
	r := &addressesV1{}
	if err := json.Unmarshal(raw, r); err != nil {
		return nil, fmt.Errorf("decode record: %w", err)
	}
	switch {
	case r.Version != 1:
		return nil, fmt.Errorf("record of addresses has version %d: this build reads 1", r.Version)
	case r.ContainerID != containerID || r.IfName != ifName:
		return nil, fmt.Errorf("record is of interface %q of sandbox %q: its file is named after %q of %q", r.IfName, r.ContainerID, ifName, containerID)
	case r.Attachment.UID == "":
		return nil, errors.New("record names no PodAttachment")
	}
	return r.record()
}

// upgrade merges the records of version 1 for interfaces of other plugins into the
// records of their sandboxes, and removes the files of version 1. A damaged file is moved
// to the directory of records, and the record of its sandbox is marked as incomplete. If
// the daemon is killed at any step, the next call does the rest.
func (f files) upgrade(records map[string]*Record, bootID string) (bad []damaged, err error) {
	dir := filepath.Join(filepath.Dir(f.dir), AddressesDir)
	names, err := recordNames(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		path := filepath.Join(dir, name)
		containerID, ifName, ok := strings.Cut(strings.TrimSuffix(strings.TrimSuffix(name, DamagedSuffix), RecordSuffix), "@")
		if !ok {
			continue
		}
		add, readErr := readAddresses(path, containerID, ifName)
		if readErr != nil {
			bad = append(bad, damaged{ContainerID: containerID, Err: fmt.Errorf("addresses of interface %s: %w", ifName, readErr)})
		}
		r := merged(records[containerID], add, containerID, bootID)
		if err := f.write(r); err != nil {
			return nil, err
		}
		records[containerID] = r
		if readErr == nil {
			err = os.Remove(path)
		} else {
			err = os.Rename(path, filepath.Join(f.dir, strings.TrimSuffix(name, DamagedSuffix)+DamagedSuffix))
		}
		if err != nil {
			return nil, fmt.Errorf("remove a record of version 1: %w", err)
		}
	}
	_ = os.Remove(dir) // fails if people have put other files there
	return bad, nil
}

func readAddresses(path, containerID, ifName string) (*Record, error) {
	if strings.HasSuffix(path, DamagedSuffix) {
		return nil, errors.New("record was damaged and set aside before")
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return decodeAddresses(raw, containerID, ifName)
}

// merged returns record r with the ADD of add, an interface of another plugin. r is nil
// if the sandbox has no record, add is nil if its file is damaged.
func merged(r, add *Record, containerID, bootID string) *Record {
	switch {
	case add == nil && r == nil:
		return &Record{Version: Version, ContainerID: containerID, BootID: bootID, Incomplete: true}
	case add == nil:
		return r.With(func(r *Record) { r.Incomplete = true })
	case r == nil:
		return add
	}
	return r.WithAdd(add.Adds[0]).With(func(r *Record) {
		if r.Attachment.UID == "" {
			r.Netns, r.NetnsID, r.Pod, r.Attachment = add.Netns, add.NetnsID, add.Pod, add.Attachment
		}
	})
}
