package ledger

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// Behind reports whether the interfaces of a running sandbox are behind a change of
// its PodAttachment. It is false for changes that have been tried and failed, which are
// retried anyway.
func (r *Record) Behind(pa *v1alpha1.PodAttachment) bool {
	add := r.Attached()
	if add == nil {
		return false
	}
	if add.Generation != pa.Generation {
		return true
	}
	begun := func(name string) bool {
		_, failed := add.Failures[name]
		i := add.further(name)
		return failed || i != nil && i.State != ""
	}
	return len(add.ToAnnounce(pa)) > 0 || slices.ContainsFunc(add.Surplus(&pa.Spec), func(name string) bool { return !begun(name) }) ||
		slices.ContainsFunc(add.Lacks(&pa.Spec), func(i v1alpha1.Interface) bool { return !begun(i.Name) })
}

// ToAnnounce returns the interfaces whose addresses have to be announced now: they were
// plugged into a running sandbox, and have become active since.
func (a *Add) ToAnnounce(pa *v1alpha1.PodAttachment) (now []Interface) {
	for _, i := range a.Interfaces {
		isActive := func(s v1alpha1.InterfaceStatus) bool { return s.Name == i.Name && s.Active }
		if i.Unannounced && i.State == "" && slices.ContainsFunc(pa.Status.Interfaces, isActive) {
			now = append(now, i)
		}
	}
	return now
}

// Surplus returns the names of the interfaces that a running sandbox has to lose: those
// that spec does not have, or has otherwise, and those whose plugging or unplugging was
// interrupted. If spec is nil it returns only the latter. The default interface is never
// among them.
func (a *Add) Surplus(spec *v1alpha1.PodAttachmentSpec) (names []string) {
	for _, i := range a.Further() {
		if i.State != "" || spec != nil && !i.isIn(spec) {
			names = append(names, i.Name)
		}
	}
	return names
}

// isIn reports whether a spec has the interface, and does not have it unplugged.
func (i *Interface) isIn(spec *v1alpha1.PodAttachmentSpec) bool {
	return !slices.Contains(spec.Unplug, i.Name) && slices.ContainsFunc(spec.Interfaces, func(o v1alpha1.Interface) bool {
		if o.Name != i.Name || o.Binding.AddressOnly != nil {
			return false
		}
		theirs := i.Binding.Delegate != nil // the plugins chose the addresses in the record
		return o.Network == i.Network && (theirs || len(o.Addresses) == 0 || slices.Equal(o.Addresses, i.Addresses))
	})
}

// Lacks returns the interfaces of a spec that a running sandbox has to get. An interface
// whose name another one still has is among them.
func (a *Add) Lacks(spec *v1alpha1.PodAttachmentSpec) (out []v1alpha1.Interface) {
	for _, i := range spec.Interfaces {
		if i.Default || i.Binding.AddressOnly != nil || slices.Contains(spec.Unplug, i.Name) {
			continue
		}
		if has := a.further(i.Name); has == nil || has.State != "" || !has.isIn(spec) {
			out = append(out, i)
		}
	}
	return out
}

// Further returns the interfaces of an ADD that Fairlead plugs beside the default one.
func (a *Add) Further() []Interface {
	if len(a.Interfaces) == 0 {
		return nil
	}
	return a.Interfaces[1:]
}

// further returns one of Further by its name, nil if there is none.
func (a *Add) further(name string) *Interface {
	all := a.Further()
	if n := slices.IndexFunc(all, func(i Interface) bool { return i.Name == name }); n >= 0 {
		return &all[n]
	}
	return nil
}

// Interface returns a copy of an interface beside the default one, false if the ADD has
// none of this name.
func (a *Add) Interface(name string) (Interface, bool) {
	if i := a.further(name); i != nil {
		return *i, true
	}
	return Interface{}, false
}

// WithInterface returns a copy that has an interface, in place of an earlier one of its
// name.
func (a *Add) WithInterface(i Interface) Add {
	c := a.WithoutInterface("")
	if has := c.further(i.Name); has != nil {
		*has = i
	} else {
		c.Interfaces = append(c.Interfaces, i)
	}
	return c
}

// WithoutInterface returns a copy that lacks an interface beside the default one.
func (a *Add) WithoutInterface(name string) Add {
	c := *a
	c.Interfaces = slices.Clone(a.Interfaces)
	if n := slices.IndexFunc(c.Further(), func(i Interface) bool { return i.Name == name }); n >= 0 {
		c.Interfaces = slices.Delete(c.Interfaces, n+1, n+2)
	}
	return c
}

// Unplugged removes an interface from the record of a running sandbox, on disk first, when
// nothing is left of it in the kernel. The caller has the status written.
func (l *Ledger) Unplugged(containerID, name string) error {
	r := l.Get(containerID)
	if r == nil || r.Plug() == nil {
		return nil
	}
	r = r.WithAdd(r.Plug().WithoutInterface(name))
	if err := l.files.write(r); err != nil {
		return err
	}
	l.lose(r, false)
	return nil
}

// HasAny reports whether a sandbox of a PodAttachment has an interface with one of the
// names in spec, beside the default interface. It may be that of another plugin.
func (l *Ledger) HasAny(uid types.UID, names []string) bool {
	named := func(i Interface) bool { return slices.Contains(names, i.Name) }
	return len(names) > 0 && slices.ContainsFunc(l.Holding(uid), func(r *Record) bool {
		return slices.ContainsFunc(r.Adds, func(a Add) bool {
			if a.AddressOnly() {
				return named(a.Interfaces[0])
			}
			return slices.ContainsFunc(a.Further(), named)
		})
	})
}
