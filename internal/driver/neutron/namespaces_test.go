package neutron

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/driver/neutron/choice"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/test/cloudtest"
	"fairlead.dev/fairlead/test/drivertest"
)

// ownNetworks are the networks of namespaces. It extends a full network at once.
type ownNetworks struct {
	t        *testing.T
	s        *cloudtest.Server
	networks map[string]string
	err      error
	failures []string
	changed  func()
}

func (o *ownNetworks) Network(_ context.Context, namespace, project string) (string, error) {
	if project != "" {
		o.t.Errorf("project %q, and none is named", project)
	}
	return o.networks[namespace], o.err
}

func (o *ownNetworks) Failed(_ context.Context, namespace string, cause error) error {
	o.failures = append(o.failures, namespace+" "+driver.Result(cause))
	if driver.Result(cause) == "Exhausted" {
		o.s.Add(o.t, "subnets", cloudtest.AdminProject, cloudtest.Object{"network_id": o.networks[namespace], "cidr": "10.9.1.0/24", "ip_version": 4.0})
	}
	return fmt.Errorf("%w, and it is mended", cause)
}

func (o *ownNetworks) OnChange(changed func()) { o.changed = changed }

// Default interfaces of a namespace with a network of its own are on that. A full one is
// extended, and the next try has an address in its new subnet. All others stay where they
// are.
func TestNetworkOfTheNamespace(t *testing.T) {
	s, cfg := lan(t, "10.8.0.0/24")
	own, _ := s.AddNetwork(t, "own", "10.9.0.0/30")
	o := &ownNetworks{t: t, s: s, networks: map[string]string{"default": own}}
	cfg.Namespaces, cfg.Choice.Default.Subnets = o, []string{"pods-0"}
	d := connected(t, cfg, s.File, cloudtest.Admin)
	address := func(r *driver.Request) string {
		t.Helper()
		return attach(t, d, r).Interface.Addresses[0]
	}
	if got := address(drivertest.Request(1)); got != "10.9.0.2/30" {
		t.Errorf("the pod has %s", got)
	}
	if got := address(onLan(2, choice.Settings{Network: "pods"})); got != "10.8.0.2/24" {
		t.Errorf("the further interface has %s", got)
	}
	other := drivertest.Request(3)
	other.Namespace = "other"
	if got := address(other); got != "10.8.0.3/24" {
		t.Errorf("the pod of a namespace without a network has %s", got)
	}
	refuse(t, d, drivertest.Request(4), "Exhausted", "and it is mended")
	if got := address(drivertest.Request(4)); got != "10.9.1.2/24" {
		t.Errorf("the pod has %s", got)
	}

	// A network that is gone is reported. Other errors are not.
	o.networks["default"] = "00000000-0000-4000-8000-00000000dead"
	refuse(t, d, drivertest.Request(5), "NotFound", "and it is mended")
	o.err = fmt.Errorf("%w: the network of namespace default is being made", fault.ErrUnavailable)
	refuse(t, d, drivertest.Request(5), "Unavailable", "is being made")
	o.networks["default"], o.err = own, nil
	s.SetQuota(cloudtest.AdminProject, "port", 0)
	refuse(t, d, drivertest.Request(5), "Exhausted", "the quota of OpenStack project")
	if diff := cmp.Diff([]string{"default Exhausted", "default NotFound"}, o.failures); diff != "" {
		t.Errorf("reported (-want +got):\n%s", diff)
	}

	woken := 0
	if err := d.Parts().Run.Wake(t.Context(), driver.Wake{Waiting: func() { woken++ }, Leaving: func() {}}); err != nil {
		t.Fatal(err)
	}
	if o.changed(); woken != 1 {
		t.Errorf("waiting pods were woken %d times", woken)
	}
}
