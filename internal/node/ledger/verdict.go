package ledger

import (
	"time"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// Verdict is the change that the status of a PodAttachment needs.
type Verdict int

const (
	// AsItIs leaves the status alone: it is right, or the next state is still open.
	AsItIs Verdict = iota
	// Plugged means that the sandbox of the record holds the interfaces.
	Plugged
	// Unplugged means that no sandbox holds the interfaces, or ever will.
	Unplugged
	// Damaged means that the sandbox of the status has a damaged record, and may hold the
	// interfaces.
	Damaged
	// Ended means that the sandbox of the status holds nothing any more, although the
	// PodAttachment is not being deleted. The runtime may make another sandbox.
	Ended
)

// Judge derives the verdict on a PodAttachment from the records. With Plugged it also
// returns the record of the sandbox that holds the interfaces, otherwise nil.
//
// Only a PodAttachment that is being deleted is Unplugged. That is final: no ADD gets it
// any more. While the pod lives, its sandbox may be restarted, by a DEL and an ADD,
// without this verdict.
func (l *Ledger) Judge(pa *v1alpha1.PodAttachment) (Verdict, *Record) {
	if l.identify(pa) {
		l.released(&Record{}) // the record that named no PodAttachment made others uncertain
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	held, newest := l.holder(pa)
	ended := l.ended(pa, held)
	switch {
	case newest != nil:
		return Plugged, newest
	case held && l.isDamaged(pa):
		return Damaged, nil
	case held:
		return AsItIs, nil
	}
	d := l.detached[pa.UID]
	if pa.DeletionTimestamp == nil {
		if d.declared { // a deletion is undone only if etcd is restored from a backup
			d.declared = false
			l.detached[pa.UID] = d
		}
		if ended {
			return Ended, nil
		}
		return AsItIs, nil
	}
	if l.uncertain(pa) {
		return AsItIs, nil
	}
	d.declared = true
	l.detached[pa.UID] = d
	if s := pa.Status.Sandbox; s != nil && s.State == v1alpha1.SandboxDetached {
		return AsItIs, nil
	}
	return Unplugged, nil
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
		if r.plugged() && (newest == nil || r.newer(newest)) {
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

// isDamaged reports whether the record of the sandbox in the status is damaged.
func (l *Ledger) isDamaged(pa *v1alpha1.PodAttachment) bool {
	s := pa.Status.Sandbox
	return s != nil && l.records[s.ID] != nil && l.records[s.ID].Damaged
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

// identify enters a PodAttachment into the records of its sandboxes: into one that names no
// PodAttachment, if the status names the sandbox, and into those of a PodAttachment that was
// lost and written again, with another UID. It reports whether a record was changed.
func (l *Ledger) identify(pa *v1alpha1.PodAttachment) (changed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := pa.Status.Sandbox
	for id, r := range l.records {
		if r.outlived(pa) || r.Attachment.UID == "" && s != nil && s.ID == id {
			l.records[id] = r.With(func(r *Record) {
				r.Pod, r.Attachment = PodOf(pa), Attachment{Name: pa.Name, UID: pa.UID}
				if r.Damaged {
					r.Claims = claimsOf(pa)
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

// claimsOf returns the claims of a PodAttachment.
func claimsOf(pa *v1alpha1.PodAttachment) (all []string) {
	for _, i := range pa.Spec.Interfaces {
		if i.Claim != "" {
			all = append(all, i.Claim)
		}
	}
	return all
}
