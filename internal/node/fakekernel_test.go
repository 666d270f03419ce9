package node

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"fairlead.dev/fairlead/internal/netdev/kinds"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/netdev/plug/child"
	"fairlead.dev/fairlead/internal/netdev/plug/hostdevice"
	"fairlead.dev/fairlead/internal/netdev/plug/routed"
	"fairlead.dev/fairlead/internal/node/ledger"
	"fairlead.dev/fairlead/test/plugtest"
)

// fakeKernel is a kernel with namespaces and the veth pairs that lead into them: the
// namespaces of a daemon, and its routed kind.
type fakeKernel struct {
	plug.Kind // for Validate and Plan
	plugtest.Finder
	mu         sync.Mutex
	namespaces map[string]link.NamespaceID // by path
	links      map[string]fakeLink         // by host name
	next       uint64
	hook       hook
	// holding is Holding, see holds.
	holding func(context.Context, []netip.Addr) (string, error)
	// wrongPeer names a host end whose index differs from the peer index of its other
	// end.
	wrongPeer string
}

type fakeLink struct {
	containerID, ifName string
	ns                  link.NamespaceID
	plug                plug.Interface
	others              []plug.Route // of other tables
	host                link.State
	routes              []string // to it
}

func newFakeKernel() *fakeKernel {
	k := &fakeKernel{
		Kind: routed.New(nil, nil), namespaces: map[string]link.NamespaceID{}, links: map[string]fakeLink{}, next: 100,
	}
	k.Finder = k.found
	return k
}

// unmade is a kind that made no interface.
type unmade struct{ plug.Kind }

func (unmade) Remove(context.Context, plug.Made) error { return nil }

// named is a kind of interfaces in the namespaces of a fakeKernel.
type named struct {
	plug.Kind
	kernel *fakeKernel
}

func (n named) Gone(ctx context.Context, m plug.Made) (bool, error) { return n.kernel.Gone(ctx, m) }

// kinds returns the kinds of this build. fakeKernel makes the routed interfaces.
func (k *fakeKernel) kinds() *kinds.Table {
	return kinds.New(plugtest.Host(func(ctx context.Context) error { return k.step(ctx, "links", "") }), kinds.MemberOf, map[string]plug.Kind{
		plug.KindRouted: k, plug.KindBridge: unmade{plug.Bridge(nil)}, plug.KindAddressOnly: named{plug.AddressOnly(), k}, plug.KindOVS: unmade{plug.OVS(nil, "", nil)},
		plug.KindMacvlan: unmade{child.Macvlan(nil)}, plug.KindIPVLAN: unmade{child.IPVLAN(nil)}, plug.KindVLAN: unmade{child.VLAN(nil)},
		plug.KindHostDevice: unmade{hostdevice.New(nil)},
	})
}

// holds sets Holding.
func (k *fakeKernel) holds(f func(context.Context, []netip.Addr) (string, error)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.holding = f
}

func (k *fakeKernel) Holding(ctx context.Context, addrs []netip.Addr) (string, error) {
	k.mu.Lock()
	f := k.holding
	k.mu.Unlock()
	return f(ctx, addrs)
}

func (k *fakeKernel) step(ctx context.Context, step, what string) error {
	k.mu.Lock()
	h := k.hook
	k.mu.Unlock()
	if h == nil {
		return nil
	}
	return h(ctx, step, what)
}

func (k *fakeKernel) setHook(h hook) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.hook = h
}

// namespace makes a namespace at a path.
func (k *fakeKernel) namespace(path string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.next++
	k.namespaces[path] = link.NamespaceID{Device: 4, Inode: k.next}
}

// drop ends the namespace at a path and its links.
func (k *fakeKernel) drop(path string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	id := k.namespaces[path]
	delete(k.namespaces, path)
	maps.DeleteFunc(k.links, func(_ string, l fakeLink) bool { return l.ns == id })
}

// change changes the links without the daemon's knowledge.
func (k *fakeKernel) change(f func(links map[string]fakeLink)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f(k.links)
}

// reboot removes everything.
func (k *fakeKernel) reboot() {
	k.mu.Lock()
	defer k.mu.Unlock()
	clear(k.namespaces)
	clear(k.links)
}

// names lists "container/interface" of every link.
func (k *fakeKernel) names() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []string
	for _, l := range k.links {
		out = append(out, l.containerID+"/"+l.ifName)
	}
	slices.Sort(out)
	return out
}

func (k *fakeKernel) Open(path string) (*link.Namespace, error) {
	if err := k.step(context.Background(), "enter", path); err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	id, ok := k.namespaces[path]
	if !ok {
		return nil, fmt.Errorf("%q is %w: nothing is there (%w)", path, link.ErrNotNamespace, fs.ErrNotExist)
	}
	return link.Place{Path: path, ID: id}.Closed(), nil
}

func (k *fakeKernel) Remove(ctx context.Context, m plug.Made) error {
	return k.remove(ctx, m.HostLink)
}

func (k *fakeKernel) remove(ctx context.Context, hostLink string) error {
	if err := k.step(ctx, "detach", hostLink); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	k.mu.Lock()
	delete(k.links, hostLink)
	k.mu.Unlock()
	return k.step(ctx, "detached", hostLink)
}

func (k *fakeKernel) found() (out []plug.Found) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for name, l := range k.links {
		out = append(out, plug.Found{
			Made: plug.Made{Kind: plug.KindRouted, ContainerID: l.containerID, Name: l.ifName, HostLink: name, Routes: l.routes},
			Up:   l.host.Up && l.host.Master == "", Index: l.host.Index,
		})
	}
	return out
}

// Gone answers as the real kinds do: true if the namespace is gone and cannot merely be
// hidden, or if the link is gone.
func (k *fakeKernel) Gone(ctx context.Context, m plug.Made) (bool, error) {
	if err := k.step(ctx, "gone", m.HostLink); err != nil {
		return false, err
	}
	k.mu.Lock()
	_, linked := k.links[m.HostLink]
	id, there := k.namespaces[m.Namespace.Path]
	k.mu.Unlock()
	if m.HostLink != "" && !linked {
		return true, nil
	}
	if m.Namespace.Path == "" || there && id == m.Namespace.ID {
		return false, nil
	}
	_, err := os.Stat(filepath.Dir(m.Namespace.Path))
	return err == nil, nil
}

func (k *fakeKernel) Differences(_ context.Context, m plug.Made, inside plug.Inspected) ([]string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	l, ok := k.links[m.HostLink]
	switch {
	case !ok:
		return []string{fmt.Sprintf("host end %s of %s is missing", m.HostLink, m.Name)}, nil
	}
	var diffs []string
	if inside.Peer != l.host.Index || m.HostLink == k.wrongPeer {
		diffs = append(diffs, fmt.Sprintf("interface %s does not lead to its host end %s", m.Name, m.HostLink))
	}
	if !l.host.Up {
		diffs = append(diffs, fmt.Sprintf("host end %s of %s is down", m.HostLink, m.Name))
	}
	if l.host.Master != "" {
		diffs = append(diffs, fmt.Sprintf("host end %s of %s is a port of %q", m.HostLink, m.Name, l.host.Master))
	}
	for _, r := range m.Routes {
		if !slices.Contains(l.routes, r) {
			diffs = append(diffs, fmt.Sprintf("the host has no route to %s by host end %s of %s, or no neighbour", r, m.HostLink, m.Name))
		}
	}
	return diffs, nil
}

func (k *fakeKernel) Repair(_ context.Context, m plug.Made) (bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	l, ok := k.links[m.HostLink]
	if !ok || l.host.Up && l.host.Master == "" && slices.Equal(l.routes, m.Routes) {
		return false, nil
	}
	l.host.Up, l.host.Master, l.routes = true, "", m.Routes
	k.links[m.HostLink] = l
	return true, nil
}

func (k *fakeKernel) Announce(_ *link.Namespace, i plug.Interface) error {
	return k.step(context.Background(), "announce", i.Name)
}

func (k *fakeKernel) Make(ctx context.Context, ns *link.Namespace, p plug.Interface) error {
	if err := k.step(ctx, "attach", p.Name); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	name := plug.RoutedName(p.ContainerID, p.Name)
	k.mu.Lock()
	for _, l := range k.links {
		if l.ns == ns.ID() && l.ifName == p.Name {
			k.mu.Unlock()
			return fmt.Errorf("%s: %w", p.Name, link.ErrExists)
		}
	}
	k.next++
	k.links[name] = fakeLink{
		containerID: p.ContainerID, ifName: p.Name, ns: ns.ID(), plug: p,
		host: link.State{Index: int(k.next), Up: true}, routes: k.Plan(ns.Place(), p).Routes,
	}
	k.mu.Unlock()
	if err := k.step(ctx, "attached", p.Name); err != nil {
		k.mu.Lock()
		delete(k.links, name)
		k.mu.Unlock()
		return err
	}
	return nil
}

func (k *fakeKernel) Inspect(_ context.Context, ns *link.Namespace) (map[string]plug.Inspected, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := map[string]plug.Inspected{"lo": {MTU: 65536, Up: true}}
	for _, l := range k.links {
		if l.ns == ns.ID() {
			out[l.ifName] = plug.Inspected{
				MAC: l.plug.MAC.String(), MTU: l.plug.MTU, Up: true, Peer: l.host.Index,
				Addresses: l.plug.Addresses, Routes: ledger.RoutesOf(l.plug), OtherRoutes: l.others,
			}
		}
	}
	return out, nil
}
