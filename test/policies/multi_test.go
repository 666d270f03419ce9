package policies

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
	ask "fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/test/nettest"
)

// reported is an interface as multi-networkpolicy-nftables has it, by its source
// (getInterfaces of pkg/nftables): that of each entry in network-status whose network the
// pod's own annotation selects.
type reported struct {
	Name, Network string
	IPs           []string
}

// interfaces reads the annotations of a pod in the way of multi-networkpolicy-nftables.
func interfaces(t *testing.T, p *corev1.Pod) (out []reported) {
	t.Helper()
	var selected []string
	for name := range strings.SplitSeq(p.Annotations["k8s.v1.cni.cncf.io/networks"], ",") {
		selected = append(selected, name[strings.Index(name, "/")+1:])
	}
	var entries []struct {
		Name      string   `json:"name"`
		Interface string   `json:"interface"`
		IPs       []string `json:"ips"`
	}
	if err := json.Unmarshal([]byte(p.Annotations["k8s.v1.cni.cncf.io/network-status"]), &entries); err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		space, name, ok := strings.Cut(e.Name, "/")
		if !ok {
			space, name = p.Namespace, e.Name
		}
		if slices.Contains(selected, name) {
			out = append(out, reported{e.Interface, space + "/" + name, e.IPs})
		}
	}
	return out
}

// asReported returns a pod as the API server has it when its node has plugged a further
// interface.
func (p *pod) asReported(t *testing.T, i plug.Interface) *corev1.Pod {
	t.Helper()
	o := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: p.name, Annotations: map[string]string{ask.AnnotationNetworks: "lan"}}}
	r := &v1alpha1.PodAttachment{}
	for _, of := range []v1alpha1.Interface{{Name: "eth0", Network: v1alpha1.DefaultNetwork, Default: true}, {Name: i.Name, Network: namespace + "/lan"}} {
		has := p.addresses
		if !of.Default {
			has = i.Addresses
		}
		sees := v1alpha1.SandboxLink{Name: of.Name, MAC: nettest.LinkNamed(t, p.ns, of.Name).Attrs().HardwareAddr.String()}
		for _, a := range has {
			of.Addresses = append(of.Addresses, a.String())
		}
		of.Binding = v1alpha1.Binding{Bridge: &v1alpha1.BridgeBinding{Name: "br9"}}
		r.Spec.Interfaces = append(r.Spec.Interfaces, of)
		if r.Status.Sandbox == nil {
			r.Status.Sandbox = &v1alpha1.Sandbox{State: v1alpha1.SandboxAttached}
		}
		r.Status.Sandbox.Links = append(r.Status.Sandbox.Links, sees)
	}
	status, err := ask.NetworkStatus(o, r)
	if err != nil {
		t.Fatal(err)
	}
	o.Annotations[ask.AnnotationNetworkStatus] = status
	return o
}

// TestMultiNetworkPolicies gives the rules of multi-networkpolicy-nftables, in the form of
// its source, what it reads: the interfaces in network-status, and the network namespace of
// the pod. It is no Go module that a test could import here. A policy of a further network
// stops exactly what it forbids on that network, and nothing on another.
func TestMultiNetworkPolicies(t *testing.T) {
	n := newNodes(t, 1)[0]
	nettest.AddBridge(t, n.Namespace(), "br9", 1500)
	nettest.Steps(t, n.Sockets, link.Raise("br9"))
	server, client, stranger := n.pod(t, "server", "", 5), n.pod(t, "client", "", 6), n.pod(t, "stranger", "", 7)
	seen := map[*pod]reported{}
	for number, p := range []*pod{server, client, stranger} {
		own := []netip.Prefix{nettest.Prefix(fmt.Sprintf("192.168.9.%d/24", 5+number)), nettest.Prefix(fmt.Sprintf("fd00:9::%d/64", 5+number))}
		i := plug.Interface{
			ContainerID: p.name, Name: "net1", MTU: 1500, Addresses: own,
			Binding: v1alpha1.Binding{Bridge: &v1alpha1.BridgeBinding{Name: "br9"}},
		}
		p.plug(t, i)
		all := interfaces(t, p.asReported(t, i))
		want := []reported{{"net1", namespace + "/lan", []string{own[0].Addr().String(), own[1].Addr().String()}}}
		if diff := cmp.Diff(want, all); diff != "" {
			t.Fatalf("the interfaces of %s (-want +got):\n%s", p.name, diff)
		}
		seen[p] = all[0]
		has, err := nettest.PodIPs(p.ns, all[0].Name)
		if err != nil || fmt.Sprint(has) != fmt.Sprint(all[0].IPs) {
			t.Fatalf("%s of %s has %v, %v; reported are %v", all[0].Name, p.name, has, err, all[0].IPs)
		}
	}
	server.restrict(t, seen[server], seen[client])
	for _, tc := range []struct {
		from    *pod
		allowed bool
	}{{client, true}, {stranger, false}} {
		for _, text := range seen[server].IPs {
			if tc.allowed {
				nettest.Reaches(t, tc.from.ns, server.ns, nettest.Addr(text))
			} else if err := nettest.Talk(t, tc.from.ns, server.ns, nettest.Addr(text), time.Second); err == nil {
				t.Errorf("%s reaches %s, and the policy forbids it", tc.from.name, text)
			}
		}
		for _, a := range server.addresses {
			nettest.Reaches(t, tc.from.ns, server.ns, a.Addr()) // the policy is not for the default network
		}
	}
}

// restrict writes the rules of a policy into the namespace of a pod: on one interface the
// addresses of another are allowed in, and ICMP as the project's own manifest has it.
func (p *pod) restrict(t *testing.T, on, from reported) {
	t.Helper()
	nftables(t, p.ns, fmt.Sprintf(`table inet multi_networkpolicy {
	set smi-x { type ifname; elements = { %q }; }
	set snp-x_ingress_ipv4_%[1]s_0 { type ipv4_addr; elements = { %[2]s }; }
	set snp-x_ingress_ipv6_%[1]s_0 { type ipv6_addr; elements = { %[3]s }; }
	chain input { type filter hook input priority 0; iifname @smi-x jump ingress; }
	chain common-ingress { meta l4proto icmp accept; meta l4proto icmpv6 accept; }
	chain ingress { ct state established,related accept; jump common-ingress; jump cnp-x; drop; }
	chain cnp-x {
		iifname %[1]s ip saddr @snp-x_ingress_ipv4_%[1]s_0 accept
		iifname %[1]s ip6 saddr @snp-x_ingress_ipv6_%[1]s_0 accept
	}
}
`, on.Name, from.IPs[0], from.IPs[1]), "-f", "-")
}
