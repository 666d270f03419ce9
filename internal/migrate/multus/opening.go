package multus

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"fairlead.dev/fairlead/internal/config"
	"fairlead.dev/fairlead/internal/nad"
)

// configuration returns the part of fairlead-controller's file that serves the networks as
// they are. It opens to each namespace exactly the parts of the nodes that its networks
// name.
func (s State) configuration(networks []Network) (string, error) {
	needs := map[string][]nad.Need{}
	for i := range networks {
		n := &networks[i]
		if n.namespace == s.Own || n.Served != InProcess && n.Served != Executed {
			continue
		}
		needs[n.namespace] = append(needs[n.namespace], n.parsed.Reach()...)
	}
	part := struct {
		Sources  []string        `json:"multiVIFSources"`
		Networks config.Networks `json:"networks"`
	}{Sources: []string{config.SourceNPWG}}
	for _, namespace := range slices.Sorted(maps.Keys(needs)) {
		part.Networks.Open = append(part.Networks.Open, opening(namespace, needs[namespace]))
	}
	part.Networks.Open = merged(part.Networks.Open)
	if c := s.Config; c != nil && c.NamespaceIsolation {
		part.Networks.Isolated, part.Networks.SharedNamespaces = true, c.shared()
	}
	text, err := yaml.Marshal(part)
	if err != nil {
		return "", fmt.Errorf("configuration of fairlead-controller: %w", err)
	}
	return string(text), nil
}

// literal makes patterns (path.Match) of names. A tenant may name a bridge "*".
var literal = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`)

// opening opens parts of the nodes to the networks of one namespace.
func opening(namespace string, needs []nad.Need) config.Opening {
	o := config.Opening{NamespaceSelector: metav1.LabelSelector{MatchLabels: map[string]string{labelName: namespace}}}
	lists := map[string]*[]string{nad.NeedBridge: &o.Bridges, nad.NeedParent: &o.Parents, nad.NeedDevice: &o.Devices, nad.NeedPlugin: &o.Plugins}
	for _, need := range needs {
		if need.Kind == nad.NeedAddress {
			if p, err := netip.ParsePrefix(need.Name); err == nil {
				o.Addresses = append(o.Addresses, p.Masked().String())
			}
			continue
		}
		if list := lists[need.Kind]; list != nil {
			*list = append(*list, literal.Replace(need.Name))
		}
	}
	for _, list := range []*[]string{&o.Bridges, &o.Addresses, &o.Parents, &o.Devices, &o.Plugins} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	return o
}

// labelName is the label of every namespace with its name.
const labelName = "kubernetes.io/metadata.name"

// merged joins openings of the same parts, and drops those of nothing.
func merged(all []config.Opening) []config.Opening {
	var out []config.Opening
	names := map[string][]string{}
	keyOf := func(o config.Opening) string {
		return fmt.Sprintf("%q %q %q %q %q", o.Bridges, o.Addresses, o.Parents, o.Devices, o.Plugins)
	}
	nothing := keyOf(config.Opening{})
	for _, o := range all {
		key := keyOf(o)
		if key == nothing {
			continue
		}
		if names[key] == nil {
			out = append(out, o)
		}
		names[key] = append(names[key], o.NamespaceSelector.MatchLabels[labelName])
	}
	for i := range out {
		if in := names[keyOf(out[i])]; len(in) > 1 {
			out[i].NamespaceSelector = metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
				Key: labelName, Operator: metav1.LabelSelectorOpIn, Values: in,
			}}}
		}
	}
	return out
}
