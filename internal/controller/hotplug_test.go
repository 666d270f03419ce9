package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/test/cluster"
	"fairlead.dev/fairlead/test/drivertest"
)

// networksOf attaches pods to every network but one with the name "none".
func networksOf(selected []pod.Selection) (out []pod.Interface, err error) {
	for _, s := range selected {
		if s.Name == "none" {
			return nil, fmt.Errorf("%w: there is no NetworkAttachmentDefinition %s", fault.ErrNotFound, s.Network())
		}
		out = append(out, pod.Interface{Name: s.Interface, Network: s.Network(), DefaultRoute: s.DefaultRoute, Binding: &v1alpha1.Binding{Macvlan: &v1alpha1.MacvlanBinding{Parent: "bond0", Mode: "bridge"}}})
	}
	return out, nil
}

// startFollowing starts a controller whose pods get further interfaces by their annotation.
func startFollowing(t *testing.T, with ...func(*Config, ctrl.Manager)) *harness {
	source := func(p *corev1.Pod) ([]pod.Interface, error) {
		selected, err := pod.Networks(p)
		if err != nil {
			return nil, err
		}
		return networksOf(selected)
	}
	return start(t, cluster.New(t), drivertest.NewMemory(driverName, 16), append(with, withSource(source), func(cfg *Config, _ ctrl.Manager) {
		cfg.Rules.Attaches = func(*corev1.Pod) bool { return true }
		cfg.Selected = func(_ *corev1.Pod, add []pod.Selection) ([]pod.Interface, error) { return networksOf(add) }
	})...)
}

// selects changes the networks that a pod selects.
func (h *harness) selects(p *corev1.Pod, networks string) {
	h.t.Helper()
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, pod.AnnotationNetworks, networks)
	if err := h.Client.Patch(h.t.Context(), p, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		h.t.Fatal(err)
	}
}

// applied plays the node: it has applied the present spec of a pod's record, without the
// interfaces that it should unplug.
func (h *harness) applied(p *corev1.Pod) {
	h.t.Helper()
	h.Eventually(h.t, "the node's status", func(ctx context.Context) error {
		record := &v1alpha1.PodAttachment{}
		if err := h.Client.Get(ctx, keyOf(p), record); err != nil {
			return err
		}
		s := &v1alpha1.Sandbox{ID: "c0ffee", BootID: "boot-1", State: v1alpha1.SandboxAttached, Generation: record.Generation}
		for _, i := range record.Spec.Interfaces {
			if !strings.Contains(" "+strings.Join(record.Spec.Unplug, " ")+" ", " "+i.Name+" ") {
				s.Links = append(s.Links, v1alpha1.SandboxLink{Name: i.Name})
			}
		}
		record.Status.Sandbox = s
		return h.Client.Status().Update(ctx, record)
	})
}

// waitInterfaces waits until a record has these interfaces, as "eth0 net1=lan -net1" with
// the names to unplug.
func (h *harness) waitInterfaces(p *corev1.Pod, want string) *v1alpha1.PodAttachment {
	h.t.Helper()
	record := &v1alpha1.PodAttachment{}
	h.Eventually(h.t, "the interfaces "+want, func(ctx context.Context) error {
		if err := h.Client.Get(ctx, keyOf(p), record); err != nil {
			return err
		}
		var got []string
		for _, i := range record.Spec.Interfaces {
			if i.Default {
				got = append(got, i.Name)
			} else {
				_, network, _ := strings.Cut(i.Network, "/")
				got = append(got, i.Name+"="+network)
			}
		}
		for _, name := range record.Spec.Unplug {
			got = append(got, "-"+name)
		}
		for _, name := range record.Spec.Plug {
			got = append(got, "+"+name)
		}
		if diff := cmp.Diff(want, strings.Join(got, " ")); diff != "" {
			return errors.New(diff)
		}
		return nil
	})
	return record
}

// The interfaces of a running pod are those of its annotation. An interface that goes is held until
// the node has confirmed that it is unplugged, and another of its name comes after that.
func TestHotPlug(t *testing.T) {
	h := startFollowing(t)
	p := h.Pod("web", h.node)
	h.record(p)
	h.applied(p)

	h.selects(p, "lan")
	record := h.waitInterfaces(p, "eth0 net1=lan")
	if got := record.Spec.Summary.Interfaces; got != "eth0,net1" {
		t.Errorf("the summary has the interfaces %s", got)
	}
	if n := h.heldBy(p); n != 2 {
		t.Errorf("%d interfaces are held", n)
	}
	h.applied(p)

	h.selects(p, "wan@net1")
	h.waitInterfaces(p, "eth0 net1=lan -net1")
	h.settle("while-the-node-works")
	if n := h.heldBy(p); n != 2 {
		t.Errorf("%d interfaces are held before the node has confirmed", n)
	}
	h.applied(p)
	h.waitInterfaces(p, "eth0 net1=wan")
	h.applied(p)

	h.selects(p, "wan,none")
	if note := h.event(p, "NetworkNotFound"); !strings.Contains(note, "the pod keeps the interfaces that it has") {
		t.Errorf("the event says %s", note)
	}
	h.waitInterfaces(p, "eth0 net1=wan +net2")
	h.selects(p, "wan,wan")
	h.waitInterfaces(p, "eth0 net1=wan net2=wan")
	h.applied(p)

	h.selects(p, "")
	h.waitInterfaces(p, "eth0 net1=wan net2=wan -net1 -net2")
	h.applied(p)
	h.waitInterfaces(p, "eth0")
	if n := h.heldBy(p); n != 1 {
		t.Errorf("%d interfaces are held at the end", n)
	}
}

// The default route of a running pod stays where it is: the kernel refuses a second one, and the
// pod's connections would break.
func TestHotPlugOfTheDefaultRoute(t *testing.T) {
	h := startFollowing(t)
	p := h.Pod("web", h.node)
	h.record(p)
	h.applied(p)
	h.selects(p, `[{"name": "lan", "default-route": ["10.9.0.1"]}]`)
	if note := h.event(p, "NetworkInvalid"); !strings.Contains(note, "net1 cannot have the default route of a running pod, which is on eth0") {
		t.Errorf("the event says %s", note)
	}
	h.waitInterfaces(p, "eth0 +net1")
	if n := h.heldBy(p); n != 1 {
		t.Errorf("%d interfaces are held", n)
	}
	for i := range 3 { // each is a try
		patch := fmt.Sprintf(`{"metadata":{"labels":{"try":"%d"}}}`, i)
		if err := h.Client.Patch(t.Context(), p, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
			t.Fatal(err)
		}
		h.settle(fmt.Sprint("try-", i))
	}
	var events eventsv1.EventList
	if err := h.Client.List(t.Context(), &events, client.InNamespace(h.Namespace)); err != nil {
		t.Fatal(err)
	}
	told := slices.DeleteFunc(events.Items, func(e eventsv1.Event) bool { return e.Regarding.Name != p.Name || e.Reason != "NetworkInvalid" })
	if len(told) != 1 || told[0].Series != nil {
		t.Errorf("a cause that lasts is told again: %+v", told)
	}
	h.selects(p, "lan")
	h.waitInterfaces(p, "eth0 net1=lan")
}

// A pod that was started before its node was switched to Fairlead keeps the interfaces that
// another program made, also when its annotation changes: Fairlead would make net1 a second
// time.
func TestHotPlugOfAPodOfAnotherProgram(t *testing.T) {
	var switched atomic.Bool
	source := func(p *corev1.Pod) ([]pod.Interface, error) {
		selected, err := pod.Networks(p)
		if err != nil || !switched.Load() { // the addresses of the networks are another program's
			return nil, err
		}
		return networksOf(selected)
	}
	h := start(t, cluster.New(t), drivertest.NewMemory(driverName, 16), withSource(source), func(cfg *Config, _ ctrl.Manager) {
		cfg.Rules.Attaches = func(*corev1.Pod) bool { return switched.Load() }
		cfg.Selected = func(_ *corev1.Pod, add []pod.Selection) ([]pod.Interface, error) { return networksOf(add) }
	})
	asks := func(p *corev1.Pod) { p.Annotations = map[string]string{pod.AnnotationNetworks: "lan"} }
	before := h.Pod("before", h.node, asks)
	h.record(before)
	h.applied(before)
	switched.Store(true)
	after := h.Pod("after", h.node, asks)
	if got := h.waitInterfaces(after, "eth0 net1=lan").Labels[v1alpha1.LabelAttachedBy]; got != v1alpha1.AttachedByFairlead {
		t.Errorf("the record of the pod that Fairlead attaches has the label %q", got)
	}
	h.applied(after)
	h.selects(before, "lan,wan")
	h.selects(after, "lan,wan")
	h.waitInterfaces(after, "eth0 net1=lan net2=wan")
	h.settle("after-the-switch")
	h.waitInterfaces(before, "eth0")
	if n := h.heldBy(before); n != 1 {
		t.Errorf("%d interfaces are held for the pod of the other program", n)
	}
}

// A pod that goes while its interfaces change leaves nothing.
func TestHotPlugOfAPodThatGoes(t *testing.T) {
	h := startFollowing(t)
	p := h.Pod("web", h.node)
	h.record(p)
	h.selects(p, "lan,wan")
	h.waitInterfaces(p, "eth0 net1=lan net2=wan")
	h.applied(p)
	h.selects(p, "lan")
	h.waitInterfaces(p, "eth0 net1=lan net2=wan -net2")
	h.delete(p)
	h.waitState(p, "deleting")
	h.setSandbox(p, v1alpha1.SandboxDetached)
	h.waitState(p, "absent")
	if n := h.heldBy(p); n != 0 {
		t.Errorf("%d interfaces are held", n)
	}
}

// An interface on an additional pool stays when the networks of a running pod change, and
// has neither a default route nor the addresses that the pod requests for its default
// interface.
func TestAdditionalPools(t *testing.T) {
	h := startFollowing(t, withSource(pod.FromAdditionalPools))
	p := h.Pod("web", h.node, func(p *corev1.Pod) {
		p.Annotations = map[string]string{
			pod.AnnotationNetworks: "lan", v1alpha1.AnnotationAdditionalPools: "storage", v1alpha1.AnnotationAddresses: "192.0.2.9",
		}
	})
	h.record(p)
	h.applied(p)
	h.selects(p, "")
	h.waitInterfaces(p, "eth0 net2= net1=lan -net1")
	h.applied(p)
	record := h.waitInterfaces(p, "eth0 net2=")
	h.selects(p, "wan")
	h.waitInterfaces(p, "eth0 net2= net1=wan")
	if i := record.Spec.Interfaces[1]; i.Network != v1alpha1.DefaultNetwork || len(i.Gateways) > 0 || slices.Equal(i.Addresses, record.Spec.Interfaces[0].Addresses) {
		t.Errorf("%+v", i)
	}
	if note := h.event(h.Pod("bad", h.node, func(p *corev1.Pod) {
		p.Annotations = map[string]string{pod.AnnotationAdditionalSubnets: "a/b"}
	}), "NetworkInvalid"); !strings.Contains(note, pod.AnnotationAdditionalSubnets) {
		t.Error(note)
	}
}

// Two pods that name the same pools ask for them in the same order.
func TestOrderOfPools(t *testing.T) {
	wanted := []pod.Interface{
		{Name: "eth0", Network: "default"},
		{Name: "net1", Network: "default", Pools: []string{"b"}},
		{Name: "net2", Network: "default", Pools: []string{"a"}},
		{Name: "net3", Network: "blue/lan"},
	}
	if diff := cmp.Diff([]int{3, 0, 2, 1}, byNetwork(wanted)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
