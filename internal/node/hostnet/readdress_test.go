package hostnet

import (
	"context"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/host"
	"fairlead.dev/fairlead/internal/netdev/kinds"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/test/nettest"
	"fairlead.dev/fairlead/test/nodetest"
)

// silentAPI takes every write.
type silentAPI struct{ nn *v1alpha1.NodeNetwork }

func (a silentAPI) PatchNetwork(context.Context, string, []byte) (*v1alpha1.NodeNetwork, error) {
	return a.nn, nil
}

// The node reaches its pods whatever becomes of its uplink: the kernel removes a route whose source goes.
func TestPodsStayWhenTheUplinkGoes(t *testing.T) {
	for name, change := range map[string][]string{
		"the address goes":    {"address del 192.0.2.1/24 dev up0"},
		"it fails over":       {"route del default via 192.0.2.254", "address del 192.0.2.1/24 dev up0"},
		"both addresses go":   {"address del 192.0.2.1/24 dev up0", "address del 198.51.100.1/24 dev up1"},
		"the link goes":       {"link del up0"},
		"the link goes, back": {"link set up0 down", "link set up0 up"},
	} {
		t.Run(name, func(t *testing.T) {
			s := nettest.NewNode(t)
			k := host.New(s)
			for _, link := range []string{"up0", "up1"} {
				nettest.AddCable(t, s.Namespace(), link, 0, nettest.Cable{To: nettest.NewNamespace(t), Name: "x", MTU: 1500})
			}
			ip(t, s.Namespace(), "address add 192.0.2.1/24 dev up0", "address add 198.51.100.1/24 dev up1",
				"route add default via 192.0.2.254 metric 100", "route add default via 198.51.100.254 metric 200")
			kind := kinds.All(s).Sending(s, k.Source)
			var made []plug.Made
			nn := nodetest.NodeNetwork("n1", []string{"10.244.1.0/26"}, nil)
			n := New(Config{
				NodeName: "n1", BootID: "b", Encapsulation: EncapsulationNone, Kernel: k, API: silentAPI{nn},
				Networks: func(context.Context) ([]v1alpha1.NodeNetwork, error) { return []v1alpha1.NodeNetwork{*nn}, nil },
			})
			n.SetFilter(func(*v1alpha1.NodeNetwork, []v1alpha1.NodeNetwork, *host.Tunnel, []netip.Addr) {})
			ctx, cancel := context.WithCancel(t.Context())
			readdressed := make(chan struct{}, 1)
			n.OnReaddressed(func() {
				select {
				case readdressed <- struct{}{}:
				default:
				}
			})
			done := make(chan struct{}, 2)
			go func() { _ = n.Run(ctx); done <- struct{}{} }()
			defer func() { cancel(); <-done; <-done }()
			n.NetworksChanged()
			_, err := n.Await(ctx)
			nettest.Must(t, err)
			var pods []*link.Namespace
			addresses := []string{"10.244.1.5", "10.244.1.6"}
			for _, a := range addresses {
				p := plug.Interface{ContainerID: "c" + a, Name: "eth0", MTU: 1400, MAC: plug.RandomMAC(), Binding: v1alpha1.Binding{Routed: &v1alpha1.RoutedBinding{}}}
				p.Addresses, p.Gateways = nettest.Pod(a + "/32")
				ns := nettest.NewNamespace(t)
				nettest.Must(t, kind.Make(ctx, ns, p))
				m, err := kind.Plan(ns.Place(), p)
				nettest.Must(t, err)
				pods, made = append(pods, ns), append(made, m)
			}
			go func() { // as the sweep that OnReaddressed begins
				defer func() { done <- struct{}{} }()
				for {
					select {
					case <-ctx.Done():
						return
					case <-readdressed:
						for _, m := range made {
							_, _ = kind.Repair(ctx, m)
						}
					}
				}
			}()
			ip(t, s.Namespace(), change...)
			for i, a := range addresses {
				awaitRoute(t, s.Namespace(), a)
				nettest.Reaches(t, s.Namespace(), pods[i], netip.MustParseAddr(a))
				nettest.Reaches(t, pods[1-i], pods[i], netip.MustParseAddr(a))
			}
		})
	}
}

// ip runs commands of ip in a namespace.
func ip(t *testing.T, ns *link.Namespace, commands ...string) {
	t.Helper()
	for _, c := range commands {
		args := append([]string{"--net=" + ns.Path(), "ip"}, strings.Fields(c)...)
		if out, err := exec.CommandContext(t.Context(), "nsenter", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", c, err, out)
		}
	}
}

// awaitRoute waits until a namespace has a route to an address, at most 20 seconds: a sweep comes within
// a minute.
func awaitRoute(t *testing.T, ns *link.Namespace, to string) {
	t.Helper()
	h := nettest.OpenHandle(t, ns)
	end := time.After(20 * time.Second)
	for {
		_, err := h.RouteGet(netip.MustParseAddr(to).AsSlice())
		if err == nil {
			return
		}
		select {
		case <-end:
			t.Fatalf("no route to %s: %v", to, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
