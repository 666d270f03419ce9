package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cli/output"
)

// portPoolList is the output of `pools --ports -o json`.
type portPoolList struct {
	// Pools by node, then by name.
	Pools []portPoolView `json:"pools"`
}

// portPoolView is one PortPool.
type portPoolView struct {
	Name    string `json:"name"`
	Node    string `json:"node"`
	Network string `json:"network"`
	Ready   int32  `json:"ready"`
	Cooling int32  `json:"cooling"`
	Used    int32  `json:"used"`
	// Desired is absent if the marks of the configuration decide.
	Desired *int32 `json:"desired,omitempty"`
	// State is Filled, Drained, New, or the reason why no ports are made, with Message.
	State   string `json:"state"`
	Message string `json:"message,omitempty"`
}

func buildPortPools(all []v1alpha1.PortPool) []portPoolView {
	out := []portPoolView{}
	for i := range all {
		p := &all[i]
		v := portPoolView{
			Name: p.Name, Node: p.Spec.Node, Network: cmp.Or(p.Spec.Network, strings.Join(p.Spec.Subnets, ",")),
			Ready: p.Spec.Ready, Cooling: p.Spec.Cooling, Used: p.Spec.Used, Desired: p.Spec.Desired, State: "New",
		}
		if c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionReady); c != nil {
			v.State = c.Reason
			if c.Status != "True" {
				v.Message = c.Message
			}
		}
		if v.Desired != nil && *v.Desired == 0 {
			v.State = "Drained"
		}
		out = append(out, v)
	}
	slices.SortFunc(out, func(a, b portPoolView) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Name, b.Name))
	})
	return out
}

// portPoolsText returns the table, and below it why no ports are made.
func portPoolsText(v portPoolList) string {
	if len(v.Pools) == 0 {
		return "No pools of ports.\n"
	}
	rows := [][]string{{"NODE", "NETWORK", "READY", "COOLING", "USED", "DESIRED", "STATE", "NAME"}}
	var notes []string
	for _, p := range v.Pools {
		desired := "-"
		if p.Desired != nil {
			desired = strconv.Itoa(int(*p.Desired))
		}
		rows = append(rows, []string{
			p.Node, p.Network, strconv.Itoa(int(p.Ready)), strconv.Itoa(int(p.Cooling)), strconv.Itoa(int(p.Used)), desired, p.State, p.Name,
		})
		if p.Message != "" {
			notes = append(notes, fmt.Sprintf("%s: %s: %s", p.Name, p.State, p.Message))
		}
	}
	return output.Table(rows) + output.Notes(notes)
}
