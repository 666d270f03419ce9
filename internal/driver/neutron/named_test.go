package neutron

import (
	"testing"

	"fairlead.dev/fairlead/internal/openstack/cloud/cloudtest"
)

// A QoS policy may be named. Pods that name it share one read of the cloud. A name that two
// policies have is refused with both IDs.
func TestQoSPolicyByName(t *testing.T) {
	s, cfg := lan(t, "10.8.0.0/24")
	gold := s.Add(t, "qos/policies", cloudtest.AdminProject, cloudtest.Object{"name": "gold"})
	first := s.Add(t, "qos/policies", cloudtest.AdminProject, cloudtest.Object{"name": "twin"})
	second := s.Add(t, "qos/policies", cloudtest.AdminProject, cloudtest.Object{"name": "twin"})
	d := connected(t, cfg, s.File, cloudtest.Admin)
	for n, name := range []string{"gold", "gold", gold} {
		attach(t, d, onLan(n+1, Settings{Network: "pods", QoSPolicy: name}))
		if p := s.Objects("ports")[n]; p["qos_policy_id"] != gold {
			t.Errorf("policy %s: port has %v, want %s", name, p["qos_policy_id"], gold)
		}
	}
	if n := s.Calls()["GET /qos/{id}"]; n != 1 {
		t.Errorf("%d reads of QoS policies, want 1", n)
	}
	refuse(t, d, onLan(4, Settings{Network: "pods", QoSPolicy: "none"}), "NotFound", `QoS policy "none"`)
	refuse(t, d, onLan(4, Settings{Network: "pods", QoSPolicy: "twin"}), "Invalid", `2 of the name "twin" exist: give the ID, as one of `+first+", "+second)
	if n := len(s.Objects("ports")); n != 3 {
		t.Errorf("%d ports, want 3", n)
	}
}
