package hostnet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
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
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/netdev/host"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/node/direct"
	"fairlead.dev/fairlead/internal/run"
)

const (
	// Pace is the shortest pause between two rounds of the loop. If a hundred pods a
	// second are plugged, one round covers the links of five.
	Pace = 50 * time.Millisecond
	// hostShare limits rounds to one part in hostShare of the time. It counts if there
	// are so many nodes that a round is long.
	hostShare = 10
	// PaceLast is the longest pause between two rounds, whatever hostShare demands.
	PaceLast = 2 * time.Second
	// maxProblems is the number of problems that a condition lists, and maxChanges the
	// number of changes that a log line lists.
	maxProblems = 8
	maxChanges  = 32
	// maxMessage is the longest message of a condition, in bytes. The API server
	// accepts 32768.
	maxMessage = 4096
)

// Network maintains the default network of this node: the tunnel, and the routes to the
// blocks of every node. All of it is applied when a NodeNetwork changes,
// and when a part of it changes in the kernel.
type Network struct {
	kernel Kernel
	api    API
	// networks lists every NodeNetwork, from memory.
	networks func(ctx context.Context) ([]v1alpha1.NodeNetwork, error)
	// filter updates the packet filter from the NodeNetworks.
	filter func(own *v1alpha1.NodeNetwork, all []v1alpha1.NodeNetwork, t *host.Tunnel, at []netip.Addr)

	node string
	config
	uplink string // name, or empty
	bootID string

	// direct checks whether the network drops packets of pods to other nodes.
	direct *direct.Detector

	// pods is called when the kernel may have removed routes to pods.
	pods func()

	synced    atomic.Bool // the NodeNetworks have been read
	moved     atomic.Bool // the kernel may have changed since the last round
	addresses atomic.Bool // those of the uplink may have
	// policy is the condition ForwardPolicy, policyKnown whether it is still true.
	policy      *metav1.Condition
	policyKnown atomic.Bool
	// announced is the condition Announced. It is nil before SetAnnounced, and has no
	// status if the condition is to be removed.
	announced atomic.Pointer[metav1.Condition]
	kicked    chan struct{}
	up        host.Uplink           // as the kernel last returned it
	applied   *host.State           // the state of the kernel; nil if not known
	planned   host.State            // the last state that was wanted with an uplink
	sources   *[]netip.Addr         // of routes to pods, when they were last repaired; nil before the first round
	written   *v1alpha1.NodeNetwork // this node's, as the last write returned it

	mu      sync.Mutex
	mtu     int           // of pods; 0 until the network has been made
	link    string        // name of the uplink when it was last found
	reason  string        // why the network is not ready
	network string        // NodeNetworkSpec.DefaultNetwork
	own     []netip.Addr  // ownAddresses
	changed chan struct{} // closed by set, then replaced
}

// Config has the settings and dependencies of a Network.
type Config struct {
	NodeName, BootID string
	// Uplink is the name of the link to the other nodes. If it is empty, the kernel finds it
	// (see host.Kernel.Uplink).
	Uplink        string
	Encapsulation Encapsulation
	// VNI and VXLANPort are the network identifier and the UDP port of the tunnel.
	VNI, VXLANPort int
	Kernel         Kernel
	Prober         direct.Prober
	API            API
	// Networks lists every NodeNetwork, from memory.
	Networks func(ctx context.Context) ([]v1alpha1.NodeNetwork, error)
}

// API has the calls to the API server.
type API interface {
	// PatchNetwork applies a merge patch to the status of a NodeNetwork and returns the
	// result.
	PatchNetwork(ctx context.Context, name string, patch []byte) (*v1alpha1.NodeNetwork, error)
}

// New returns the network of a node. Run maintains it.
func New(c Config) *Network {
	h := &Network{
		kernel: c.Kernel, api: c.API, networks: c.Networks,
		node: c.NodeName, uplink: c.Uplink, bootID: c.BootID,
		config:  config{encapsulation: c.Encapsulation, vni: c.VNI, port: c.VXLANPort},
		kicked:  make(chan struct{}, 1),
		reason:  "the NodeNetworks have not been read from the API server yet",
		changed: make(chan struct{}),
	}
	h.direct = direct.New(c.NodeName, c.Prober, c.Encapsulation == EncapsulationAuto, h.Kick)
	return h
}

// Dropped returns the value of NodeNetworkStatus.Dropped: the nodes to which the network
// drops packets of pods that are not encapsulated.
func (h *Network) Dropped() []string { return h.direct.Dropped() }

// DefaultNetwork returns NodeNetworkSpec.DefaultNetwork of this node, empty before it is known.
func (h *Network) DefaultNetwork() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.network
}

// Own returns the addresses at which the pods of this node have host ports, nil before they are known.
func (h *Network) Own() []netip.Addr {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.own
}

// NetworksChanged starts a round. It is called when the NodeNetworks have been read, and
// after each change of one.
func (h *Network) NetworksChanged() {
	h.synced.Store(true)
	h.Kick()
}

// KernelChanged starts a round that also reads the state of the kernel. It is called
// when the kernel notifies of a change, and every minute for the changes it does not
// notify of, such as those of most settings.
func (h *Network) KernelChanged() {
	h.moved.Store(true)
	h.Kick()
}

// kernelNotified is KernelChanged, after an event of the kernel.
func (h *Network) kernelNotified(addresses bool) {
	if addresses {
		h.addresses.Store(true)
	}
	h.KernelChanged()
}

// OnReaddressed sets a function that is called when the addresses of the uplink may have changed, after
// the routes of the node are in place: the kernel removes routes to pods whose source goes. It must be
// called before Run.
func (h *Network) OnReaddressed(f func()) { h.pods = f }

// SetFilter sets the function that updates the packet filter from the NodeNetworks. It
// gets this node's NodeNetwork, all NodeNetworks, the tunnel, nil if there is none, and the
// addresses at which there are host ports. It must be called before Run.
func (h *Network) SetFilter(f func(own *v1alpha1.NodeNetwork, all []v1alpha1.NodeNetwork, t *host.Tunnel, at []netip.Addr)) {
	h.filter = f
}

// Announcement returns the condition that SetAnnounced set last, nil if there is none.
func (h *Network) Announcement() *metav1.Condition { return h.announced.Load() }

// SetAnnounced sets the condition Announced of the NodeNetwork: whether the runtime has a
// configuration for the default network. A condition without a status removes it.
func (h *Network) SetAnnounced(c metav1.Condition) {
	c.Type = v1alpha1.ConditionAnnounced
	if before := h.announced.Swap(&c); before == nil || *before != c {
		h.Kick()
	}
}

// Kick starts a round. It has no effect until the NodeNetworks have been read: until then
// the host's network stays as it is.
func (h *Network) Kick() {
	select {
	case h.kicked <- struct{}{}:
	default:
	}
}

// Ready returns nil if pods can be plugged into the default network; errors:
// fault.ErrNotReady, with the reason.
func (h *Network) Ready() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.mtu == 0 {
		return fault.Errorf(fault.ErrNotReady, "the default network is not there yet: %s", h.reason)
	}
	return nil
}

// Await waits for the default network and returns the MTU of its pods in
// bytes; errors: fault.ErrNotReady, with the reason, if the deadline of ctx passed first,
// and the cause of ctx if it was cancelled.
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

// set stores the MTU and the reason why the network is not ready. A network that was
// ready stays so: what is removed from it is put back.
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

// Run maintains the node's network until ctx ends. It leaves tunnel and routes on
// the host, so that pods communicate while the daemon is away.
func (h *Network) Run(ctx context.Context) error {
	var g errgroup.Group
	g.Go(func() error { return h.watch(ctx) })
	g.Go(func() error { return h.loop(ctx) })
	g.Go(func() error { return h.direct.Run(ctx) })
	return g.Wait()
}

// watch starts a round when the kernel notifies of a change.
func (h *Network) watch(ctx context.Context) error {
	run.KeepWatching(ctx, "watch of the kernel", func(ctx context.Context) error { return h.kernel.WatchHost(ctx, h.kernelNotified) })
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
		if !h.synced.Load() {
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

// apply is one round: it brings the kernel into the state that the NodeNetworks demand,
// and writes the outcome into the status of this node's NodeNetwork.
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
			return errors.Join(err, h.standIn(ctx), h.report(ctx, own, nil, false, metav1.Condition{
				Status: metav1.ConditionFalse, Reason: "NoUplink", Message: err.Error(),
			}))
		}
		h.mu.Lock()
		h.link = h.up.Name
		h.mu.Unlock()
	}
	h.direct.Restore(own.Status.Dropped)
	h.direct.SetLinks(directLinks(h.encapsulation, own, all, h.up))
	h.dropped = h.direct.Dropped()
	want, problems := planHost(h.config, own, all, h.up)
	h.planned = want
	if moved || h.applied == nil || !reflect.DeepEqual(want, *h.applied) {
		err = h.applyKernel(ctx, want, h.podMTU(h.up))
	}
	h.readdress(want.Sources, err)
	at := ownAddresses(own, h.up)
	h.mu.Lock()
	h.network, h.own = own.Spec.DefaultNetwork, at
	h.mu.Unlock()
	made := want.Tunnel
	if errors.Is(err, host.ErrNoTunnel) {
		made = nil // its port may be another program's
	}
	h.filter(own, all, made, at)
	return errors.Join(err, h.report(ctx, own, &h.up, made != nil, routed(err, problems)))
}

// standIn keeps the node's pods reached while there is no uplink: the kernel removes the routes to pods
// whose source goes with it.
func (h *Network) standIn(ctx context.Context) error {
	if len(h.planned.Local) == 0 {
		return nil // nothing was made yet
	}
	want := h.planned
	want.Sources = nil
	_, err := h.kernel.ApplyHost(ctx, want)
	h.readdress(nil, nil)
	return err
}

// readdress calls the function of OnReaddressed if the sources of routes to pods are others, or if the kernel
// may have removed such routes. After an error it is called again in the next round.
func (h *Network) readdress(sources []netip.Addr, err error) {
	same := h.sources == nil || slices.Equal(*h.sources, sources)
	h.sources = &sources
	if (h.addresses.Swap(err != nil && h.addresses.Load()) || !same) && h.pods != nil {
		h.pods()
	}
}

// applyKernel brings the kernel into the wanted state.
func (h *Network) applyKernel(ctx context.Context, want host.State, mtu int) error {
	if mtu < link.MinMTUv6 {
		err := link.Invalid(fmt.Sprintf("mtu %d of pods", mtu), fmt.Errorf("must be at least %d bytes, and the mtu of uplink %s is %d", link.MinMTUv6, h.up.Name, h.up.MTU))
		h.applied = nil
		h.set(0, err.Error())
		return err
	}
	changes, err := h.kernel.ApplyHost(ctx, want)
	if n := len(changes); n > 0 {
		logr.FromContextOrDiscard(ctx).Info("node's network changed", "changes", changes[:min(n, maxChanges)], "count", n)
	}
	h.applied = nil
	switch {
	case errors.Is(err, link.ErrInvalid):
		h.set(0, err.Error())
		return err
	case err == nil:
		h.applied = &want
	}
	h.set(mtu, "")
	return err
}

// routed returns the condition Routed, without its type.
func routed(err error, problems []string) metav1.Condition {
	switch {
	case err != nil:
		return metav1.Condition{Status: metav1.ConditionFalse, Reason: "ApplyFailed", Message: run.ClipTo(err.Error(), maxMessage)}
	case len(problems) > 0:
		return metav1.Condition{Status: metav1.ConditionFalse, Reason: "NotReachable", Message: run.Few(problems, maxProblems)}
	}
	return metav1.Condition{Status: metav1.ConditionTrue, Reason: "Routed", Message: "every route is in place"}
}

// setOrRemove sets a condition, or removes it if c is nil or has no status. kind is its
// type.
func setOrRemove(all *[]metav1.Condition, kind string, c *metav1.Condition) {
	if c == nil || c.Status == "" {
		meta.RemoveStatusCondition(all, kind)
		return
	}
	meta.SetStatusCondition(all, *c)
}

// report writes the status of this node's NodeNetwork, only if it has changed, because
// every node watches it. Without an uplink (up is nil) addresses and tunnel stay as they
// were: otherwise a flapping link would make every other node remove its routes.
func (h *Network) report(ctx context.Context, own *v1alpha1.NodeNetwork, up *host.Uplink, tunnel bool, c metav1.Condition) error {
	want := *own.Status.DeepCopy()
	want.BootID = h.bootID
	if up != nil {
		want.Uplink, want.MTU, want.Addresses = up.Name, int32(up.MTU), nil //nolint:gosec // an MTU is at most 65535
		for _, a := range up.Addresses {
			want.Addresses = append(want.Addresses, a.String())
		}
		setOrRemove(&want.Conditions, v1alpha1.ConditionConfirmed, confirmedCondition(own, up.Addresses))
		setOrRemove(&want.Conditions, v1alpha1.ConditionForwardPolicy, h.forwardPolicy())
		if c, known := h.direct.Condition(); known {
			setOrRemove(&want.Conditions, v1alpha1.ConditionDirect, c)
		}
		want.Dropped = h.dropped
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
			"bootID": want.BootID, "dropped": want.Dropped, "conditions": want.Conditions,
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

// Kernel has the calls to the kernel for the node's own network.
type Kernel interface {
	// Uplink returns the named link, or finds the uplink if name is empty (see
	// host.Kernel.Uplink); errors: host.ErrNoUplink.
	Uplink(ctx context.Context, name string) (host.Uplink, error)
	// ApplyHost brings the kernel into the wanted state and returns the changes it made.
	ApplyHost(ctx context.Context, want host.State) (changes []string, err error)
	// WatchHost calls notify once it listens, and then when the uplink, the tunnel or their
	// routes change; addresses is true if those of the uplink may have. It returns nil when
	// ctx ends.
	WatchHost(ctx context.Context, notify func(addresses bool)) error
	// LinkState returns the state of a link; errors: link.ErrNoLink if there is no such
	// link.
	LinkState(name string) (link.State, error)
	// DropPolicies names the forward chains that drop a packet unless a rule accepts it.
	DropPolicies() ([]string, error)
}

// Changes returns a channel that is closed when the result of Ready may have changed.
func (h *Network) Changes() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.changed
}

// Lost returns an error if the uplink is gone or down. An uplink that was never found is not lost.
func (h *Network) Lost() error {
	h.mu.Lock()
	name := h.link
	h.mu.Unlock()
	if name == "" {
		return nil
	}
	state, err := h.kernel.LinkState(name)
	switch {
	case errors.Is(err, link.ErrNoLink):
		return fmt.Errorf("the default network has lost its uplink %s", name)
	case err != nil:
		return err
	case !state.Up:
		return fmt.Errorf("the uplink %s of the default network is down", name)
	}
	return nil
}
