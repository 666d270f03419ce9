package nft_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/host"
	"fairlead.dev/fairlead/internal/netdev/kinds"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/nft"
	"fairlead.dev/fairlead/test/netlab"
)

const bridge = "br1"

// lab is a node with pods behind real rules. The switch of the netlab is the world
// outside: it has a route to the node, but none to its pods.
type lab struct {
	t       *testing.T
	blocks  []netip.Prefix
	world   *netlab.Machine
	node    *netlab.Machine
	kernel  *host.Kernel
	keeper  *nft.Keeper
	filter  *nft.Kernel
	settled nft.Node
	// refuse is the error of every transaction; nil while nft works.
	refuse atomic.Pointer[error]
}

// sandbox is a pod of the lab.
type sandbox struct {
	*netlab.Namespace
	id   string
	link nft.Link
}

const limit = time.Minute

func newLab(t *testing.T) *lab {
	t.Helper()
	return newLabs(t, 1)[0]
}

// newLabs returns nodes that share a link.
func newLabs(t *testing.T, count int) []*lab {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("making network namespaces needs root")
	}
	if !netlab.HasIPv6() {
		t.Skip("needs a kernel with IPv6: the lab has both families")
	}
	net, err := netlab.New(t.Context(), netlab.Config{Nodes: count})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { net.Close() })
	labs := make([]*lab, count)
	for i, n := range net.Nodes {
		labs[i] = &lab{
			t: t, world: net.Switch, node: n, filter: &nft.Kernel{},
			blocks: []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/26", i)), netip.MustParsePrefix(fmt.Sprintf("fd00:1%d::/64", i))},
		}
		labs[i].start()
	}
	return labs
}

// start creates the node's network and keeps its rules.
func (l *lab) start() {
	t := l.t
	t.Helper()
	l.keeper = nft.New(func(ctx context.Context, c nft.Change) error {
		if err := l.refuse.Load(); err != nil {
			return *err
		}
		return l.filter.Apply(ctx, c)
	})
	l.inNode(func() (err error) {
		sockets, err := link.Open()
		if err == nil {
			l.kernel = host.New(sockets)
		}
		return err
	})
	t.Cleanup(func() { l.kernel.Close() })
	l.apply(l.hostState())
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for _, run := range []func() error{
		func() error { return l.keeper.Run(ctx) },
		func() error {
			return l.kernel.WatchTables(ctx, nft.Table, l.keeper.Noticed, func(host.RuleChange) {})
		},
	} {
		running.Go(func() {
			if err := l.node.Do(run); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	l.set(nft.Node{
		Masquerade: true, Local: l.blocks,
		Cluster: append([]netip.Prefix{l.node.V4, l.node.V6}, l.blocks...), Tunnel: nft.Tunnel{Port: 4789, VNI: 158},
		Own: []netip.Addr{l.node.V4.Addr(), l.node.V6.Addr(), netip.MustParseAddr("127.0.0.1")},
	})
}

// hostState returns the node's network without other nodes.
func (l *lab) hostState() host.State {
	return host.State{
		IPv4: true, IPv6: true, Uplink: netlab.Uplink,
		Local: l.blocks, Sources: []netip.Addr{l.node.V4.Addr(), l.node.V6.Addr()},
	}
}

func (l *lab) apply(want host.State) {
	l.t.Helper()
	l.inNode(func() error {
		_, err := l.kernel.ApplyHost(l.t.Context(), want)
		return err
	})
}

func (l *lab) set(n nft.Node) {
	l.t.Helper()
	for i, p := range n.Cluster { // the node's own address, not its link's prefix
		if p == l.node.V4 || p == l.node.V6 {
			n.Cluster[i] = netip.PrefixFrom(p.Addr(), p.Addr().BitLen())
		}
	}
	l.settled = n
	l.keeper.SetNode(n)
	l.wait()
}

func (l *lab) wait() {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), limit)
	defer cancel()
	if err := l.keeper.Wait(ctx); err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) inNode(fn func() error) {
	l.t.Helper()
	if err := l.node.Do(fn); err != nil {
		l.t.Fatal(err)
	}
}

// run runs a program in a namespace.
func run(t *testing.T, in *netlab.Namespace, stdin string, command ...string) string {
	t.Helper()
	var out strings.Builder
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &out
	if err := in.Start(cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(command, " "), err, out.String())
	}
	return out.String()
}

// pod plugs a sandbox with the addresses 10.244.0.<n> and fd00:10::<n>, on a second
// node 10.244.1.<n> and fd00:11::<n>.
func (l *lab) pod(n int, ports ...nft.Port) *sandbox {
	l.t.Helper()
	s := l.plug(n, l.blocks, v1alpha1.Binding{Routed: &v1alpha1.RoutedBinding{}}, plug.RoutedName)
	if len(ports) > 0 { // as the daemon does
		l.inNode(func() error {
			return os.WriteFile("/proc/sys/net/ipv4/conf/"+s.link.Name+"/route_localnet", []byte("1"), 0)
		})
		l.keeper.SetPod(s.id, nft.Pod{Addresses: s.link.Addresses, Ports: ports})
		l.wait()
	}
	return s
}

// port plugs a sandbox into a bridge, where the pods of a node see each other's frames. Its addresses are
// of another network.
func (l *lab) port(n int, ports ...nft.Port) *sandbox {
	l.t.Helper()
	blocks := []netip.Prefix{netip.MustParsePrefix("10.9.0.0/26"), netip.MustParsePrefix("fd09::/64")}
	s := l.plug(n, blocks, v1alpha1.Binding{Bridge: &v1alpha1.BridgeBinding{Name: bridge, Create: true}}, plug.HostName)
	l.keeper.SetPod(s.id, nft.Pod{Links: []nft.Link{s.link}, Addresses: s.link.Addresses, Ports: ports})
	l.wait()
	return s
}

func (l *lab) plug(n int, blocks []netip.Prefix, b v1alpha1.Binding, name func(containerID, ifname string) string) *sandbox {
	l.t.Helper()
	ns, err := netlab.NewNamespace()
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { ns.Close() })
	s := &sandbox{Namespace: ns, id: fmt.Sprintf("sandbox%d", n)}
	p := plug.Interface{
		ContainerID: s.id, Name: "eth0", Binding: b, MTU: tunnelMTU, MAC: plug.RandomMAC(),
		Addresses: []netip.Prefix{within(blocks[0], n), within(blocks[1], n)},
		Gateways:  []netip.Addr{netip.MustParseAddr("169.254.1.1"), netip.MustParseAddr("fe80::1")},
	}
	l.inNode(func() error {
		open, err := link.OpenNamespace(ns.Path())
		if err != nil {
			return err
		}
		defer open.Close()
		return kinds.All(l.kernel.Sockets).Sending(l.kernel.Sockets, l.kernel.Source).Make(l.t.Context(), open, p)
	})
	s.link = nft.Link{Name: name(s.id, "eth0"), MAC: p.MAC}
	for _, a := range p.Addresses {
		s.link.Addresses = append(s.link.Addresses, a.Addr())
	}
	return s
}

// within returns the n-th address of a block.
func within(block netip.Prefix, n int) netip.Prefix {
	raw := block.Addr().AsSlice()
	raw[len(raw)-1] = byte(n)
	a, _ := netip.AddrFromSlice(raw)
	return netip.PrefixFrom(a, a.BitLen())
}

func (s *sandbox) v4() netip.Addr { return s.link.Addresses[0] }
func (s *sandbox) v6() netip.Addr { return s.link.Addresses[1] }

// serve answers on TCP and UDP with the client's address.
func serve(t *testing.T, ns *netlab.Namespace, port uint16) {
	t.Helper()
	at := fmt.Sprintf("[::]:%d", port)
	listener, err := ns.Listen(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	var packets net.PacketConn
	err = ns.Do(func() (err error) {
		packets, err = (&net.ListenConfig{}).ListenPacket(t.Context(), "udp", at)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		listener.Close()
		packets.Close()
	})
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, c.RemoteAddr().String())
			c.Close()
		}
	}()
	go func() {
		buf := make([]byte, 64)
		for {
			_, from, err := packets.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = packets.WriteTo([]byte(from.String()), from)
		}
	}()
}

// ask asks a server from a namespace, and returns the client address that the server saw.
func ask(t *testing.T, from *netlab.Namespace, network string, to netip.Addr, port uint16, within time.Duration) (netip.Addr, error) {
	t.Helper()
	var c net.Conn
	err := from.Do(func() (err error) {
		c, err = net.DialTimeout(network, netip.AddrPortFrom(to, port).String(), within)
		return err
	})
	if err != nil {
		return netip.Addr{}, err
	}
	defer c.Close()
	buf := make([]byte, 64)
	for deadline := time.Now().Add(within); ; {
		if network == "udp" {
			_, _ = c.Write([]byte("?"))
		}
		_ = c.SetReadDeadline(time.Now().Add(within / 20))
		n, err := c.Read(buf)
		if err != nil && time.Now().Before(deadline) {
			continue // a datagram may be lost during neighbour discovery
		}
		if err != nil {
			return netip.Addr{}, err
		}
		seen, err := netip.ParseAddrPort(string(buf[:n]))
		return seen.Addr().Unmap(), err
	}
}

// wantSeen checks the client address that a server sees, over TCP and UDP.
func wantSeen(t *testing.T, from *netlab.Namespace, to netip.Addr, port uint16, want netip.Addr) {
	t.Helper()
	for _, network := range []string{"tcp", "udp"} {
		got, err := ask(t, from, network, to, port, 20*time.Second)
		if err != nil || got != want {
			t.Errorf("%s to %v port %d: seen as %v (%v), want %v", network, to, port, got, err, want)
		}
	}
}

func TestMasquerade(t *testing.T) {
	l := newLab(t)
	a, b := l.pod(5), l.pod(6)
	serve(t, l.world.Namespace, 7000)
	serve(t, b.Namespace, 7000)
	serve(t, l.node.Namespace, 7000)
	for _, v := range []struct {
		world, node, other, own netip.Addr
	}{
		{l.world.V4.Addr(), l.node.V4.Addr(), b.v4(), a.v4()},
		{l.world.V6.Addr(), l.node.V6.Addr(), b.v6(), a.v6()},
	} {
		wantSeen(t, a.Namespace, v.world, 7000, v.node) // out of the cluster
		wantSeen(t, a.Namespace, v.other, 7000, v.own)  // another pod
		wantSeen(t, a.Namespace, v.node, 7000, v.own)   // the node
	}
	// To destinations that the operator excludes the pod's address is kept: the world
	// gets a route back.
	n := l.settled
	n.Cluster = append(n.Cluster, netip.MustParsePrefix("192.168.77.0/28"))
	l.set(n)
	run(t, l.world.Namespace, "", "ip", "route", "add", "10.244.0.0/26", "via", l.node.V4.Addr().String())
	wantSeen(t, a.Namespace, l.world.V4.Addr(), 7000, a.v4())
	n.Masquerade, n.Cluster = false, n.Cluster[:len(n.Cluster)-1]
	l.set(n)
	wantSeen(t, a.Namespace, l.world.V4.Addr(), 7000, a.v4())
}

func TestHostPorts(t *testing.T) {
	l := newLab(t)
	any4 := netip.IPv4Unspecified()
	var ports []nft.Port
	for _, protocol := range []string{"tcp", "udp", "sctp"} {
		ports = append(ports,
			nft.Port{Protocol: protocol, HostPort: 8080, ContainerPort: 80},
			nft.Port{Protocol: protocol, HostIP: any4, HostPort: 8081, ContainerPort: 80},
			nft.Port{Protocol: protocol, HostIP: netip.MustParseAddr("127.0.0.1"), HostPort: 8082, ContainerPort: 80})
	}
	a, b := l.pod(5, ports...), l.pod(6)
	serve(t, a.Namespace, 80)
	node4, node6 := l.node.V4.Addr(), l.node.V6.Addr()
	wantSeen(t, l.world.Namespace, node4, 8080, l.world.V4.Addr())
	wantSeen(t, l.world.Namespace, node6, 8080, l.world.V6.Addr())
	wantSeen(t, l.world.Namespace, node4, 8081, l.world.V4.Addr())
	wantSeen(t, b.Namespace, node4, 8080, b.v4())
	wantSeen(t, l.node.Namespace, node4, 8080, node4)
	wantSeen(t, l.node.Namespace, netip.MustParseAddr("127.0.0.1"), 8080, node4)
	wantSeen(t, l.node.Namespace, netip.MustParseAddr("127.0.0.1"), 8082, node4)
	// A pod reaches itself, and receives the answer.
	wantSeen(t, a.Namespace, node4, 8080, node4)
	wantSeen(t, a.Namespace, node6, 8080, node6)
	if _, err := ask(t, l.world.Namespace, "tcp", node4, 8082, 5*time.Second); err == nil {
		t.Error("a port at 127.0.0.1 is reached from outside")
	}
	if _, err := ask(t, l.world.Namespace, "tcp", node6, 8081, 5*time.Second); err == nil {
		t.Error("a port at 0.0.0.0 is reached by IPv6")
	}
	// route_localnet is on; no pod may use it.
	serve(t, l.node.Namespace, 9000)
	run(t, b.Namespace, "", "ip", "route", "add", "127.9.0.0/16", "via", "169.254.1.1", "dev", "eth0", "onlink")
	if _, err := ask(t, b.Namespace, "tcp", netip.MustParseAddr("127.9.0.1"), 9000, 2*time.Second); err == nil {
		t.Error("a pod reaches the host's loopback")
	}
	l.keeper.RemovePod(a.id)
	l.wait()
	if _, err := ask(t, l.node.Namespace, "tcp", node4, 8080, 5*time.Second); err == nil {
		t.Error("the port is still there")
	}
}

// TestServiceHairpin: a pod reaches itself through a Service. A rule like kube-proxy's,
// without its masquerade, is the proxy.
func TestServiceHairpin(t *testing.T) {
	l := newLab(t)
	a := l.pod(5)
	serve(t, a.Namespace, 80)
	b := l.pod(6)
	run(t, l.node.Namespace, `table inet proxy {
		chain services { type nat hook prerouting priority dstnat;
		ip daddr 172.30.0.1 tcp dport 80 dnat ip to 10.244.0.5:80; ip daddr 172.30.0.1 udp dport 80 dnat ip to 10.244.0.5:80
		ip6 daddr fd30::1 tcp dport 80 dnat ip6 to [fd00:10::5]:80; ip6 daddr fd30::1 udp dport 80 dnat ip6 to [fd00:10::5]:80; }
	}`, "nft", "-f", "-")
	v4, v6 := netip.MustParseAddr("172.30.0.1"), netip.MustParseAddr("fd30::1")
	wantSeen(t, a.Namespace, v4, 80, l.node.V4.Addr())
	wantSeen(t, a.Namespace, v6, 80, l.node.V6.Addr())
	wantSeen(t, b.Namespace, v4, 80, b.v4()) // another pod keeps its address
	wantSeen(t, b.Namespace, v6, 80, b.v6())
}

// TestPutBackInTheKernel: the Keeper repairs changes of other programs in its tables, and
// changes nothing else.
func TestPutBackInTheKernel(t *testing.T) {
	l := newLab(t)
	l.port(5, nft.Port{Protocol: "tcp", HostPort: 8080, ContainerPort: 80})
	list := func() string {
		var tables []string
		for _, family := range []string{"inet", "arp", "bridge"} {
			out := run(t, l.node.Namespace, "", "nft", "list", "table", family, nft.Table)
			for line := range strings.Lines(out) {
				if !strings.Contains(line, "elements = { 0x") && !strings.Contains(line, "counter packets") {
					tables = append(tables, line)
				}
			}
		}
		slices.Sort(tables)
		return strings.Join(tables, "")
	}
	want := list()
	for _, harm := range []string{
		"flush ruleset",
		"delete table inet fairlead",
		"flush table bridge fairlead",
		"flush table arp fairlead",
		"flush chain inet fairlead leaving",
		"delete element inet fairlead ports4 { tcp . 8080 }",
		"add rule bridge fairlead from-pods accept",
		"add element inet fairlead local4 { 192.0.2.0/24 }",
	} {
		run(t, l.node.Namespace, "", "nft", harm)
		// It leaves other tables alone, and restores its own completely.
		for deadline := time.Now().Add(limit); ; {
			tables, err := l.node.State()
			if err != nil {
				t.Fatal(err)
			}
			if len(tables.Tables) == 3 && list() == want {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("after %q:\n%s\nwant:\n%s", harm, list(), want)
			}
		}
	}
}

// TestMissingInTheKernel: while removed elements cannot be restored, Missing returns the
// reason for each pod.
func TestMissingInTheKernel(t *testing.T) {
	l := newLab(t)
	a := l.port(5, nft.Port{Protocol: "tcp", HostPort: 8080, ContainerPort: 80})
	eventually := func(what string, want func(missing []string) bool) {
		t.Helper()
		for deadline := time.Now().Add(limit); ; {
			missing := l.keeper.Missing(a.id)
			if want(missing) {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: %q", what, missing)
			}
			<-time.After(10 * time.Millisecond)
		}
	}
	gone := errors.New("nft: executable file not found in $PATH")
	for _, harm := range []string{"delete element inet fairlead ports4 { tcp . 8080 }", "flush table bridge fairlead"} {
		eventually("at first", func(missing []string) bool { return len(missing) == 0 })
		l.refuse.Store(&gone)
		run(t, l.node.Namespace, "", "nft", harm)
		eventually(harm, func(missing []string) bool { return len(missing) == 1 && strings.Contains(missing[0], gone.Error()) })
		l.refuse.Store(nil)
		eventually("put back", func(missing []string) bool { return len(missing) == 0 })
	}
}

func TestRemove(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("making network namespaces needs root")
	}
	ns, err := netlab.NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	err = ns.Do(func() error {
		var k nft.Kernel
		if err := k.Apply(t.Context(), nft.Change{Whole: &nft.Node{}, Revision: 1}); err != nil {
			return err
		}
		for _, want := range [][]string{{"nftables table inet fairlead", "nftables table arp fairlead", "nftables table bridge fairlead"}, nil} {
			if removed, err := k.Remove(t.Context()); err != nil || !slices.Equal(removed, want) {
				t.Errorf("removed %q (%v), want %q", removed, err, want)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
