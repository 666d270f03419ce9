package apiserver

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/node/ledger"
	"fairlead.dev/fairlead/test/nodetest"
)

// seen returns a PodAttachment with a resource version, as the API server returns it.
func seen(pod, uid, version string) *v1alpha1.PodAttachment {
	pa := nodetest.Attachment(pod, uid)
	pa.ResourceVersion = version
	return pa
}

func TestRegistryLookup(t *testing.T) {
	now := metav1.NewTime(time.Unix(1000, 0))
	older, newest, terminating := seen("p", "u1", "5"), seen("p", "u2", "6"), seen("p", "u3", "7")
	older.CreationTimestamp = now
	newest.CreationTimestamp = metav1.NewTime(now.Add(time.Second))
	terminating.CreationTimestamp = metav1.NewTime(now.Add(time.Minute))
	terminating.DeletionTimestamp = &now
	cases := []struct {
		name         string
		have         []*v1alpha1.PodAttachment
		pod          ledger.Pod
		found, stale string // names
	}{
		{name: "none", pod: ledger.Pod{Namespace: "ns", Name: "p", UID: "u1"}},
		{name: "by UID", have: []*v1alpha1.PodAttachment{older}, pod: ledger.Pod{Namespace: "ns", Name: "p", UID: "u1"}, found: "p-u1"},
		{name: "of the pod before", have: []*v1alpha1.PodAttachment{older}, pod: ledger.Pod{Namespace: "ns", Name: "p", UID: "u2"}, stale: "p-u1"},
		{
			name: "beside that of the pod before", have: []*v1alpha1.PodAttachment{older, newest},
			pod: ledger.Pod{Namespace: "ns", Name: "p", UID: "u2"}, found: "p-u2", stale: "p-u1",
		},
		{
			name: "without a UID the newest that stays", have: []*v1alpha1.PodAttachment{older, newest, terminating},
			pod: ledger.Pod{Namespace: "ns", Name: "p"}, found: "p-u2",
		},
		{name: "without a UID one that is being deleted", have: []*v1alpha1.PodAttachment{terminating}, pod: ledger.Pod{Namespace: "ns", Name: "p"}, found: "p-u3"},
		{name: "another namespace", have: []*v1alpha1.PodAttachment{older}, pod: ledger.Pod{Namespace: "other", Name: "p", UID: "u1"}},
		{name: "another pod", have: []*v1alpha1.PodAttachment{older}, pod: ledger.Pod{Namespace: "ns", Name: "p-u1", UID: "u1"}},
	}
	name := func(pa *v1alpha1.PodAttachment) string {
		if pa == nil {
			return ""
		}
		return pa.Name
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			r := NewRegistry(func(*v1alpha1.PodAttachment, bool) {})
			for _, pa := range tc.have {
				r.Update(pa)
			}
			found, stale := r.Lookup(tc.pod)
			if name(found) != tc.found || name(stale) != tc.stale {
				t.Errorf("found %q, stale %q; want %q, %q", name(found), name(stale), tc.found, tc.stale)
			}
		})
	}
}

func TestRegistryKeepsTheNewest(t *testing.T) {
	var changes []string
	r := NewRegistry(func(pa *v1alpha1.PodAttachment, gone bool) {
		if gone {
			changes = append(changes, "gone")
			return
		}
		changes = append(changes, pa.ResourceVersion)
	})
	key := types.NamespacedName{Namespace: "ns", Name: "p-u1"}
	version := func() string {
		if pa := r.Get(key); pa != nil {
			return pa.ResourceVersion
		}
		return ""
	}
	var got []string
	step := func(f func(*v1alpha1.PodAttachment), pa *v1alpha1.PodAttachment) {
		f(pa)
		got = append(got, version())
	}
	step(r.Written, seen("p", "u1", "3")) // the result of a write never adds an object
	step(r.Update, seen("p", "u1", "9"))
	step(r.Written, seen("p", "u1", "8"))  // late
	step(r.Written, seen("p", "u1", "11")) // the result of a write comes before the watch event
	step(r.Update, seen("p", "u1", "10"))  // the watch delivers the state before the write
	step(r.Update, seen("p", "u1", "11"))  // the watch delivers the write
	step(r.Update, seen("p", "u1", "4"))   // etcd was restored from a backup
	step(r.Written, seen("p", "u1", "6"))  // a write after that
	step(r.Update, seen("p", "u1", "6"))
	other := seen("p", "u1", "11")
	other.UID = "another"
	step(r.Written, other)
	step(r.Delete, other) // another object
	step(r.Delete, seen("p", "u1", "12"))
	step(r.Written, seen("p", "u1", "11")) // the result comes after the deletion
	if diff := cmp.Diff([]string{"", "9", "9", "11", "11", "11", "4", "6", "6", "6", "6", "", ""}, got); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"9", "4", "gone"}, changes); diff != "" {
		t.Error(diff)
	}
	if len(r.objects) != 0 || len(r.pods) != 0 || len(r.pending) != 0 {
		t.Errorf("left over: %v, %v, %v", r.objects, r.pods, r.pending)
	}
}

// A write of this daemon that the watch does not deliver is kept until the second Settle
// after it. The watch never delivers it if etcd was restored to the state before the write.
func TestRegistrySettles(t *testing.T) {
	var changes []string
	r := NewRegistry(func(pa *v1alpha1.PodAttachment, _ bool) { changes = append(changes, pa.ResourceVersion) })
	version := func() string { return r.Get(types.NamespacedName{Namespace: "ns", Name: "p-u1"}).ResourceVersion }
	r.Update(seen("p", "u1", "5"))
	r.Written(seen("p", "u1", "8"))
	r.Update(seen("p", "u1", "6")) // another client's write, before this daemon's
	r.Written(seen("p", "u1", "9"))
	var got []string
	for range 3 {
		r.DropOverdue()
		got = append(got, version())
	}
	r.Written(seen("p", "u1", "7"))
	r.Update(seen("p", "u1", "7"))
	r.DropOverdue()
	r.DropOverdue()
	got = append(got, version())
	if diff := cmp.Diff([]string{"9", "6", "6", "7"}, got); diff != "" {
		t.Errorf("states (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"5", "6"}, changes); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
	// A state older than the last watch event, while a write is pending.
	r.Written(seen("p", "u1", "10"))
	r.Update(seen("p", "u1", "3"))
	if got := version(); got != "3" || len(r.pending) != 0 {
		t.Errorf("at %s, with %v", got, r.pending)
	}
}

func TestRegistrySubscription(t *testing.T) {
	r := NewRegistry(func(*v1alpha1.PodAttachment, bool) {})
	pod := ledger.Pod{Namespace: "ns", Name: "p", UID: "u1"}
	changed, done := r.Subscribe(pod)
	count := func() (n int) {
		for {
			select {
			case <-changed:
				n++
			default:
				return n
			}
		}
	}
	r.Update(seen("q", "u9", "1"))
	if n := count(); n != 0 {
		t.Errorf("woken %d times for another pod", n)
	}
	r.Update(seen("p", "u1", "2"))
	r.Update(seen("p", "u2", "3"))
	r.Delete(seen("p", "u2", "4"))
	if n := count(); n != 1 {
		t.Errorf("woken %d times, want once for several unread changes", n)
	}
	done()
	r.Update(seen("p", "u1", "5"))
	if n := count(); n != 0 || len(r.waiting) != 0 {
		t.Errorf("woken %d times after the end; %d wait", n, len(r.waiting))
	}
}
