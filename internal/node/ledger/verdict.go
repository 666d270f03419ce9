package ledger

import (
	"slices"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// Verdict is what a PodAttachment's status has to say of its sandbox.
type Verdict int

const (
	// AsItIs says that the status is right, or what comes next is not decided yet.
	AsItIs Verdict = iota
	// Plugged says that the sandbox of the record holds the interfaces.
	Plugged
	// Unplugged says that nothing holds the interfaces, and nothing will.
	Unplugged
)

// Judge returns what the status of a PodAttachment has to say, by the records, and the
// record of the sandbox that holds the interfaces.
//
// Unplugged is said only of a PodAttachment that is being deleted, and is final: no ADD
// gets it from then on. A sandbox that is restarted, whose pod lives, goes through DEL
// and ADD without it.
func (l *Ledger) Judge(pa *v1alpha1.PodAttachment) (Verdict, *Record) {
	if l.identify(pa) {
		l.released(&Record{}) // others may have been held back
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	held, newest := l.holder(pa)
	switch {
	case newest != nil:
		return Plugged, newest
	case held:
		return AsItIs, nil
	}
	d := l.detached[pa.UID]
	if pa.DeletionTimestamp == nil {
		if d.declared { // only etcd's going back to a backup brings one back
			d.declared = false
			l.detached[pa.UID] = d
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

// holder reports whether a sandbox of the PodAttachment has a record, and returns the
// newest that is plugged. An earlier sandbox may not have given everything back.
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

// newer reports whether a sandbox was plugged after another, by the container IDs if
// both were plugged at once.
func (r *Record) newer(o *Record) bool {
	if a, b := r.AttachedAt(), o.AttachedAt(); !a.Equal(b) {
		return a.After(b)
	}
	return r.ContainerID > o.ContainerID
}

// uncertain reports whether a sandbox that no record explains may be of a
// PodAttachment.
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

// MayHave returns the interfaces of a PodAttachment that an incomplete record may be
// about without naming them: those of other plugins that no record has.
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
		if i.Binding.AddressOnly != nil && !slices.Contains(r.Deleted, i.Name) && !l.recorded(pa, i.Name) {
			out = append(out, i)
		}
	}
	return out
}

// recorded reports whether a record has an interface of another plugin.
func (l *Ledger) recorded(pa *v1alpha1.PodAttachment, name string) bool {
	for _, r := range l.records {
		if r.Attachment.UID == pa.UID && r.addressOnly(name) != nil {
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

// identify gives a record that was rebuilt from the kernel its pod back: the status
// still names the sandbox. It reports whether it did.
func (l *Ledger) identify(pa *v1alpha1.PodAttachment) bool {
	if pa.Status.Sandbox == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.records[pa.Status.Sandbox.ID]
	if r == nil || r.Attachment.UID != "" {
		return false
	}
	of := pa.Pod()
	l.records[r.ContainerID] = r.With(func(r *Record) {
		r.Pod = Pod{Namespace: of.Namespace, Name: of.Name, UID: pa.Spec.PodUID}
		r.Attachment = Attachment{Name: pa.Name, UID: pa.UID}
	})
	return true
}
