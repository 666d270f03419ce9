package node

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cli"
)

// The pools of the default network of TestUnderMultus, and its further networks: "blue" uses
// addresses of Fairlead, and "green" has a configuration of whereabouts.
const (
	npwg = "multiVIFSources: [npwg]"
	blue = `{"cniVersion":"1.0.0","type":"bridge","bridge":"br-blue","capabilities":{"ips":true},
		"ipam":{"type":"fairlead-ipam","pools":["blue"]}}`
	green = `{"cniVersion":"0.4.0","name":"green-net","plugins":[{"type":"macvlan","master":"eth0","mode":"bridge",
		"ipam":{"type":"whereabouts","range":"10.78.0.0/24","range_start":"10.78.0.4","exclude":["10.78.0.0/28","10.78.0.17/32"],
			"gateway":"10.78.0.1","routes":[{"dst":"10.79.0.0/16"}],"log_level":"debug","kubernetes":{"kubeconfig":"/none"}}}]}`
)

// All programs together. Pods on two nodes have three interfaces: on the cluster's network, by
// the bridge plugin with Fairlead's addresses, and by macvlan with a configuration of
// whereabouts. The plugins are called in the order of Multus.
func TestUnderMultus(t *testing.T) {
	w := newSystem(t, npwg, "fairlead, fairlead-ipam, whereabouts")
	w.pool(t, "default", func(s *v1alpha1.IPPoolSpec) {
		s.Ranges, s.Placement = []string{"10.244.0.0/16"}, v1alpha1.PlacementPerNode
	})
	w.pool(t, "blue", func(s *v1alpha1.IPPoolSpec) {
		s.Ranges, s.Gateways, s.Sticky = []string{"10.9.0.0/24", "fd09::/64"}, []string{"10.9.0.1", "fd09::1"}, v1alpha1.StickyVirtualMachine
		s.NetworkNamespaceSelector = &metav1.LabelSelector{}
	})
	w.network("blue", blue)
	w.network("green", green)
	w.network("foreign", `{"cniVersion":"1.0.0","type":"bridge","bridge":"br-blue","ipam":{"type":"static","addresses":[{"address":"10.9.1.5/24"}]}}`)
	w.joinBridges(t)
	before := [][]string{w.nodes[0].state(t).Links, w.nodes[1].state(t).Links}
	t.Run("addresses", w.addresses)
	t.Run("without Multus", w.withoutMultus)
	t.Run("taken", w.takenAddress)
	t.Run("foreign", w.foreign)
	t.Run("virtual machine", w.virtualMachine)
	t.Run("controller away", w.controllerAway)
	w.wantTaken(t)
	w.audit(t)
	for i, n := range w.nodes {
		w.wantLinks(t, n, before[i])
	}
}

// joinBridges creates the bridge on both nodes and a link between them.
func (w *system) joinBridges(t *testing.T) {
	t.Helper()
	const bridge = "br-blue"
	ip := func(n *labNode, args ...string) {
		if out, err := n.command(exec.Command("ip", args...)); err != nil {
			t.Fatalf("ip %q: %v: %s", args, err, out)
		}
	}
	ip(w.nodes[0], "link", "add", "trunk", "type", "veth", "peer", "name", "trunk", "netns", w.nodes[1].Path())
	for _, n := range w.nodes {
		ip(n, "link", "add", bridge, "type", "bridge")
		ip(n, "link", "set", "trunk", "master", bridge)
		ip(n, "link", "set", "trunk", "up")
		ip(n, "link", "set", bridge, "up")
	}
}

// reaches waits until one pod reaches another. It may take a while, until the node has learned
// the blocks of the other node.
func (w *system) reaches(t *testing.T, from, to *labPod, address string) {
	t.Helper()
	w.cluster.Eventually(t, fmt.Sprintf("%s to reach %s at %s", from.name, to.name, address), func(ctx context.Context) error {
		return talk(ctx, from, to, address)
	})
}

func (w *system) addresses(t *testing.T) {
	delegates := []delegate{{ifName: "eth0"}, {network: "blue", ifName: "net1"}, {network: "green", ifName: "fast0"}}
	var pods []*labPod
	var records []map[string]v1alpha1.Interface
	for i, n := range w.nodes {
		p := n.pod(t, []string{"one", "two"}[i], onNetworks("blue,green@fast0"))
		w.add(t, n, p, delegates...)
		pods, records = append(pods, p), append(records, w.record(t, p))
	}
	for _, r := range records {
		got := netip.MustParseAddr(address(r["fast0"]))
		if got.Less(netip.MustParseAddr("10.78.0.16")) || got == netip.MustParseAddr("10.78.0.17") || r["fast0"].Gateways[0] != "10.78.0.1" {
			t.Errorf("the interface for range, exclude and gateway of whereabouts is %+v", r["fast0"])
		}
		if len(r["net1"].Addresses) != 2 {
			t.Errorf("the interface of both families is %+v", r["net1"])
		}
	}
	for _, to := range []string{address(records[1]["eth0"]), address(records[1]["net1"]), address(records[1]["fast0"])} {
		w.reaches(t, pods[0], pods[1], to)
	}
	w.wantTaken(t, "one", "two")
	w.audit(t)
	for i, p := range pods {
		w.deletePod(t, p)
		w.del(t, w.nodes[i], p, delegates...)
		for name, network := range map[string]string{"net1": "/blue", "fast0": "/green"} {
			w.wantPodEvent(t, p, "IPAddressGarbageCollected", address(records[i][name]), w.cluster.Namespace+network)
		}
	}
	w.wantTaken(t)
}

// If the runtime uses Fairlead's configuration and not that of Multus, no plugin makes a pod's
// further interface. The pod is attached but not ready, and the condition Ready and the
// commands name the missing interface, also after the daemon was killed.
func (w *system) withoutMultus(t *testing.T) {
	n := w.nodes[0]
	p := n.pod(t, "alone", onNetworks("blue"))
	w.addSome(t, n, p, delegate{ifName: "eth0"})
	lacks := []string{"net1", w.cluster.Namespace + "/blue", "Multus"}
	w.wantMissing(t, p, lacks...)
	for _, args := range [][]string{{"pods", "-n", w.cluster.Namespace}, {"explain", "pod", w.cluster.Namespace + "/" + p.name}} {
		var out bytes.Buffer
		cli.New("fairlead", &out, &out).Run(t.Context(), append(args, "--kubeconfig", w.cluster.Kubeconfig))
		for _, text := range append(lacks, v1alpha1.ReasonInterfacesMissing) {
			if !strings.Contains(out.String(), text) {
				t.Errorf("the output of fairlead %q lacks %q:\n%s", args, text, out.String())
			}
		}
	}
	n.kill(t)
	n.start(w.t) // the other subtests need the daemon, too
	w.wantMissing(t, p, lacks...)
	w.addSome(t, n, p, delegate{network: "blue", ifName: "net1"})
	w.wantState(t, p, v1alpha1.SandboxAttached, p.containerID)
	w.del(t, n, p, delegate{network: "blue", ifName: "net1"})
	w.wantMissing(t, p, lacks...)
	w.deletePod(t, p)
	w.del(t, n, p, delegate{ifName: "eth0"})
	w.wantTaken(t)
}

// wantMissing waits until a pod is attached and its condition Ready reports missing
// interfaces, with all of these words.
func (w *system) wantMissing(t *testing.T, p *labPod, words ...string) {
	t.Helper()
	key := types.NamespacedName{Namespace: w.cluster.Namespace, Name: p.attachmentName()}
	w.cluster.Eventually(t, fmt.Sprintf("%s to lack interfaces", key), func(ctx context.Context) error {
		var pa v1alpha1.PodAttachment
		if err := w.cluster.Client.Get(ctx, key, &pa); err != nil {
			return err
		}
		ready := meta.FindStatusCondition(pa.Status.Conditions, v1alpha1.ConditionReady)
		lacks := func(word string) bool { return !strings.Contains(ready.Message, word) }
		if !meta.IsStatusConditionTrue(pa.Status.Conditions, v1alpha1.ConditionAttached) || ready == nil ||
			ready.Status != metav1.ConditionFalse || ready.Reason != v1alpha1.ReasonInterfacesMissing || slices.ContainsFunc(words, lacks) {
			return fmt.Errorf("conditions %+v", pa.Status.Conditions)
		}
		return nil
	})
}

// A pod requests an address that another pod has. An event names the holder, and the pod gets
// the address when the holder is gone. whereabouts#15, #394.
func (w *system) takenAddress(t *testing.T) {
	asks := onNetworks(`[{"name":"blue","ips":["10.9.0.77/24"]}]`)
	delegates := []delegate{{ifName: "eth0"}, {network: "blue", ifName: "net1", ips: []string{"10.9.0.77/24"}}}
	first := w.nodes[0].pod(t, "first", asks)
	w.add(t, w.nodes[0], first, delegates...)
	second := w.nodes[1].pod(t, "second", asks)
	w.wantPodEvent(t, second, "NetworkConflict", "10.9.0.77", w.cluster.Namespace+"/first/net1", w.nodes[0].name)
	w.deletePod(t, first)
	w.del(t, w.nodes[0], first, delegates...)
	w.add(t, w.nodes[1], second, delegates...)
	if got := w.record(t, second)["net1"].Addresses[0]; got != "10.9.0.77/24" {
		t.Errorf("the pod that waited has %s", got)
	}
	w.deletePod(t, second)
	w.del(t, w.nodes[1], second, delegates...)
	w.wantTaken(t)
}

// A network with addresses of another IPAM plugin gets no addresses of Fairlead.
// whereabouts#704.
func (w *system) foreign(t *testing.T) {
	n := w.nodes[0]
	p := n.pod(t, "foreign", onNetworks("foreign,blue"))
	record := w.record(t, p)
	if _, ok := record["net1"]; ok || len(record) != 2 {
		t.Errorf("interfaces %+v", record)
	}
	delegates := []delegate{{ifName: "eth0"}, {network: "blue", ifName: "net2"}}
	w.add(t, n, p, delegates...)
	w.deletePod(t, p)
	w.del(t, n, p, delegates...)
	w.wantPodEvent(t, p, "IPAddressGarbageCollected", address(record["net2"]), w.cluster.Namespace+"/blue")
	w.wantTaken(t)
}

// A virtual machine that moves to another node keeps its addresses on every network whose pool
// is sticky. The new pod gets them only when the former pod has released them.
func (w *system) virtualMachine(t *testing.T) {
	var pools v1alpha1.IPPoolList
	if err := w.cluster.Client.List(t.Context(), &pools, client.MatchingLabels{"fairlead.dev/pool-for": "whereabouts"}); err != nil || len(pools.Items) != 1 {
		t.Fatalf("pools of whereabouts: %+v, %v", pools.Items, err)
	}
	before := pools.Items[0].DeepCopy()
	pools.Items[0].Spec.Sticky = v1alpha1.StickyVirtualMachine
	if err := w.cluster.Client.Patch(t.Context(), &pools.Items[0], client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
	w.cluster.Eventually(t, "the controller to have read the changed pool", func(ctx context.Context) error {
		p := &pools.Items[0]
		if err := w.cluster.Client.Get(ctx, client.ObjectKeyFromObject(p), p); err != nil {
			return err
		}
		if ready := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionReady); ready == nil || ready.ObservedGeneration != p.Generation {
			return fmt.Errorf("generation %d, condition %+v", p.Generation, ready)
		}
		return nil
	})
	asks := func(p *corev1.Pod) {
		onNetworks("blue,green@fast0")(p)
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachineInstance", Name: "vm", UID: "vm", Controller: new(true)}}
	}
	delegates := []delegate{{ifName: "eth0"}, {network: "blue", ifName: "net1"}, {network: "green", ifName: "fast0"}}
	first := w.nodes[0].pod(t, "vm-first", asks)
	w.add(t, w.nodes[0], first, delegates...)
	had := w.record(t, first)
	if want := w.cluster.Namespace + "/vm.fast0." + before.Name; had["net1"].Claim != w.cluster.Namespace+"/vm.net1" || had["fast0"].Claim != want {
		t.Errorf("claims %q and %q", had["net1"].Claim, had["fast0"].Claim)
	}
	second := w.nodes[1].pod(t, "vm-second", asks)
	w.wantPodEvent(t, second, "NetworkConflict", "vm.net1", w.cluster.Namespace+"/vm-first/net1", w.nodes[0].name)
	w.deletePod(t, first)
	w.del(t, w.nodes[0], first, delegates...)
	w.add(t, w.nodes[1], second, delegates...)
	has := w.record(t, second)
	for _, name := range []string{"net1", "fast0"} {
		if diff := cmp.Diff(had[name].Addresses, has[name].Addresses); diff != "" {
			t.Errorf("%s: the machine's addresses:\n%s", name, diff)
		}
	}
	w.deletePod(t, second)
	w.del(t, w.nodes[1], second, delegates...)
	w.wantTaken(t)
}

// A pod that is deleted while no controller runs leaks no address on any network, also if the
// network's definition is deleted, too. whereabouts#546.
func (w *system) controllerAway(t *testing.T) {
	n := w.nodes[1]
	delegates := []delegate{{ifName: "eth0"}, {network: "blue", ifName: "net1"}, {network: "green", ifName: "net2"}}
	p := n.pod(t, "missed", onNetworks("blue,green"))
	w.add(t, n, p, delegates...)
	record := w.record(t, p)
	w.killController(t)
	w.deletePod(t, p)
	w.del(t, n, p, delegates...)
	w.wantTaken(t, "missed")
	w.startController()
	w.wantPodEvent(t, p, "IPAddressGarbageCollected", address(record["net1"]), w.cluster.Namespace+"/blue")
	w.wantPodEvent(t, p, "IPAddressGarbageCollected", address(record["net2"]), w.cluster.Namespace+"/green")
	w.wantTaken(t)
}
