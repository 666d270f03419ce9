package node

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/pod"
)

// attaching is the configuration of a controller whose nodes make all interfaces.
const attaching = `multiVIFSources: [npwg]
networks: {attachedBy: Fairlead, open: [{namespaceSelector: {}, bridges: [br-blue], parents: [eth0]}]}`

// The networks of a running pod change: interfaces come and go, also another one of the same
// name (multus-dynamic-networks-controller#297), those of elements without names
// (multus-dynamic-networks-controller#63) and the same network once more, in a pod that had
// none (multus-dynamic-networks-controller#43). The network status always is that of the
// namespace (multus-dynamic-networks-controller#157, kubevirt#13721). An address is released
// when the node has confirmed that its interface is gone, and nothing is left on either side
// of the interface (kubevirt#14074).
func TestNetworksOfARunningPod(t *testing.T) {
	w := newSystem(t, attaching, "fairlead")
	w.pool(t, "default", func(s *v1alpha1.IPPoolSpec) {
		s.Ranges, s.Placement = []string{"10.244.0.0/16"}, v1alpha1.PlacementPerNode
	})
	for name, cidr := range map[string]string{"blue": "10.9.0.0/24", "green": "10.9.1.0/24"} {
		w.pool(t, name, func(s *v1alpha1.IPPoolSpec) {
			s.Ranges, s.NetworkNamespaceSelector = []string{cidr}, &metav1.LabelSelector{}
		})
	}
	w.network("blue", `{"cniVersion":"1.0.0","type":"bridge","bridge":"br-blue","ipam":{"type":"fairlead-ipam","pools":["blue"]}}`)
	w.network("green", `{"cniVersion":"1.0.0","type":"macvlan","master":"eth0","ipam":{"type":"fairlead-ipam","pools":["green"]}}`)
	n := w.nodes[0]
	for _, args := range [][]string{{"link", "add", "br-blue", "type", "bridge"}, {"link", "set", "br-blue", "up"}} {
		if out, err := n.command(exec.Command("ip", args...)); err != nil {
			t.Fatalf("ip %q: %v: %s", args, err, out)
		}
	}
	before := n.state(t).Links
	p := n.pod(t, "one")
	eth0 := delegate{ifName: "eth0"}
	w.add(t, n, p, eth0)

	w.selects(t, p, "blue")
	w.wantInterfaces(t, p, "net1=blue")
	blue := address(w.record(t, p)["net1"])
	w.check(t, n, p, eth0)

	n.kill(t)
	w.selects(t, p, "green@net1")
	w.wantUnplug(t, p, "net1")
	w.record(t, n.pod(t, "two")) // the controller goes on meanwhile
	w.wantHeld(t, blue, true)
	n.start(t)
	w.wantInterfaces(t, p, "net1=green")
	w.wantHeld(t, blue, false)

	w.selects(t, p, "green@net1,blue,blue")
	w.wantInterfaces(t, p, "net1=green", "net2=blue", "net3=blue")
	w.check(t, n, p, eth0)
	w.selects(t, p, "blue")
	w.wantInterfaces(t, p, "net2=blue")
	w.selects(t, p, "")
	w.wantInterfaces(t, p)
	w.check(t, n, p, eth0)

	w.selects(t, p, "green,blue")
	w.wantInterfaces(t, p, "net1=green", "net2=blue")
	w.del(t, n, p, eth0)
	w.deletePod(t, p)
	w.deletePod(t, &labPod{name: "two"})
	w.wantTaken(t)
	w.wantLinks(t, n, before)
	w.audit(t)
}

// selects changes the networks that a pod selects.
func (w *system) selects(t *testing.T, p *labPod, networks string) {
	t.Helper()
	o := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.cluster.Namespace, Name: p.name}}
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, pod.AnnotationNetworks, networks)
	if err := w.cluster.Client.Patch(t.Context(), o, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		t.Fatal(err)
	}
}

// attachmentOf reads the PodAttachment of a pod.
func (w *system) attachmentOf(ctx context.Context, p *labPod) (*v1alpha1.PodAttachment, error) {
	pa := &v1alpha1.PodAttachment{}
	return pa, w.cluster.Client.Get(ctx, types.NamespacedName{Namespace: w.cluster.Namespace, Name: p.attachmentName()}, pa)
}

// wantInterfaces waits until the record of a pod, its status, the pod's annotation and its
// namespace have these interfaces beside eth0, each as name=network.
func (w *system) wantInterfaces(t *testing.T, p *labPod, want ...string) {
	t.Helper()
	slices.Sort(want)
	w.cluster.Eventually(t, fmt.Sprintf("pod %s to have the interfaces %q", p.name, want), func(ctx context.Context) error {
		pa, err := w.attachmentOf(ctx, p)
		if err != nil {
			return err
		}
		var has, names []string
		for _, i := range pa.Spec.Interfaces {
			if _, network, further := strings.Cut(i.Network, "/"); further {
				has, names = append(has, i.Name+"="+network), append(names, i.Name)
			}
		}
		slices.Sort(has)
		slices.Sort(names)
		if !slices.Equal(has, want) || len(pa.Spec.Unplug)+len(pa.Spec.Plug) > 0 {
			return fmt.Errorf("the record has %q, plugs %q and unplugs %q", has, pa.Spec.Plug, pa.Spec.Unplug)
		}
		var links []string
		for _, l := range pa.Status.Sandbox.Links {
			if l.Name != "eth0" {
				links = append(links, l.Name)
			}
		}
		slices.Sort(links)
		if !slices.Equal(links, names) || pa.Status.Sandbox.Generation != pa.Generation {
			return fmt.Errorf("the status has %q, for generation %d of %d", links, pa.Status.Sandbox.Generation, pa.Generation)
		}
		return w.inAnnotation(ctx, p, names)
	})
	w.wantState(t, p, v1alpha1.SandboxAttached, p.containerID)
	s, err := p.netns.State()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range w.record(t, p) {
		if has := p.addressesOf(t, i.Name); !slices.Contains(has, address(i)) {
			t.Errorf("%s has %q in the namespace, and %q in the record", i.Name, has, i.Addresses)
		}
	}
	if got := len(s.Links); got != len(want)+2 { // lo and eth0
		t.Errorf("the namespace has %q", s.Links)
	}
}

// inAnnotation returns an error unless the network status of a pod has these interfaces
// beside eth0.
func (w *system) inAnnotation(ctx context.Context, p *labPod, names []string) error {
	var o corev1.Pod
	if err := w.cluster.Client.Get(ctx, types.NamespacedName{Namespace: w.cluster.Namespace, Name: p.name}, &o); err != nil {
		return err
	}
	var all []struct {
		Interface string `json:"interface"`
		Default   bool   `json:"default"`
	}
	if err := json.Unmarshal([]byte(o.Annotations[pod.AnnotationNetworkStatus]), &all); err != nil {
		return err
	}
	var has []string
	for _, s := range all {
		if !s.Default {
			has = append(has, s.Interface)
		}
	}
	slices.Sort(has)
	if !slices.Equal(has, names) {
		return fmt.Errorf("the annotation has %q", has)
	}
	return nil
}

// addressesOf returns the addresses of an interface in the namespace of a pod.
func (p *labPod) addressesOf(t *testing.T, name string) (out []string) {
	t.Helper()
	handle, err := p.netns.Netlink()
	if err != nil {
		t.Fatal(err)
	}
	defer handle.Close()
	link, err := handle.LinkByName(name)
	if err != nil {
		t.Fatalf("%s of pod %s: %v", name, p.name, err)
	}
	all, err := handle.AddrList(link, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		out = append(out, a.IP.String())
	}
	return out
}

// wantUnplug waits until a record names an interface that the node has to unplug.
func (w *system) wantUnplug(t *testing.T, p *labPod, name string) {
	t.Helper()
	w.cluster.Eventually(t, "the controller to have "+name+" unplugged", func(ctx context.Context) error {
		pa, err := w.attachmentOf(ctx, p)
		if err == nil && !slices.Equal(pa.Spec.Unplug, []string{name}) {
			err = fmt.Errorf("it names %q", pa.Spec.Unplug)
		}
		return err
	})
}

// wantHeld checks whether an address is held.
func (w *system) wantHeld(t *testing.T, address string, want bool) {
	t.Helper()
	taken, err := w.taken(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, held := taken[address]; held != want {
		t.Errorf("address %s is held: %v, want %v; all: %v", address, held, want, taken)
	}
}

// check sends CHECK, which must succeed.
func (w *system) check(t *testing.T, n *labNode, p *labPod, d delegate) {
	t.Helper()
	list, err := w.list(t, n, d)
	if err != nil {
		t.Fatal(err)
	}
	err = n.runtime(func(r *libcni.CNIConfig) error {
		return r.CheckNetworkList(t.Context(), list, p.runtimeConf(w.cluster.Namespace, d))
	})
	if err != nil {
		t.Errorf("CHECK of pod %s: %v", p.name, err)
	}
}
