package hostnet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/host"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/node/fault"
	"fairlead.dev/fairlead/internal/run"
)

const (
	// Pace is the shortest time between two looks at the node's network,
	// so that the links of a hundred pods a second are one look in five.
	Pace = 50 * time.Millisecond
	// hostShare bounds the part of the time that is spent on looks, where there
	// are so many nodes that one is longer than that.
	hostShare = 10
	// PaceLast is the longest time between two looks, as far as hostShare goes.
	PaceLast = 2 * time.Second
	// maxProblems is how many problems a condition tells of, and maxChanges how
	// many changes the log.
	maxProblems = 8
	maxChanges  = 32
	// maxMessage is the length of a condition's message in bytes; the API server
	// takes no more than 32768.
	maxMessage = 4096
)

// Network keeps the default network's part of this node: the bridge, and the
// routes to the blocks of every node. It is applied as a whole when a
// NodeNetwork changes and when something of it changes in the kernel.
type Network struct {
	kernel Kernel
	api    API
	// networks lists every NodeNetwork, from memory.
	networks func(ctx context.Context) ([]v1alpha1.NodeNetwork, error)
	// filter takes in for the packet filter what the NodeNetworks say.
	filter func(own *v1alpha1.NodeNetwork, all []v1alpha1.NodeNetwork, t *host.Tunnel) error

	node string
	config
	uplink string // name, or empty
	bootID string

	// passage is what other programs' rules do with pods' packets.
	passage *passage

	told  atomic.Bool // the NodeNetworks were read
	moved atomic.Bool // the kernel is not known to be as it was left
	// announced is what is to be said of the configuration for the runtime: nil when
	// nothing is known of it, without a status when it is not ours to say.
	announced atomic.Pointer[metav1.Condition]
	kicked    chan struct{}
	up        host.Uplink           // as it was when the kernel was last asked
	applied   *host.State           // what the kernel has, whole; nil: not known
	forwarded *metav1.Condition     // whether the host lets pods' packets through
	written   *v1alpha1.NodeNetwork // own, as it was after the last write

	mu      sync.Mutex
	mtu     int    // 0 until the bridge was made
	link    string // the uplink as it was found last
	reason  string
	changed chan struct{} // closed when mtu or reason changes, then replaced
}

// Config is what a Network works with.
type Config struct {
	NodeName, BootID string
	// Bridge and Uplink of the default network; no uplink takes the one of the
	// default route.
	Bridge, Uplink string
	// Encapsulation of the default network, and the number and UDP port of its
	// tunnel.
	Encapsulation  Encapsulation
	VNI, VXLANPort int
	Kernel         Kernel
	Rules          RuleKernel
	API            API
	// Networks lists every NodeNetwork, from memory.
	Networks func(ctx context.Context) ([]v1alpha1.NodeNetwork, error)
}

// API is what is asked of the API server.
type API interface {
	// PatchNetwork merges a patch into the status of a NodeNetwork.
	PatchNetwork(ctx context.Context, name string, patch []byte) (*v1alpha1.NodeNetwork, error)
}

// New returns the network of a node, which Run keeps.
func New(c Config) *Network {
	h := &Network{
		kernel: c.Kernel, api: c.API, networks: c.Networks,
		node: c.NodeName, uplink: c.Uplink, bootID: c.BootID,
		config:  config{bridge: c.Bridge, encapsulation: c.Encapsulation, vni: c.VNI, port: c.VXLANPort},
		kicked:  make(chan struct{}, 1),
		reason:  "the NodeNetworks were not read from the API server yet",
		changed: make(chan struct{}),
	}
	h.passage = &passage{kernel: c.Rules, again: h.Kick}
	return h
}

// NetworksChanged has the node's network looked at for the first time, and again
// when a NodeNetwork changed.
func (h *Network) NetworksChanged() {
	h.told.Store(true)
	h.Kick()
}

// KernelChanged has the kernel asked again, too: when it says that something
// changed, and every minute for what it does not tell of, as most settings.
func (h *Network) KernelChanged() {
	h.moved.Store(true)
	h.Kick()
}

// SetFilter names what takes in for the packet filter what the NodeNetworks say. It is
// called before Run.
func (h *Network) SetFilter(f func(own *v1alpha1.NodeNetwork, all []v1alpha1.NodeNetwork, t *host.Tunnel) error) {
	h.filter = f
}

// RulesChanged is told of each change of rules of other programs.
func (h *Network) RulesChanged(c host.RuleChange) { h.passage.changed(c) }

// LinkState looks at one link; the error is link.ErrNoLink when it is not there.
func (h *Network) LinkState(name string) (link.State, error) { return h.kernel.LinkState(name) }

// Announcement is what was said last of the configuration for the runtime, nil for
// nothing.
func (h *Network) Announcement() *metav1.Condition { return h.announced.Load() }

// SetAnnounced has the NodeNetwork say whether the runtime was told of the network.
func (h *Network) SetAnnounced(c metav1.Condition) {
	c.Type = v1alpha1.ConditionAnnounced
	if before := h.announced.Swap(&c); before == nil || *before != c {
		h.Kick()
	}
}

// Kick has the node's network looked at, once the NodeNetworks were read: what
// is on the host already stays until then.
func (h *Network) Kick() {
	select {
	case h.kicked <- struct{}{}:
	default:
	}
}

// Ready says why pods cannot be plugged into the default network, or nil.
func (h *Network) Ready() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.mtu == 0 {
		return fault.Errorf(fault.ErrNotReady, "the default network is not there yet: %s", h.reason)
	}
	return nil
}

// Await returns the MTU of the default network, in bytes, as soon as its bridge
// is there. The error is fault.ErrNotReady, with what it waits for, when ctx ended
// first.
func (h *Network) Await(ctx context.Context) (int, error) {
	for {
		h.mu.Lock()
		mtu, changed := h.mtu, h.changed
		h.mu.Unlock()
		if mtu > 0 {
			return mtu, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			if err := context.Cause(ctx); !errors.Is(err, context.DeadlineExceeded) {
				return 0, fmt.Errorf("ADD ended while it waited: %w", err)
			}
			return 0, fault.Errorf(fault.ErrNotReady, "node %s: %w", h.node, h.Ready())
		}
	}
}

// set notes how far the node's network is. Once it was there it stays: a bridge
// that somebody takes away is put back, and an ADD in between says so itself.
func (h *Network) set(mtu int, reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if mtu > 0 {
		h.mtu = mtu
	}
	h.reason = reason
	close(h.changed)
	h.changed = make(chan struct{})
}

// Run keeps the node's network until ctx ends. What it put on the host stays:
// pods go on talking while the daemon is away.
func (h *Network) Run(ctx context.Context) error {
	var g errgroup.Group
	g.Go(func() error { return h.watch(ctx) })
	g.Go(func() error { return h.loop(ctx) })
	return g.Wait()
}

// watch has the node's network looked at when the kernel says that it changed.
func (h *Network) watch(ctx context.Context) error {
	run.KeepWatching(ctx, "watch of the kernel", func(ctx context.Context) error { return h.kernel.WatchHost(ctx, h.KernelChanged) })
	return nil
}

func (h *Network) loop(ctx context.Context) error {
	log := logr.FromContextOrDiscard(ctx)
	wait := run.RetryFirst
	retry := time.NewTimer(run.RetryFirst)
	retry.Stop()
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-h.kicked:
		case <-retry.C:
		}
		retry.Stop()
		if !h.told.Load() {
			continue
		}
		start := time.Now()
		if err := h.apply(ctx); err != nil && ctx.Err() == nil {
			h.moved.Store(true)
			log.Error(err, "node's network is not complete, will be tried again", "after", wait)
			retry.Reset(wait)
			wait = min(2*wait, run.RetryLast)
		} else {
			wait = run.RetryFirst
		}
		if !run.Sleep(ctx, min(max(Pace, (hostShare-1)*time.Since(start)), PaceLast)) {
			return nil
		}
	}
}

// apply makes the kernel be as the NodeNetworks say, and says how it went.
func (h *Network) apply(ctx context.Context) error {
	all, err := h.networks(ctx)
	if err != nil {
		return fmt.Errorf("list NodeNetworks: %w", err)
	}
	i := slices.IndexFunc(all, func(nn v1alpha1.NodeNetwork) bool { return nn.Name == h.node })
	if i < 0 {
		h.set(0, fmt.Sprintf("the controller has not written NodeNetwork %s yet", h.node))
		return nil
	}
	own := &all[i]
	if h.written != nil && h.written.UID == own.UID {
		if order, err := resourceversion.CompareResourceVersion(h.written.ResourceVersion, own.ResourceVersion); err == nil && order > 0 {
			own = h.written
		}
	}
	moved := h.moved.Swap(false)
	if moved || h.applied == nil {
		if h.up, err = h.kernel.Uplink(ctx, h.uplink); err != nil {
			h.applied = nil
			h.set(0, err.Error())
			return errors.Join(err, h.report(ctx, own, nil, false, metav1.Condition{
				Status: metav1.ConditionFalse, Reason: "NoUplink", Message: err.Error(),
			}))
		}
		h.mu.Lock()
		h.link = h.up.Name
		h.mu.Unlock()
	}
	want, problems := planHost(h.config, own, all, h.up)
	if moved || h.applied == nil || !reflect.DeepEqual(want, *h.applied) {
		err = h.applyKernel(ctx, want)
	}
	err = errors.Join(err, h.filter(own, all, want.Tunnel))
	tunnel := want.Tunnel != nil && !errors.Is(err, host.ErrNoTunnel)
	h.forward(ctx, h.passage.look(want, h.up, moved))
	return errors.Join(err, h.report(ctx, own, &h.up, tunnel, routed(err, problems)))
}

// forward takes in whether the host lets pods' packets through, and logs what is new.
func (h *Network) forward(ctx context.Context, c *metav1.Condition) {
	before := h.forwarded
	h.forwarded = c
	if c == nil || before != nil && before.Message == c.Message || before == nil && c.Status == metav1.ConditionTrue {
		return
	}
	logr.FromContextOrDiscard(ctx).Info("what the host does with packets of pods", "forwarded", c.Status, "reason", c.Reason, "message", c.Message)
}

// applyKernel makes the kernel be as wanted.
func (h *Network) applyKernel(ctx context.Context, want host.State) error {
	changes, err := h.kernel.ApplyHost(ctx, want)
	if n := len(changes); n > 0 {
		logr.FromContextOrDiscard(ctx).Info("node's network changed", "changes", changes[:min(n, maxChanges)], "count", n)
	}
	h.applied = nil
	switch {
	case errors.Is(err, link.ErrNoBridge):
		h.set(0, err.Error())
		return err
	case err == nil:
		h.applied = &want
	}
	h.set(want.MTU, "")
	return err
}

// routed is the condition Routed.
func routed(err error, problems []string) metav1.Condition {
	switch {
	case err != nil:
		message := err.Error()
		if len(message) > maxMessage {
			message = strings.ToValidUTF8(message[:maxMessage], "") + "..."
		}
		return metav1.Condition{Status: metav1.ConditionFalse, Reason: "ApplyFailed", Message: message}
	case len(problems) > 0:
		return metav1.Condition{Status: metav1.ConditionFalse, Reason: "NotReachable", Message: run.Few(problems, maxProblems)}
	}
	return metav1.Condition{Status: metav1.ConditionTrue, Reason: "Routed", Message: "the bridge and every route are in place"}
}

// setOrRemove has a condition of a type be there as it is said, or not at all when
// nothing is said of it.
func setOrRemove(all *[]metav1.Condition, kind string, c *metav1.Condition) {
	if c == nil || c.Status == "" {
		meta.RemoveStatusCondition(all, kind)
		return
	}
	meta.SetStatusCondition(all, *c)
}

// report writes this node's NodeNetwork status when it has something else to
// say: every node watches it. Without an uplink the addresses stay as they were,
// lest every other node takes its routes away because of a link that flaps, and
// so does the tunnel.
func (h *Network) report(ctx context.Context, own *v1alpha1.NodeNetwork, up *host.Uplink, tunnel bool, c metav1.Condition) error {
	want := *own.Status.DeepCopy()
	want.BootID = h.bootID
	if up != nil {
		want.Uplink, want.MTU, want.Addresses = up.Name, int32(up.MTU), nil //nolint:gosec // an MTU is at most 65535
		for _, a := range up.Addresses {
			want.Addresses = append(want.Addresses, a.String())
		}
		setOrRemove(&want.Conditions, v1alpha1.ConditionConfirmed, confirmedCondition(own, up.Addresses))
		setOrRemove(&want.Conditions, v1alpha1.ConditionForwarded, h.forwarded)
		want.Tunnel = nil
		if tunnel {
			want.Tunnel = &v1alpha1.Tunnel{MAC: host.TunnelMAC(h.node).String()}
		}
	}
	c.Type = v1alpha1.ConditionRouted
	meta.SetStatusCondition(&want.Conditions, c)
	if a := h.announced.Load(); a != nil {
		setOrRemove(&want.Conditions, a.Type, a)
	}
	if equality.Semantic.DeepEqual(want, own.Status) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{
		"status": map[string]any{
			"uplink": want.Uplink, "addresses": want.Addresses, "mtu": want.MTU, "tunnel": want.Tunnel,
			"bootID": want.BootID, "conditions": want.Conditions,
		},
	})
	if err != nil {
		return fmt.Errorf("encode the status of NodeNetwork %s: %w", own.Name, err)
	}
	got, err := h.api.PatchNetwork(ctx, own.Name, patch)
	if err != nil {
		return fmt.Errorf("write the status of NodeNetwork %s: %w", own.Name, err)
	}
	h.written = got
	return nil
}

// Kernel is what the node's own network asks of the kernel.
type Kernel interface {
	Uplink(ctx context.Context, name string) (host.Uplink, error)
	ApplyHost(ctx context.Context, want host.State) (changes []string, err error)
	// WatchHost calls notify when something of ours changed, until ctx ends.
	WatchHost(ctx context.Context, notify func()) error
	// LinkState looks at one link; the error is link.ErrNoLink when it is not
	// there.
	LinkState(name string) (link.State, error)
}

// Changes is closed when the default network has come further.
func (h *Network) Changes() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.changed
}

// Lost says that the bridge or the uplink is gone or down, which was there.
func (h *Network) Lost() error {
	h.mu.Lock()
	links := []struct{ what, name string }{{"bridge", h.bridge}, {"uplink", h.link}}
	h.mu.Unlock()
	for _, l := range links {
		if l.name == "" {
			continue
		}
		state, err := h.kernel.LinkState(l.name)
		switch {
		case errors.Is(err, link.ErrNoLink):
			return fmt.Errorf("the default network has lost its %s %s", l.what, l.name)
		case err != nil:
			return err
		case !state.Up:
			return fmt.Errorf("the %s %s of the default network is down", l.what, l.name)
		}
	}
	return nil
}
