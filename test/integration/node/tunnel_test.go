package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// Two daemons encapsulate. Each reports its end of the tunnel to the other, and pods reach each
// other through the tunnel in both families. The daemon restores the tunnel if it is
// deleted, and cleanup removes it.
func TestDaemonsEncapsulate(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes network namespaces")
	}
	l := newLab(t)
	n1, n2 := l.node(t, 0), l.node(t, 1)
	before := n1.state(t)
	for _, n := range []*labNode{n1, n2} {
		text, err := os.ReadFile(n.config)
		if err == nil {
			err = os.WriteFile(n.config, append(text, "encapsulation: vxlan\n"...), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		n.start(t)
	}
	tunnelled := func(n *labNode) func(context.Context) error {
		return func(ctx context.Context) error {
			var nn v1alpha1.NodeNetwork
			if err := l.cluster.Client.Get(ctx, types.NamespacedName{Name: n.name}, &nn); err != nil {
				return err
			}
			if nn.Status.Tunnel == nil || !meta.IsStatusConditionTrue(nn.Status.Conditions, v1alpha1.ConditionRouted) {
				return fmt.Errorf("status %+v", nn.Status)
			}
			through := 0
			for _, route := range n.state(t).Routes {
				if strings.Contains(route, "dev fairlead-vx") {
					through++
				}
			}
			if through < 2 { // a block of each family
				return fmt.Errorf("routes %q", n.state(t).Routes)
			}
			return nil
		}
	}
	l.cluster.Eventually(t, "the tunnel of "+n1.name, tunnelled(n1))
	l.cluster.Eventually(t, "the tunnel of "+n2.name, tunnelled(n2))
	n1.awaitConflist(t)
	n2.awaitConflist(t)

	p1, p2 := n1.pod(t, "p1"), n2.pod(t, "p2")
	l.attachment(t, n1, p1, "10.244.1.5/32", "fd00:10:244:1::5/128")
	l.attachment(t, n2, p2, "10.244.2.5/32", "fd00:10:244:2::5/128")
	added := n1.cni("ADD", p1, p1.netns.Path())
	added.wantOK(t, "ADD p1")
	n2.cni("ADD", p2, p2.netns.Path()).wantOK(t, "ADD p2")
	if !strings.Contains(string(added.stdout), `"mtu":1430`) {
		t.Errorf("result %s, want an mtu with room for the tunnel", added.stdout)
	}
	for _, address := range []string{"10.244.2.5", "fd00:10:244:2::5"} {
		l.wantTalk(t, p1, p2, address)
	}

	for _, name := range []string{"fairlead-vx4", "fairlead-vx6"} {
		n1.removeLink(t, name)
		l.cluster.Eventually(t, name+" again", func(context.Context) error {
			if !slices.Contains(n1.state(t).Links, name) {
				return errors.New("it is not there")
			}
			return nil
		})
	}
	l.cluster.Eventually(t, "the tunnel of "+n1.name, tunnelled(n1))
	for _, address := range []string{"10.244.2.5", "fd00:10:244:2::5"} {
		l.wantTalk(t, p1, p2, address)
	}

	for _, p := range []*labPod{p1, p2} {
		l.release(t, p)
	}
	n1.stop(t)
	n1.run(t, "cleanup", "--config", n1.config, "--cni")
	if diff := cmp.Diff(before, n1.state(t)); diff != "" {
		t.Errorf("cleanup left a change (-before +after):\n%s", diff)
	}
}

// A compromised daemon claims that its node has an address of the internet. The other nodes
// send no packets for its pods to that address, do not accept it in their tunnel, and report
// it in a condition. A node reports in its own condition if its addresses are not confirmed
// (own review 12).
func TestDaemonsBelieveWhatIsConfirmed(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes network namespaces")
	}
	l := newLab(t)
	n1, n2 := l.node(t, 0), l.node(t, 1)
	spec := func(name string, underlay ...string) {
		t.Helper()
		l.change(t, name, "", func(nn *v1alpha1.NodeNetwork) { nn.Spec.Underlay = underlay })
	}
	const evil = "evil"
	nn := &v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: evil}}
	nn.Spec.Blocks, nn.Spec.Underlay = []string{"10.244.9.0/26"}, []string{"192.0.2.9/32"}
	if err := l.cluster.Client.Create(t.Context(), nn); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.cluster.Client.Delete(context.WithoutCancel(t.Context()), nn); err != nil {
			t.Error(err)
		}
	})
	l.change(t, evil, "status", func(nn *v1alpha1.NodeNetwork) {
		nn.Status.Addresses = []string{"8.8.8.8/32"}
		nn.Status.Tunnel = &v1alpha1.Tunnel{MAC: "02:00:00:00:00:09"}
	})
	for _, n := range []*labNode{n1, n2} {
		var underlay []string
		for _, a := range n.Addresses() {
			underlay = append(underlay, netip.PrefixFrom(a.Addr(), a.Addr().BitLen()).String())
		}
		spec(n.name, underlay...)
		text, err := os.ReadFile(n.config)
		if err == nil {
			err = os.WriteFile(n.config, append(text, "encapsulation: vxlan\n"...), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		n.start(t)
	}
	condition := func(kind, reason, text string) func(context.Context) error {
		return func(ctx context.Context) error {
			var nn v1alpha1.NodeNetwork
			if err := l.cluster.Client.Get(ctx, types.NamespacedName{Name: n1.name}, &nn); err != nil {
				return err
			}
			c := meta.FindStatusCondition(nn.Status.Conditions, kind)
			if c == nil || c.Reason != reason || !strings.Contains(c.Message, text) {
				return fmt.Errorf("condition %+v", c)
			}
			return nil
		}
	}
	l.cluster.Eventually(t, "the condition about the false address", condition(v1alpha1.ConditionRouted, "NotReachable", "node evil says that it has the address 8.8.8.8"))
	l.cluster.Eventually(t, "its own addresses to be confirmed", condition(v1alpha1.ConditionConfirmed, "Confirmed", ""))
	n1.awaitConflist(t)
	n2.awaitConflist(t)
	p1, p2 := n1.pod(t, "p1"), n2.pod(t, "p2")
	l.attachment(t, n1, p1, "10.244.1.5/32", "fd00:10:244:1::5/128")
	l.attachment(t, n2, p2, "10.244.2.5/32", "fd00:10:244:2::5/128")
	n1.cni("ADD", p1, p1.netns.Path()).wantOK(t, "ADD p1")
	n2.cni("ADD", p2, p2.netns.Path()).wantOK(t, "ADD p2")
	for _, address := range []string{"10.244.2.5", "fd00:10:244:2::5"} {
		l.wantTalk(t, p1, p2, address)
	}
	out, err := n1.command(exec.CommandContext(t.Context(), "sh", "-c", "nft list table inet fairlead; ip route show table all; bridge fdb; ip neigh"))
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if strings.Contains(out, "8.8.8.8") || strings.Contains(out, "10.244.9.0/26 via") {
		t.Errorf("the false address is used:\n%s", out)
	}
	// The confirmed address of n2 changes, as if its Node had another address. No packets are
	// sent to the address that n2 reports until the Node confirms it.
	spec(n2.name, "192.0.2.2/32")
	l.cluster.Eventually(t, "the condition about a node that is not confirmed", condition(v1alpha1.ConditionRouted, "NotReachable", "node "+n2.name+" says that it has the address"))
	spec(n1.name, "192.0.2.1/32")
	l.cluster.Eventually(t, "the condition of the node itself", condition(v1alpha1.ConditionConfirmed, "NotConfirmed", "says that it has the address"))
	for _, p := range []*labPod{p1, p2} {
		l.release(t, p)
	}
}

// change edits a NodeNetwork, or its status if subresource is "status".
func (l *lab) change(t *testing.T, name, subresource string, change func(*v1alpha1.NodeNetwork)) {
	t.Helper()
	nn := &v1alpha1.NodeNetwork{}
	if err := l.cluster.Client.Get(t.Context(), types.NamespacedName{Name: name}, nn); err != nil {
		t.Fatal(err)
	}
	after := nn.DeepCopy()
	change(after)
	var err error
	if subresource == "" {
		err = l.cluster.Client.Patch(t.Context(), after, client.MergeFrom(nn))
	} else {
		err = l.cluster.Client.Status().Patch(t.Context(), after, client.MergeFrom(nn))
	}
	if err != nil {
		t.Fatal(err)
	}
}
