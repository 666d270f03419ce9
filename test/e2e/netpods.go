package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/test/netlab"
)

// The annotations of the multi-network specification.
const (
	annotationNetworks = "k8s.v1.cni.cncf.io/networks"
	annotationStatus   = "k8s.v1.cni.cncf.io/network-status"
)

// selection is the value of a pod's annotation: the short form if it selects nothing but
// networks, otherwise the list.
func selection(on []selected) string {
	var names []string
	var elements []map[string]any
	short := true
	for _, s := range on {
		names = append(names, s.key())
		element := map[string]any{"name": s.name, "namespace": s.namespace}
		if s.own != "" && !s.brings {
			element["ips"], short = []string{s.own}, false
		}
		elements = append(elements, element)
	}
	if short {
		return strings.Join(names, ",")
	}
	raw, err := json.Marshal(elements)
	if err != nil {
		panic(err) // of strings
	}
	return string(raw)
}

// statusEntry is one interface in the annotation network-status.
type statusEntry struct {
	Name      string   `json:"name"`
	Interface string   `json:"interface"`
	IPs       []string `json:"ips"`
	MAC       string   `json:"mac"`
	MTU       int      `json:"mtu"`
	Default   bool     `json:"default"`
}

// checkNetworks checks the annotation network-status of each pod against the links in the
// pod, and that each pod reaches all others on each network. It returns the kinds of the
// interfaces.
func (w *testbed) checkNetworks(ctx context.Context, pods []*attachedPod) (map[string]bool, error) {
	kinds := map[string]bool{}
	peers := map[string]map[string]string{} // names of pods by wire and target
	for _, p := range pods {
		inside, err := w.inside(p)
		if err != nil {
			return nil, err
		}
		if err := w.statusIs(ctx, p, inside); err != nil {
			return nil, err
		}
		if err := w.kindsOf(ctx, p, kinds); err != nil {
			return nil, err
		}
		for i, s := range p.on {
			wire := s.wire()
			if peers[wire] == nil {
				peers[wire] = map[string]string{}
			}
			addresses := inside[i+1].IPs
			if s.brings {
				addresses = []string{strings.TrimSuffix(s.own, "/24")}
			}
			for _, address := range addresses {
				peers[wire][net.JoinHostPort(address, fmt.Sprint(port))] = p.Name
			}
		}
	}
	return kinds, w.allReachOnEach(ctx, pods, peers)
}

// wire is the name of the wire of a network.
func (o *network) wire() string {
	if o.name == "shared" || strings.HasPrefix(o.name, "device-") {
		return "devices"
	}
	if strings.HasPrefix(o.name, delegatedPrefix) {
		return "foreign"
	}
	return o.name
}

// allReachOnEach makes each pod send a request to all pods on each of its networks.
func (w *testbed) allReachOnEach(ctx context.Context, pods []*attachedPod, peers map[string]map[string]string) error {
	asked := 0
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	for _, p := range pods {
		want := map[string]string{}
		for _, s := range p.on {
			for target, name := range peers[s.wire()] {
				if name != p.Name {
					want[target] = name
				}
			}
		}
		if len(want) == 0 {
			continue
		}
		asked += len(want)
		targets := make([]string, 0, len(want))
		for target := range want {
			targets = append(targets, target)
		}
		g.Go(func() error {
			answers, err := w.reach(ctx, *p.Pod, targets)
			if err != nil {
				return err
			}
			if diff := cmp.Diff(want, answers); diff != "" {
				return fmt.Errorf("who answers pod %s on %s on its networks (-want +got):\n%s", p.Name, p.Spec.NodeName, diff)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if asked == 0 {
		return errors.New("no pod has a peer on a network")
	}
	w.Say("%d pods reach each other on each network: %d answers", len(pods), asked)
	return nil
}

// inside returns the interfaces that a pod has, by looking into it, in the order of its
// networks. A pod that brings an address gets it.
func (w *testbed) inside(p *attachedPod) ([]statusEntry, error) {
	ns, err := w.nodeOf(*p.Pod).sandboxOf(string(p.UID))
	if err != nil {
		return nil, fmt.Errorf("pod %s: %w", p.Name, err)
	}
	defer ns.Close()
	handle, err := ns.Netlink()
	if err != nil {
		return nil, err
	}
	defer handle.Close()
	out := []statusEntry{{Name: "fairlead", Interface: "eth0", Default: true}}
	for i, s := range p.on {
		out = append(out, statusEntry{Name: s.key(), Interface: fmt.Sprintf("net%d", i+1)})
	}
	for i := range out {
		o := &out[i]
		link, err := handle.LinkByName(o.Interface)
		if err != nil {
			return nil, fmt.Errorf("interface %s of pod %s: %w", o.Interface, p.Name, err)
		}
		o.MAC, o.MTU = link.Attrs().HardwareAddr.String(), link.Attrs().MTU
		if i > 0 && p.on[i-1].brings {
			if err := bring(handle, link, p.on[i-1].own); err != nil {
				return nil, fmt.Errorf("address of interface %s of pod %s: %w", o.Interface, p.Name, err)
			}
			continue
		}
		if o.IPs, err = addressesOf(handle, link); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// hasItsOwn waits until a pod has as many interfaces as it selects networks.
func (w *testbed) hasItsOwn(ctx context.Context, p *attachedPod) error {
	ns, err := w.nodeOf(*p.Pod).sandboxOf(string(p.UID))
	if err != nil {
		return fmt.Errorf("pod %s: %w", p.Name, err)
	}
	defer ns.Close()
	want := 2 + len(p.on) // lo and eth0
	return w.await(ctx, "the interfaces of pod "+p.Name, func(context.Context) (string, error) {
		state, err := ns.State()
		if len(state.Links) == want {
			return "", err
		}
		return fmt.Sprintf("it has %v, want %d", state.Links, want), err
	})
}

// bring gives a link an address.
func bring(handle *netlink.Handle, link netlink.Link, address string) error {
	prefix, err := netip.ParsePrefix(address)
	if err != nil {
		return err
	}
	return handle.AddrReplace(link, &netlink.Addr{IPNet: &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), 32)}})
}

// addressesOf returns the addresses of a link, IPv4 first, without the link-local ones.
func addressesOf(handle *netlink.Handle, link netlink.Link) ([]string, error) {
	var out []string
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		list, err := handle.AddrList(link, family)
		if err != nil {
			return nil, fmt.Errorf("addresses of %s: %w", link.Attrs().Name, err)
		}
		for _, a := range list {
			if !a.IP.IsLinkLocalUnicast() {
				out = append(out, a.IP.String())
			}
		}
	}
	return out, nil
}

// sandboxOf opens the network namespace of a pod's processes.
func (n *node) sandboxOf(uid string) (*netlab.Namespace, error) {
	var pids []int
	err := walkGroups(n.cgroup, func(dir string) error {
		if filepath.Base(dir) != "pod"+uid {
			return nil
		}
		group := dir[strings.Index(dir, n.cgroup):]
		more, err := groupProcesses(group)
		pids = append(pids, more...)
		return err
	})
	if err != nil {
		return nil, err
	}
	if len(pids) == 0 {
		return nil, fmt.Errorf("no process on %s", n.name)
	}
	return netlab.OpenNamespace(fmt.Sprintf("/proc/%d/ns/net", pids[0]))
}

// statusIs waits until the annotation network-status describes the links in the pod. A pod
// with the default interface alone has none.
func (w *testbed) statusIs(ctx context.Context, p *attachedPod, inside []statusEntry) error {
	want := inside
	if len(p.on) == 0 {
		want = nil
	}
	return w.await(ctx, "annotation network-status of pod "+p.Name, func(ctx context.Context) (string, error) {
		if err := w.Get(ctx, client.ObjectKeyFromObject(p.Pod), p.Pod); err != nil {
			return "", err
		}
		var got []statusEntry
		if text := p.Annotations[annotationStatus]; text != "" {
			if err := json.Unmarshal([]byte(text), &got); err != nil {
				return "", fmt.Errorf("annotation network-status of pod %s: %w", p.Name, err)
			}
		}
		return cmp.Diff(want, got), nil
	})
}

// kindsOf adds the kinds of a pod's interfaces to kinds: the members of binding that are
// set.
func (w *testbed) kindsOf(ctx context.Context, p *attachedPod, kinds map[string]bool) error {
	list := &v1alpha1.PodAttachmentList{}
	if err := w.List(ctx, list, client.InNamespace(p.Namespace)); err != nil {
		return err
	}
	i := slices.IndexFunc(list.Items, func(o v1alpha1.PodAttachment) bool { return o.Spec.PodUID == p.UID })
	if i < 0 {
		return fmt.Errorf("pod %s has no PodAttachment", p.Name)
	}
	if got := len(list.Items[i].Spec.Interfaces); got != 1+len(p.on) {
		return fmt.Errorf("PodAttachment %s has %d interfaces; want %d", list.Items[i].Name, got, 1+len(p.on))
	}
	for _, o := range list.Items[i].Spec.Interfaces {
		raw, err := json.Marshal(o.Binding)
		if err != nil {
			return err
		}
		members := map[string]json.RawMessage{}
		if err := json.Unmarshal(raw, &members); err != nil {
			return err
		}
		for kind := range members {
			kinds[kind] = true
		}
	}
	return nil
}
