package ledger

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/plug"
)

// Change is the change that the status of a PodAttachment needs.
type Change int

const (
	// Keep leaves the status alone: it is right, or the next state is still open.
	Keep Change = iota
	// SetAttached means that the sandbox of the record holds the interfaces.
	SetAttached
	// SetDetached means that no sandbox holds the interfaces, or ever will.
	SetDetached
	// TellDamaged means that the sandbox that the status names, or should name, has a damaged
	// record, and may hold the interfaces.
	TellDamaged
	// SetEnded means that the sandbox of the status holds nothing any more, although the
	// PodAttachment is not being deleted. The runtime may make another sandbox.
	SetEnded
)

// ChangeOf derives the change for a PodAttachment from the records. With SetAttached and
// TellDamaged it also returns the record of the sandbox that holds the interfaces, otherwise nil.
//
// Only a PodAttachment that is being deleted is SetDetached. That is final: no ADD gets it
// any more. While the pod lives, its sandbox may be restarted, by a DEL and an ADD,
// without this change.
func (l *Ledger) ChangeOf(pa *v1alpha1.PodAttachment) (Change, *Record) {
	if l.identify(pa) {
		l.released(&Record{}) // the record that named no PodAttachment made others uncertain
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	held, newest := l.holder(pa)
	ended := l.ended(pa, held)
	switch {
	case newest != nil:
		return SetAttached, newest
	case held:
		if r := l.damagedOf(pa); r != nil {
			return TellDamaged, r
		}
		return Keep, nil
	}
	d := l.detached[pa.UID]
	if pa.DeletionTimestamp == nil {
		if d.declared { // a deletion is undone only if etcd is restored from a backup
			d.declared = false
			l.detached[pa.UID] = d
		}
		if ended {
			return SetEnded, nil
		}
		return Keep, nil
	}
	if l.uncertain(pa) {
		return Keep, nil
	}
	d.declared = true
	l.detached[pa.UID] = d
	if s := pa.Status.Sandbox; s != nil && s.State == v1alpha1.SandboxDetached {
		return Keep, nil
	}
	return SetDetached, nil
}

// ended reports whether the sandbox of the status holds nothing, although the PodAttachment
// is not being deleted, and notes since when.
func (l *Ledger) ended(pa *v1alpha1.PodAttachment, held bool) bool {
	s := pa.Status.Sandbox
	ended := !held && pa.DeletionTimestamp == nil && s != nil && s.State == v1alpha1.SandboxAttached && !l.uncertain(pa)
	d, known := l.detached[pa.UID]
	switch {
	case !ended && !known || ended && !d.ended.IsZero():
		return ended
	case ended:
		d.ended = time.Now()
	default:
		d.ended = time.Time{}
	}
	l.detached[pa.UID] = d
	return ended
}

// holder reports whether a sandbox of the PodAttachment has a record, and returns the
// newest record that is plugged. There may be several: an earlier sandbox may still have
// links.
func (l *Ledger) holder(pa *v1alpha1.PodAttachment) (held bool, newest *Record) {
	for _, r := range l.records {
		if r.Attachment.UID != pa.UID {
			continue
		}
		held = true
		if r.isInUse() && (newest == nil || r.newer(newest)) {
			newest = r
		}
	}
	return held, newest
}

// newer reports whether sandbox r was plugged after o. If the times are equal, the
// container IDs decide.
func (r *Record) newer(o *Record) bool {
	if a, b := r.AttachedAt(), o.AttachedAt(); !a.Equal(b) {
		return a.After(b)
	}
	return r.ContainerID > o.ContainerID
}

// damagedOf returns the damaged record of the sandbox that the status names; nil for none. If the
// PodAttachment was lost and written again, it has no status yet, and the record is that of a sandbox
// whose container ID is known.
func (l *Ledger) damagedOf(pa *v1alpha1.PodAttachment) *Record {
	s := pa.Status.Sandbox
	return l.first(func(r *Record) bool {
		return r.Damaged && (s != nil && r.ContainerID == s.ID || s == nil && r.Attachment.UID == pa.UID && r.isNamed())
	})
}

// uncertain reports whether the PodAttachment may be that of a sandbox whose record does not
// name one.
func (l *Ledger) uncertain(pa *v1alpha1.PodAttachment) bool {
	s := pa.Status.Sandbox
	open := s == nil || s.State == v1alpha1.SandboxAttached && l.records[s.ID] == nil // another sandbox may have followed it
	return l.first(func(r *Record) bool { return r.Attachment.UID == "" && (r.Damaged && open || r.MayBeOf(pa)) }) != nil
}

// MayBeOf reports whether the sandbox may be that of a PodAttachment. A damaged record, and
// that of links whose ADD is not known, names none until a status names the sandbox. Until then
// it may be of any whose status names no sandbox.
func (r *Record) MayBeOf(pa *v1alpha1.PodAttachment) bool {
	return r.Attachment.UID == pa.UID || r.Attachment.UID == "" && pa.Status.Sandbox == nil
}

// addressOnly returns the ADD of another plugin's interface, by its name in the
// PodAttachment.
func (r *Record) addressOnly(name string) *Add {
	return r.find(func(a Add) bool { return a.AddressOnly() && a.Interfaces[0].Name == name })
}

// identify enters a PodAttachment into the records of its sandboxes. If the status names a sandbox
// whose record names no PodAttachment, that is entered; so are the records of a PodAttachment that
// was lost and written again, with another UID. It reports whether a record was changed.
func (l *Ledger) identify(pa *v1alpha1.PodAttachment) (changed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := pa.Status.Sandbox
	for id, r := range l.records {
		if r.outlived(pa) || r.Attachment.UID == "" && s != nil && s.ID == id {
			l.records[id] = r.With(func(r *Record) {
				r.Pod, r.Attachment = PodOf(pa), Attachment{Name: pa.Name, UID: pa.UID}
				if r.Damaged {
					r.Wanted = pa.Spec.Interfaces
				}
			})
			changed = true
		}
	}
	return changed
}

// outlived reports whether the sandbox is that of an earlier PodAttachment of the same pod.
// The name has a part of the pod's own UID.
func (r *Record) outlived(pa *v1alpha1.PodAttachment) bool {
	return r.Attachment.UID != "" && r.Attachment.UID != pa.UID && r.Attachment.Name == pa.Name &&
		r.Pod.Namespace == pa.Namespace && r.Pod.UID == pa.Spec.PodUID
}

// Missing returns the interfaces of a PodAttachment that its sandbox lacks, by the record
// that ChangeOf returned. An interface that Fairlead plugs is missing until it is plugged, and
// until it is active if the running sandbox gets it and it has WaitForActive. An interface
// of another plugin is missing until that plugin has asked for its addresses. An interface
// that is to be unplugged does not count as missing.
func (r *Record) Missing(pa *v1alpha1.PodAttachment) []v1alpha1.Interface {
	var out []v1alpha1.Interface
	for _, i := range pa.Spec.Interfaces {
		if slices.Contains(pa.Spec.Unplug, i.Name) {
			continue
		}
		a := r.Plug()
		if i.Binding.AddressOnly != nil {
			a = r.addressOnly(i.Name)
		}
		if a == nil || a.State != Attached || a.lacks(pa, i) {
			out = append(out, i)
		}
	}
	return out
}

// LostAddress returns a message about an address that the default interface of an ADD does not
// have any more, "" if it has all.
func (a *Add) LostAddress(now plug.Inspected) string {
	for _, i := range a.Interfaces {
		if i.Name != a.IfName {
			continue
		}
		for _, s := range i.Addresses {
			p, err := netip.ParsePrefix(s)
			has := func(have netip.Prefix) bool { return have.Addr() == p.Addr() }
			if err == nil && !slices.ContainsFunc(now.Addresses, has) {
				return fmt.Sprintf("interface %s has lost its address %s", i.Name, s)
			}
		}
	}
	return ""
}

// lacks reports whether a running sandbox lacks an interface that Fairlead plugs, or has
// got it and it is not active.
func (a *Add) lacks(pa *v1alpha1.PodAttachment, i v1alpha1.Interface) bool {
	if i.Default || a.AddressOnly() {
		return false
	}
	has := a.further(i.Name)
	if has == nil || has.State != "" {
		return true
	}
	return has.HotPlugged && i.WaitForActive && !slices.ContainsFunc(pa.Status.Interfaces, func(s v1alpha1.InterfaceStatus) bool { return s.Name == i.Name && s.Active })
}

// TellMissing returns a message for the user that names the missing interfaces of the
// sandbox of a record and the probable reason; empty if none are missing.
func TellMissing(pa *v1alpha1.PodAttachment, rec *Record, missing []v1alpha1.Interface) string {
	var ours, further, first, parts []string
	for _, i := range missing {
		switch {
		case i.Binding.AddressOnly == nil && rec.Attached() != nil:
			parts = append(parts, i.Name+": "+rec.Attached().why(pa, i))
		case i.Binding.AddressOnly == nil:
			ours = append(ours, i.Name)
		case i.Default:
			first = append(first, i.Name)
		default:
			further = append(further, fmt.Sprintf("%s (network %s)", i.Name, i.Network))
		}
	}
	for _, p := range []struct {
		names  []string
		reason string
	}{
		{ours, "not plugged: the runtime has not asked this node for it"},
		{first, "no plugin has asked for the addresses; does the one that makes it have fairlead-ipam as its ipam?"},
		{further, "no plugin has asked for the addresses; does the runtime use Multus' configuration, and not another that comes before it?"},
	} {
		if len(p.names) > 0 {
			parts = append(parts, strings.Join(p.names, ", ")+": "+p.reason)
		}
	}
	return strings.Join(parts, "; ")
}

// damagedText is the end of the message of TellOutdated.
const damagedText = ": the running pod does not follow the change of its networks, because the record of its sandbox was damaged: replace the pod"

// TellOutdated returns a message for the user if the sandbox of the status, whose record is
// damaged, differs from the changed spec of its PodAttachment; otherwise it is
// empty. The interfaces of the sandbox are not known well enough to plug or unplug one.
func TellOutdated(pa *v1alpha1.PodAttachment) string {
	s := pa.Status.Sandbox
	if s.Generation == 0 || s.Generation == pa.Generation {
		return ""
	}
	var names []string
	for _, i := range pa.Spec.Interfaces {
		is := func(l v1alpha1.SandboxLink) bool { return l.Name == i.Name }
		if !i.Default && i.Binding.AddressOnly == nil && !slices.Contains(pa.Spec.Unplug, i.Name) && !slices.ContainsFunc(s.Links, is) {
			names = append(names, i.Name)
		}
	}
	if names = append(names, pa.Spec.Unplug...); len(names) == 0 {
		return ""
	}
	return strings.Join(names, ", ") + damagedText
}

// IsOutdated reports whether a message is one of TellOutdated.
func IsOutdated(message string) bool { return strings.HasSuffix(message, damagedText) }

// why returns the reason why a running sandbox lacks an interface that Fairlead plugs.
func (a *Add) why(pa *v1alpha1.PodAttachment, i v1alpha1.Interface) string {
	if reason, failed := a.Failures[i.Name]; failed {
		return "it cannot be plugged, which is tried again: " + reason
	}
	if has := a.further(i.Name); has == nil || has.State != "" {
		return "it is not plugged into the running pod yet"
	}
	for _, s := range pa.Status.Interfaces {
		if s.Name == i.Name && s.Message != "" {
			return "it is not active: " + s.Message
		}
	}
	return "it is not active yet"
}
