package node

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/test/netlab"
)

// Two nodes are in different subnets with a router between them. They use the tunnel until
// the controller records that the router has routes to their pods. They find out that it has
// none, and use the router when it has. The nodes have strict reverse path filters.
func TestRoutedByTheNetwork(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes network namespaces")
	}
	l := newLab(t)
	r := &router{Lab: l.net}
	r.divide(t)
	nodes := []*labNode{l.node(t, 0), l.node(t, 1)}
	for _, n := range nodes {
		n.set(t, map[string]string{"net/ipv4/conf/all/rp_filter": "1"})
	}
	p := l.pair(t, nodes...)
	p.ways(t, "", true)
	for i, n := range nodes {
		l.change(t, n.name, "", func(nn *v1alpha1.NodeNetwork) {
			nn.Spec.Fabric = &v1alpha1.Fabric{Routed: []string{fmt.Sprintf("10.244.%d.0/26", i+1), fmt.Sprintf("fd00:10:244:%d::/122", i+1)}}
			meta.SetStatusCondition(&nn.Spec.Fabric.Conditions, metav1.Condition{Type: v1alpha1.ConditionFabricReady, Status: metav1.ConditionTrue, Reason: "Ready"})
		})
	}
	p.ways(t, metav1.ConditionFalse, true)
	for i, n := range nodes {
		r.route(t, fmt.Sprintf("10.244.%d.0/26", i+1), n.V4.Addr())
		r.route(t, fmt.Sprintf("fd00:10:244:%d::/122", i+1), n.V6.Addr())
	}
	p.ways(t, metav1.ConditionTrue, false)
	// At the limit of routes one node has none, and both use the tunnel.
	l.change(t, nodes[1].name, "", func(nn *v1alpha1.NodeNetwork) {
		meta.SetStatusCondition(&nn.Spec.Fabric.Conditions, metav1.Condition{Type: v1alpha1.ConditionFabricReady, Status: metav1.ConditionFalse, Reason: "Limit"})
	})
	p.ways(t, "", true)
	p.release(t)
}

// router is the switch of a laboratory as a router between two subnets.
type router struct{ *netlab.Lab }

// divide moves the second node to a subnet of its own.
func (r *router) divide(t *testing.T) {
	t.Helper()
	far := r.Nodes[1]
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	readdress := func(m *netlab.Machine, name string, remove, add []netip.Prefix) {
		h, err := m.Netlink()
		must(err)
		defer h.Close()
		link, err := h.LinkByName(name)
		must(err)
		for _, p := range remove {
			must(h.AddrDel(link, &netlink.Addr{IPNet: toNet(p)}))
		}
		for _, p := range add {
			must(h.AddrAdd(link, &netlink.Addr{IPNet: toNet(p), Flags: nodad(p)}))
		}
		if m != far {
			return
		}
		for _, via := range []string{"192.168.78.1", "fd00:78::1"} {
			must(h.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: net.ParseIP(via)}))
		}
	}
	prefixes := func(of ...string) (out []netip.Prefix) {
		for _, s := range of {
			out = append(out, netip.MustParsePrefix(s))
		}
		return out
	}
	readdress(r.Switch, netlab.BridgeName, nil, prefixes("192.168.78.1/24", "fd00:78::1/64"))
	now := prefixes("192.168.78.12/24", "fd00:78::12/64")
	readdress(far, netlab.Uplink, far.Addresses(), now)
	far.V4, far.V6 = now[0], now[1]
	must(r.Switch.Do(func() error {
		var errs []error
		// Both subnets are on one bridge here: a router would send redirects to the nodes.
		for name, value := range map[string]string{
			"ipv4/ip_forward": "1", "ipv6/conf/all/forwarding": "1",
			"ipv4/conf/all/send_redirects": "0", "ipv4/conf/" + netlab.BridgeName + "/send_redirects": "0",
		} {
			errs = append(errs, os.WriteFile("/proc/sys/net/"+name, []byte(value), 0o600))
		}
		return errors.Join(errs...)
	}))
}

// route adds a route to pods.
func (r *router) route(t *testing.T, to string, via netip.Addr) {
	t.Helper()
	h, err := r.Switch.Netlink()
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if err := h.RouteAdd(&netlink.Route{Dst: toNet(netip.MustParsePrefix(to)), Gw: via.AsSlice()}); err != nil {
		t.Fatal(err)
	}
}

func toNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// nodad returns the flags of an address that is usable at once.
func nodad(p netip.Prefix) int {
	if p.Addr().Is6() {
		return unix.IFA_F_NODAD
	}
	return 0
}
