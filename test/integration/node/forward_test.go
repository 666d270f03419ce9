package node

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cniproto"
)

// A host firewall with policy drop cuts pods off, although Fairlead has set up everything. As
// soon as the chain is there, a condition of the NodeNetwork names it (own review 14). STATUS
// does not fail.
func TestHostFirewallIsTold(t *testing.T) {
	l, n, pods := oneNode(t, "p1")
	for _, p := range pods {
		n.cni("ADD", p, p.netns.Path()).wantOK(t, "ADD "+p.name)
	}
	rules := func(text string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "nft", "-f", "-")
		cmd.Stdin = strings.NewReader(text)
		if out, err := n.command(cmd); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	wantCondition := func(status metav1.ConditionStatus, texts ...string) {
		t.Helper()
		l.cluster.Eventually(t, fmt.Sprintf("the condition ForwardPolicy %s with the texts %q", status, texts), func(ctx context.Context) error {
			var nn v1alpha1.NodeNetwork
			if err := l.cluster.Client.Get(ctx, types.NamespacedName{Name: n.name}, &nn); err != nil {
				return err
			}
			c := meta.FindStatusCondition(nn.Status.Conditions, v1alpha1.ConditionForwardPolicy)
			if c == nil || c.Status != status {
				return fmt.Errorf("condition %+v", c)
			}
			for _, text := range texts {
				if !strings.Contains(c.Message, text) {
					return fmt.Errorf("condition %+v", c)
				}
			}
			return nil
		})
	}
	wantCondition(metav1.ConditionTrue)
	rules(`table ip filter {
		chain FORWARD { type filter hook forward priority filter; policy drop; iifname "docker0" accept; }
	}`)
	wantCondition(metav1.ConditionUnknown, "policy drop in FORWARD of table ip filter", "network.md")
	n.cni(cniproto.VerbStatus, pods[0], "").wantOK(t, "STATUS")
	rules("chain ip filter FORWARD { policy accept; }\n")
	wantCondition(metav1.ConditionTrue)

	for _, p := range pods {
		n.cni("DEL", p, "").wantOK(t, "DEL")
		l.release(t, p)
	}
}
