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
	for _, n := range []*labNode{n1, n2} {
		n.set(t, map[string]string{"net/ipv4/conf/all/rp_filter": "1"})
	}
	p := l.pair(t, n1, n2)
	p.ways(t, metav1.ConditionFalse, true)
	cloud("delete table bridge cloud")
	p.ways(t, metav1.ConditionTrue, false)
	p.release(t)
}

// pair is two nodes with encapsulation "auto" and a pod each.
type pair struct {
	*lab
	nodes []*labNode
	pods  []*labPod
}

// pair starts two nodes with encapsulation "auto" and adds a pod to each.
func (l *lab) pair(t *testing.T, nodes ...*labNode) *pair {
	t.Helper()
	p := &pair{lab: l, nodes: nodes}
	for i, n := range nodes {
		text, err := os.ReadFile(n.config)
		if err == nil {
			err = os.WriteFile(n.config, append(text, "encapsulation: auto\n"...), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		n.start(t)
		n.awaitConflist(t)
		added := n.pod(t, fmt.Sprint("p", i+1))
		l.attachment(t, n, added, fmt.Sprintf("10.244.%d.5/32", i+1), fmt.Sprintf("fd00:10:244:%d::5/128", i+1))
		n.cni("ADD", added, added.netns.Path()).wantOK(t, "ADD "+added.name)
		p.pods = append(p.pods, added)
	}
	return p
}

// ways waits until both nodes have a status of the condition Direct and use the tunnel or
// not, and checks that the pods reach each other in both families. An empty status means
// that the condition is absent.
func (p *pair) ways(t *testing.T, status metav1.ConditionStatus, tunnelled bool) {
	t.Helper()
	for _, n := range p.nodes {
		p.cluster.Eventually(t, fmt.Sprintf("the way to the pods of the other node, of %s", n.name), func(ctx context.Context) error {
			var nn v1alpha1.NodeNetwork
			if err := p.cluster.Client.Get(ctx, types.NamespacedName{Name: n.name}, &nn); err != nil {
				return err
			}
			through := 0
			for _, route := range n.state(t).Routes {
				if strings.Contains(route, "dev fairlead-vx") {
					through++
				}
			}
			var is metav1.ConditionStatus
			if c := meta.FindStatusCondition(nn.Status.Conditions, v1alpha1.ConditionDirect); c != nil {
				is = c.Status
			}
			if is != status || (through > 0) != tunnelled {
				return fmt.Errorf("%d routes through the tunnel, status %+v", through, nn.Status)
			}
			return nil
		})
	}
	for i, from := range p.pods {
		to := p.pods[1-i]
		for _, address := range []string{fmt.Sprintf("10.244.%d.5", 2-i), fmt.Sprintf("fd00:10:244:%d::5", 2-i)} {
			p.wantTalk(t, from, to, address)
		}
	}
}

func (p *pair) release(t *testing.T) {
	t.Helper()
	for _, pod := range p.pods {
		p.lab.release(t, pod)
	}
}
