package ledger

import (
	"fmt"
	"strings"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// Missing returns the interfaces of a PodAttachment that a sandbox of it lacks: ours
// as long as they are not plugged, those of other plugins as long as nobody in that
// sandbox has asked for their addresses. A record that is damaged says that somebody
// had, for an interface of that name.
func (l *Ledger) Missing(pa *v1alpha1.PodAttachment, containerID string) []v1alpha1.Interface {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	rec := l.Records[containerID]
	plugged := rec != nil && rec.State == Attached
	var out []v1alpha1.Interface
	for _, i := range pa.Spec.Interfaces {
		there := plugged
		if i.Binding.AddressOnly != nil {
			there = l.book.asked(pa, i.Name, containerID)
		}
		if !there {
			out = append(out, i)
		}
	}
	return out
}

// asked tells whether an interface of another plugin has its addresses in a sandbox.
func (b *addressBook) asked(pa *v1alpha1.PodAttachment, name, containerID string) bool {
	if b.damaged[AddressKey{containerID, name}] {
		return true
	}
	for k, r := range b.m {
		if k.ContainerID == containerID && r.Attachment.UID == pa.UID && r.Interface == name && r.Result != nil {
			return true
		}
	}
	return false
}

// TellMissing says which interfaces a sandbox lacks, and how that may be.
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
		names []string
		says  string
	}{
		{ours, "not plugged: the runtime has not asked this node for it"},
		{first, "no plugin has asked for the addresses; does the one that makes it have fairlead-ipam as its ipam?"},
		{further, "no plugin has asked for the addresses; does the runtime use Multus' configuration, and not another that comes before it?"},
	} {
		if len(p.names) > 0 {
			parts = append(parts, strings.Join(p.names, ", ")+": "+p.says)
		}
	}
	return strings.Join(parts, "; ")
}
