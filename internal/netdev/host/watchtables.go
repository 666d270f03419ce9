package host

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Constants of linux/netfilter/nfnetlink.h and nf_tables.h.
const (
	groupTables     = 7 // NFNLGRP_NFTABLES
	msgNewGen       = 15
	attrTable       = 1 // in all messages except those about a generation
	attrElemSet     = 2
	attrElements    = 3
	attrElemKey     = 1
	attrDataValue   = 1
	sizeofNfgenmsg  = 4
	revisionSet     = "revision"
	revisionKeySize = 4
)

// RuleChange is a change of rules in a table of another program.
type RuleChange struct {
	// Family of the table, such as NFPROTO_IPV4.
	Family uint8
	// Table and Chain are names. Without a table, anything may have changed. Without a
	// chain, the table itself changed.
	Table, Chain string
	// Base is true if the chain has a hook.
	Base bool
	// Deleted is true if the table, or the chain, was deleted.
	Deleted bool
}

// WatchTables calls notify once for each transaction of any program that changes the
// nftables table with this name, of any family. revision is the number that the
// transaction put into the table's set "revision" (type mark), otherwise 0. WatchTables
// also calls notify with 0 once it listens, and after the kernel dropped events because
// the buffer was full.
//
// WatchTables calls others for each change of a table, chain or rule under another name,
// and with the zero RuleChange whenever it calls notify with 0 for one of these two
// reasons. Neither function may block. WatchTables returns nil when ctx ends.
func (k *Kernel) WatchTables(ctx context.Context, table string, notify func(revision uint32), others func(RuleChange)) error {
	for ctx.Err() == nil {
		e := tableWatch{table: table, notify: notify, others: others}
		ready := func() {
			notify(0)
			others(RuleChange{})
		}
		err := k.listen(ctx, source{protocol: unix.NETLINK_NETFILTER, groups: []int{groupTables}, room: watchBuffer}, ready, e.handle)
		if ctx.Err() == nil && !errors.Is(err, unix.ENOBUFS) {
			return fmt.Errorf("watching nftables: %w", err)
		}
	}
	return nil
}

// tableWatch collects the messages of one transaction. The last message of a transaction
// announces the new generation of the rules.
type tableWatch struct {
	table    string
	notify   func(revision uint32)
	others   func(RuleChange)
	touched  bool
	revision uint32
}

func (e *tableWatch) handle(m syscall.NetlinkMessage) {
	if m.Header.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || len(m.Data) < sizeofNfgenmsg {
		return
	}
	kind := m.Header.Type & 0xff
	if kind == msgNewGen {
		if e.touched {
			e.notify(e.revision)
		}
		e.touched, e.revision = false, 0
		return
	}
	attrs, err := nl.ParseRouteAttr(m.Data[sizeofNfgenmsg:])
	if err != nil {
		e.touched = true // an unnecessary call does no harm
		return
	}
	if name := unix.ByteSliceToString(attr(attrs, attrTable)); name != e.table {
		e.other(kind, RuleChange{Family: m.Data[0], Table: name}, attrs)
		return
	}
	e.touched = true
	if kind == unix.NFT_MSG_NEWSETELEM && unix.ByteSliceToString(attr(attrs, attrElemSet)) == revisionSet {
		e.revision = firstKey(attr(attrs, attrElements))
	}
}

// other reports a change in another program's table.
func (e *tableWatch) other(kind uint16, c RuleChange, attrs []syscall.NetlinkRouteAttr) {
	switch kind {
	case unix.NFT_MSG_NEWTABLE, unix.NFT_MSG_DELTABLE:
		c.Deleted = kind == unix.NFT_MSG_DELTABLE
	case unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN:
		c.Deleted = kind == unix.NFT_MSG_DELCHAIN
		c.Chain, c.Base = unix.ByteSliceToString(attr(attrs, unix.NFTA_CHAIN_NAME)), attr(attrs, unix.NFTA_CHAIN_HOOK) != nil
	case unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
		c.Chain = unix.ByteSliceToString(attr(attrs, unix.NFTA_RULE_CHAIN))
	default:
		return
	}
	e.others(c)
}

// firstKey returns the key of the first element of a list, 0 if it is no number.
func firstKey(list []byte) uint32 {
	for _, kind := range []int{unix.NFTA_LIST_ELEM, attrElemKey, attrDataValue} {
		attrs, err := nl.ParseRouteAttr(list)
		if err != nil {
			return 0
		}
		list = attr(attrs, kind)
	}
	if len(list) != revisionKeySize {
		return 0
	}
	return nl.NativeEndian().Uint32(list)
}

// attr returns the value of the first attribute of a type, or nil.
func attr(attrs []syscall.NetlinkRouteAttr, kind int) []byte {
	for _, a := range attrs {
		if int(a.Attr.Type)&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER) == kind {
			return a.Value
		}
	}
	return nil
}
