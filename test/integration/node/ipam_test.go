package node

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	eventsv1 "k8s.io/api/events/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// Pods as under Multus: Fairlead makes eth0, and the bridge plugin makes net1. The bridge
// plugin executes Fairlead's IPAM plugin for the addresses, as fairlead-ipam and as
// whereabouts.
func TestBridgePluginWithOurAddresses(t *testing.T) {
	l, n, _ := oneNode(t)
	bin := filepath.Join(n.dir, "bin")
	buildIn(t, "../../bench/reference", filepath.Join(bin, "bridge"), "github.com/containernetworking/plugins/plugins/main/bridge")
	if out, err := exec.Command("cp", filepath.Join(bin, "fairlead-ipam"), filepath.Join(bin, "whereabouts")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	// bridge runs the reference plugin for the interface net1 of a pod.
	bridge := func(verb string, p *labPod, ipam, more string) (string, error) {
		cmd := exec.Command(filepath.Join(bin, "bridge"))
		cmd.Env = []string{
			"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + p.containerID, "CNI_NETNS=" + p.netns.Path(), "CNI_IFNAME=net1",
			"CNI_ARGS=" + n.podArgs(p) + ";GATEWAY=10.9.0.254", "CNI_PATH=" + bin, "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
		}
		cmd.Stdin = strings.NewReader(fmt.Sprintf(`{"cniVersion":"1.1.0","name":"blue","type":"bridge","bridge":"br-blue","ipam":{"type":%q,"socket":%q,
			"range":"10.9.0.0/24","routes":[{"dst":"10.8.0.0/16"}]}%s}`, ipam, filepath.Join(n.dir, "state", "cni.sock"), more))
		return n.command(cmd)
	}
	pods := map[string]*labPod{}
	for i, ipam := range []string{"fairlead-ipam", "whereabouts"} {
		p := n.pod(t, ipam[:4])
		pods[ipam] = p
		l.attach(t, n, p, []string{fmt.Sprintf("10.244.1.%d/32", 5+i), fmt.Sprintf("fd00:10:244:1::%d/128", 5+i)}, v1alpha1.Interface{
			Name: "net1", Network: l.cluster.Namespace + "/blue", Driver: "native", Gateways: []string{"10.9.0.1"},
			Addresses: []string{fmt.Sprintf("10.9.0.%d/24", 5+i), fmt.Sprintf("fd09::%d/64", 5+i)},
			Binding:   v1alpha1.Binding{AddressOnly: &v1alpha1.AddressOnlyBinding{}},
		})
		n.cni("ADD", p, p.netns.Path()).wantOK(t, "ADD of eth0")
		out, err := bridge("ADD", p, ipam, "")
		if err != nil {
			t.Fatalf("%s: %v: %s", ipam, err, out)
		}
		for _, want := range []string{fmt.Sprintf(`"10.9.0.%d/24"`, 5+i), fmt.Sprintf(`"fd09::%d/64"`, 5+i), `"10.9.0.1"`, `"10.8.0.0/16"`} {
			if !strings.Contains(out, want) {
				t.Errorf("%s: no %s in %s", ipam, want, out)
			}
		}
		if !json.Valid([]byte(out)) {
			t.Errorf("%s answered %s", ipam, out)
		}
		if out, err := bridge("CHECK", p, ipam, `,"prevResult":`+out); err != nil {
			t.Errorf("%s: CHECK: %v: %s", ipam, err, out)
		}
		if out, err := bridge("STATUS", p, ipam, ""); err != nil {
			t.Errorf("%s: STATUS: %v: %s", ipam, err, out)
		}
		l.wantState(t, p, v1alpha1.SandboxAttached, p.containerID)
		l.wantEvent(t, n, p, "NetworkDiffers", "GATEWAY=10.9.0.254")
	}
	l.wantTalk(t, pods["fairlead-ipam"], pods["whereabouts"], "10.9.0.6")

	// The daemon sets Detached only when both interfaces are gone, also if the daemon was away
	// during the DEL of one of them.
	p := pods["fairlead-ipam"]
	n.cni("DEL", p, p.netns.Path()).wantOK(t, "DEL of eth0")
	l.release(t, p)
	n.kill(t)
	if out, err := bridge("DEL", p, "fairlead-ipam", ""); err != nil {
		t.Errorf("DEL without a daemon: %v: %s", err, out)
	}
	n.start(t)
	l.wantState(t, p, v1alpha1.SandboxDetached, p.containerID)

	p = pods["whereabouts"]
	l.release(t, p)
	if out, err := bridge("DEL", p, "whereabouts", ""); err != nil {
		t.Errorf("DEL: %v: %s", err, out)
	}
	n.cni("DEL", p, p.netns.Path()).wantOK(t, "DEL of eth0")
	l.wantState(t, p, v1alpha1.SandboxDetached, p.containerID)
}

// wantEvent waits for an event on a pod by the daemon of its node, with this reason and this
// text in its note.
func (l *lab) wantEvent(t *testing.T, n *labNode, p *labPod, reason, text string) {
	t.Helper()
	l.cluster.Eventually(t, fmt.Sprintf("the event %s on pod %s by the daemon of %s", reason, p.name, n.name), func(ctx context.Context) error {
		var list eventsv1.EventList
		if err := l.cluster.Client.List(ctx, &list, client.InNamespace(l.cluster.Namespace)); err != nil {
			return err
		}
		for _, e := range list.Items {
			if e.Regarding.UID == p.uid && e.ReportingController == "fairlead.dev/node" && e.ReportingInstance == n.name &&
				e.Reason == reason && strings.Contains(e.Note, text) {
				return nil
			}
		}
		return fmt.Errorf("seen %v", list.Items)
	})
}
