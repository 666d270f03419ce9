package host

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Of linux/netfilter/nfnetlink.h and nf_tables.h.
const (
	groupTables     = 7 // NFNLGRP_NFTABLES
	msgNewGen       = 15
	attrTable       = 1 // of every message but those about a generation
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
	// Family of the table, as NFPROTO_IPV4.
	Family uint8
	// Table and Chain are names; without a table, anything may have changed, without
	// a chain the table itself did.
	Table, Chain string
	// Base says that the chain has a hook.
	Base bool
}

// WatchTables calls notify once for each transaction of any program that changed
// something in the nftables called table, of any family. revision is the number that
// the transaction put into the table's set "revision" (type mark), otherwise 0.
// WatchTables calls notify with 0 as well once it listens, and when the kernel dropped
// events for want of room. It calls others for each change of a table, a chain or a
// rule under another name, and with nothing when it calls notify with 0 for these
// reasons. Neither function must block. WatchTables returns nil when ctx ends.
func (k *Kernel) WatchTables(ctx context.Context, table string, notify func(revision uint32), others func(RuleChange)) error {
	for ctx.Err() == nil {
		e := tableEye{table: table, notify: notify, others: others}
		ready := func() {
			notify(0)
			others(RuleChange{})
		}
		err := k.listen(ctx, source{protocol: unix.NETLINK_NETFILTER, groups: []int{groupTables}, room: watchBuffer}, ready, e.see)
		if ctx.Err() == nil && !errors.Is(err, unix.ENOBUFS) {
			return fmt.Errorf("watching nftables: %w", err)
		}
	}
	return nil
}

// tableEye puts the messages of one transaction together. The last of them tells of the
// new generation of the rules.
type tableEye struct {
	table    string
	notify   func(revision uint32)
	others   func(RuleChange)
	touched  bool
	revision uint32
}

func (e *tableEye) see(m syscall.NetlinkMessage) {
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
		e.touched = true // better once too often
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

// other tells of what happened in somebody else's table.
func (e *tableEye) other(kind uint16, c RuleChange, attrs []syscall.NetlinkRouteAttr) {
	switch kind {
	case unix.NFT_MSG_NEWTABLE, unix.NFT_MSG_DELTABLE:
	case unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN:
		c.Chain, c.Base = unix.ByteSliceToString(attr(attrs, unix.NFTA_CHAIN_NAME)), attr(attrs, unix.NFTA_CHAIN_HOOK) != nil
	case unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
		c.Chain = unix.ByteSliceToString(attr(attrs, unix.NFTA_RULE_CHAIN))
	default:
		return
	}
	e.others(c)
}

// firstKey takes the key out of a list of elements with one of a number.
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
