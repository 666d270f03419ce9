package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/test/cluster"
	"fairlead.dev/fairlead/test/netlab"
)

// Two daemons on nodes with one family, and pools of only that family. Pods of both nodes
// reach each other, their packets to other hosts have the node's address as the source, and a
// host port leads to a pod. The daemon requests and sets nothing of the other family, which
// the kernel need not have (ipv6.disable=1).
func TestDaemonsOfOneFamily(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes network namespaces")
	}
	const forwarding6, acceptRA, forwarding4 = "net/ipv6/conf/all/forwarding", "net/ipv6/conf/eth0/accept_ra", "net/ipv4/conf/eth0/forwarding"
	tests := []struct {
		name     string
		network  netlab.Config
		of       func(netip.Addr) bool
		settings map[string]string // at the end; at first forwarding is 0 and accept_ra is 1
	}{
		{
			name: "IPv4", network: netlab.Config{Nodes: 2, IPv4Only: true}, of: netip.Addr.Is4,
			settings: map[string]string{forwarding6: "0", acceptRA: "1", forwarding4: "1"},
		},
		{
			name: "IPv6", network: netlab.Config{Nodes: 2, IPv6Only: true}, of: netip.Addr.Is6,
			settings: map[string]string{forwarding6: "1", acceptRA: "2", forwarding4: "0"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := newLabOn(t, cluster.New(t), tt.network)
			l.of = tt.of
			n1, n2 := l.node(t, 0), l.node(t, 1)
			n1.set(t, offered(map[string]string{forwarding6: "0", acceptRA: "1", "net/ipv4/ip_forward": "0"}))
			before := n1.state(t)
			n1.start(t)
			n2.start(t)
			for _, n := range []*labNode{n1, n2} {
				l.cluster.Eventually(t, n.name+" to be routed", func(ctx context.Context) error {
					var nn v1alpha1.NodeNetwork
					if err := l.cluster.Client.Get(ctx, types.NamespacedName{Name: n.name}, &nn); err != nil {
						return err
					}
					if !meta.IsStatusConditionTrue(nn.Status.Conditions, v1alpha1.ConditionRouted) || len(nn.Status.Addresses) != 1 {
						return fmt.Errorf("status %+v", nn.Status)
					}
					return nil
				})
				n.awaitConflist(t)
			}
			p1, p2 := n1.pod(t, "p1"), n2.pod(t, "p2")
			l.attachment(t, n1, p1, "10.244.1.5/32", "fd00:10:244:1::5/128")
			l.attachment(t, n2, p2, "10.244.2.5/32", "fd00:10:244:2::5/128")
			added := n1.cni("ADD", p1, p1.netns.Path())
			added.wantOK(t, "ADD p1")
			l.wantResult(t, added, p1)
			n2.call("ADD", p2, p2.netns.Path(), inVersion("1.1.0", map[string]any{"runtimeConfig": map[string]any{
				"portMappings": []map[string]any{{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}},
			}})).wantOK(t, "ADD p2")

			at2 := netip.MustParsePrefix(p2.addresses[0]).Addr()
			l.cluster.Eventually(t, "the way from "+n1.name, func(ctx context.Context) error { return talk(ctx, p1, p2, at2.String()) })
			l.wantTalk(t, p2, p1, netip.MustParsePrefix(p1.addresses[0]).Addr().String())
			own := func(m *netlab.Machine) netip.Addr { return m.Addresses()[0].Addr() }
			if from := seenAs(t, p1.netns, l.net.Switch.Namespace, own(l.net.Switch)); from != own(n1.Machine) {
				t.Errorf("outside the cluster %s has the source %s, want its node's %s", p1.name, from, own(n1.Machine))
			}
			listener, err := p2.netns.Listen(t.Context(), netip.AddrPortFrom(at2, 80).String())
			if err != nil {
				t.Fatal(err)
			}
			defer listener.Close()
			if from := dialled(t, l.net.Switch.Namespace, listener, netip.AddrPortFrom(own(n2.Machine), 8080)); from != own(l.net.Switch) {
				t.Errorf("through the host port the source is %s, want %s", from, own(l.net.Switch))
			}
			n1.wantSettings(t, offered(tt.settings))

			for n, p := range map[*labNode]*labPod{n1: p1, n2: p2} {
				l.wantState(t, p, v1alpha1.SandboxAttached, p.containerID)
				n.cni("DEL", p, p.netns.Path()).wantOK(t, "DEL "+p.name)
				l.release(t, p)
				l.wantState(t, p, v1alpha1.SandboxDetached, p.containerID)
			}
			n1.stop(t)
			n1.run(t, "cleanup", "--config", n1.config, "--cni")
			if diff := cmp.Diff(before, n1.state(t)); diff != "" {
				t.Errorf("cleanup left a change (-before +after):\n%s", diff)
			}
		})
	}
}

// offered returns the settings that this kernel has: without IPv6 no settings of IPv6.
func offered(settings map[string]string) map[string]string {
	maps.DeleteFunc(settings, func(name, _ string) bool { return strings.HasPrefix(name, "net/ipv6/") && !netlab.HasIPv6() })
	return settings
}

// seenAs connects one namespace to an address in another and returns the source address that
// the other sees.
func seenAs(t *testing.T, from, in *netlab.Namespace, at netip.Addr) netip.Addr {
	t.Helper()
	listener, err := in.Listen(t.Context(), netip.AddrPortFrom(at, 0).String())
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return dialled(t, from, listener, netip.MustParseAddrPort(listener.Addr().String()))
}

// dialled connects a namespace to an address that leads to a listener. It returns the source
// address that the listener sees.
func dialled(t *testing.T, from *netlab.Namespace, listener net.Listener, at netip.AddrPort) netip.Addr {
	t.Helper()
	err := from.Do(func() error {
		conn, err := (&net.Dialer{Timeout: 30 * time.Second}).DialContext(t.Context(), "tcp", at.String())
		if err != nil {
			return err
		}
		return conn.Close()
	})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return netip.MustParseAddrPort(conn.RemoteAddr().String()).Addr()
}

// set writes settings of the node by their names below /proc/sys.
func (n *labNode) set(t *testing.T, settings map[string]string) {
	t.Helper()
	err := n.Do(func() error {
		var errs []error
		for name, value := range settings {
			errs = append(errs, os.WriteFile("/proc/sys/"+name, []byte(value), 0o600))
		}
		return errors.Join(errs...)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// wantSettings checks settings of the node by their names below /proc/sys.
func (n *labNode) wantSettings(t *testing.T, want map[string]string) {
	t.Helper()
	got := map[string]string{}
	err := n.Do(func() error {
		for name := range want {
			raw, err := os.ReadFile("/proc/sys/" + name)
			if err != nil {
				return err
			}
			got[name] = strings.TrimSpace(string(raw))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("settings of %s (-want +got):\n%s", n.name, diff)
	}
}
