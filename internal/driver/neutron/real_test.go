package neutron

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/driver/neutron/choice"
	"fairlead.dev/fairlead/internal/openstack/cloud"
	"fairlead.dev/fairlead/test/drivertest"
)

// realNeutron is the environment variable that names a real Neutron for TestContractOnNeutron:
// the path of a clouds.yaml, the entry of an administrator and the host of an agent, separated
// by commas.
const realNeutron = "FAIRLEAD_NEUTRON"

// realWays is the environment variable that, with realNeutron, has TestContractOfWaysOnNeutron run.
const realWays = "FAIRLEAD_NEUTRON_WAYS"

// The driver passes the same suite on a real Neutron.
func TestContractOnNeutron(t *testing.T) {
	of := strings.Split(os.Getenv(realNeutron), ",")
	if len(of) != 3 {
		t.Skipf("%s is not set to a clouds.yaml, the name of a cloud and a host, separated by commas", realNeutron)
	}
	file, name, host := of[0], of[1], of[2]
	var cases atomic.Int32
	drivertest.Run(t, func(t *testing.T) drivertest.Backend {
		cluster := fmt.Sprintf("t%d-%d", os.Getpid(), cases.Add(1))
		c, err := cloud.New(t.Context(), cloud.Config{File: file, Cloud: name, Cluster: cluster})
		if err != nil {
			t.Fatal(err)
		}
		network := ownNetwork(t, c, cluster)
		cfg := Config{Cluster: cluster, HostLabel: "host", Choice: choice.Config{Default: choice.Settings{Network: network, Groups: []string{}}}}
		return drivertest.Backend{
			Start:      func(t *testing.T) driver.Driver { return onHost{connected(t, cfg, file, name), host} },
			Capacity:   5,
			Recover:    func() {},
			OwnBinding: true,
			// The time of the end of the call is not exact: before the create it is in the list
			// of the adoption.
			Interrupt: func(after bool, do func()) {
				wait := 5 * time.Millisecond
				if after {
					wait = 250 * time.Millisecond
				}
				time.AfterFunc(wait, do)
			},
		}
	})
}

// The driver passes the same suite with ports on trunks, and with address pairs.
func TestContractOfWaysOnNeutron(t *testing.T) {
	if os.Getenv(realWays) == "" {
		t.Skipf("%s is not set: it takes longer than the rest of the tests on OpenStack together", realWays)
	}
	of := strings.Split(os.Getenv(realNeutron), ",")
	if len(of) != 3 {
		t.Skipf("%s is not set to a clouds.yaml, the name of a cloud and a host, separated by commas", realNeutron)
	}
	file, name, host := of[0], of[1], of[2]
	var cases atomic.Int32
	for _, way := range []Way{Trunk, Macvlan} {
		t.Run(string(way), func(t *testing.T) {
			drivertest.Run(t, func(t *testing.T) drivertest.Backend {
				cluster := fmt.Sprintf("w%d-%d", os.Getpid(), cases.Add(1))
				c, err := cloud.New(t.Context(), cloud.Config{File: file, Cloud: name, Cluster: cluster})
				if err != nil {
					t.Fatal(err)
				}
				network := ownNetwork(t, c, cluster)
				capacity, machines := 5, network
				if way == Trunk {
					machines = ownNetwork(t, c, cluster+"-m")
				} else {
					capacity-- // the machine has an address
				}
				node := ownMachine(t, c, way, machines, host)
				cfg := Config{Cluster: cluster, Way: way, Choice: choice.Config{Default: choice.Settings{Network: network, Groups: []string{}}}}
				return drivertest.Backend{
					Start: func(t *testing.T) driver.Driver {
						d := connected(t, cfg, file, name)
						d.nodes.reader = fake.NewClientBuilder().WithObjects(node).Build()
						return d
					},
					Capacity: capacity, Recover: func() {}, OwnBinding: true,
					Interrupt: func(after bool, do func()) {
						wait := 5 * time.Millisecond
						if after {
							wait = 250 * time.Millisecond
						}
						time.AfterFunc(wait, do)
					},
				}
			})
		})
	}
}

// ownMachine makes the port of a machine, with a trunk for the way Trunk, and returns its
// Node. All is removed at the end of the test.
func ownMachine(t *testing.T, c *cloud.Cloud, way Way, network, host string) *corev1.Node {
	t.Helper()
	p, err := c.CreatePort(t.Context(), cloud.PortSpec{Name: "machine", Network: network, DeviceID: "machine-" + network, DeviceOwner: "compute:nova", Host: host, Groups: []string{}})
	if err != nil {
		t.Fatal(err)
	}
	var trunk cloud.Trunk
	if way == Trunk {
		if trunk, err = c.CreateTrunk(t.Context(), "machine", p.ID); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if way == Trunk {
			if err := c.DeleteTrunk(context.Background(), trunk.ID); err != nil {
				t.Error(err)
			}
		}
	})
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node-1"}, Spec: corev1.NodeSpec{ProviderID: "openstack:///" + p.DeviceID},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: p.Addresses[0].Addr.String()}}},
	}
}

// ownNetwork makes a network with room for five ports. It and its ports are removed at the
// end of the test.
func ownNetwork(t *testing.T, c *cloud.Cloud, name string) string {
	t.Helper()
	n, err := c.CreateNetwork(t.Context(), "", name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.Background()
		left, err := c.Ports(ctx, cloud.PortQuery{Network: n.ID})
		for _, p := range left {
			err = errors.Join(err, c.DeletePort(ctx, p.ID))
		}
		if err = errors.Join(err, c.DeleteNetwork(ctx, n.ID)); err != nil {
			t.Error(err)
		}
	})
	if _, err := c.CreateSubnet(t.Context(), cloud.SubnetSpec{Name: name, Network: n.ID, Prefix: netip.MustParsePrefix("10.77.0.0/29")}); err != nil {
		t.Fatal(err)
	}
	return n.ID
}

// onHost is a driver whose pods are all on nodes of one host.
type onHost struct {
	*Driver
	host string
}

func (d onHost) Ensure(ctx context.Context, r *driver.Request) (*driver.Attachment, error) {
	there := *r
	there.NodeLabels = map[string]string{"host": d.host}
	return d.Driver.Ensure(ctx, &there)
}
