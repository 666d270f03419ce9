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

// A host firewall that drops forwarded packets cuts pods off, although Fairlead has set up
// everything. As soon as the rules are there, a condition of the NodeNetwork names the chains
// that drop packets and the affected traffic. It is True again when the rules let pods
// through (own review 14). STATUS does not fail.
func TestHostFirewallIsTold(t *testing.T) {
	l, n, pods := oneNode(t, "p1", "p2")
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
		l.cluster.Eventually(t, fmt.Sprintf("the condition Forwarded %s with the texts %q", status, texts), func(ctx context.Context) error {
			var nn v1alpha1.NodeNetwork
			if err := l.cluster.Client.Get(ctx, types.NamespacedName{Name: n.name}, &nn); err != nil {
				return err
			}
			c := meta.FindStatusCondition(nn.Status.Conditions, v1alpha1.ConditionForwarded)
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
	const docker = `table ip filter {
		chain DOCKER-USER { counter return; }
		chain FORWARD { type filter hook forward priority filter; policy drop; counter jump DOCKER-USER; iifname "docker0" accept; }
	}
	table ip6 filter {
		chain DOCKER-USER { counter return; }
		chain FORWARD { type filter hook forward priority filter; policy drop; counter jump DOCKER-USER; iifname "docker0" accept; }
	}`
	address, _, _ := strings.Cut(pods[1].addresses[0], "/")
	wantCondition(metav1.ConditionTrue)
	l.wantTalk(t, pods[0], pods[1], address)

	rules(docker)
	wantCondition(metav1.ConditionFalse, "the policy of chain FORWARD of the nftables ip filter drops what is sent from pod to pod here (IPv4)",
		"the policy of chain FORWARD of the nftables ip6 filter", "network.md")
	n.cni(cniproto.VerbStatus, pods[0], "").wantOK(t, "STATUS")
	// The rules that network.md recommends, for both families.
	rules("insert rule ip filter DOCKER-USER iifname fairlead0 accept\ninsert rule ip filter DOCKER-USER oifname fairlead0 accept\n" +
		"insert rule ip6 filter DOCKER-USER iifname fairlead0 accept\ninsert rule ip6 filter DOCKER-USER oifname fairlead0 accept\n")
	wantCondition(metav1.ConditionTrue)
	l.wantTalk(t, pods[0], pods[1], address)
	rules("flush chain ip filter DOCKER-USER\n")
	wantCondition(metav1.ConditionFalse, "ip filter")
	rules("delete table ip filter\ndelete table ip6 filter\n")
	wantCondition(metav1.ConditionTrue)
	l.wantTalk(t, pods[0], pods[1], address)

	for _, p := range pods {
		n.cni("DEL", p, "").wantOK(t, "DEL")
		l.release(t, p)
	}
}
