package nad

import "testing"

// No network names a port of Neutron or a bridge of Open vSwitch: only a driver does.
func TestNoPortOfNeutron(t *testing.T) {
	const port = `"portID":"3f1c2d4e-0000-4000-8000-0123456789ab"`
	for _, config := range []string{
		`"type":"ovs","bridge":"br-int",` + port,
		`"type":"ovs","ovs":{"bridge":"br-int",` + port + `}`,
		`"type":"bridge","bridge":"br-int",` + port,
		`"type":"bridge","bridge":"br0","binding":{"ovs":{` + port + `}}`,
		`"type":"bridge","bridge":"br0","ovs":{` + port + `}`,
		`"type":"host-device","ovs":{` + port + `}`,
		`"type":"fairlead","binding":{"ovs":{` + port + `}}`,
	} {
		n, _ := Parse(`{"cniVersion":"1.0.0","name":"x",`+config+`}`, nil) // it may be refused
		if n.Binding != nil && n.Binding.OVS != nil {
			t.Errorf("%s: binding %+v", config, n.Binding.OVS)
		}
	}
}
