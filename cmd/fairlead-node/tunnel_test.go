package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// Two daemons that encapsulate: each tells the other of its end, pods of both
// families reach each other through the tunnel, it is put back when somebody
// takes it away, and cleanup leaves nothing of it.
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
		t.Errorf("cleanup left something:\n%s", diff)
	}
}
