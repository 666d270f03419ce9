package multus

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/fairlead/internal/nad"
	"fairlead.dev/fairlead/internal/pod"
)

// Problem is a request of pods that Multus accepts or ignores, and Fairlead refuses. The
// pods run on; later pods like them do not start.
type Problem struct {
	// Network is namespace/name; empty if the annotation cannot be read.
	Network string `json:"network,omitempty"`
	Text    string `json:"text"`
	// Pods are namespace/name, in order.
	Pods []string `json:"pods"`
}

// problems returns the problems of all pods, each once.
func (s State) problems(networks []Network) []Problem {
	byName := map[string]*Network{}
	for i := range networks {
		byName[networks[i].Name] = &networks[i]
	}
	type key struct{ network, text string }
	found := map[key][]string{}
	for p := range s.alive() {
		note := func(network, text string) {
			k := key{network, text}
			found[k] = append(found[k], p.Namespace+"/"+p.Name)
		}
		selected, err := selections(p)
		if err != nil {
			note("", printable(err.Error()))
		}
		for _, sel := range selected {
			if text := problemOf(sel, byName[sel.Network()]); text != "" {
				note(sel.Network(), text)
			}
		}
	}
	var out []Problem
	for k, pods := range found {
		slices.Sort(pods)
		out = append(out, Problem{Network: k.network, Text: k.text, Pods: slices.Compact(pods)})
	}
	slices.SortFunc(out, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Network, b.Network), cmp.Compare(a.Text, b.Text))
	})
	return out
}

// selections returns the networks that a pod selects, that of its default interface
// included.
func selections(p *corev1.Pod) ([]pod.Selection, error) {
	selected, err := pod.Networks(p)
	if err != nil {
		return nil, err
	}
	chosen, ok, err := pod.Chosen(p)
	if err == nil && ok {
		selected = append(selected, chosen)
	}
	return selected, err
}

// problemOf returns why a selection of a network would fail, empty if it would not. A
// network that is not served has its own reason.
func problemOf(s pod.Selection, n *Network) string {
	switch {
	case n == nil:
		return "there is no such NetworkAttachmentDefinition"
	case n.Served == No || n.Served == Driver:
		return ""
	}
	err := n.parsed.Attachable(nad.Selected{Wishes: s.Wishes(), ClaimReference: s.ClaimReference, DeviceID: s.DeviceID})
	if err == nil {
		return ""
	}
	return printable(err.Error())
}
