package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestNodeDefaultsAreValid(t *testing.T) {
	n := DefaultNode()
	n.NodeName = "n1"
	if err := n.Complete(); err != nil {
		t.Fatal(err)
	}
	if err := n.Validate(); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	want := Node{
		NodeName: "n1", StateDir: "/run/fairlead", Plugin: "fairlead", Socket: "/run/fairlead/cni.sock",
		Encapsulation: "auto", VXLAN: NodeVXLAN{VNI: 158, Port: 4789},
		Masquerade: NodeMasquerade{Enabled: true},
		HostPorts: NodeHostPorts{Reserved: []string{
			"22/TCP", "53/TCP", "53/UDP", "179/TCP", "2379-2380/TCP", "6443/TCP", "9470/TCP", "10250/TCP", "10255-10257/TCP", "10259/TCP",
			"30000-32767/TCP", "30000-32767/UDP", "30000-32767/SCTP",
		}},
		CNI: NodeCNI{
			BinDir: "/opt/cni/bin", ConfDir: "/etc/cni/net.d",
			Names: []string{"fairlead", "fairlead-ipam"}, PluginSource: filepath.Join(filepath.Dir(self), "fairlead-cni"),
		},
		AddTimeout: metav1.Duration{Duration: 10 * time.Second}, MetricsAddress: "127.0.0.1:9471",
		PodResourcesSocket: "/var/lib/kubelet/pod-resources/kubelet.sock",
		OVSDBSocket:        "/run/openvswitch/db.sock",
	}
	if diff := cmp.Diff(want, n); diff != "" {
		t.Error(diff)
	}
}

func TestNodeValidateNamesEveryField(t *testing.T) {
	n := Node{
		NodeName: "Not A Node", StateDir: "run", Socket: "/" + strings.Repeat("s", 100),
		Uplink: "eth/0", Encapsulation: "gre", VXLAN: NodeVXLAN{VNI: 1 << 24, Port: -1}, Masquerade: NodeMasquerade{Exclude: []string{"192.0.2.0/24", "all"}}, CNI: NodeCNI{BinDir: "bin", ConfDir: "", Names: []string{"multus"}, PluginSource: "x"}, MetricsAddress: "here",
		Tracing: NodeTracing{Endpoint: "collector:4318"}, HostPorts: NodeHostPorts{Reserved: []string{"22/tcp", "0/TCP"}},
	}
	err := n.Validate()
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		`nodeName: "Not A Node"`, `stateDir: "run"`, "socket: \"/sss", `uplink: "eth/0"`,
		`encapsulation: "gre"`, "vxlan.vni: 16777216", "vxlan.port: -1", `hostPorts.reserved[1]: "0/TCP": must be a port and its protocol`, `masquerade.exclude[1]: "all"`,
		`cni.binDir: "bin"`, `cni.names[0]: "multus"`, `cni.confDir: ""`, `cni.pluginSource: "x"`, "addTimeout: 0s", `metricsAddress: "here"`, `tracing.endpoint: "collector:4318"`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q:\n%v", want, err)
		}
	}
}

func TestNodeLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "node.yaml")
	if err := os.WriteFile(path, []byte("cni: {binDir: /bin}\naddTimeout: 3s\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	n := DefaultNode()
	if err := Load(path, &n, func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	want := DefaultNode()
	want.CNI.BinDir = "/bin"
	want.AddTimeout.Duration = 3 * time.Second
	if diff := cmp.Diff(want, n); diff != "" {
		t.Error(diff)
	}
}

func TestReservedPorts(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*Node)
		want   []ReservedPort
	}{
		{"defaults", func(*Node) {}, []ReservedPort{
			{"udp", 4789, 4789, "vxlan.port"},
			{"tcp", 9471, 9471, "metricsAddress"},
			{"tcp", 22, 22, "hostPorts.reserved"},
			{"tcp", 53, 53, "hostPorts.reserved"},
			{"udp", 53, 53, "hostPorts.reserved"},
			{"tcp", 179, 179, "hostPorts.reserved"},
			{"tcp", 2379, 2380, "hostPorts.reserved"},
			{"tcp", 6443, 6443, "hostPorts.reserved"},
			{"tcp", 9470, 9470, "hostPorts.reserved"},
			{"tcp", 10250, 10250, "hostPorts.reserved"},
			{"tcp", 10255, 10257, "hostPorts.reserved"},
			{"tcp", 10259, 10259, "hostPorts.reserved"},
			{"tcp", 30000, 32767, "hostPorts.reserved"},
			{"udp", 30000, 32767, "hostPorts.reserved"},
			{"sctp", 30000, 32767, "hostPorts.reserved"},
		}},
		{"others", func(n *Node) {
			n.VXLAN.Port, n.MetricsAddress, n.HostPorts.Reserved = 4790, "127.0.0.1:99", []string{"53/udp", "7/SCTP"}
		}, []ReservedPort{
			{"udp", 4790, 4790, "vxlan.port"}, {"tcp", 99, 99, "metricsAddress"}, {"udp", 53, 53, "hostPorts.reserved"}, {"sctp", 7, 7, "hostPorts.reserved"},
		}},
		{"none", func(n *Node) {
			n.Encapsulation, n.MetricsAddress, n.HostPorts.Reserved = "none", "unix:/run/metrics.sock", []string{}
		}, nil},
		{"no metrics", func(n *Node) {
			n.Encapsulation, n.MetricsAddress, n.HostPorts.Reserved = "none", "0", nil
		}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := DefaultNode()
			tc.change(&n)
			got, err := n.ReservedPorts()
			if diff := cmp.Diff(tc.want, got); diff != "" || err != nil {
				t.Errorf("%v\n%s", err, diff)
			}
		})
	}
	for _, bad := range []string{"", "22", "/TCP", "22/", "0/TCP", "65536/TCP", "-1/UDP", "22/ICMP", "22/TCP/UDP", "ssh/TCP", " 22/TCP", "9-8/TCP", "0-5/TCP", "5-/TCP", "-5/TCP", "1-2-3/TCP", "1-65536/UDP"} {
		n := DefaultNode()
		n.HostPorts.Reserved = []string{bad}
		if got, err := n.ReservedPorts(); err == nil || !strings.Contains(err.Error(), "hostPorts.reserved[0]: ") {
			t.Errorf("%q: %v, %v", bad, got, err)
		}
	}
}
