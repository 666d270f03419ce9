package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/test/cluster"
	"fairlead.dev/fairlead/test/openstack/lab"
)

const (
	leaseName = "fairlead-controller"
	// churnPods are the pods of the churn while controllers are killed, and pooledChurnPods
	// those of the churn with pools, unless the variable churnVariable has another number.
	churnPods       = 40
	pooledChurnPods = 20
	churnVariable   = "FAIRLEAD_OPENSTACK_CHURN"
	// awayFor is how long Neutron is away.
	awayFor = time.Minute
)

// leader returns the index of the controller that leads.
func (b *bed) leader(ctx context.Context) (int, error) {
	lease := &coordinationv1.Lease{}
	if err := b.c.Client.Get(ctx, client.ObjectKey{Namespace: cluster.AccountNamespace, Name: leaseName}, lease); err != nil {
		return 0, err
	}
	identity := ""
	if lease.Spec.HolderIdentity != nil {
		identity = *lease.Spec.HolderIdentity
	}
	for i, p := range b.controllers {
		if strings.Contains(identity, "_"+strconv.Itoa(p.Cmd.Process.Pid)+"_") {
			return i, nil
		}
	}
	return 0, fmt.Errorf("the Lease has %q, none of the controllers", identity)
}

// awaitLeader waits for a leader.
func (b *bed) awaitLeader() (i int) {
	b.Helper()
	b.await("a leader", func(ctx context.Context) (err error) {
		i, err = b.leader(ctx)
		return err
	})
	return i
}

// killLeader kills the leader as a crash does, and starts it again as a standby.
func (b *bed) killLeader() {
	b.Helper()
	i := b.awaitLeader()
	b.controllers[i].Kill()
	b.controllers[i] = b.controller(i)
}

// killedAtEachStep kills the leader before and after each call of Neutron in a pod's life.
func (b *bed) killedAtEachStep() {
	var calls []string
	// The first life looks up what later ones know. Quotas and groups are read every few minutes,
	// at most in one of the other two.
	for _, name := range []string{"first", "second", "third"} {
		_, begin := b.proxy.since(0)
		p := b.pod(name, b.nodes[0])
		b.running(p)
		b.delete(p)
		b.nothingIsLeft()
		seen, _ := b.proxy.since(begin)
		slices.Sort(seen)
		seen = slices.Compact(seen)
		if name == "third" {
			seen = slices.DeleteFunc(seen, func(c string) bool { return !slices.Contains(calls, c) })
		}
		calls = seen
	}
	calls = slices.DeleteFunc(calls, func(c string) bool { return strings.HasPrefix(c, "GET /quotas/") })
	b.Logf("a life has the calls %q", calls)
	if !slices.Contains(calls, "POST /ports") || !slices.Contains(calls, "DELETE /ports/ID") {
		b.Fatal("they must create and delete a port")
	}
	for i, call := range calls {
		for _, at := range []moment{before, after} {
			leader := b.awaitLeader()
			var killed atomic.Bool
			b.proxy.intercept(func(c string, m moment) bool {
				if c != call || m != at || !killed.CompareAndSwap(false, true) {
					return false
				}
				b.controllers[leader].Kill()
				return at == before
			})
			p := b.pod(fmt.Sprintf("killed-%d-%s", i, at), b.nodes[i%2])
			e := b.running(p)
			b.delete(p)
			b.nothingIsLeft()
			b.proxy.intercept(nil)
			if !killed.Load() {
				b.Errorf("no leader was killed %s %s of pod %v", at, call, e.name)
				continue
			}
			b.controllers[leader] = b.controller(leader)
		}
	}
}

// churnUnderKills creates and deletes pods while the leader is killed at random.
func (b *bed) churnUnderKills() {
	b.churn(churnPods)
	b.nothingIsLeft()
}

// churn is churnUnderKills until the last pod is deleted, with a number of pods.
func (b *bed) churn(count int) {
	b.Helper()
	if text := os.Getenv(churnVariable); text != "" {
		var err error
		if count, err = strconv.Atoi(text); err != nil || count < 1 {
			b.Fatalf("%s=%q: must be a number of pods", churnVariable, text)
		}
	}
	seed := uint64(time.Now().UnixNano())
	b.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // a test's choice
	var alive []*corev1.Pod
	kills, start := 0, time.Now()
	for i := range count {
		alive = append(alive, b.pod(fmt.Sprintf("churn-%d", i), b.nodes[random.IntN(2)]))
		if i%4 == 3 { // of four pods one goes at once, one when it runs
			b.delete(take(random, &alive))
			p := take(random, &alive)
			b.running(p)
			b.delete(p)
		}
		if random.IntN(max(8, count/20)) == 0 { // five times, or twenty
			b.killLeader()
			kills++
		}
	}
	for _, p := range alive {
		b.running(p)
	}
	b.Logf("%d pods and %d kills of the leader in %v", count, kills, time.Since(start).Round(time.Second))
	b.delete(alive...)
}

// take removes a random pod from a list.
func take(random *rand.Rand, pods *[]*corev1.Pod) *corev1.Pod {
	i := random.IntN(len(*pods))
	p := (*pods)[i]
	*pods = slices.Delete(*pods, i, i+1)
	return p
}

// strangerLeads writes the name of a stranger into the Lease, as Kuryr's test of fencing
// does. A controller leads again when the Lease has expired.
func (b *bed) strangerLeads() {
	b.awaitLeader()
	err := b.c.Client.Patch(b.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.AccountNamespace, Name: leaseName}},
		client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"holderIdentity":"stranger","renewTime":%q}}`, time.Now().UTC().Format(metav1.RFC3339Micro))))
	if err != nil {
		b.Fatal(err)
	}
	p := b.pod("fenced", b.nodes[0])
	b.running(p)
	b.awaitLeader()
	b.delete(p)
	b.nothingIsLeft()
}

// neutronAway kills Neutron for a minute while pods come and go.
func (b *bed) neutronAway() {
	var staying, leaving, coming []*corev1.Pod
	for i := range 4 {
		staying = append(staying, b.pod(fmt.Sprintf("staying-%d", i), b.nodes[i%2]))
		leaving = append(leaving, b.pod(fmt.Sprintf("leaving-%d", i), b.nodes[i%2]))
	}
	var ends []*endpoint
	for _, p := range append(slices.Clone(staying), leaving...) {
		ends = append(ends, b.running(p))
	}
	leader := b.awaitLeader()
	processes := slices.Clone(b.controllers)
	if err := b.lab.Kill(lab.Neutron); err != nil {
		b.Fatal(err)
	}
	back := time.After(awayFor)
	b.delete(leaving...)
	for i := range 4 {
		coming = append(coming, b.pod(fmt.Sprintf("coming-%d", i), b.nodes[i%2]))
		short := b.pod(fmt.Sprintf("short-%d", i), b.nodes[i%2])
		b.delete(short)
	}
	b.await("the event of a pod without Neutron", func(ctx context.Context) error {
		if err := b.warnings(ctx, coming[0]); !strings.Contains(err.Error(), "NetworkUnavailable") {
			return err
		}
		return nil
	})
	for _, e := range ends[1:4] {
		b.pings(ends[0], e, true)
	}
	<-back
	start := time.Now()
	if err := b.lab.Resume(b.Context()); err != nil {
		b.Fatal(err)
	}
	b.Logf("Neutron answers again after %v", time.Since(start))
	for _, p := range coming {
		b.pings(ends[0], b.running(p), true)
	}
	b.Logf("all pods run after %v", time.Since(start))
	if !slices.Equal(processes, b.controllers) || b.awaitLeader() != leader {
		b.Errorf("controller %d led before Neutron was away, and %d does after", leader, b.awaitLeader())
	}
	b.delete(append(staying, coming...)...)
	b.nothingIsLeft()
}

// nodeRemoved takes a node away with its pods, and brings it back.
func (b *bed) nodeRemoved() {
	n := b.nodes[1]
	lost, other := []*corev1.Pod{b.pod("lost-0", n), b.pod("lost-1", n)}, b.pod("other", b.nodes[0])
	for _, p := range append(lost, other) {
		b.running(p)
	}
	n.daemon.Kill()
	n.runner.Kill()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name}}
	if err := b.c.Client.Delete(b.Context(), node); err != nil {
		b.Fatal(err)
	}
	b.delete(lost...)
	b.await("the ports of the node to be deleted", func(ctx context.Context) error {
		all, err := b.portsOf(ctx)
		if err == nil && len(all) != 1 {
			err = fmt.Errorf("%d ports; want that of pod other", len(all))
		}
		return err
	})
	b.c.Node(n.Name)
	n.kube = b.c.Account(cluster.NodeAccount, n.Name)
	b.startNode(n)
	after := b.pod("after", n)
	b.pings(b.running(other), b.running(after), true)
	b.delete(other, after)
	b.nothingIsLeft()
}
