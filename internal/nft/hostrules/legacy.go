package hostrules

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"unsafe"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// From linux/netfilter_ipv4/ip_tables.h; the same for IPv6.
const (
	getInfo    = 64 // IPT_SO_GET_INFO
	getEntries = 65 // IPT_SO_GET_ENTRIES

	tableNameSize = 32
	sizeofInfo    = 84 // struct ipt_getinfo
	hookEntries   = tableNameSize + 4
	underflows    = hookEntries + 5*4
	sizeAt        = sizeofInfo - 4
	sizeofGet     = 40 // struct ipt_get_entries, before its entries
	maxLegacy     = 64 << 20
)

// legacyFamily is iptables-legacy of one IP version.
type legacyFamily struct {
	family        nftables.TableFamily
	names         string // file with the names of the tables
	domain, level int
	entry         layout
}

var legacyFamilies = []legacyFamily{
	{nftables.TableFamilyIPv4, "/proc/thread-self/net/ip_tables_names", unix.AF_INET, unix.SOL_IP, layout4},
	{nftables.TableFamilyIPv6, "/proc/thread-self/net/ip6_tables_names", unix.AF_INET6, unix.SOL_IPV6, layout6},
}

// legacyHooks are the hooks of iptables that are evaluated.
var legacyHooks = []struct {
	number int
	name   string
	hook   nftables.ChainHook
}{
	{unix.NF_INET_PRE_ROUTING, "PREROUTING", *nftables.ChainHookPrerouting},
	{unix.NF_INET_FORWARD, "FORWARD", *nftables.ChainHookForward},
}

// readLegacy adds the tables of iptables-legacy. It requests only tables that exist,
// because a request creates a missing table.
func (r *rules) readLegacy() error {
	for _, f := range legacyFamilies {
		names, err := os.ReadFile(f.names)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the kernel does not support it
		}
		if err != nil {
			return fmt.Errorf("read the iptables of others: %w", err)
		}
		for table := range strings.FieldsSeq(string(names)) {
			if table == "nat" { // its chains do not filter
				continue
			}
			info, blob, err := f.read(table)
			if err != nil {
				return fmt.Errorf("read the iptables of others: %s: %w", table, err)
			}
			if err := r.addLegacy(f, table, info, blob); err != nil {
				return fmt.Errorf("read the iptables of others: %s: %w", table, err)
			}
		}
	}
	return nil
}

// read returns the kernel's description of a table (struct ipt_getinfo), and its entries.
func (f legacyFamily) read(table string) (info, entries []byte, err error) {
	fd, err := unix.Socket(f.domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return nil, nil, err
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	for range 3 {        // the table may grow between the two calls
		info = make([]byte, sizeofInfo)
		copy(info, table)
		if err = getsockopt(fd, f.level, getInfo, info); err != nil {
			return nil, nil, err
		}
		size := binary.NativeEndian.Uint32(info[sizeAt:])
		if size > maxLegacy {
			return nil, nil, fmt.Errorf("it has %d bytes, more than %d", size, maxLegacy)
		}
		entries = make([]byte, sizeofGet+size)
		copy(entries, table)
		binary.NativeEndian.PutUint32(entries[tableNameSize:], size)
		if err = getsockopt(fd, f.level, getEntries, entries); !errors.Is(err, unix.EAGAIN) {
			break
		}
	}
	return info, entries[sizeofGet:], err
}

// getsockopt reads an option whose buffer is both input and output.
func getsockopt(fd, level, option int, buf []byte) error {
	size := uint32(len(buf))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(&buf[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// addLegacy adds a table: its chains, with their rules as nftables expressions.
func (r *rules) addLegacy(f legacyFamily, table string, info, blob []byte) error {
	all, err := f.entry.entries(blob)
	if err != nil {
		return err
	}
	ref := chainRef{family: f.family, table: table, legacy: true}
	of := &nftables.Table{Family: f.family, Name: table}
	number := func(at int) int { return int(binary.NativeEndian.Uint32(info[at:])) }
	names := chainNames(all)
	// A base chain ends with its policy, a rule that always matches.
	for _, h := range legacyHooks {
		if number(tableNameSize)>>h.number&1 == 0 {
			continue
		}
		first, last := number(hookEntries+4*h.number), number(underflows+4*h.number)
		ref.name = h.name
		base := baseChain{chainRef: ref, hook: h.hook}
		r.chains[ref] = nil
		for _, e := range all {
			switch {
			case e.offset >= first && e.offset < last:
				r.chains[ref] = append(r.chains[ref], &nftables.Rule{Table: of, Exprs: f.entry.exprs(e, names)})
			case e.offset == last:
				base.drops = e.standard() && e.verdict() == legacyDrop
			}
		}
		r.base = append(r.base, base)
	}
	// A user-defined chain begins after the marker with its name, and ends before the
	// next marker.
	inside := false
	for _, e := range all {
		if e.target == errorTarget {
			ref.name, inside = e.name(), true
			r.chains[ref] = nil
		} else if inside {
			r.chains[ref] = append(r.chains[ref], &nftables.Rule{Table: of, Exprs: f.entry.exprs(e, names)})
		}
	}
	return nil
}
