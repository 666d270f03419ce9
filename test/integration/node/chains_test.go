package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/google/go-cmp/cmp"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/test/netlab"
)

// chains has pods on one node. Its configurations have a reference plugin after Fairlead's.
type chains struct {
	*lab
	n    *labNode
	made int // number of pods
}

// Each reference plugin that is made for the end of a list works after Fairlead's plugin.
// Traffic of both families passes, CHECK succeeds, and nothing is left after DEL (own reviews
// P3, P5).
func TestChains(t *testing.T) {
	l, n, _ := oneNode(t)
	n.runDirectory(t)
	n.reference(t, "meta/portmap", "meta/bandwidth", "meta/firewall", "meta/tuning", "meta/sbr")
	w := &chains{lab: l, n: n}
	t.Run("portmap", w.portmap)
	t.Run("bandwidth", w.bandwidth)
	t.Run("firewall", w.firewall)
	t.Run("tuning", w.tuning)
	t.Run("tuning of a MAC", w.tuningMAC)
	t.Run("tuning of a MAC that Fairlead gives, too", w.sharedMAC)
	t.Run("sbr", w.sbr)
}

// needs skips the test if the kernel or the machine lacks a feature. commands holds a command
// for each feature, which uses the feature in a temporary namespace.
func needs(t *testing.T, commands map[string]string) {
	t.Helper()
	scratch, err := netlab.NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	defer scratch.Close()
	for what, command := range commands {
		cmd := exec.CommandContext(t.Context(), "sh", "-c", command)
		var out strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := scratch.Start(cmd); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Skipf("needs %s, which this machine lacks: %s: %v: %s", what, command, err, out.String())
		}
	}
}

// chained is one list with two pods.
type chained struct {
	*chains
	list *libcni.NetworkConfigList
	pods [2]*labPod
	// ask holds the runtime's capability arguments for the first pod, by capability.
	ask    map[string]any
	before netlab.State
}

// chain creates two pods, and a list of the daemon's plugin and another plugin. A capability
// of the other plugin is removed from the daemon's plugin, except those in both, which both
// plugins have.
func (w *chains) chain(t *testing.T, plugin map[string]any, both ...string) *chained {
	t.Helper()
	c := &chained{chains: w, before: w.n.state(t)}
	for i := range c.pods {
		w.made++
		p := w.n.pod(t, fmt.Sprintf("p%d", w.made))
		w.attachment(t, w.n, p, fmt.Sprintf("10.244.1.%d/32", 4+w.made), fmt.Sprintf("fd00:10:244:1::%d/128", 4+w.made))
		c.pods[i] = p
	}
	raw, err := os.ReadFile(w.n.conflist())
	if err != nil {
		t.Fatal(err)
	}
	var list map[string]any
	if err := json.Unmarshal(raw, &list); err != nil {
		t.Fatal(err)
	}
	plugins := list["plugins"].([]any)
	ours := plugins[0].(map[string]any)["capabilities"].(map[string]any)
	theirs, _ := plugin["capabilities"].(map[string]bool)
	for name := range theirs {
		delete(ours, name)
	}
	for _, name := range both {
		ours[name] = true
	}
	list["plugins"] = append(plugins, plugin)
	if raw, err = json.Marshal(list); err != nil {
		t.Fatal(err)
	}
	if c.list, err = libcni.NetworkConfFromBytes(raw); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *chained) conf(p *labPod) *libcni.RuntimeConf {
	conf := p.runtimeConf(c.cluster.Namespace, delegate{ifName: "eth0"})
	if p == c.pods[0] {
		conf.CapabilityArgs = c.ask
	}
	return conf
}

// add attaches both pods.
func (c *chained) add(t *testing.T) {
	t.Helper()
	for _, p := range c.pods {
		if err := c.n.runtime(func(r *libcni.CNIConfig) error {
			_, err := r.AddNetworkList(t.Context(), c.list, c.conf(p))
			return err
		}); err != nil {
			t.Fatalf("ADD of %s: %v", p.name, err)
		}
	}
	for _, p := range c.pods {
		c.wantState(t, p, v1alpha1.SandboxAttached, p.containerID)
	}
}

func (c *chained) check(t *testing.T, p *labPod) error {
	t.Helper()
	return c.n.runtime(func(r *libcni.CNIConfig) error {
		return r.CheckNetworkList(t.Context(), c.list, c.conf(p))
	})
}

func (c *chained) wantCheck(t *testing.T) {
	t.Helper()
	for _, p := range c.pods {
		if err := c.check(t, p); err != nil {
			t.Errorf("CHECK of %s: %v", p.name, err)
		}
	}
}

// wantTraffic checks that each pod can send to the other in both families.
func (c *chained) wantTraffic(t *testing.T) {
	t.Helper()
	for family := range c.pods[0].addresses {
		for i, from := range c.pods {
			if _, err := carry(t.Context(), from, c.pods[1-i], family, 64<<10); err != nil {
				t.Errorf("from %s to %s: %v", from.name, c.pods[1-i].name, err)
			}
		}
	}
}

// del detaches both pods and waits until nothing is left of them: no link, no route, no rule,
// no entry in the packet filter and no record.
func (c *chained) del(t *testing.T) {
	t.Helper()
	for _, p := range c.pods {
		if err := c.n.runtime(func(r *libcni.CNIConfig) error {
			return r.DelNetworkList(t.Context(), c.list, c.conf(p))
		}); err != nil {
			t.Errorf("DEL of %s: %v", p.name, err)
		}
		c.release(t, p)
		c.wantState(t, p, v1alpha1.SandboxDetached, p.containerID)
		c.wantBare(t, p)
	}
	c.cluster.Eventually(t, "nothing to be left of the chain", func(context.Context) error {
		now := c.n.state(t)
		if diff := cmp.Diff([][]string{c.before.Links, c.before.Routes}, [][]string{now.Links, now.Routes}); diff != "" {
			return fmt.Errorf("links and routes (-want +got):\n%s", diff)
		}
		left, err := os.ReadDir(filepath.Join(c.n.dir, "state", "attachments"))
		if err != nil || len(left) > 0 {
			return fmt.Errorf("records %v, %w", left, err)
		}
		rules, err := c.n.command(exec.Command("nft", "list", "ruleset"))
		if err != nil {
			return err
		}
		for _, p := range c.pods {
			for _, of := range []string{p.containerID, p.address(0).String(), p.address(1).String()} {
				// If another digit follows, the line has a longer address.
				if line := regexp.MustCompile(`(?m)^.*\b` + regexp.QuoteMeta(of) + `([^0-9a-f].*)?$`).FindString(rules); line != "" {
					return fmt.Errorf("the packet filter has for %s: %s", p.name, strings.TrimSpace(line))
				}
			}
		}
		return nil
	})
}

// wantBare checks that a sandbox has no interface but lo and no rule with a source.
func (c *chained) wantBare(t *testing.T, p *labPod) {
	t.Helper()
	inside, err := p.netns.Netlink()
	if err != nil {
		t.Fatal(err)
	}
	defer inside.Close()
	links, err := inside.LinkList()
	if err != nil || len(links) != 1 {
		t.Errorf("%s has links %v, %v", p.name, links, err)
	}
	rules, err := inside.RuleList(syscall.AF_UNSPEC)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rules {
		if r.Src != nil {
			t.Errorf("%s has the rule %v", p.name, r)
		}
	}
}

// The host port leads to the pod from outside, from the node and from another pod.
func (w *chains) portmap(t *testing.T) {
	needs(t, map[string]string{
		"nftables with fib and dnat": `nft 'add table ip t; add chain ip t c { type nat hook prerouting priority dstnat; }; add rule ip t c fib daddr type local tcp dport 1 dnat to 10.0.0.1:2'`,
	})
	c := w.chain(t, map[string]any{"type": "portmap", "backend": "nftables", "capabilities": map[string]bool{"portMappings": true}})
	c.ask = map[string]any{"portMappings": []map[string]any{{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}}}
	c.add(t)
	server, err := c.pods[0].netns.Listen(t.Context(), ":80")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	go func() {
		for {
			conn, err := server.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, c.pods[0].name)
			_ = conn.Close()
		}
	}()
	places := map[string]*netlab.Namespace{"outside": w.net.Switch.Namespace, "the node": w.n.Namespace, "another pod": c.pods[1].netns}
	for _, host := range []netip.Addr{w.n.V4.Addr(), w.n.V6.Addr()} {
		port := netip.AddrPortFrom(host, 8080)
		for place, ns := range places {
			if answer, err := readAll(t.Context(), ns, port); answer != c.pods[0].name {
				t.Errorf("from %s %s answers %q, %v", place, port, answer, err)
			}
		}
	}
	c.wantTraffic(t)
	c.wantCheck(t)
	c.del(t)
	for place, ns := range places {
		if answer, err := readAll(t.Context(), ns, netip.AddrPortFrom(w.n.V4.Addr(), 8080)); err == nil {
			t.Errorf("after DEL the host port answers %q from %s", answer, place)
		}
	}
}

// readAll connects to a server and returns its answer.
func readAll(ctx context.Context, from *netlab.Namespace, to netip.AddrPort) (answer string, err error) {
	err = from.Do(func() error {
		conn, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "tcp", to.String())
		if err != nil {
			return err
		}
		defer conn.Close()
		raw, err := io.ReadAll(conn)
		answer = string(raw)
		return err
	})
	return answer, err
}

// A pod with a limit receives and sends no faster than its limit. The other pod has no limit.
func (w *chains) bandwidth(t *testing.T) {
	needs(t, map[string]string{
		"tbf and ifb": "ip link add ifb9 type ifb && tc qdisc add dev ifb9 root tbf rate 1mbit burst 32k latency 25ms",
		"mirred":      "tc qdisc add dev lo ingress && tc filter add dev lo parent ffff: protocol all u32 match u32 0 0 action mirred egress redirect dev lo",
	})
	const (
		rate, burst = 2_000_000, 256_000 // bits
		bytes       = 256 << 10
		least       = time.Second * (bytes*8 - 2*burst) / rate
	)
	c := w.chain(t, map[string]any{"type": "bandwidth", "capabilities": map[string]bool{"bandwidth": true}})
	c.ask = map[string]any{"bandwidth": map[string]any{"ingressRate": rate, "ingressBurst": burst, "egressRate": rate, "egressBurst": burst}}
	c.add(t)
	qdiscs, err := w.n.command(exec.CommandContext(t.Context(), "tc", "qdisc", "show"))
	if err != nil || strings.Count(qdiscs, "qdisc tbf ") != 2 || strings.Count(qdiscs, "qdisc ingress ") != 1 {
		t.Errorf("tc qdisc show: %v\n%s", err, qdiscs)
	}
	for i, from := range c.pods {
		took, err := carry(t.Context(), from, c.pods[1-i], 0, bytes)
		if err != nil || took < least {
			t.Errorf("%d bytes from %s to %s took %v, %v; want %v at least", bytes, from.name, c.pods[1-i].name, took, err, least)
		}
	}
	c.wantTraffic(t)
	c.wantCheck(t)
	c.del(t)
}

// If the policy of the node's chain FORWARD drops packets, the plugin lets the pods' packets
// through.
func (w *chains) firewall(t *testing.T) {
	rule := func(program string) string {
		return program + " -A FORWARD -m comment --comment x -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"
	}
	needs(t, map[string]string{"iptables with conntrack": rule("iptables"), "ip6tables with conntrack": rule("ip6tables")})
	policy := func(of string) {
		t.Helper()
		for _, program := range []string{"iptables", "ip6tables"} {
			if out, err := w.n.command(exec.Command(program, "-P", "FORWARD", of)); err != nil {
				t.Fatalf("%s: %v: %s", program, err, out)
			}
		}
	}
	policy("DROP")
	defer policy("ACCEPT")
	c := w.chain(t, map[string]any{"type": "firewall", "backend": "iptables"})
	c.add(t)
	c.wantTraffic(t)
	c.wantCheck(t)
	c.del(t)
}

// The pod has the MTU and the sysctls of the plugin. CHECK reports the MTU in the log only.
func (w *chains) tuning(t *testing.T) {
	c := w.chain(t, map[string]any{"type": "tuning", "mtu": 1300, "sysctl": map[string]string{"net.core.somaxconn": "321"}})
	c.add(t)
	for _, p := range c.pods {
		err := p.netns.Do(func() error {
			eth0, err := net.InterfaceByName("eth0")
			if err == nil && eth0.MTU != 1300 {
				err = fmt.Errorf("eth0 has an MTU of %d bytes", eth0.MTU)
			}
			value, readErr := os.ReadFile("/proc/sys/net/core/somaxconn")
			if readErr == nil && strings.TrimSpace(string(value)) != "321" {
				readErr = fmt.Errorf("net.core.somaxconn is %s", value)
			}
			return errors.Join(err, readErr)
		})
		if err != nil {
			t.Errorf("%s: %v", p.name, err)
		}
	}
	c.wantTraffic(t)
	c.wantCheck(t)
	w.n.wantLogged(t, "interface eth0 has an MTU of 1300 bytes, less than the network's")
	c.del(t)
}

const otherMAC = "02:00:00:00:13:37"

// If only the other plugin knows the pod's MAC, no packet of the pod arrives. CHECK reports
// it, with the remedy.
func (w *chains) tuningMAC(t *testing.T) {
	c := w.chain(t, map[string]any{"type": "tuning", "capabilities": map[string]bool{"mac": true}})
	c.ask = map[string]any{"mac": otherMAC}
	c.add(t)
	err := c.check(t, c.pods[0])
	for _, word := range []string{otherMAC, "which a plugin after this one gave it", "have this plugin give it, by its capability mac"} {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("CHECK does not report %q: %v", word, err)
		}
	}
	if err := c.check(t, c.pods[1]); err != nil {
		t.Errorf("CHECK of the other pod: %v", err)
	}
	for family := range c.pods[0].addresses {
		if talk(t.Context(), c.pods[0], c.pods[1], c.pods[1].address(family).String()) == nil {
			t.Errorf("packets with a MAC that Fairlead does not know arrive at %s", c.pods[1].address(family))
		}
	}
	c.del(t)
}

// The remedy that CHECK names works: both plugins have the capability mac.
func (w *chains) sharedMAC(t *testing.T) {
	c := w.chain(t, map[string]any{"type": "tuning", "capabilities": map[string]bool{"mac": true}}, "mac")
	c.ask = map[string]any{"mac": otherMAC}
	c.add(t)
	err := c.pods[0].netns.Do(func() error {
		eth0, err := net.InterfaceByName("eth0")
		if err == nil && eth0.HardwareAddr.String() != otherMAC {
			err = fmt.Errorf("eth0 has MAC %s", eth0.HardwareAddr)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	c.wantTraffic(t)
	c.wantCheck(t)
	c.del(t)
}

// Every route is in a table that is chosen by the source address, with the same gateways.
func (w *chains) sbr(t *testing.T) {
	c := w.chain(t, map[string]any{"type": "sbr"})
	c.add(t)
	for _, p := range c.pods {
		c.wantBySource(t, p)
	}
	c.wantTraffic(t)
	for family, host := range []netip.Addr{w.net.Switch.V4.Addr(), w.net.Switch.V6.Addr()} {
		c.wantOutside(t, c.pods[0], family, host)
	}
	c.wantCheck(t)
	w.n.wantLogged(t, "interface eth0 has the route to 0.0.0.0/0 via 169.254.1.1 in another table")
	c.del(t)
}

// wantBySource checks that a pod has a rule for each of its addresses, and no default route in
// the main table.
func (c *chained) wantBySource(t *testing.T, p *labPod) {
	t.Helper()
	inside, err := p.netns.Netlink()
	if err != nil {
		t.Fatal(err)
	}
	defer inside.Close()
	rules, err := inside.RuleList(syscall.AF_UNSPEC)
	if err != nil {
		t.Fatal(err)
	}
	var sources []string
	for _, r := range rules {
		if r.Src != nil {
			sources = append(sources, r.Src.String())
		}
	}
	if diff := cmp.Diff(p.addresses, sources); diff != "" {
		t.Errorf("rules of %s by source (-want +got):\n%s", p.name, diff)
	}
	routes, err := inside.RouteList(nil, syscall.AF_UNSPEC)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range routes {
		if r.Gw != nil {
			t.Errorf("the main table of %s has the route %v", p.name, r)
		}
	}
}

// wantOutside checks that a pod can connect to a host outside the node.
func (c *chained) wantOutside(t *testing.T, p *labPod, family int, host netip.Addr) {
	t.Helper()
	listener, err := c.net.Switch.Listen(t.Context(), netip.AddrPortFrom(host, 0).String())
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	err = p.netns.Do(func() error {
		source := net.TCPAddrFromAddrPort(netip.AddrPortFrom(p.address(family), 0))
		conn, err := (&net.Dialer{Timeout: 5 * time.Second, LocalAddr: source}).DialContext(t.Context(), "tcp", listener.Addr().String())
		if err != nil {
			return err
		}
		return conn.Close()
	})
	if err != nil {
		t.Errorf("%s does not reach %s by its source: %v", p.name, host, err)
	}
}
