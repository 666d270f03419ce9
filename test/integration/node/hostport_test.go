package node

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// In kubernetes#59033 and projectcalico/felix#1880 a UDP flow outlived the pod behind a host
// port, because each packet keeps the first translation of the flow alive. A flow that began
// without a pod had the same fault. Here the new pod answers a client that never pauses and
// uses one socket.
func TestUDPFlowFollowsTheHostPort(t *testing.T) {
	l, n, pods := oneNode(t, "old", "new")
	host := net.UDPAddrFromAddrPort(netip.AddrPortFrom(n.V4.Addr(), 5353))
	var client *net.UDPConn
	err := l.net.Switch.Do(func() (err error) {
		client, err = net.DialUDP("udp", nil, host)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	// answered waits until the pod named by answers, while the client goes on.
	answered := func(by string) {
		t.Helper()
		buf := make([]byte, 64)
		for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
			_, _ = client.Write([]byte("?")) // an error belongs to the previous packet
			_ = client.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
			if size, err := client.Read(buf); err == nil && string(buf[:size]) == by {
				return
			}
		}
		t.Fatalf("%q does not answer", by)
	}
	plug := func(p *labPod) {
		t.Helper()
		answerUDP(t, p, 53)
		_, _ = client.Write([]byte("?")) // there is no pod yet
		n.call("ADD", p, p.netns.Path(), inVersion("1.1.0", map[string]any{"runtimeConfig": map[string]any{
			"portMappings": []map[string]any{{"hostPort": 5353, "containerPort": 53, "protocol": "udp"}},
		}})).wantOK(t, "ADD "+p.name)
		answered(p.name)
	}
	plug(pods[0])
	n.cni("DEL", pods[0], "").wantOK(t, "DEL")
	plug(pods[1])
	// Wait for Attached. Otherwise the pod might come and go between two writes of the status,
	// and Detached would have no container ID.
	l.wantState(t, pods[1], v1alpha1.SandboxAttached, pods[1].containerID)
	n.cni("DEL", pods[1], "").wantOK(t, "DEL")
	l.release(t, pods[1])
	l.wantState(t, pods[1], v1alpha1.SandboxDetached, pods[1].containerID)
}

// answerUDP makes a pod answer each packet at a port with its name.
func answerUDP(t *testing.T, p *labPod, port int) {
	t.Helper()
	var server *net.UDPConn
	err := p.netns.Do(func() (err error) {
		server, err = net.ListenUDP("udp", &net.UDPAddr{Port: port})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	go func() {
		buf := make([]byte, 64)
		for {
			_, from, err := server.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			_, _ = server.WriteToUDPAddrPort([]byte(p.name), from)
		}
	}()
}

// A host port that the node uses itself is refused with an error that names the option. It is
// available if the configuration does not reserve it (own review 6).
func TestHostPortsOfTheNode(t *testing.T) {
	l, n, pods := oneNode(t, "web", "freed")
	ask := func(p *labPod, port int, protocol string) pluginAnswer {
		return n.call("ADD", p, p.netns.Path(), inVersion("1.1.0", map[string]any{"runtimeConfig": map[string]any{
			"portMappings": []map[string]any{{"hostPort": port, "containerPort": 80, "protocol": protocol}},
		}}))
	}
	for _, tc := range []struct {
		port             int
		protocol, option string
	}{
		{4789, "udp", "vxlan.port"},
		{22, "tcp", "hostPorts.reserved"},
		{6443, "tcp", "hostPorts.reserved"},
		{9470, "tcp", "hostPorts.reserved"},
		{10255, "tcp", "hostPorts.reserved"},
		{10250, "tcp", "hostPorts.reserved"},
		{10255, "tcp", "hostPorts.reserved"},
		{10256, "tcp", "hostPorts.reserved"},
	} {
		ask(pods[0], tc.port, tc.protocol).wantError(t, 7, fmt.Sprintf("%d/%s", tc.port, tc.protocol), tc.option)
	}
	n.stop(t)
	text, err := os.ReadFile(n.config)
	if err == nil {
		err = os.WriteFile(n.config, append(text, "hostPorts: {reserved: [22/TCP]}\nencapsulation: none\n"...), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	n.start(t)
	ask(pods[1], 22, "tcp").wantError(t, 7, "22/tcp", "hostPorts.reserved")
	ask(pods[1], 4789, "udp").wantOK(t, "ADD with a port that was freed")
	n.cni("DEL", pods[1], "").wantOK(t, "DEL")
	for _, p := range pods {
		l.release(t, p)
	}
}
