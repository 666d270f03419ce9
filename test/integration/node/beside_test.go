package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// A cluster is moved from another overlay to Fairlead as docs/operator/migrate-calico-cilium.md
// describes. The other network has bridges, and a VXLAN link with Calico's name and number on
// the port of Fairlead's tunnel. Its configuration comes first. After a node is switched, its
// pods and those of the other node reach each other.
func TestBesideAnotherOverlay(t *testing.T) {
	w := newSystem(t, "", "fairlead, fairlead-ipam")
	w.pool(t, "default", func(s *v1alpha1.IPPoolSpec) {
		s.Ranges, s.Placement = []string{"10.244.0.0/16"}, v1alpha1.PlacementPerNode
	})
	for i, n := range w.nodes {
		n.stop(t)
		text, err := os.ReadFile(n.config)
		if err == nil {
			err = os.WriteFile(n.config, append(text, "encapsulation: vxlan\n"...), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		n.reference(t, "ipam/host-local")
		w.otherOverlay(t, i)
		n.start(t)
		n.awaitConflist(t)
	}
	stays, switched := w.nodes[0], w.nodes[1]
	old := stays.pod(t, "old")
	oldAddress := w.plugFirst(t, stays, old, "other")
	w.wantAnnounced(t, stays, "Shadowed")
	w.wantAnnounced(t, switched, "Shadowed")

	switched.script(t, "migrate-calico-cilium.md", "take the other network's configuration away", "/etc/cni/net.d", filepath.Dir(switched.conflist()))
	fresh := switched.pod(t, "fresh")
	freshAddress := w.plugFirst(t, switched, fresh, "fairlead")
	w.wantState(t, fresh, v1alpha1.SandboxAttached, fresh.containerID)
	w.wantAnnounced(t, switched, "Announced")
	w.reaches(t, old, fresh, freshAddress)
	w.reaches(t, fresh, old, oldAddress)

	switched.script(t, "migrate-calico-cilium.md", "show what another network has left")
	kept := filepath.Join(filepath.Dir(switched.conflist()), "10-calico.conflist.before-fairlead")
	if err := os.Rename(kept, strings.TrimSuffix(kept, ".before-fairlead")); err != nil {
		t.Fatal(err)
	}
	back := switched.pod(t, "back")
	w.reaches(t, old, back, w.plugFirst(t, switched, back, "other"))
}

// otherOverlay makes the other network on a node, in the place of Calico: its pods have
// addresses of 10.200.0.0/16, a /24 for each node.
func (w *system) otherOverlay(t *testing.T, number int) {
	t.Helper()
	n, other := w.nodes[number], w.nodes[1-number]
	for _, args := range []string{
		"link add vxlan.calico type vxlan id 4096 dstport 4789 local " + n.V4.Addr().String() + " remote " + other.V4.Addr().String(),
		fmt.Sprintf("address add 10.201.0.%d/24 dev vxlan.calico", number+1),
		"link set vxlan.calico up",
		fmt.Sprintf("route add 10.200.%d.0/24 via 10.201.0.%d", 2-number, 2-number),
	} {
		if out, err := n.command(exec.Command("ip", strings.Fields(args)...)); err != nil {
			t.Fatalf("ip %s: %v: %s", args, err, out)
		}
	}
	if out, err := n.command(exec.Command("sysctl", "-w", "net.ipv4.ip_forward=1")); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	text := fmt.Sprintf(`{"cniVersion":"1.0.0","name":"other","plugins":[{"type":"bridge","bridge":"other0","isGateway":true,
		"ipam":{"type":"host-local","subnet":"10.200.%d.0/24","routes":[{"dst":"0.0.0.0/0"}],"dataDir":%q}}]}`, number+1, filepath.Join(n.dir, "host-local"))
	dir := filepath.Dir(n.conflist())
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "10-calico.conflist"), []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
}

// plugFirst plugs a pod by the first configuration, as the runtime does. It checks the name of
// the network, and returns the pod's IPv4 address.
func (w *system) plugFirst(t *testing.T, n *labNode, p *labPod, network string) string {
	t.Helper()
	list, err := (&multusNode{system: w, n: n, dir: filepath.Dir(n.conflist())}).first()
	if err != nil {
		t.Fatal(err)
	}
	if list.Name != network {
		t.Fatalf("the runtime of %s uses network %s; want %s", n.name, list.Name, network)
	}
	w.record(t, p)
	var address string
	if err := n.runtime(func(r *libcni.CNIConfig) error {
		res, err := r.AddNetworkList(t.Context(), list, p.runtimeConf(w.cluster.Namespace, delegate{ifName: "eth0"}))
		if err != nil {
			return err
		}
		result, err := types100.NewResultFromResult(res)
		if err == nil {
			address = result.IPs[0].Address.IP.String()
		}
		return err
	}); err != nil {
		t.Fatalf("ADD of %s: %v", p.name, err)
	}
	return address
}

// wantAnnounced waits until the condition Announced of a node has a reason. The daemon looks
// every minute, and at its start.
func (w *system) wantAnnounced(t *testing.T, n *labNode, reason string) {
	t.Helper()
	n.stop(t)
	n.start(t)
	w.cluster.Eventually(t, "the reason "+reason+" of "+n.name, func(ctx context.Context) error {
		var nn v1alpha1.NodeNetwork
		if err := w.cluster.Client.Get(ctx, types.NamespacedName{Name: n.name}, &nn); err != nil {
			return err
		}
		if c := meta.FindStatusCondition(nn.Status.Conditions, v1alpha1.ConditionAnnounced); c == nil || c.Reason != reason {
			return fmt.Errorf("condition %+v", c)
		}
		return nil
	})
}
