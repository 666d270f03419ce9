package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cniproto"
	"fairlead.dev/fairlead/internal/node/apiserver"
	"fairlead.dev/fairlead/internal/node/ledger"
	"fairlead.dev/fairlead/internal/node/report"
	"fairlead.dev/fairlead/test/nodetest"
)

// longestDel is how long a DEL may take in the bubble: it waits for nothing outside of
// the node.
const longestDel = 5 * time.Second

// lifecycle is a node on which pods come and go. Meanwhile the API server answers late, or
// not at all, or reports failures of calls that it executed; a link at times cannot be
// made or removed; the daemon is stopped, killed and started; and the node reboots.
type lifecycle struct {
	*testNode
	rng     *rand.Rand
	pods    map[types.NamespacedName]*podLife // by the PodAttachment
	free    []netip.Addr
	created int
	// cut: the API server is away. shaky: the kernel fails at times.
	cut, shaky bool

	mu    sync.Mutex
	calls int // under way
	dels  int
	trace []string
}

// podLife is one pod.
type podLife struct {
	name, uid   string
	address     netip.Addr
	sandboxes   []string
	answers     map[string]string // of ADD, by sandbox
	terminating bool
}

// I3 and I5 hold after every step, and the node's part of I1 and I4: no two sandboxes
// have the same address, and none has an address of a PodAttachment that the node
// reported as Detached.
func TestLives(t *testing.T) {
	seeds := uint64(60)
	if testing.Short() {
		seeds = 12
	}
	for seed := range seeds {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			onTestNode(t, func(w *testNode) {
				l := &lifecycle{testNode: w, rng: rand.New(rand.NewPCG(seed, 0)), pods: map[types.NamespacedName]*podLife{}}
				for n := range byte(8) {
					l.free = append(l.free, netip.AddrFrom4([4]byte{10, 244, 1, 5 + n}))
				}
				l.hook()
				for range 400 {
					l.step()
					if l.t.Failed() {
						l.t.Fatalf("the last of seed %d:\n%v", seed, l.trace[max(0, len(l.trace)-40):])
					}
				}
				l.end()
			})
		})
	}
}

func (l *lifecycle) note(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.trace = append(l.trace, fmt.Sprintf(format, args...)+"\n")
}

// hook makes calls of the API and of the kernel fail.
func (l *lifecycle) hook() {
	l.api.setHook(func(ctx context.Context, step, _ string) error {
		l.mu.Lock()
		n, cut := l.rng.IntN(100), l.cut
		l.mu.Unlock()
		if n < 30 && step != "patched" {
			select {
			case <-time.After(time.Duration(n) * 10 * time.Millisecond):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if cut || n < 10 { // at "patched" it was done
			return errors.New("connection reset by peer")
		}
		return nil
	})
	l.kernel.setHook(func(_ context.Context, step, what string) error {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.shaky && step != "links" && l.rng.IntN(4) == 0 {
			return fmt.Errorf("%s %s: operation not permitted", step, what)
		}
		return nil
	})
}

// step takes one action, lets some time pass, and checks the node.
func (l *lifecycle) step() {
	switch n := l.roll(100); {
	case n < 20:
		l.createPod()
	case n < 45:
		l.plug()
	case n < 65:
		l.unplug()
	case n < 75:
		l.deletePod()
	case n < 85:
		l.release()
	case n < 89:
		l.set(&l.cut, !l.cut)
	case n < 92:
		l.set(&l.shaky, !l.shaky)
	case n < 96:
		l.restartDaemon(false)
	case n < 98:
		l.restartDaemon(true)
	default:
		l.powerCycle()
	}
	synctest.Wait()
	<-time.After(time.Duration(l.roll(3000)) * time.Millisecond)
	l.check()
}

func (l *lifecycle) roll(n int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rng.IntN(n)
}

func (l *lifecycle) set(flag *bool, to bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	*flag = to
}

// createPod makes a new pod with a record.
func (l *lifecycle) createPod() {
	if len(l.free) == 0 {
		return
	}
	l.created++
	p := &podLife{name: fmt.Sprintf("p%d", l.created%5), uid: fmt.Sprintf("u%d", l.created), address: l.free[0], answers: map[string]string{}}
	l.free = l.free[1:]
	pa := nodetest.Attachment(p.name, p.uid, []string{"eth0", "net1"}[:1+l.created%2]...)
	for i := range pa.Spec.Interfaces {
		a := p.address.As4()
		a[2] += byte(i)
		pa.Spec.Interfaces[i].Addresses = []string{netip.PrefixFrom(netip.AddrFrom4(a), 32).String()}
	}
	l.api.putPod(p.name, p.uid)
	key := apiserver.KeyOf(l.api.put(pa))
	l.pods[key] = p
	l.note("%s is there, with %s", key.Name, p.address)
}

// keys returns the keys of all pods in an order that depends on the seed alone.
func (l *lifecycle) keys() []types.NamespacedName {
	return slices.SortedFunc(maps.Keys(l.pods), func(a, b types.NamespacedName) int { return strings.Compare(a.Name, b.Name) })
}

// any returns one of the pods for which wanted is true, nil if there is none.
func (l *lifecycle) any(wanted func(*podLife) bool) (types.NamespacedName, *podLife) {
	keys := slices.DeleteFunc(l.keys(), func(k types.NamespacedName) bool { return !wanted(l.pods[k]) })
	if len(keys) == 0 {
		return types.NamespacedName{}, nil
	}
	key := keys[l.roll(len(keys))]
	return key, l.pods[key]
}

// plug sends an ADD of a new sandbox, or repeats an earlier one.
func (l *lifecycle) plug() {
	_, p := l.any(func(*podLife) bool { return true })
	if p == nil {
		return
	}
	if len(p.sandboxes) == 0 || l.roll(3) == 0 {
		p.sandboxes = append(p.sandboxes, fmt.Sprintf("%s-%d", p.uid, len(p.sandboxes)))
		l.kernel.namespace(l.netns(p.sandboxes[len(p.sandboxes)-1]))
	}
	id := p.sandboxes[len(p.sandboxes)-1]
	l.call("ADD "+id, request(cniproto.VerbAdd, id, l.netns(id), p.name, p.uid), func(answer []byte, err error, _ time.Duration) {
		before, had := p.answers[id]
		switch {
		case err != nil:
		case had && before != string(answer):
			l.t.Errorf("I3: ADD of %s answers %s, and did %s", id, answer, before)
		default:
			p.answers[id] = string(answer)
		}
	})
}

// unplug sends a DEL of the last sandbox of a pod or of an earlier one.
func (l *lifecycle) unplug() {
	_, p := l.any(func(p *podLife) bool { return len(p.sandboxes) > 0 })
	if p == nil {
		return
	}
	l.del(p, p.sandboxes[l.roll(len(p.sandboxes))])
}

func (l *lifecycle) del(p *podLife, id string) {
	l.call("DEL "+id, request(cniproto.VerbDel, id, "", p.name, p.uid), func(_ []byte, err error, took time.Duration) {
		l.dels++
		delete(p.answers, id)
		if (err != nil || took > longestDel) && !l.shaky {
			l.t.Errorf("I5: DEL of %s took %s and ends with %v", id, took, err)
		}
	})
}

// call sends a request to the current daemon, concurrently with all others.
func (l *lifecycle) call(what string, r cniproto.Request, done func(answer []byte, err error, took time.Duration)) {
	l.note("%s", what)
	l.mu.Lock()
	l.calls++
	l.mu.Unlock()
	daemon, start := l.daemon, time.Now()
	go func() {
		answer, err := daemon.Handle(context.Background(), r)
		l.note("%s: %s, %v", what, answer, err)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.calls--
		done(answer, err, time.Since(start))
	}()
}

// answered waits until no call is under way. Requests to a daemon that is stopping are
// the subject of TestUpgrade and of the end-to-end test.
func (l *lifecycle) answered() {
	for {
		l.mu.Lock()
		n := l.calls
		l.mu.Unlock()
		if n == 0 {
			return
		}
		<-time.After(time.Second)
	}
}

// deletePod deletes a pod; its runtime may unplug it before or after.
func (l *lifecycle) deletePod() {
	key, p := l.any(func(p *podLife) bool { return !p.terminating })
	if p == nil {
		return
	}
	l.note("%s is deleted", key.Name)
	p.terminating = true
	l.deleteAttachment(key)
	pod := types.NamespacedName{Namespace: "ns", Name: p.name}
	l.api.mu.Lock()
	if now := l.api.pods[pod]; now != nil && string(now.UID) == p.uid {
		delete(l.api.pods, pod)
	}
	l.api.mu.Unlock()
}

// release does the controller's part: it releases the addresses of Detached pods.
func (l *lifecycle) release() {
	for _, key := range l.keys() {
		p := l.pods[key]
		if s := l.api.get(key).Status.Sandbox; !p.terminating || s == nil || s.State != v1alpha1.SandboxDetached {
			continue
		}
		l.note("%s is released", key.Name)
		l.api.remove(key)
		delete(l.pods, key)
		l.free = append(l.free, p.address)
	}
}

// restartDaemon stops or kills the daemon and starts the next one.
func (l *lifecycle) restartDaemon(kill bool) {
	l.answered()
	l.note("the daemon is restarted, killed: %v", kill)
	if kill {
		l.setHooks(func(context.Context, string, string) error { runtime.Goexit(); return nil })
		<-time.After(time.Second)
	}
	l.restart()
	l.hook()
}

// powerCycle reboots the node; the runtime then has no sandboxes.
func (l *lifecycle) powerCycle() {
	l.answered()
	l.note("the node reboots")
	for _, p := range l.pods {
		p.sandboxes, p.answers = nil, map[string]string{}
	}
	l.reboot(fmt.Sprintf("boot-%d", len(l.trace)))
}

// check verifies the conditions that hold after every step.
func (l *lifecycle) check() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kernel.mu.Lock()
	defer l.kernel.mu.Unlock()
	has := map[netip.Addr]string{}
	plugged := map[string]bool{}
	for _, link := range l.kernel.links {
		plugged[link.containerID] = true
		for _, a := range link.plug.Addresses {
			if other, ok := has[a.Addr()]; ok {
				l.t.Errorf("I1: %s has %s, and so has %s", link.containerID, a, other)
			}
			has[a.Addr()] = link.containerID
		}
	}
	for _, rec := range l.network.ledger.All() {
		for _, a := range rec.Adds {
			if l.calls == 0 && a.State == ledger.Attaching {
				l.t.Errorf("I3: no ADD is under way, and %s is as one left it", rec.ContainerID)
			}
		}
	}
	for key, p := range l.pods {
		if s := l.api.get(key).Status.Sandbox; s != nil && s.State == v1alpha1.SandboxDetached && has[p.address] != "" {
			l.t.Errorf("I4: %s is Detached, and %s has its address", key.Name, has[p.address])
		}
		for id := range p.answers {
			if !plugged[id] {
				l.t.Errorf("I3: ADD of %s was answered, and it has no interface", id)
			}
		}
	}
}

// end repairs all faults, unplugs and deletes all pods, and checks that nothing is left.
func (l *lifecycle) end() {
	l.set(&l.cut, false)
	l.set(&l.shaky, false)
	l.answered()
	for _, key := range l.keys() {
		for _, id := range l.pods[key].sandboxes {
			l.del(l.pods[key], id)
		}
	}
	l.answered()
	for _, key := range l.keys() {
		if p := l.pods[key]; !p.terminating {
			p.terminating = true
			l.deleteAttachment(key)
		}
	}
	<-time.After(10 * report.RetryLast)
	l.check()
	l.release()
	l.wantNothing()
	if len(l.pods) > 0 {
		l.t.Errorf("%d pods are not Detached:\n%v", len(l.pods), l.trace[max(0, len(l.trace)-60):])
	}
	if l.dels < 20 || l.created < 20 {
		l.t.Errorf("%d DELs of %d pods: too few DELs", l.dels, l.created)
	}
}
