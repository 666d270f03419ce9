package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/internal/ipam"
)

const (
	// roundsOfNetworks is how many pods of each size come and go on each node while the
	// programs are killed.
	roundsOfNetworks = 3
	// killsOfNetworks is how often each program is killed at least.
	killsOfNetworks = 2
)

// interfaceCounts are the numbers of interfaces of the scenario's pods, the default one
// included.
var interfaceCounts = []int{1, 3, 8}

// networks attaches pods to several networks on both nodes. Fairlead makes all of their
// interfaces, or has the reference plugins make them. Each pod reaches each other one on each network, also after fairlead-node
// and the controllers have been killed while other pods came and went.
func (w *testbed) networks(ctx context.Context) (err error) {
	for _, wire := range wires() {
		if err := w.Net.Connect(wire); err != nil {
			return err
		}
	}
	undo, err := w.networksBaseline()
	if err != nil {
		return err
	}
	defer undo()
	if err := w.installNetworks(ctx); err != nil {
		return err
	}
	pods := w.standingPods()
	g, creating := errgroup.WithContext(ctx)
	for _, p := range pods {
		g.Go(func() error { return w.start(creating, p) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	kinds, err := w.checkNetworks(ctx, pods)
	if err != nil {
		return err
	}
	plugged, err := w.plugLogs(ctx, pods)
	if err != nil {
		return err
	}
	passed, err := w.networksUnderKills(ctx)
	if err != nil {
		return err
	}
	for _, p := range plugged {
		if err := w.hasItsOwn(ctx, p); err != nil {
			return err
		}
	}
	if _, err := w.checkNetworks(ctx, pods); err != nil {
		return fmt.Errorf("after the kills: %w", err)
	}
	if err := w.unplugLast(ctx, plugged); err != nil {
		return err
	}
	if _, err := w.checkNetworks(ctx, pods); err != nil {
		return fmt.Errorf("after networks were unplugged: %w", err)
	}
	seen, interfaces, err := w.seenIn(pods)
	if err != nil {
		return err
	}
	seen, interfaces = seen+passed.pods, interfaces+passed.interfaces
	leaked, err := w.removeNetworks(ctx, pods)
	if err != nil {
		return err
	}
	if err := w.disconnect(); err != nil {
		return err
	}
	_, err = fmt.Fprintf(w.Out, "networks: OK kinds=%d pods=%d interfaces=%d leaked=%d\n", len(kinds), seen, interfaces, leaked)
	return err
}

// seenIn looks into pods, and returns how many there are and their interfaces.
func (w *testbed) seenIn(pods []*attachedPod) (seen, interfaces int, err error) {
	for _, p := range pods {
		inside, err := w.inside(p)
		if err != nil {
			return 0, 0, err
		}
		seen, interfaces = seen+1, interfaces+len(inside)
	}
	return seen, interfaces, nil
}

// networksBaseline makes the links of the wires a part of the nodes, so that an end of a
// wire does not count as left by a pod.
func (w *testbed) networksBaseline() (undo func(), err error) {
	for _, n := range w.nodes {
		before := n.baseline
		if n.baseline, err = n.machine.State(); err != nil {
			return nil, fmt.Errorf("look at %s: %w", n.name, err)
		}
		previous := undo
		undo = func() {
			n.baseline = before
			if previous != nil {
				previous()
			}
		}
	}
	return undo, nil
}

// start creates a pod and waits until it is ready.
func (w *testbed) start(ctx context.Context, p *attachedPod) error {
	if err := w.Create(ctx, p.Pod); err != nil {
		return fmt.Errorf("pod %s: %w", p.Name, err)
	}
	return w.podIs(ctx, p.Pod, "ready", isReady)
}

// plugLogs adds the network logs to running pods of three interfaces, and returns them. The
// interfaces are plugged while the programs are killed: the check after that finds them.
func (w *testbed) plugLogs(ctx context.Context, pods []*attachedPod) (plugged []*attachedPod, err error) {
	all := networks()
	logs := all[slices.IndexFunc(all, func(o *network) bool { return o.name == "logs" })]
	for _, p := range pods {
		if len(p.on) != 2 || p.on[0].name == logs.name {
			continue
		}
		p.on = append(p.on, selected{network: logs})
		if err := w.reselect(ctx, p); err != nil {
			return nil, err
		}
		plugged = append(plugged, p)
	}
	if len(plugged) == 0 {
		return nil, errors.New("no pod of three interfaces got a further one")
	}
	return plugged, nil
}

// unplugLast removes the last network of running pods, and waits until its interface is
// gone.
func (w *testbed) unplugLast(ctx context.Context, pods []*attachedPod) error {
	for _, p := range pods {
		p.on = p.on[:len(p.on)-1]
		if err := w.reselect(ctx, p); err != nil {
			return err
		}
		if err := w.hasItsOwn(ctx, p); err != nil {
			return err
		}
	}
	w.Say("%d running pods got a further network, and gave it back", len(pods))
	return nil
}

// reselect writes the networks of a running pod into its annotation.
func (w *testbed) reselect(ctx context.Context, p *attachedPod) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{annotationNetworks: selection(p.on)}}})
	if err != nil {
		return err
	}
	return w.Patch(ctx, p.Pod, client.RawPatch(types.MergePatchType, patch))
}

// passing are the pods that came and went: those that got ready, and the interfaces that were
// seen in them.
type passing struct {
	lock             sync.Mutex
	pods, interfaces int
}

// pass runs the life of one pod. One of four pods is deleted before it can be ready, at any step
// of its start. The others must have all their interfaces.
func (w *testbed) pass(ctx context.Context, p *attachedPod, random *rand.Rand, passed *passing) error {
	if err := w.Create(ctx, p.Pod); err != nil {
		return err
	}
	if random.IntN(4) > 0 {
		if err := w.podIs(ctx, p.Pod, "ready", isReady); err != nil {
			return err
		}
		pods, interfaces, err := w.seenIn([]*attachedPod{p})
		if err != nil {
			return err
		}
		passed.lock.Lock()
		passed.pods, passed.interfaces = passed.pods+pods, passed.interfaces+interfaces
		passed.lock.Unlock()
	}
	pause(ctx, random, maxLife)
	if err := w.Delete(ctx, p.Pod); err != nil {
		return err
	}
	return w.podIs(ctx, p.Pod, "gone", nil)
}

// networksUnderKills lets pods come and go while fairlead-node and the controllers are
// killed with SIGKILL. It returns what was seen of them.
func (w *testbed) networksUnderKills(ctx context.Context) (*passing, error) {
	killing, stop := context.WithCancel(ctx)
	defer stop()
	var killer errgroup.Group
	kills := 0
	random := rand.New(rand.NewPCG(w.Seed, 1<<32))
	killer.Go(func() error {
		for i := 0; killing.Err() == nil || i < killsOfNetworks; i++ {
			pause(ctx, random, maxPause)
			if err := w.killDaemon(ctx, w.nodes[i%len(w.nodes)], random); err != nil {
				return err
			}
			if err := w.killLeader(ctx); err != nil {
				return err
			}
			kills++
		}
		return nil
	})
	lived, passed := 0, &passing{}
	g, living := errgroup.WithContext(ctx)
	for i, n := range w.nodes {
		for k, count := range interfaceCounts {
			worker := i*len(interfaceCounts) + k
			var pods []*attachedPod
			for round := range roundsOfNetworks {
				pods = append(pods, w.passingPod(n, count, worker*roundsOfNetworks+round))
			}
			lived += len(pods)
			random := rand.New(rand.NewPCG(w.Seed, 1<<32+1+uint64(worker))) //nolint:gosec // not negative
			g.Go(func() error {
				for _, p := range pods {
					if err := w.pass(living, p, random, passed); err != nil {
						return err
					}
				}
				return nil
			})
		}
	}
	err := g.Wait()
	stop()
	if err = errors.Join(err, killer.Wait()); err != nil {
		return nil, err
	}
	w.Say("%d pods of %v interfaces have lived; fairlead-node and the leading controller were killed %d times each", lived, interfaceCounts, kills)
	return passed, w.await(ctx, "fairlead-node to be ready again", func(ctx context.Context) (string, error) {
		return w.nodes[0].daemonReady(ctx) + w.nodes[1].daemonReady(ctx), nil
	})
}

// killDaemon kills fairlead-node on a node and starts it again a while later.
func (w *testbed) killDaemon(ctx context.Context, n *node, random *rand.Rand) error {
	n.running[fairleadNode].Kill()
	pause(ctx, random, maxAway)
	return n.start(fairleadNode)
}

// killLeader kills the controller that leads, and starts it again when the other one leads.
func (w *testbed) killLeader(ctx context.Context) error {
	leader, err := w.awaitLeader(ctx, -1)
	if err != nil {
		return err
	}
	w.controllers[leader].Kill()
	if _, err := w.awaitLeader(ctx, leader); err != nil {
		return err
	}
	return w.startController(leader)
}

// awaitLeader waits until a controller leads, and returns it. gone is a controller that does
// not run; -1 for none.
func (w *testbed) awaitLeader(ctx context.Context, gone int) (leader int, err error) {
	err = w.await(ctx, "a controller to lead", func(ctx context.Context) (string, error) {
		for i := range w.controllers {
			if i == gone {
				continue
			}
			leads, err := metric(ctx, w.Net.Switch, controllerPort+i, "leader_election_master_status", `name="fairlead-controller"`)
			if err == nil && leads == 1 { // it may have just been started
				leader = i
				return "", nil
			}
		}
		return "none does", nil
	})
	return leader, err
}

// removeNetworks deletes the pods and returns the number of things that they leave. If it
// is not 0, the error names them.
func (w *testbed) removeNetworks(ctx context.Context, pods []*attachedPod) (leaked int, err error) {
	for _, p := range pods {
		if err := w.Delete(ctx, p.Pod); err != nil {
			return 0, err
		}
	}
	if err := w.nothingLeft(ctx); err != nil {
		return 0, err
	}
	left, err := w.takenAddresses(ctx)
	if err != nil {
		return 0, err
	}
	for _, n := range w.nodes {
		now, err := n.machine.State()
		if err != nil {
			return 0, err
		}
		// A device that did not come back is missing.
		for _, link := range n.baseline.Since(now).Links {
			left = append(left, fmt.Sprintf("%s without link %s", n.name, link))
		}
	}
	if len(left) > 0 {
		return len(left), fmt.Errorf("the pods left: %s", summary(left))
	}
	return 0, w.deleteNetworks(ctx)
}

// takenAddresses lists the addresses in the blocks that have a holder.
func (w *testbed) takenAddresses(ctx context.Context) ([]string, error) {
	blocks, err := w.slots(ctx)
	var out []string
	for _, slot := range blocks {
		if slot.State != ipam.Freed {
			out = append(out, fmt.Sprintf("address %v of %v", slot.Addr, slot.Holder))
		}
	}
	return out, err
}

// disconnect removes the wires.
func (w *testbed) disconnect() error {
	var errs []error
	for _, wire := range wires() {
		errs = append(errs, w.Net.Disconnect(wire))
	}
	return errors.Join(errs...)
}

// attachedPod is a pod and the networks of its further interfaces, in order.
type attachedPod struct {
	*corev1.Pod
	on []selected
}

// selected is a network as one pod selects it.
type selected struct {
	*network
	// own are the addresses that the pod asks for, or brings itself.
	own string
}

// standingPods are pods of each size on each node, two of each, that stay through the
// kills.
func (w *testbed) standingPods() []*attachedPod {
	var out []*attachedPod
	for _, n := range w.nodes {
		for _, count := range interfaceCounts {
			for twin := range 2 {
				device := fmt.Sprintf("device-%d", twin)
				name := fmt.Sprintf("stays-%d-%d-on-%s", count, twin, n.name)
				out = append(out, w.attached(n, name, count, 10+len(out), device))
			}
		}
	}
	return out
}

// passingPod is a pod that comes and goes while programs are killed. It has no device: a
// device of this laboratory is a veth, which ends with a namespace that loses its DEL; a
// device of hardware goes back to the node.
func (w *testbed) passingPod(n *node, count, i int) *attachedPod {
	return w.attached(n, fmt.Sprintf("passes-%d-%d", count, i), count, 100+i, "shared")
}

// attached returns a pod with count interfaces on a node. host is the last byte of the
// addresses that it chooses itself, and last the network of its last interface, if it has
// all.
func (w *testbed) attached(n *node, name string, count, host int, last string) *attachedPod {
	all := networks()
	names := []string{"apps", "storage", "logs", "fixed", "plain", "backup", last}
	if count == 3 && host%2 == 1 {
		names = []string{"logs", delegatedPrefix + n.name}
	}
	p := &attachedPod{Pod: &corev1.Pod{Spec: podSpec()}}
	p.Namespace, p.Name = namespace, name
	p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: n.name}
	for _, name := range names[:count-1] {
		k := slices.IndexFunc(all, func(o *network) bool { return o.name == name })
		s := selected{network: all[k]}
		if s.ownRange != "" {
			s.own = fmt.Sprintf("%s.%d/24", s.ownRange, host)
		}
		p.on = append(p.on, s)
	}
	if len(p.on) > 0 {
		p.Annotations = map[string]string{annotationNetworks: selection(p.on)}
	}
	return p
}
