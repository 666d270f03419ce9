package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// The link between two nodes drops every packet without an address of a node, as port
// security of a cloud does. With encapsulation "auto" the nodes sent pods' packets plainly,
// and they were lost (own review, port security). The nodes find out, pods reach each other
// through the tunnel, and directly again when their packets pass. The nodes have strict
// reverse path filters.
func TestDroppedByTheNetwork(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes network namespaces")
	}
	l := newLab(t)
	n1, n2 := l.node(t, 0), l.node(t, 1)
	cloud := func(text string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "nft", "-f", "-")
		cmd.Stdin = strings.NewReader(text)
		var out strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &out
		err := l.net.Switch.Start(cmd)
		if err = errors.Join(err, cmd.Wait()); err != nil {
			t.Fatalf("%v\n%s", err, &out)
		}
	}
	cloud(`table bridge cloud { chain security { type filter hook forward priority 0; ip saddr 10.244.0.0/16 drop; ip6 saddr fd00:10:244::/48 drop; }; }`)
	var pods []*labPod
	for i, n := range []*labNode{n1, n2} {
		n.set(t, map[string]string{"net/ipv4/conf/all/rp_filter": "1"})
		text, err := os.ReadFile(n.config)
		if err == nil {
			err = os.WriteFile(n.config, append(text, "encapsulation: auto\n"...), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		n.start(t)
		n.awaitConflist(t)
		p := n.pod(t, fmt.Sprint("p", i+1))
		l.attachment(t, n, p, fmt.Sprintf("10.244.%d.5/32", i+1), fmt.Sprintf("fd00:10:244:%d::5/128", i+1))
		n.cni("ADD", p, p.netns.Path()).wantOK(t, "ADD "+p.name)
		pods = append(pods, p)
	}
	ways := func(status metav1.ConditionStatus, tunnelled bool) {
		t.Helper()
		for _, n := range []*labNode{n1, n2} {
			l.cluster.Eventually(t, fmt.Sprintf("the way to the pods of the other node, of %s", n.name), func(ctx context.Context) error {
				var nn v1alpha1.NodeNetwork
				if err := l.cluster.Client.Get(ctx, types.NamespacedName{Name: n.name}, &nn); err != nil {
					return err
				}
				through := 0
				for _, route := range n.state(t).Routes {
					if strings.Contains(route, "dev fairlead-vx") {
						through++
					}
				}
				if !meta.IsStatusConditionPresentAndEqual(nn.Status.Conditions, v1alpha1.ConditionDirect, status) || (through > 0) != tunnelled {
					return fmt.Errorf("%d routes through the tunnel, status %+v", through, nn.Status)
				}
				return nil
			})
		}
		for _, address := range []string{"10.244.2.5", "fd00:10:244:2::5"} {
			l.wantTalk(t, pods[0], pods[1], address)
		}
		for _, address := range []string{"10.244.1.5", "fd00:10:244:1::5"} {
			l.wantTalk(t, pods[1], pods[0], address)
		}
	}
	ways(metav1.ConditionFalse, true)
	cloud("delete table bridge cloud")
	ways(metav1.ConditionTrue, false)
	for _, p := range pods {
		l.release(t, p)
	}
}
