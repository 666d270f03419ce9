package npwg

import (
	"net/netip"
	"path"
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"fairlead.dev/fairlead/internal/nad"
)

// Opening opens parts of the nodes to networks of some namespaces. Names may be patterns
// (path.Match).
type Opening struct {
	// Namespaces selects the namespaces by label.
	Namespaces labels.Selector
	// Parts by kind (nad.NeedBridge and others).
	Parts map[string][]string
	// Addresses are the networks whose addresses bridges may get.
	Addresses []netip.Prefix
}

// opens reports whether it opens a part of the nodes to networks of a namespace.
func (o Opening) opens(namespace map[string]string, need nad.Need) bool {
	if !o.Namespaces.Matches(labels.Set(namespace)) {
		return false
	}
	if need.Kind == nad.NeedAddress {
		p, err := netip.ParsePrefix(need.Name)
		return err == nil && slices.ContainsFunc(o.Addresses, func(n netip.Prefix) bool { return n.Bits() <= p.Bits() && n.Contains(p.Addr()) })
	}
	return slices.ContainsFunc(o.Parts[need.Kind], func(pattern string) bool {
		ok, err := path.Match(pattern, need.Name)
		return err == nil && ok
	})
}
