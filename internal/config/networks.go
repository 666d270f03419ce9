package config

import (
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// maxOpened bounds the lists of Networks and of each Opening.
const maxOpened = 64

// validate adds the problems of the configuration of networks to v.
func (n *Networks) validate(v *invalid) {
	v.check(n.AttachedBy == AttachedByMultus || n.AttachedBy == AttachedByFairlead, "networks.attachedBy", n.AttachedBy, `must be "Multus" or "Fairlead"`)
	v.check(len(n.SharedNamespaces) <= maxOpened, "networks.sharedNamespaces", len(n.SharedNamespaces), "must be at most 64 namespaces")
	for i, name := range n.SharedNamespaces {
		v.check(objectName.MatchString(name), fmt.Sprintf("networks.sharedNamespaces[%d]", i), name, "must be a namespace")
	}
	v.check(len(n.Open) <= maxOpened, "networks.open", len(n.Open), "must be at most 64 entries")
	for i := range n.Open {
		n.Open[i].validate(v, fmt.Sprintf("networks.open[%d]", i))
	}
}

// checkAttached adds to v the problems of the default network together with those of
// networks that Fairlead attaches.
func (c *Controller) checkAttached(v *invalid) {
	d, attaches := c.DefaultNetwork, c.Networks.AttachedBy == AttachedByFairlead
	v.check(!attaches || d.Driver != DriverNone && d.Binding == BindingRouted, "networks.attachedBy", c.Networks.AttachedBy,
		`needs defaultNetwork.binding "routed" and a driver: the runtime calls Fairlead only for pods whose default interface it makes; `+
			`defaultNetwork.network gives the default network to another plugin`)
	if d.Network == "" {
		return
	}
	namespace, name, ok := strings.Cut(d.Network, "/")
	v.check(ok && objectName.MatchString(namespace) && objectName.MatchString(name), "defaultNetwork.network", d.Network, `must be "<namespace>/<name>" of a NetworkAttachmentDefinition`)
	v.check(attaches && slices.Contains(c.MultiVIFSources, SourceNPWG), "defaultNetwork.network", d.Network, `needs networks.attachedBy "Fairlead" and "npwg" in multiVIFSources`)
}

func (o *Opening) validate(v *invalid, field string) {
	if _, err := metav1.LabelSelectorAsSelector(&o.NamespaceSelector); err != nil {
		v.check(false, field+".namespaceSelector", o.NamespaceSelector.String(), err.Error())
	}
	v.check(len(o.Addresses) <= maxOpened, field+".addresses", len(o.Addresses), "must be at most 64")
	for i, text := range o.Addresses {
		p, err := netip.ParsePrefix(text)
		v.check(err == nil && !p.Addr().Is4In6() && p == p.Masked(), fmt.Sprintf("%s.addresses[%d]", field, i), text, "must be a network in CIDR form, without host bits")
	}
	for _, list := range []struct {
		name  string
		parts []string
	}{{"bridges", o.Bridges}, {"parents", o.Parents}, {"devices", o.Devices}, {"plugins", o.Plugins}} {
		v.check(len(list.parts) <= maxOpened, field+"."+list.name, len(list.parts), "must be at most 64")
		for i, part := range list.parts {
			_, err := path.Match(part, "")
			v.check(part != "" && err == nil, fmt.Sprintf("%s.%s[%d]", field, list.name, i), part, "must be a name, or a pattern as eth*")
		}
	}
}
