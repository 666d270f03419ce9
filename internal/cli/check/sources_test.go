package check

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cli/check/probe"
)

func TestCheckerOf(t *testing.T) {
	const (
		port  = "9a1c1d2e-0000-4000-8000-000000000001"
		plain = "packets of macvlan, ipvlan, vlan and hostDevice do not pass the packet filter of the node"
	)
	for name, tc := range map[string]struct {
		binding   v1alpha1.Binding
		checkedBy checker
		unchecked string
	}{
		"a routed interface":             {v1alpha1.Binding{Routed: &v1alpha1.RoutedBinding{}}, byNode, ""},
		"a bridge":                       {v1alpha1.Binding{Bridge: &v1alpha1.BridgeBinding{}}, byNode, ""},
		"a bridge with a full check":     {v1alpha1.Binding{Bridge: &v1alpha1.BridgeBinding{SourceCheck: v1alpha1.SourceFull}}, byNode, ""},
		"a bridge that checks MACs":      {v1alpha1.Binding{Bridge: &v1alpha1.BridgeBinding{SourceCheck: v1alpha1.SourceMAC}}, "", "sourceCheck of the network is MAC"},
		"a bridge without a check":       {v1alpha1.Binding{Bridge: &v1alpha1.BridgeBinding{SourceCheck: v1alpha1.SourceNone}}, "", "sourceCheck of the network is None"},
		"a port of Open vSwitch":         {v1alpha1.Binding{OVS: &v1alpha1.OVSBinding{PortID: port}}, byNeutron, ""},
		"a subport of a trunk":           {v1alpha1.Binding{VLAN: &v1alpha1.VLANBinding{PortID: port}}, byNeutron, ""},
		"an address pair of the machine": {v1alpha1.Binding{Macvlan: &v1alpha1.MacvlanBinding{PortID: port}}, "", "pods of a node share the port of its machine, and can send as each other"},
		"a VLAN":                         {v1alpha1.Binding{VLAN: &v1alpha1.VLANBinding{}}, "", plain},
		"macvlan":                        {v1alpha1.Binding{Macvlan: &v1alpha1.MacvlanBinding{}}, "", plain},
		"ipvlan":                         {v1alpha1.Binding{IPVLAN: &v1alpha1.IPVLANBinding{}}, "", plain},
		"a device of the host":           {v1alpha1.Binding{HostDevice: &v1alpha1.HostDeviceBinding{}}, "", plain},
		"another CNI plugin":             {v1alpha1.Binding{Delegate: &v1alpha1.PluginList{}}, "", otherPlugin},
		"beside Multus":                  {v1alpha1.Binding{AddressOnly: &v1alpha1.AddressOnlyBinding{}}, "", otherPlugin},
	} {
		checkedBy, unchecked := checkerOf(tc.binding)
		if checkedBy != tc.checkedBy || unchecked != tc.unchecked {
			t.Errorf("%s: %q, %q; want %q, %q", name, checkedBy, unchecked, tc.checkedBy, tc.unchecked)
		}
	}
}

// Where the addresses are not checked by design, or the sender was refused, the test is not
// tried, with the reason.
func TestPlanOfSourcesWithout(t *testing.T) {
	one, two := member(1), member(2)
	one.sender.on = slices.Clone(one.sender.on)
	one.sender.on[0].checkedBy, one.sender.on[0].unchecked = "", "sourceCheck of the network is None"
	two.sender, two.refused = nil, `pods "sender-2" is forbidden: violates PodSecurity`
	var got []Row
	_, rows := plan([]members{one, two}, settings{policy: true}, true)
	for _, r := range rows {
		if r.Test == testSource {
			got = append(got, r)
		}
	}
	want := []Row{
		{Test: testSource, Network: "default", Family: "IPv4", From: "node-1", Result: NotTried, Detail: "sourceCheck of the network is None"},
		{Test: testSource, From: "node-2", Result: NotTried, Detail: `pods "sender-2" is forbidden: violates PodSecurity`},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rows of the test of source addresses (-want +got):\n%s", diff)
	}
}

// The address of the receiver is never forged, and that of the sender is none of another pod.
func TestForgedAddress(t *testing.T) {
	m := member(1)
	m.hostPort = nil
	p := &planner{}
	p.sources(&m, &m)
	if got := lines(p.tasks); len(got) > 0 {
		t.Errorf("probes from the only other address to itself: %v", got)
	}
}

func TestOutcomeOfSources(t *testing.T) {
	row := Row{Test: testSource, Network: "default", Family: "IPv4", From: "node-1", To: "node-2", CheckedBy: byNode}
	one := task{row: row, probe: probe.Probe{Address: "10.0.2.1:20157"}}
	failed, untried := row, row
	failed.Result, failed.Detail, failed.Source = Failed, "10.0.2.1:20157: a packet arrived", "10.0.1.1"
	untried.Result, untried.Detail = NotTried, "operation not permitted"
	for _, tc := range []struct {
		outcome probe.Outcome
		want    Row
	}{
		{probe.Outcome{Problem: "a packet arrived", Source: "10.0.1.1"}, failed},
		{probe.Outcome{Untried: true, Problem: "operation not permitted"}, untried},
	} {
		if diff := cmp.Diff(tc.want, outcomeOf(one, tc.outcome)); diff != "" {
			t.Errorf("row of %+v (-want +got):\n%s", tc.outcome, diff)
		}
	}
}
