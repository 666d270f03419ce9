package ledger

import (
	"fmt"
	"slices"
	"strings"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// Missing returns the interfaces of a PodAttachment that its sandbox lacks, by the record
// that Judge returned. An interface that Fairlead plugs is missing until it is plugged, and
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
		case i.Binding.AddressOnly == nil && rec.Plugged() != nil:
			parts = append(parts, i.Name+": "+rec.Plugged().why(pa, i))
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

// damagedText is the end of the message of TellUnfollowed.
const damagedText = ": the running pod does not follow the change of its networks, because the record of its sandbox was damaged: replace the pod"

// TellUnfollowed returns a message for the user if the sandbox of the status, whose record is
// damaged, does not follow the spec of its PodAttachment, which has changed; otherwise it is
// empty. What the sandbox has is not known well enough to plug or unplug an interface.
func TellUnfollowed(pa *v1alpha1.PodAttachment) string {
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

// IsUnfollowed reports whether a message is one of TellUnfollowed.
func IsUnfollowed(message string) bool { return strings.HasSuffix(message, damagedText) }

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
