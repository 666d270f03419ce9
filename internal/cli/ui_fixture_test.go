package cli

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cli/kube"
	"fairlead.dev/fairlead/internal/cli/ui"
	"fairlead.dev/fairlead/internal/nad"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/test/clitest"
)

// crowd makes the objects of a large cluster at a time: nodes with pods in all states, the
// blocks of a pool, a second network with its pool, ports of OpenStack and events.
type crowd struct {
	at     time.Time
	all    map[kube.Resource][]client.Object
	blocks map[string]*v1alpha1.IPBlock
}

func newCrowd(at time.Time, nodes, pods int) *crowd {
	c := &crowd{at: at, all: map[kube.Resource][]client.Object{}, blocks: map[string]*v1alpha1.IPBlock{}}
	perNode := (pods + nodes - 1) / nodes
	blocks := (perNode + 63) / 64
	for n := range nodes {
		node := clitest.NodeOf(fmt.Sprintf("node-%d", n+1))
		for b := range blocks {
			cidr := cidrOf(n*blocks + b)
			node.Spec.Blocks = append(node.Spec.Blocks, cidr)
			block := clitest.BlockOf(cidr, node.Name)
			c.blocks[cidr] = &block
			c.add(kube.IPBlocks, &block)
		}
		if n == nodes-1 && nodes > 2 {
			clitest.NotRouted(&node)
		}
		c.add(kube.NodeNetworks, &node)
	}
	lan := clitest.BlockOf("192.168.4.0/26", "")
	c.blocks["lan"] = &lan
	c.add(kube.IPBlocks, &lan)
	for i := range pods {
		c.pod(i, i%nodes, i/nodes, blocks)
	}
	c.pools(pods)
	return c
}

func cidrOf(block int) string { return fmt.Sprintf("10.244.%d.%d/26", block/4, block%4*64) }

func (c *crowd) add(r kube.Resource, o client.Object) { c.all[r] = append(c.all[r], o) }

// podAt returns a pod of the crowd.
func (c *crowd) podAt(i, node int) *corev1.Pod {
	workloads := []string{"shop/cart", "shop/checkout", "pay/ledger", "search/indexer", "media/transcoder"}
	namespace, name := splitName(workloads[i%len(workloads)])
	created := c.at.Add(-time.Duration(i%50+1) * time.Minute)
	p := clitest.PodOf(fmt.Sprintf("%s-%d", name, i), fmt.Sprintf("node-%d", node+1))
	p.Namespace, p.UID, p.CreationTimestamp = namespace, types.UID(fmt.Sprintf("%08x-0000-4000-8000-000000000000", i)), metav1.NewTime(created)
	p.Status.Conditions = []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(created)},
		{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(created.Add(2 * time.Second))},
	}
	return &p
}

func splitName(full string) (namespace, name string) {
	for i := range full {
		if full[i] == '/' {
			return full[:i], full[i+1:]
		}
	}
	return "", full
}

// pod adds a pod, its record and its slot.
func (c *crowd) pod(i, node, ordinal, blocks int) {
	p := c.podAt(i, node)
	c.add(kube.Pods, p)
	cidr, place := cidrOf(node*blocks+ordinal/64), ordinal%64
	address := fmt.Sprintf("10.244.%d.%d/32", (node*blocks+ordinal/64)/4, (node*blocks+ordinal/64)%4*64+place)
	record := clitest.RecordOf(*p, address)
	created := p.CreationTimestamp.Time
	record.CreationTimestamp = metav1.NewTime(created)
	record.Status.Sandbox.AttachedAt = new(metav1.NewMicroTime(created.Add(412 * time.Millisecond)))
	if i%9 == 4 {
		record.Spec.Interfaces = append(record.Spec.Interfaces, v1alpha1.Interface{Name: "net1", Network: "shop/lan", Driver: "native", Addresses: []string{fmt.Sprintf("192.168.4.%d/24", 16+i/9%40)}})
	}
	record.Spec.Summary = pod.Summarize(record.Spec.Interfaces)
	switch i % 41 {
	case 7:
		record.Status = v1alpha1.PodAttachmentStatus{}
	case 13:
		record.DeletionTimestamp = new(metav1.NewTime(c.at.Add(-20 * time.Second)))
	case 19:
		clitest.SetReady(metav1.ConditionFalse, "PlugFailed", "interface eth0: the bridge fairlead0 has MTU 1400, and the network 1500")(&record)
		c.event(p, "node", "PlugFailed", "interface eth0: the bridge fairlead0 has MTU 1400, and the network 1500", 40*time.Second)
	case 23:
		record.DeletionTimestamp = new(metav1.NewTime(c.at.Add(-4 * time.Minute)))
		record.Status.Conditions = append(record.Status.Conditions, metav1.Condition{
			Type: v1alpha1.ConditionReleased, Status: metav1.ConditionFalse,
			Reason: v1alpha1.ReasonWaitingForNode, Message: "node node-3 has not said that nothing holds " + record.Spec.Summary.Addresses, LastTransitionTime: metav1.NewTime(c.at.Add(-3 * time.Minute)),
		})
	case 31:
		c.event(p, "controller", "IPAddressExhausted", "pool lan: no address is free: 40 usable, 38 allocated, 2 cooling", 70*time.Second)
		return // without a record
	}
	c.add(kube.PodAttachments, &record)
	block := c.blocks[cidr]
	block.Spec.Slots = append(block.Spec.Slots, fmt.Sprintf("%d A 1 %d %s %s/%s/eth0 %s", place, created.UnixMilli(), p.UID, p.Namespace, p.Name, p.Spec.NodeName))
	if i%9 == 4 && i/9 < 40 {
		c.blocks["lan"].Spec.Slots = append(c.blocks["lan"].Spec.Slots, fmt.Sprintf("%d A 1 %d %s %s/%s/net1 %s", 16+i/9, created.UnixMilli(), p.UID, p.Namespace, p.Name, p.Spec.NodeName))
	}
}

// event adds an event about a pod; of is the reporter.
func (c *crowd) event(p *corev1.Pod, of, reason, note string, since time.Duration) {
	e := clitest.WarningAbout(*p, reason, note, 0)
	e.Namespace, e.Name, e.EventTime = p.Namespace, p.Name+"."+reason, metav1.NewMicroTime(c.at.Add(-since))
	if of == "node" {
		c.add(kube.NodeEvents, &e)
		return
	}
	c.add(kube.ControllerEvents, &e)
}

// pools adds the pools, with cooling and held addresses, and the networks.
func (c *crowd) pools(pods int) {
	at := func(d time.Duration) int64 { return c.at.Add(d).UnixMilli() }
	gone := c.podAt(pods, 0)
	first := clitest.BlockOf("10.244.63.0/26", "node-1")
	c.add(kube.IPBlocks, &first)
	for i := range 12 {
		first.Spec.Slots = append(first.Spec.Slots, fmt.Sprintf("%d F 2 %d %s %s/%s/eth0 %s %d", 3*i, at(-time.Duration(i+1)*time.Second), gone.UID, gone.Namespace, gone.Name, gone.Spec.NodeName, at(-time.Hour)))
	}
	lan := c.blocks["lan"]
	lan.Spec.Slots = append(lan.Spec.Slots, fmt.Sprintf("56 H 2 %d shop/cart-0", at(-time.Hour)), fmt.Sprintf("57 H 2 %d shop/cart-1", at(-time.Hour)))
	for _, p := range []v1alpha1.IPPool{
		clitest.PoolOf("default", clitest.PerNode, clitest.Counts(4096, 80), clitest.Ranges("10.244.0.0/18")),
		clitest.PoolOf("lan", clitest.Counts(48, 15), clitest.Ranges("192.168.4.0/26"), func(p *v1alpha1.IPPool) {
			p.Spec.Gateways, p.Spec.Excludes = []string{"192.168.4.1"}, []string{"192.168.4.2-192.168.4.15"}
		}),
	} {
		p.Spec.Cooldown = &metav1.Duration{Duration: 30 * time.Second}
		c.add(kube.IPPools, &p)
	}
	c.add(kube.IPReservations, &v1alpha1.IPReservation{ObjectMeta: metav1.ObjectMeta{Name: "printers"}, Spec: v1alpha1.IPReservationSpec{Domain: "default", Ranges: []string{"192.168.4.60/30"}}})
	c.network("shop", "lan", `{"cniVersion":"1.0.0","type":"macvlan","master":"eth1","ipam":{"type":"fairlead-ipam","pools":["lan"]}}`)
	c.network("media", "storage", `{"cniVersion":"1.0.0","type":"bridge","bridge":"br-storage","ipam":{"type":"host-local","subnet":"10.9.0.0/24"}}`)
	for i, node := range c.all[kube.NodeNetworks][:min(3, len(c.all[kube.NodeNetworks]))] {
		p := &v1alpha1.PortPool{ObjectMeta: metav1.ObjectMeta{Name: node.GetName() + "-tenants-0"}}
		p.Spec.Node, p.Spec.Network, p.Spec.Ready, p.Spec.Cooling, p.Spec.Used = node.GetName(), "tenants", int32(6-i), int32(i), int32(11+4*i)
		c.add(kube.PortPools, p)
	}
	c.event(c.podAt(3, 0), "controller", "IPAddressGarbageCollected", "gave back 10.244.0.71 of pool default: node node-2 has confirmed it", 5*time.Minute)
	c.all[kube.ControllerEvents][len(c.all[kube.ControllerEvents])-1].(*eventsv1.Event).Type = corev1.EventTypeNormal
}

func (c *crowd) network(namespace, name, config string) {
	u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"config": config}}}
	u.SetGroupVersionKind(nad.Kind)
	u.SetNamespace(namespace)
	u.SetName(name)
	c.add(kube.Networks, u)
}

// stream returns a stream of the crowd.
func (c *crowd) stream() *ui.Stream {
	s := ui.NewStream(ui.NewModel(uiViews()))
	for _, r := range []kube.Resource{kube.Pods, kube.PodAttachments, kube.NodeNetworks, kube.IPPools, kube.IPBlocks, kube.IPReservations, kube.PortPools, kube.Networks, kube.ControllerEvents, kube.NodeEvents} {
		s.Replace(r, c.all[r])
	}
	return s
}
