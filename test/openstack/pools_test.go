package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/test/cluster"
	"fairlead.dev/fairlead/test/openstack/lab"
)

// pools has pods on ports of pools. At its end the pools are switched off, and nothing of them
// is left.
func (b *bed) pools() {
	b.chapter("Take", (*bed).poolTake)
	b.chapter("Restart", (*bed).poolRestart)
	b.chapter("Marks", (*bed).poolMarks)
	b.chapter("FillDrain", (*bed).poolFillDrain)
	b.chapter("NeutronAway", (*bed).poolNeutronAway)
	b.chapter("NodeRemoved", (*bed).poolNodeRemoved)
	b.chapter("Churn", (*bed).poolChurn)
	if os.Getenv(figuresVariable) != "" {
		b.chapter("Figures", (*bed).poolFigures)
	}
	b.pooled(0, 1, 1)
	b.nothingIsLeft()
}

// pooled starts the controllers with pools of ready ports; a low mark of 0 is no pools.
func (b *bed) pooled(low, high, batch int) {
	b.Helper()
	b.marks = map[string]any{"low": low, "high": high, "batch": batch}
	b.lead(map[string]any{"driver": "neutron"}, nil)
}

// unused deletes pods, and waits until no pod has a port and Neutron has the ports of the
// pools, and no other.
func (b *bed) unused(pods ...*corev1.Pod) {
	b.Helper()
	b.delete(pods...)
	for _, n := range b.nodes {
		b.awaitSlots(n, "no pod to have a port", func(slots map[string]string) bool { return len(inState(slots, "used")) == 0 })
	}
}

// portPools lists the PortPools.
func (b *bed) portPools(ctx context.Context) ([]v1alpha1.PortPool, error) {
	list := &v1alpha1.PortPoolList{}
	err := b.c.Client.List(ctx, list)
	return list.Items, err
}

// slots returns the states of the ports that the pools of a node have, by their ID.
func (b *bed) slots(ctx context.Context, n *bedNode) (map[string]string, error) {
	all, err := b.portPools(ctx)
	out := map[string]string{}
	for _, p := range all {
		for _, s := range p.Spec.Ports {
			if p.Spec.Node == n.Name {
				out[s.ID] = strings.ToLower(string(s.State))
			}
		}
	}
	return out, err
}

// inState returns the IDs of the ports in a state.
func inState(slots map[string]string, state string) []string {
	var ids []string
	for id, s := range slots {
		if s == state {
			ids = append(ids, id)
		}
	}
	return ids
}

// awaitSlots waits until the ports of a node fit, and Neutron has these ports and no other on
// the node.
func (b *bed) awaitSlots(n *bedNode, what string, fits func(slots map[string]string) bool) (slots map[string]string) {
	b.Helper()
	b.await(what, func(ctx context.Context) (err error) {
		if slots, err = b.slots(ctx, n); err != nil {
			return err
		}
		if !fits(slots) {
			return fmt.Errorf("the pools of node %s have %v", n.Name, slots)
		}
		all, err := b.portsOf(ctx)
		if err != nil {
			return err
		}
		made := map[string]bool{}
		for _, p := range all {
			if strings.Contains(p.DeviceID, "/pool/"+n.Name+"-") {
				made[p.ID] = true
			}
		}
		if known := slices.Sorted(maps.Keys(slots)); !slices.Equal(known, slices.Sorted(maps.Keys(made))) {
			return fmt.Errorf("the pools of node %s have the ports %v, and Neutron has %v", n.Name, known, made)
		}
		return nil
	})
	return slots
}

// readyPorts returns a condition of slots: the number of ready ports, when none is about to
// change.
func readyPorts(least, most int) func(map[string]string) bool {
	return func(slots map[string]string) bool {
		n := len(inState(slots, "ready"))
		return n >= least && n <= most && n+len(inState(slots, "used")) == len(slots)
	}
}

// portOf returns the ID of the port of a running pod.
func (b *bed) portOf(p *corev1.Pod) string {
	b.Helper()
	record := &v1alpha1.PodAttachment{}
	if err := b.c.Client.Get(b.Context(), client.ObjectKey{Namespace: p.Namespace, Name: pod.AttachmentName(p.Name, p.UID)}, record); err != nil {
		b.Fatal(err)
	}
	return record.Spec.Interfaces[0].Binding.Port()
}

// poolTake has the first pod fill the pool of its node. The next pod takes a port while
// Neutron cannot be reached, and the pool is filled again. The port of a pod that ends serves
// another, and surplus ports go.
func (b *bed) poolTake() {
	b.pooled(4, 8, 4)
	n := b.nodes[0]
	other := b.pod("other", b.nodes[1])
	first := b.pod("first", n)
	from := b.running(first)
	peer := b.running(other)
	b.awaitSlots(n, "the pool to be filled", readyPorts(4, 8))

	b.proxy.intercept(func(string, moment) bool { return true })
	second := b.pod("second", n)
	e := b.running(second)
	b.proxy.intercept(nil)
	b.pings(from, e, true)
	b.pings(e, peer, true)
	port := b.portOf(second)
	b.awaitSlots(n, "the pool to be filled again", readyPorts(4, 8))

	b.delete(second)
	b.awaitSlots(n, "the port to come back", func(slots map[string]string) bool { return slots[port] == "ready" })
	all := []*corev1.Pod{first, other}
	for b.portOf(all[len(all)-1]) != port {
		if len(all) > 12 {
			b.Fatalf("port %s was not given again to any of %d pods", port, len(all))
		}
		all = append(all, b.pod(fmt.Sprintf("again-%d", len(all)), n))
		e = b.running(all[len(all)-1])
	}
	b.pings(e, from, true)
	b.pings(peer, e, true)

	b.unused(all...)
	b.awaitSlots(n, "surplus ports to go", readyPorts(4, 8))
}

// poolRestart kills the leader before and after a request of ports, and starts both
// controllers again. The ports stay, none is unknown, and none is made that is not needed.
func (b *bed) poolRestart() {
	b.pooled(3, 6, 3)
	n := b.nodes[0]
	var pods []*corev1.Pod
	for _, at := range []moment{before, after} {
		leader := b.awaitLeader()
		var killed atomic.Bool
		b.proxy.intercept(func(call string, m moment) bool {
			if call != "POST /ports" || m != at || !killed.CompareAndSwap(false, true) {
				return false
			}
			b.controllers[leader].Kill()
			return at == before
		})
		for !killed.Load() {
			pods = append(pods, b.pod(fmt.Sprintf("%s-%d", at, len(pods)), n))
			b.running(pods[len(pods)-1])
			if len(pods) > 12 {
				b.Fatalf("%d pods took ports, and no request was seen", len(pods))
			}
		}
		b.proxy.intercept(nil)
		b.controllers[leader] = b.controller(leader)
		b.awaitSlots(n, "the pool to be filled", readyPorts(3, 6))
	}
	had := b.awaitSlots(n, "the pool to be filled", readyPorts(3, 6))
	_, begin := b.proxy.since(0)
	b.pooled(3, 6, 3)
	b.awaitLeader()
	pods = append(pods, b.pod("restarted", n))
	b.running(pods[len(pods)-1])
	if port := b.portOf(pods[len(pods)-1]); had[port] != "ready" {
		b.Errorf("the pod has port %s after the restart; want one of %v that is ready", port, had)
	}
	b.awaitSlots(n, "the pool to be filled", readyPorts(3, 6))
	calls, _ := b.proxy.since(begin)
	if slices.Contains(calls, "DELETE /ports/ID") {
		b.Errorf("ports were deleted after the restart: %q", calls)
	}
	b.unused(pods...)
}

// poolMarks changes the marks of the configuration, and restarts the controllers.
func (b *bed) poolMarks() {
	n := b.nodes[0]
	b.pooled(2, 4, 2)
	p := b.pod("first", n)
	b.running(p)
	b.awaitSlots(n, "2 to 4 ready ports", readyPorts(2, 4))
	b.pooled(6, 8, 6)
	b.awaitSlots(n, "6 to 8 ready ports", readyPorts(6, 8))
	b.pooled(1, 2, 2)
	b.awaitSlots(n, "1 or 2 ready ports", readyPorts(1, 2))
	b.unused(p)
}

// fairlead runs the operator's command.
func (b *bed) fairlead(args ...string) string {
	b.Helper()
	out, err := exec.CommandContext(b.Context(), program(b.T, "fairlead"), append(args, "--kubeconfig", b.c.Kubeconfig)...).CombinedOutput()
	if err != nil {
		b.Fatalf("fairlead %v: %v: %s", args, err, out)
	}
	return string(out)
}

// poolFillDrain has an operator fill and drain the pools of a node.
func (b *bed) poolFillDrain() {
	n := b.nodes[0]
	b.pooled(2, 4, 10)
	p := b.pod("first", n)
	b.running(p)
	b.fairlead("pool", "fill", n.Name, "--ports", "20")
	b.awaitSlots(n, "20 ready ports", readyPorts(20, 20))
	if out := b.fairlead("pools", "--ports"); !strings.Contains(out, n.Name) || !strings.Contains(out, "20") {
		b.Errorf("fairlead pools --ports: %s", out)
	}
	b.fairlead("pool", "drain", n.Name)
	b.awaitSlots(n, "no ready port", readyPorts(0, 0))
	own := b.pod("own", n)
	b.running(own)
	if slots, err := b.slots(b.Context(), n); err != nil || slots[b.portOf(own)] != "" {
		b.Errorf("the pod has a port of the drained pool: %v, %v", slots, err)
	}
	b.fairlead("pool", "fill", n.Name)
	b.awaitSlots(n, "2 to 4 ready ports", readyPorts(2, 4))
	b.unused(p, own)
}

// poolNeutronAway kills Neutron. Pods get ready ports, also after the leader was killed.
func (b *bed) poolNeutronAway() {
	n := b.nodes[0]
	b.pooled(4, 8, 4)
	first := b.pod("first", n)
	from := b.running(first)
	b.awaitSlots(n, "the pool to be filled", readyPorts(4, 8))
	if err := b.lab.Kill(lab.Neutron); err != nil {
		b.Fatal(err)
	}
	pods := []*corev1.Pod{first, b.pod("away", n)}
	b.pings(from, b.running(pods[1]), true)
	b.killLeader()
	pods = append(pods, b.pod("restarted", n))
	b.pings(from, b.running(pods[2]), true)
	if err := b.lab.Resume(b.Context()); err != nil {
		b.Fatal(err)
	}
	b.awaitSlots(n, "the pool to be filled again", readyPorts(4, 8))
	b.unused(pods...)
}

// poolNodeRemoved takes a node away: its pools are freed. It comes back with another.
func (b *bed) poolNodeRemoved() {
	b.pooled(2, 4, 4)
	n := b.nodes[1]
	lost, other := b.pod("lost", n), b.pod("other", b.nodes[0])
	b.running(lost)
	from := b.running(other)
	b.awaitSlots(n, "the pool to be filled", readyPorts(2, 4))
	n.daemon.Kill()
	n.runner.Kill()
	if err := b.c.Client.Delete(b.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name}}); err != nil {
		b.Fatal(err)
	}
	b.delete(lost)
	b.await("the pools of the node to be freed", func(ctx context.Context) error {
		pools, err := b.portPools(ctx)
		if err == nil && slices.ContainsFunc(pools, func(p v1alpha1.PortPool) bool { return p.Spec.Node == n.Name }) {
			err = errNotYet
		}
		return err
	})
	b.awaitSlots(n, "no port of the node", func(slots map[string]string) bool { return len(slots) == 0 })
	b.awaitSlots(b.nodes[0], "the pool of the other node to stay", readyPorts(2, 4))
	b.c.Node(n.Name)
	n.kube = b.c.Account(cluster.NodeAccount, n.Name)
	b.startNode(n)
	after := b.pod("after", n)
	b.pings(from, b.running(after), true)
	b.unused(other, after)
}

// poolChurn is ChurnUnderKills with pools: no port is unknown after it.
func (b *bed) poolChurn() {
	b.pooled(4, 16, 20)
	b.churn(pooledChurnPods)
	b.unused()
}
