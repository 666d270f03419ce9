package node

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/plug"
)

// wantAttached checks that a PodAttachment is Attached in a sandbox. It returns its condition
// Ready.
func (w *testNode) wantAttached(key types.NamespacedName, containerID string) (*v1alpha1.PodAttachment, *metav1.Condition) {
	w.t.Helper()
	pa := w.api.get(key)
	s := pa.Status.Sandbox
	if s == nil || s.State != v1alpha1.SandboxAttached || s.ID != containerID || !meta.IsStatusConditionTrue(pa.Status.Conditions, v1alpha1.ConditionAttached) {
		w.t.Errorf("not attached in %s: %+v, %+v", containerID, s, pa.Status.Conditions)
	}
	return pa, meta.FindStatusCondition(pa.Status.Conditions, v1alpha1.ConditionReady)
}

// wantReady checks that a PodAttachment is Attached in a sandbox, and that its condition
// Ready names exactly these interfaces as missing, or is true if there are none.
func (w *testNode) wantReady(key types.NamespacedName, containerID string, missing ...string) {
	w.t.Helper()
	pa, ready := w.wantAttached(key, containerID)
	switch {
	case ready == nil:
		w.t.Error("no condition Ready")
		return
	case len(missing) == 0:
		if ready.Status != metav1.ConditionTrue {
			w.t.Errorf("not ready: %+v", ready)
		}
		return
	case ready.Status != metav1.ConditionFalse || ready.Reason != v1alpha1.ReasonInterfacesMissing:
		w.t.Errorf("ready without %q: %+v", missing, ready)
	}
	for _, i := range pa.Spec.Interfaces {
		if named := strings.Contains(ready.Message, i.Name); named != slices.Contains(missing, i.Name) {
			w.t.Errorf("of %s, where %q are missing, the message is %q", i.Name, missing, ready.Message)
		}
	}
}

// mustIPAM sends an IPAM request for pod "web" that must succeed, and waits until all
// background work is done.
func (w *testNode) mustIPAM(verb, containerID, ifName string) {
	w.t.Helper()
	if _, err := w.ipam(verb, containerID, ifName, "web", "uid-1", macvlan); err != nil {
		w.t.Fatalf("%s of %s in %s: %v", verb, ifName, containerID, err)
	}
	settle()
}

// A pod is not ready before the plugins of its further networks have asked for their
// addresses, in any order, and not after a plugin has returned them. A restarted daemon
// knows it too.
func TestReadyMeansEveryInterface(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		key := w.pod("web", "uid-1")
		w.further(key, "net1", "net2")
		w.mustAdd("c1", "web", "uid-1")
		w.wantReady(key, "c1", "net1", "net2")
		w.mustIPAM("ADD", "c1", "net1")
		w.wantReady(key, "c1", "net2")
		w.restart()
		w.wantReady(key, "c1", "net2")
		w.mustIPAM("ADD", "c1", "net2")
		w.wantReady(key, "c1")
		w.wantWrites(key, "Attached/c1", "Attached/c1", "Attached/c1")
		w.restart()
		w.wantReady(key, "c1")
		w.wantWrites(key, "Attached/c1", "Attached/c1", "Attached/c1")
		w.mustIPAM("DEL", "c1", "net1")
		w.wantReady(key, "c1", "net1")
		w.mustIPAM("ADD", "c1", "net1")
		w.wantReady(key, "c1")
	})
}

// A pod is ready when its addresses were seen on it, not when they were requested.
func TestReadyRestsOnWhatWasSeen(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		key := w.pod("web", "uid-1")
		ready := func() metav1.Condition {
			return *meta.FindStatusCondition(w.api.get(key).Status.Conditions, v1alpha1.ConditionReady)
		}
		addresses := func(a []netip.Prefix) (before []netip.Prefix) {
			w.kernel.change(func(links map[string]fakeLink) {
				name := plug.RoutedName("c1", "eth0")
				l := links[name]
				before, l.plug.Addresses = l.plug.Addresses, a
				links[name] = l
			})
			return before
		}
		if _, err := w.add("c1", "web", "uid-1"); err != nil {
			w.t.Fatal(err)
		}
		had := addresses(nil) // another program removed it at once
		settle()
		if c := ready(); c.Status != metav1.ConditionFalse || c.Reason != v1alpha1.ReasonInterfacesMissing || !strings.Contains(c.Message, "10.244.1.5") {
			w.t.Errorf("%+v", c)
		}
		w.pass(2 * time.Minute)
		w.wantWrites(key, "Attached/c1")
		addresses(had)
		w.pass(2 * time.Minute)
		if c := ready(); c.Status != metav1.ConditionTrue {
			w.t.Errorf("%+v", c)
		}
		w.wantWrites(key, "Attached/c1", "Attached/c1")
	})
}

func TestReadyWhenTheAddressesCameFirst(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		key := w.pod("web", "uid-1")
		w.further(key, "net1")
		w.mustIPAM("ADD", "c1", "net1")
		w.wantReady(key, "c1", "eth0")
		w.mustAdd("c1", "web", "uid-1")
		w.wantReady(key, "c1")
	})
}

// The addresses of another sandbox do not count for this one.
func TestReadyIsOfOneSandbox(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		key := w.pod("web", "uid-1")
		w.further(key, "net1")
		w.mustIPAM("ADD", "c0", "net1")
		w.mustAdd("c1", "web", "uid-1")
		w.wantReady(key, "c1", "net1")
		w.mustIPAM("DEL", "c0", "net1")
		w.mustIPAM("ADD", "c1", "net1")
		w.wantReady(key, "c1")
		w.mustDel("c1")
		settle()
		w.wantReady(key, "c1", "eth0")
	})
}

// Two sandboxes have addresses of one pod: the status is that of the newer one, however
// often it is computed.
func TestReadyIsOfTheNewestSandbox(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		key := w.pod("web", "uid-1")
		w.further(key, "net1", "net2")
		w.mustIPAM("ADD", "c0", "net1")
		w.mustIPAM("ADD", "c0", "net2")
		w.wantReady(key, "c0", "eth0")
		w.mustIPAM("DEL", "c0", "net2")
		w.mustIPAM("ADD", "c1", "net2")
		before := w.api.written(key)
		for range 16 {
			w.api.change(key, func(pa *v1alpha1.PodAttachment) { pa.Labels = map[string]string{"looked": time.Now().String()} })
			settle()
		}
		w.wantReady(key, "c1", "eth0", "net1")
		w.wantWrites(key, before...)
	})
}

// The end of a pod under Multus does not cost a write for each of its interfaces.
func TestEndOfSeveralInterfacesIsOneWrite(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		t := w.t
		key := w.pod("web", "uid-1")
		w.further(key, "net1", "net2")
		w.mustAdd("c1", "web", "uid-1")
		w.mustIPAM("ADD", "c1", "net1")
		w.mustIPAM("ADD", "c1", "net2")
		before := w.api.written(key)
		for _, ifName := range []string{"net2", "net1"} {
			if _, err := w.ipam("DEL", "c1", ifName, "", "", macvlan); err != nil {
				t.Fatal(err)
			}
		}
		w.mustDel("c1")
		settle()
		w.deleteAttachment(key)
		settle()
		w.wantWrites(key, append(before, "Detached/c1")...)
	})
}

// Another plugin that makes the default interface may ask for it under any name.
func TestReadyWithTheDefaultInterfaceOfAnotherPlugin(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		key := w.pod("web", "uid-1")
		w.further(key, "net1")
		w.api.change(key, func(pa *v1alpha1.PodAttachment) {
			pa.Spec.Interfaces[0].Binding = v1alpha1.Binding{AddressOnly: &v1alpha1.AddressOnlyBinding{}}
		})
		settle()
		w.mustIPAM("ADD", "c1", "net1")
		w.wantReady(key, "c1", "eth0")
		w.mustIPAM("ADD", "c1", "lan7")
		w.wantReady(key, "c1")
	})
}

// The status knows more than a damaged record, and stays. A daemon of an earlier version
// reported every plugged pod as ready.
func TestReadyAfterDamageAndUpdate(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		key := w.pod("web", "uid-1")
		w.further(key, "net1")
		w.mustAdd("c1", "web", "uid-1")
		w.api.change(key, func(pa *v1alpha1.PodAttachment) {
			meta.SetStatusCondition(&pa.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Plugged"})
		})
		settle()
		w.wantReady(key, "c1", "net1")
		w.mustIPAM("ADD", "c1", "net1")
		w.stop()
		w.damageRecord()
		w.restart()
		w.wantReady(key, "c1")
	})
}

// The ledger contains of a migrated sandbox only the interfaces that were plugged again:
// the migration's report about all interfaces stays. A sandbox that is made anew is
// judged like any other.
func TestReadyOfAMigratedSandbox(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		key := w.pod("web", "uid-1")
		w.further(key, "net1", "net2")
		w.api.change(key, func(pa *v1alpha1.PodAttachment) {
			pa.Labels = map[string]string{v1alpha1.LabelMigratedFrom: "whereabouts"}
			pa.Spec.Interfaces = pa.Spec.Interfaces[1:]
			pa.Status.Sandbox = &v1alpha1.Sandbox{ID: "c1", BootID: w.bootID, State: v1alpha1.SandboxAttached}
			for _, c := range []string{v1alpha1.ConditionAttached, v1alpha1.ConditionReady} {
				meta.SetStatusCondition(&pa.Status.Conditions, metav1.Condition{Type: c, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonImported})
			}
		})
		settle()
		w.mustIPAM("DEL", "c1", "net2")
		w.mustIPAM("ADD", "c1", "net2")
		w.restart()
		w.wantReady(key, "c1")
		w.wantWrites(key)
		w.mustIPAM("DEL", "c1", "net2")
		w.mustIPAM("ADD", "c2", "net1")
		w.wantReady(key, "c2", "net2")
		w.mustIPAM("ADD", "c2", "net2")
		w.wantReady(key, "c2")
	})
}
