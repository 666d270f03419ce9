package ledger

import (
	"fmt"
	"slices"
	"strings"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// Missing returns the interfaces of a PodAttachment that its sandbox lacks, by the record
// that Judge returned. An interface that Fairlead plugs is missing until it is plugged. An
// interface of another plugin is missing until that plugin has asked for its addresses. It
// does not count as missing if an incomplete record may lack it (MayHave).
func (l *Ledger) Missing(pa *v1alpha1.PodAttachment, rec *Record) []v1alpha1.Interface {
	l.mu.Lock()
	defer l.mu.Unlock()
	may := l.mayHave(rec, pa)
	var out []v1alpha1.Interface
	for _, i := range pa.Spec.Interfaces {
		if slices.ContainsFunc(may, func(m v1alpha1.Interface) bool { return m.Name == i.Name }) {
			continue
		}
		a := rec.Plug()
		if i.Binding.AddressOnly != nil {
			a = rec.addressOnly(i.Name)
		}
		if a == nil || a.State != Attached {
			out = append(out, i)
		}
	}
	return out
}

// TellMissing returns a message for the user that names the missing interfaces and the
// probable reason; empty if none are missing.
func TellMissing(missing []v1alpha1.Interface) string {
	var ours, further, first []string
	for _, i := range missing {
		switch {
		case i.Binding.AddressOnly == nil:
			ours = append(ours, i.Name)
		case i.Default:
			first = append(first, i.Name)
		default:
			further = append(further, fmt.Sprintf("%s (network %s)", i.Name, i.Network))
		}
	}
	var parts []string
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
