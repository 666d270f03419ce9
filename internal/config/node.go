package config

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Node is the configuration of fairlead-node.
type Node struct {
	// NodeName is the name of this machine's Node object. The flag --node-name takes
	// precedence; the default is the host name in lower case.
	NodeName string `json:"nodeName,omitempty"`
	// Kubeconfig is a path; empty uses the pod's service account.
	Kubeconfig string `json:"kubeconfig,omitempty"`
	// StateDir is the directory of the socket, the records of plugged sandboxes and the
	// daemon's lock; default "/run/fairlead". Its content must not outlive a boot.
	StateDir string `json:"stateDir,omitempty"`
	// Socket is the path of the socket that serves the CNI plugin; default "cni.sock" in
	// StateDir. At most 100 bytes: the kernel allows 107, and the successor of the socket
	// is bound in the same directory under a longer name.
	Socket string `json:"socket,omitempty"`
	// Plugin is the network plugin that plugs pods: "fairlead", the default, or "noop",
	// which plugs nothing and leaves that to other plugins in the runtime's
	// configuration.
	Plugin string `json:"plugin,omitempty"`
	// KubeletMetrics also counts requests under the names that the kubelet's
	// metrics of its network plugin had before Kubernetes 1.24; default false.
	KubeletMetrics bool `json:"kubeletMetrics,omitempty"`
	// Uplink is the interface that leads to the other nodes; if empty, it is the
	// interface of the default route.
	Uplink string `json:"uplink,omitempty"`
	// Encapsulation selects the packets to pods of other nodes that go through a tunnel:
	// "none"; "vxlan", all; "auto", the default, packets to nodes that share no link with
	// this node. All nodes are meant to have the same value.
	Encapsulation string `json:"encapsulation,omitempty"`
	// VXLAN configures the tunnel; all nodes must have the same values.
	VXLAN NodeVXLAN `json:"vxlan"`
	// Masquerade configures the source addresses of packets that leave the cluster.
	Masquerade NodeMasquerade `json:"masquerade"`
	// HostPorts configures the ports of the node that pods may have.
	HostPorts NodeHostPorts `json:"hostPorts"`
	// CNI configures the files that are installed for the container runtime.
	CNI NodeCNI `json:"cni"`
	// AddTimeout bounds the wait of an ADD for the pod's PodAttachment and for the node's
	// own network; default 10s, between 1s and 80s.
	AddTimeout metav1.Duration `json:"addTimeout,omitempty"`
	// PodResourcesSocket is the kubelet's socket that lists the devices of pods; default
	// "/var/lib/kubelet/pod-resources/kubelet.sock". It is opened for pods with an
	// interface that is a device of a device plugin.
	PodResourcesSocket string `json:"podResourcesSocket,omitempty"`
	// OVSDBSocket is the socket of Open vSwitch's ovsdb-server; default
	// "/run/openvswitch/db.sock". It is opened for pods with a port of Open vSwitch, and to
	// find ports of dead pods. A node without Open vSwitch has none.
	OVSDBSocket string `json:"ovsdbSocket,omitempty"`
	// MetricsAddress is the address that serves /metrics, /healthz and /readyz, without
	// authentication; default "127.0.0.1:9471". "unix:<path>" serves on a socket, "0"
	// turns it off.
	MetricsAddress string `json:"metricsAddress,omitempty"`
	// Tracing sends traces of requests to a collector.
	Tracing NodeTracing `json:"tracing"`
}

// NodeMasquerade configures the source addresses of packets that leave the cluster.
type NodeMasquerade struct {
	// Enabled gives packets from pods to outside the cluster an address of the node as
	// their source, so that answers return; default true.
	Enabled bool `json:"enabled"`
	// Exclude lists networks outside the cluster, in CIDR form, that pods reach with
	// their own addresses: routers there have a route back.
	Exclude []string `json:"exclude,omitempty"`
}

// Prefixes returns Exclude, parsed.
func (m NodeMasquerade) Prefixes() ([]netip.Prefix, error) {
	prefixes := make([]netip.Prefix, len(m.Exclude))
	for i, s := range m.Exclude {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return nil, fmt.Errorf("masquerade.exclude[%d]: %w", i, err)
		}
		prefixes[i] = p
	}
	return prefixes, nil
}

// NodeHostPorts configures the ports of the node that pods may have (hostPort).
type NodeHostPorts struct {
	// Reserved lists the node's own ports, each as "port/protocol" or "first-last/protocol"
	// with TCP, UDP or SCTP. A pod that requests such a port is refused, whatever its hostIP.
	// A list replaces the default: SSH, DNS, BGP, etcd, the API server,
	// fairlead-controller's metrics, the kubelet, the other parts of the control plane,
	// kube-proxy's health, and the node ports of Services. The tunnel's port (vxlan.port, unless
	// encapsulation is none) and the port of metricsAddress are always reserved.
	Reserved []string `json:"reserved"`
}

// ReservedPort are ports of the node that no pod may have.
type ReservedPort struct {
	// Protocol is "tcp", "udp" or "sctp".
	Protocol    string
	First, Last uint16
	// Option is the field that reserves the port.
	Option string
}

// ReservedPorts returns all reserved ports, also those that follow from other fields.
func (n *Node) ReservedPorts() ([]ReservedPort, error) {
	var out []ReservedPort
	if n.Encapsulation != "none" {
		port := uint16(n.VXLAN.Port) //nolint:gosec // Validate bounds it
		out = append(out, ReservedPort{"udp", port, port, "vxlan.port"})
	}
	if _, port, err := net.SplitHostPort(n.MetricsAddress); err == nil && !strings.HasPrefix(n.MetricsAddress, "unix:") {
		if p, err := strconv.ParseUint(port, 10, 16); err == nil {
			out = append(out, ReservedPort{"tcp", uint16(p), uint16(p), "metricsAddress"})
		}
	}
	for i, s := range n.HostPorts.Reserved {
		ports, protocol, _ := strings.Cut(s, "/")
		first, last, ranged := strings.Cut(ports, "-")
		if !ranged {
			last = first
		}
		from, err := strconv.ParseUint(first, 10, 16)
		to, errTo := strconv.ParseUint(last, 10, 16)
		protocol = strings.ToLower(protocol)
		if err != nil || errTo != nil || from == 0 || from > to || !slices.Contains([]string{"tcp", "udp", "sctp"}, protocol) {
			return nil, fmt.Errorf(`hostPorts.reserved[%d]: %q: must be a port and its protocol, as "6443/TCP", or a range, as "30000-32767/TCP"`, i, s)
		}
		out = append(out, ReservedPort{protocol, uint16(from), uint16(to), "hostPorts.reserved"})
	}
	return out, nil
}

// NodeTracing configures the collector of traces.
type NodeTracing struct {
	// Endpoint is the URL of a collector of OTLP over HTTP, as "http://127.0.0.1:4318";
	// empty, the default, turns tracing off.
	Endpoint string `json:"endpoint,omitempty"`
}

// NodeVXLAN configures the tunnel between nodes (RFC 7348).
type NodeVXLAN struct {
	// VNI is the network's number, 1 to 16777215; default 158.
	VNI int `json:"vni,omitempty"`
	// Port is the UDP port, 1 to 65535; default 4789.
	Port int `json:"port,omitempty"`
}

// NodeCNI configures the files that are installed for the container runtime.
type NodeCNI struct {
	// BinDir is the runtime's directory of plugins, in which the plugin is installed
	// under Names, and from which the plugins of other networks are executed; default
	// "/opt/cni/bin".
	BinDir string `json:"binDir,omitempty"`
	// Names are the names under which the plugin is installed; default "fairlead" and
	// "fairlead-ipam". "whereabouts" serves networks with the configuration of
	// whereabouts, and replaces its program. Without "fairlead" another plugin provides
	// the default network, and no configuration is written into ConfDir.
	Names []string `json:"names"`
	// ConfDir is the runtime's directory of network configurations; default
	// "/etc/cni/net.d". 10-fairlead.conflist is written into it when pods can be served.
	ConfDir string `json:"confDir,omitempty"`
	// PluginSource is the path of the plugin to install; default "fairlead-cni" in the
	// directory of the daemon's executable.
	PluginSource string `json:"pluginSource,omitempty"`
}

// DefaultNode returns the defaults. Complete sets NodeName, Socket and CNI.PluginSource,
// which depend on the machine and on other fields.
func DefaultNode() Node {
	return Node{
		StateDir:      "/run/fairlead",
		Plugin:        "fairlead",
		Encapsulation: "auto",
		VXLAN:         NodeVXLAN{VNI: 158, Port: 4789},
		Masquerade:    NodeMasquerade{Enabled: true},
		HostPorts: NodeHostPorts{Reserved: []string{
			"22/TCP", "53/TCP", "53/UDP", "179/TCP", "2379-2380/TCP", "6443/TCP", "9470/TCP", "10250/TCP", "10255-10257/TCP", "10259/TCP",
			"30000-32767/TCP", "30000-32767/UDP", "30000-32767/SCTP",
		}},
		CNI:            NodeCNI{BinDir: "/opt/cni/bin", ConfDir: "/etc/cni/net.d", Names: []string{"fairlead", "fairlead-ipam"}},
		AddTimeout:     metav1.Duration{Duration: 10 * time.Second},
		MetricsAddress: "127.0.0.1:9471",

		PodResourcesSocket: "/var/lib/kubelet/pod-resources/kubelet.sock",
		OVSDBSocket:        "/run/openvswitch/db.sock",
	}
}

// Complete sets the fields that depend on the machine and on other fields, if they are
// empty. Call it after the file and the flags were read and before Validate.
func (n *Node) Complete() error {
	if n.NodeName == "" {
		host, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("read the host name: %w", err)
		}
		n.NodeName = strings.ToLower(host)
	}
	if n.Socket == "" {
		n.Socket = filepath.Join(n.StateDir, "cni.sock")
	}
	if n.CNI.PluginSource == "" {
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("find the daemon's own executable: %w", err)
		}
		n.CNI.PluginSource = filepath.Join(filepath.Dir(self), "fairlead-cni")
	}
	return nil
}

// Validate returns nil if the configuration is valid, otherwise all problems, each with
// its field path.
func (n *Node) Validate() error {
	v := &invalid{}
	v.check(objectName.MatchString(n.NodeName), "nodeName", n.NodeName, "must be the name of a Node")
	for _, f := range []struct{ path, value string }{
		{"stateDir", n.StateDir},
		{"socket", n.Socket},
		{"cni.binDir", n.CNI.BinDir},
		{"cni.confDir", n.CNI.ConfDir},
		{"cni.pluginSource", n.CNI.PluginSource},
		{"podResourcesSocket", n.PodResourcesSocket},
		{"ovsdbSocket", n.OVSDBSocket},
	} {
		v.check(filepath.IsAbs(f.value), f.path, f.value, "must be an absolute path")
	}
	v.check(len(n.CNI.Names) > 0, "cni.names", n.CNI.Names, "must name fairlead, fairlead-ipam or whereabouts")
	for i, name := range n.CNI.Names {
		v.check(slices.Contains([]string{"fairlead", "fairlead-ipam", "whereabouts"}, name), fmt.Sprintf("cni.names[%d]", i), name, "must be fairlead, fairlead-ipam or whereabouts")
	}
	v.check(n.Plugin != "", "plugin", n.Plugin, "must be the name of a network plugin, as fairlead or noop")
	v.check(len(n.Socket) <= 100, "socket", n.Socket, "must not be longer than 100 bytes")
	v.check(n.Uplink == "" || linkName.MatchString(n.Uplink), "uplink", n.Uplink, "must be an interface name of 1 to 15 characters, or empty")
	v.check(slices.Contains([]string{"none", "vxlan", "auto"}, n.Encapsulation), "encapsulation", n.Encapsulation, "must be none, vxlan or auto")
	v.check(n.VXLAN.VNI >= 1 && n.VXLAN.VNI < 1<<24, "vxlan.vni", n.VXLAN.VNI, "must be between 1 and 16777215")
	for i, s := range n.Masquerade.Exclude {
		_, err := netip.ParsePrefix(s)
		v.check(err == nil, fmt.Sprintf("masquerade.exclude[%d]", i), s, "must be a network in CIDR form")
	}
	if _, err := n.ReservedPorts(); err != nil {
		v.errs = append(v.errs, err)
	}
	v.check(n.VXLAN.Port >= 1 && n.VXLAN.Port <= 65535, "vxlan.port", n.VXLAN.Port, "must be between 1 and 65535")
	v.check(n.AddTimeout.Duration >= time.Second && n.AddTimeout.Duration <= 80*time.Second, "addTimeout", n.AddTimeout.Duration, "must be between 1s and 80s")
	v.check(listenAddress(n.MetricsAddress), "metricsAddress", n.MetricsAddress, `must be host:port, "unix:<path>" or "0"`)
	v.check(n.Tracing.Endpoint == "" || httpURL(n.Tracing.Endpoint), "tracing.endpoint", n.Tracing.Endpoint, "must be a URL of http or https with a host, or empty")
	return v.err()
}

func httpURL(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != ""
}

func listenAddress(s string) bool {
	if s == "0" {
		return true
	}
	if path, ok := strings.CutPrefix(s, "unix:"); ok {
		return filepath.IsAbs(path)
	}
	_, _, err := net.SplitHostPort(s)
	return err == nil
}
