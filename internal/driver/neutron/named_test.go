package neutron

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/labels"

	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/driver/neutron/choice"
	"fairlead.dev/fairlead/test/cloudtest"
	"fairlead.dev/fairlead/test/drivertest"
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
		attach(t, d, onLan(n+1, choice.Settings{Network: "pods", QoSPolicy: name}))
		if p := s.Objects("ports")[n]; p["qos_policy_id"] != gold {
			t.Errorf("policy %s: port has %v, want %s", name, p["qos_policy_id"], gold)
		}
	}
	if n := s.Calls()["GET /qos/{id}"]; n != 1 {
		t.Errorf("%d reads of QoS policies, want 1", n)
	}
	refuse(t, d, onLan(4, choice.Settings{Network: "pods", QoSPolicy: "none"}), "NotFound", `QoS policy "none"`)
	refuse(t, d, onLan(4, choice.Settings{Network: "pods", QoSPolicy: "twin"}), "Invalid", `2 of the name "twin" exist: give the ID, as one of `+first+", "+second)
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
	cfg.Choice.Open = []choice.Opening{{Namespaces: labels.Everything(), Names: map[string][]string{choice.KindProject: {"team-*"}}}}
	d := connected(t, cfg, s.File, cloudtest.Admin)
	r := onLan(1, choice.Settings{Network: "pods", Project: "team-a"})
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
	refuse(t, d, onLan(2, choice.Settings{Network: "pods", Project: "team-b"}), "NotFound", `project "team-b": the cloud has none`)
	s.NameProject("0000000000000000000000000000cccc", "team-a")
	refuse(t, connected(t, cfg, s.File, cloudtest.Admin), onLan(2, choice.Settings{Network: "pods", Project: "team-a"}), "Invalid", "give the ID, as one of "+team+", 0000000000000000000000000000cccc")
}

// Credentials that may not list projects know them by ID alone. Without projects in the
// configuration, none are read.
func TestProjectsOfAMember(t *testing.T) {
	s, cfg := lan(t, "10.8.0.0/24")
	connected(t, cfg, s.File, cloudtest.Member)
	if n := s.Calls()["GET /projects"]; n != 0 {
		t.Errorf("%d reads of projects that nobody named", n)
	}
	cfg.Choice.Open = []choice.Opening{{Namespaces: labels.Everything(), Names: map[string][]string{choice.KindProject: {"team-*"}}}}
	d := connected(t, cfg, s.File, cloudtest.Member)
	if _, err := d.projects.find(t.Context(), &d.conn, "team-a"); driver.Result(err) != "NotFound" {
		t.Errorf("error %v", err)
	}
	if id, err := d.projects.find(t.Context(), &d.conn, cloudtest.MemberProject); err != nil || id != cloudtest.MemberProject {
		t.Errorf("project %s, %v", id, err)
	}
}

// The nodes of a zone have subnets of their own, of each family. Others have those of the
// configuration. A network that names its subnets keeps them.
func TestSubnetsOfNodes(t *testing.T) {
	s, cfg := lan(t, "10.8.0.0/24", "10.9.0.0/24", "fd09::/64")
	cfg.Choice.Default.Subnets = []string{"pods-0"}
	cfg.Choice.NodeSubnets = []choice.NodeSubnets{
		{Nodes: labels.SelectorFromSet(labels.Set{"zone": "b", "kind": "old"}), Subnets: []string{"pods-0"}},
		{Nodes: labels.SelectorFromSet(labels.Set{"zone": "b"}), Subnets: []string{"pods-1", "pods-2"}},
	}
	d := connected(t, cfg, s.File, cloudtest.Admin)
	for n, tc := range []struct {
		node map[string]string
		want []string
	}{
		{map[string]string{"zone": "b"}, []string{"10.9.0.", "fd09::"}},
		{map[string]string{"zone": "b", "kind": "old"}, []string{"10.8.0."}},
		{map[string]string{}, []string{"10.8.0."}},
	} {
		r := drivertest.Request(n + 1)
		r.NodeLabels = tc.node
		got := attach(t, d, r).Interface.Addresses
		if len(got) != len(tc.want) || !strings.HasPrefix(got[0], tc.want[0]) || !strings.HasPrefix(got[len(got)-1], tc.want[len(got)-1]) {
			t.Errorf("node %v: addresses %v, want those of %v", tc.node, got, tc.want)
		}
	}
	r := drivertest.Request(4)
	r.NodeLabels = nil
	refuse(t, d, r, "Unavailable", "the labels of Node node-1 are not known yet")
	further := onLan(5, choice.Settings{Network: "pods", Subnets: []string{"pods-0"}})
	further.NodeLabels = map[string]string{"zone": "b"}
	if got := attach(t, d, further).Interface.Addresses; len(got) != 1 || !strings.HasPrefix(got[0], "10.8.0.") {
		t.Errorf("a further network: addresses %v", got)
	}
}
