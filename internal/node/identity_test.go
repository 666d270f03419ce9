package node

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/node/apiserver"
	"fairlead.dev/fairlead/internal/node/ledger"
	"fairlead.dev/fairlead/test/nodetest"
)

// own review 1: any user can cause a PodAttachment that names another pod's UID. It is
// never used for that other pod, with or without a PodAttachment of its own.
func TestBorrowedUIDIsNotFound(t *testing.T) {
	r := apiserver.NewRegistry(func(*v1alpha1.PodAttachment, bool) {})
	add := func(namespace, name, uid, version string, change func(*v1alpha1.PodAttachment)) {
		pa := nodetest.Attachment(name, uid)
		pa.Namespace, pa.UID, pa.ResourceVersion = namespace, types.UID(namespace+name+version), version
		pa.Name += version
		if change != nil {
			change(pa)
		}
		r.Update(pa)
	}
	victim := ledger.Pod{Namespace: "ns", Name: "db-0", UID: "u1"}
	add("evil", "db-0", "u1", "1", nil)
	add("ns", "x", "u1", "2", nil)
	// This PodAttachment was written by the collector in the victim's namespace, for a
	// pod of another namespace.
	add("ns", "db-0", "u1", "3", func(pa *v1alpha1.PodAttachment) { pa.Spec.PodNamespace = "evil" })
	for _, uid := range []types.UID{"u1", ""} {
		victim.UID = uid
		if found, stale := r.Lookup(victim); found != nil || stale != nil {
			t.Errorf("UID %q: found %v, stale %v, want neither", uid, found, stale)
		}
	}
	add("ns", "db-0", "u1", "4", nil)
	victim.UID = "u1"
	if found, _ := r.Lookup(victim); found == nil || found.ResourceVersion != "4" {
		t.Errorf("found %v, want the victim's own", found)
	}
	// A mirror has two UIDs: CNI passes the one in the annotation.
	add("ns", "static", "manifest", "5", func(pa *v1alpha1.PodAttachment) { pa.Spec.APIUID = "mirror" })
	if found, _ := r.Lookup(ledger.Pod{Namespace: "ns", Name: "static", UID: "manifest"}); found == nil {
		t.Error("the record of a static pod is not found by the UID in its manifest")
	}
	if found, _ := r.Lookup(ledger.Pod{Namespace: "ns", Name: "static", UID: "mirror"}); found != nil {
		t.Error("the record of a static pod is found by its mirror's UID")
	}
}

// own review 1: an attacker's PodAttachment names a victim's UID. Its changes affect
// neither the victim's sandbox nor the victim's status.
func TestBorrowedUIDDisturbsNobody(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		key := w.pod("db-0", "u1")
		w.mustAdd("c1", "db-0", "u1")
		evil := nodetest.Attachment("x", "u1")
		evil.Namespace, evil.Name, evil.UID, evil.Spec.APIUID = "evil", "x-u9", "pa-evil", "u9"
		evil.Spec.Interfaces[0].Addresses = []string{"10.244.1.99/32"}
		borrowed := apiserver.KeyOf(w.api.put(evil))
		settle()
		w.deleteAttachment(borrowed)
		settle()
		w.wantWrites(borrowed, "Detached/")
		w.api.remove(borrowed)
		settle()
		w.wantWrites(key, "Attached/c1")
		w.wantLinks("c1/eth0")
		w.wantRecords("c1")
		if _, err := w.add("c2", "x", "u1"); err == nil {
			w.t.Error("a pod of another name is plugged by the victim's UID")
		}
	})
}

// A static pod's mirror is deleted by hand, and the kubelet makes it again while the
// sandbox lives. The addresses of the first mirror are returned when the sandbox is gone.
// The next sandbox gets those of the second.
func TestMirrorIsMadeAgain(t *testing.T) {
	onTestNode(t, func(w *testNode) {
		mirror := func(own, address string) types.NamespacedName {
			pa := nodetest.Attachment("static", own)
			pa.Spec.PodUID, pa.Spec.APIUID, pa.Spec.Interfaces[0].Addresses = "manifest", types.UID(own), []string{address}
			return apiserver.KeyOf(w.api.put(pa))
		}
		w.api.putPod("static", "manifest")
		first := mirror("m1", "10.244.1.5/32")
		w.mustAdd("c1", "static", "manifest")
		w.deleteAttachment(first)
		second := mirror("m2", "10.244.1.6/32")
		settle()
		w.wantWrites(first, "Attached/c1")
		w.wantWrites(second)
		w.mustDel("c1")
		settle()
		w.wantWrites(first, "Attached/c1", "Detached/c1")
		w.mustAdd("c2", "static", "manifest")
		w.wantWrites(second, "Attached/c2")
		w.api.remove(first)
		settle()
		w.wantLinks("c2/eth0")
	})
}
