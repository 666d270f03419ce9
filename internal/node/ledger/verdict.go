package ledger

import (
	"slices"
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
		l.released(&Record{}) // the unidentified record made others uncertain
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	held, newest := l.holder(pa)
	ended := l.ended(pa, held)
	switch {
	case newest != nil:
		return Plugged, newest
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

// uncertain reports whether the PodAttachment may be that of a sandbox whose record is
// unidentified or incomplete.
func (l *Ledger) uncertain(pa *v1alpha1.PodAttachment) bool {
	for _, r := range l.records {
		if pa.Status.Sandbox == nil && r.Attachment.UID == "" && len(r.Adds) > 0 {
			return true
		}
		if len(l.mayHave(r, pa)) > 0 {
			return true
		}
	}
	return false
}

// MayHave returns the interfaces of a PodAttachment that the sandbox of an incomplete
// record may have although the record lacks them. These are interfaces that have no link
// on the host, are in no record and are not known to be gone. It returns nil if the record
// is complete or is of another PodAttachment.
func (l *Ledger) MayHave(r *Record, pa *v1alpha1.PodAttachment) []v1alpha1.Interface {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mayHave(r, pa)
}

func (l *Ledger) mayHave(r *Record, pa *v1alpha1.PodAttachment) (out []v1alpha1.Interface) {
	s := pa.Status.Sandbox
	switch {
	case !r.Incomplete,
		r.Attachment.UID != "" && r.Attachment.UID != pa.UID,
		s != nil && (s.ID != r.ContainerID || s.State != v1alpha1.SandboxAttached):
		return nil
	}
	for _, i := range pa.Spec.Interfaces {
		if !l.finds(i.Binding) && !slices.Contains(r.Deleted, i.Name) && !l.recorded(pa, i) {
			out = append(out, i)
		}
	}
	return out
}

// recorded reports whether a record of the PodAttachment has an interface.
func (l *Ledger) recorded(pa *v1alpha1.PodAttachment, i v1alpha1.Interface) bool {
	is := func(o Interface) bool {
		return o.Name == i.Name && (o.Binding.AddressOnly != nil) == (i.Binding.AddressOnly != nil)
	}
	for _, r := range l.records {
		if r.Attachment.UID == pa.UID && slices.ContainsFunc(r.Interfaces(), is) {
			return true
		}
	}
	return false
}

// addressOnly returns the ADD of another plugin's interface, by its name in the
// PodAttachment.
func (r *Record) addressOnly(name string) *Add {
	return r.find(func(a Add) bool { return a.AddressOnly() && a.Interfaces[0].Name == name })
}

// identify enters a PodAttachment into the records of its sandboxes: into the record that
// was rebuilt from the kernel, which the sandbox in the status names, and into the records
// of a PodAttachment that was lost and written again, with another UID. It reports whether a
// record was changed.
func (l *Ledger) identify(pa *v1alpha1.PodAttachment) (changed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, r := range l.records {
		if !r.rebuiltOf(pa) && !r.outlived(pa) {
			continue
		}
		l.records[id] = r.With(func(r *Record) {
			r.Pod = PodOf(pa)
			r.Attachment = Attachment{Name: pa.Name, UID: pa.UID}
		})
		changed = true
	}
	return changed
}

// rebuiltOf reports whether a record without a pod is that of the sandbox in the status.
func (r *Record) rebuiltOf(pa *v1alpha1.PodAttachment) bool {
	return r.Attachment.UID == "" && pa.Status.Sandbox != nil && pa.Status.Sandbox.ID == r.ContainerID
}

// outlived reports whether the sandbox is that of an earlier PodAttachment of the same pod.
// The name has a part of the pod's own UID.
func (r *Record) outlived(pa *v1alpha1.PodAttachment) bool {
	return r.Attachment.UID != "" && r.Attachment.UID != pa.UID && r.Attachment.Name == pa.Name &&
		r.Pod.Namespace == pa.Namespace && r.Pod.UID == pa.Spec.PodUID
}
