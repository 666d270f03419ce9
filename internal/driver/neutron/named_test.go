package neutron

import (
	"testing"

	"k8s.io/apimachinery/pkg/labels"

	"fairlead.dev/fairlead/internal/driver"
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

// A project may be named. Its ports are listed and released by a process that knows only the
// cloud, and a port of another project stays.
func TestProjectByName(t *testing.T) {
	s, cfg := lan(t, "10.8.0.0/24")
	const team, other = "0000000000000000000000000000aaaa", "0000000000000000000000000000bbbb"
	s.NameProject(team, "team-a")
	s.NameProject(other, "other")
	cfg.Open = []Opening{{Namespaces: labels.Everything(), Names: map[string][]string{KindProject: {"team-*"}}}}
	d := connected(t, cfg, s.File, cloudtest.Admin)
	r := onLan(1, Settings{Network: "pods", Project: "team-a"})
	ref := attach(t, d, r)
	if p := s.Objects("ports")[0]; p["project_id"] != team {
		t.Errorf("project of the port: %v, want %s", p["project_id"], team)
	}
	forged := cloudtest.Object{"project_id": other}
	for _, field := range []string{"name", "description", "device_id", "device_owner", "network_id"} {
		forged[field] = s.Objects("ports")[0][field]
	}
	s.Add(t, "ports", other, forged)
	next := connected(t, cfg, s.File, cloudtest.Admin)
	if refs := listed(t, next); len(refs) != 1 || refs[0].Interface.Binding.OVS.PortID != ref.Interface.Binding.OVS.PortID {
		t.Errorf("listed %+v, want the port of team-a alone", refs)
	}
	release(t, next, r)
	if left := s.Objects("ports"); len(left) != 1 || left[0]["project_id"] != other {
		t.Errorf("ports %v, want that of the other project", left)
	}
	refuse(t, d, onLan(2, Settings{Network: "pods", Project: "team-b"}), "NotFound", `project "team-b": the cloud has none`)
	s.NameProject("0000000000000000000000000000cccc", "team-a")
	refuse(t, connected(t, cfg, s.File, cloudtest.Admin), onLan(2, Settings{Network: "pods", Project: "team-a"}), "Invalid", "give the ID, as one of "+team+", 0000000000000000000000000000cccc")
}

// Credentials that may not list projects know them by ID alone. Without projects in the
// configuration, none are read.
func TestProjectsOfAMember(t *testing.T) {
	s, cfg := lan(t, "10.8.0.0/24")
	connected(t, cfg, s.File, cloudtest.Member)
	if n := s.Calls()["GET /projects"]; n != 0 {
		t.Errorf("%d reads of projects that nobody named", n)
	}
	cfg.Open = []Opening{{Namespaces: labels.Everything(), Names: map[string][]string{KindProject: {"team-*"}}}}
	d := connected(t, cfg, s.File, cloudtest.Member)
	if _, err := d.projectOf(t.Context(), "team-a"); driver.Result(err) != "NotFound" {
		t.Errorf("error %v", err)
	}
	if id, err := d.projectOf(t.Context(), cloudtest.MemberProject); err != nil || id != cloudtest.MemberProject {
		t.Errorf("project %s, %v", id, err)
	}
}
