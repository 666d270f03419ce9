package ledger

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/test/nodetest"
)

func testLedger(t *testing.T) *Ledger {
	t.Helper()
	l := New(t.TempDir(), "boot-1", func(*Record) {})
	if _, err := l.Read(); err != nil {
		t.Fatal(err)
	}
	return l
}

func recordOf(pa *v1alpha1.PodAttachment, containerID string, s State) *Record {
	return &Record{
		Version: Version, ContainerID: containerID, BootID: "boot-1",
		Pod:        Pod{Namespace: pa.Namespace, Name: pa.Spec.PodName, UID: pa.Spec.PodUID},
		Attachment: Attachment{Name: pa.Name, UID: pa.UID},
		Adds:       []Add{{IfName: "eth0", State: s, Interfaces: []Interface{{Interface: pa.Spec.Interfaces[0]}}, AttachedAt: time.Unix(1, 0)}},
	}
}

func TestChangeOf(t *testing.T) {
	cases := []struct {
		name     string
		sandbox  *v1alpha1.Sandbox
		deleted  bool // the PodAttachment is being deleted
		records  map[string]State
		unknown  bool // there is a record of sandbox c9 that names no pod
		want     Change
		of       string
		declared bool
		identity string
	}{
		{name: "waits for its ADD", want: Keep},
		{name: "deleted before its ADD", deleted: true, want: SetDetached, declared: true},
		{name: "deleted during its ADD", deleted: true, records: map[string]State{"c1": Attaching}, want: Keep},
		{name: "plugged", records: map[string]State{"c1": Attached}, want: SetAttached, of: "c1"},
		{name: "plugged and deleted", deleted: true, records: map[string]State{"c1": Attached}, want: SetAttached, of: "c1"},
		{name: "its links are going", deleted: true, records: map[string]State{"c1": Deleting}, want: Keep},
		{name: "the next sandbox is plugged", records: map[string]State{"c1": Deleting, "c2": Attached}, want: SetAttached, of: "c2"},
		{name: "gone", deleted: true, sandbox: &v1alpha1.Sandbox{ID: "c1", State: v1alpha1.SandboxAttached, BootID: "boot-1"}, want: SetDetached, declared: true},
		{name: "gone, and its pod lives", sandbox: &v1alpha1.Sandbox{ID: "c1", State: v1alpha1.SandboxAttached, BootID: "boot-1"}, want: SetEnded},
		{
			name: "gone, and some sandbox's record is damaged, and its pod lives", unknown: true, want: Keep,
			sandbox: &v1alpha1.Sandbox{ID: "c1", State: v1alpha1.SandboxAttached, BootID: "boot-1"},
		},
		{
			name: "gone, the next one is being plugged", records: map[string]State{"c2": Attaching}, want: Keep,
			sandbox: &v1alpha1.Sandbox{ID: "c1", State: v1alpha1.SandboxAttached, BootID: "boot-1"},
		},
		{name: "of a former boot", deleted: true, sandbox: &v1alpha1.Sandbox{ID: "c1", State: v1alpha1.SandboxAttached, BootID: "boot-0"}, want: SetDetached, declared: true},
		{name: "declared already", deleted: true, sandbox: &v1alpha1.Sandbox{ID: "c1", State: v1alpha1.SandboxDetached}, want: Keep, declared: true},
		{name: "deleted, and some sandbox's record is damaged", deleted: true, unknown: true, want: Keep},
		{
			name: "gone, and some sandbox's record is damaged", deleted: true, unknown: true, want: Keep,
			sandbox: &v1alpha1.Sandbox{ID: "c1", State: v1alpha1.SandboxAttached, BootID: "boot-1"},
		},
		{
			name: "its own record is damaged", unknown: true, want: TellDamaged, of: "c9", identity: "p-u1",
			sandbox: &v1alpha1.Sandbox{ID: "c9", State: v1alpha1.SandboxAttached, BootID: "boot-1"},
		},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			l := testLedger(t)
			pa := nodetest.Attachment("p", "u1")
			pa.Status.Sandbox = tc.sandbox
			if tc.deleted {
				now := metav1.Now()
				pa.DeletionTimestamp = &now
			}
			for id, s := range tc.records {
				l.Adopt(recordOf(pa, id, s))
			}
			if tc.unknown {
				if err := l.AdoptDamaged("c9"); err != nil {
					t.Fatal(err)
				}
			}
			got, rec := l.ChangeOf(pa)
			of := ""
			if rec != nil {
				of = rec.ContainerID
			}
			if got != tc.want || of != tc.of {
				t.Errorf("change %v of %q, want %v of %q", got, of, tc.want, tc.of)
			}
			if declared := l.detached[pa.UID].declared; declared != tc.declared {
				t.Errorf("declared %v, want %v", declared, tc.declared)
			}
			if tc.identity != "" && l.Get("c9").Attachment.Name != tc.identity {
				t.Errorf("the record is that of %+v", l.Get("c9").Attachment)
			}
		})
	}
}

// claim claims the PodAttachment of a record for its ADD.
func claim(l *Ledger, r *Record) Claim {
	return l.Claim(r.With(func(r *Record) { r.Adds = nil }), r.Adds[0])
}

// A PodAttachment with a claim is not declared detached, and a PodAttachment that is
// declared detached cannot be claimed.
func TestClaim(t *testing.T) {
	deleted := nodetest.Attachment("p", "u1")
	now := metav1.Now()
	deleted.DeletionTimestamp = &now

	l := testLedger(t)
	if c := claim(l, recordOf(deleted, "c1", Attaching)); c.Declared || c.Before != nil {
		t.Errorf("claim %+v", c)
	}
	if v, _ := l.ChangeOf(deleted); v != Keep {
		t.Errorf("change %v over a claim", v)
	}

	l = testLedger(t)
	if v, _ := l.ChangeOf(deleted); v != SetDetached {
		t.Errorf("change %v", v)
	}
	if c := claim(l, recordOf(deleted, "c1", Attaching)); !c.Declared || l.Get("c1") != nil {
		t.Errorf("claim %+v after the change", c)
	}
}

func TestClaimOfWhatAnotherSandboxHolds(t *testing.T) {
	l := testLedger(t)
	pa := nodetest.Attachment("p", "u1")
	first := recordOf(pa, "c1", Attached)
	if err := l.Put(first); err != nil {
		t.Fatal(err)
	}
	got := claim(l, recordOf(pa, "c2", Attaching))
	if got.Before != first || l.Get("c2") != nil {
		t.Fatalf("claim %+v", got)
	}
	select {
	case <-got.Gone:
		t.Fatal("Gone is closed before the ADD is removed")
	default:
	}
	if err := l.Finish("c1", first.Adds...); err != nil {
		t.Fatal(err)
	}
	select {
	case <-got.Gone:
	default:
		t.Fatal("Gone is open after the ADD was removed")
	}
}

// The missing interfaces in a status follow from the same record as its change. A DEL that
// comes in between does not change them.
func TestMissingIsOfOneRecord(t *testing.T) {
	l, pa := testLedger(t), nodetest.Attachment("p", "u1")
	l.Adopt(recordOf(pa, "c1", Attached))
	_, rec := l.ChangeOf(pa)
	l.Adopt(recordOf(pa, "c1", Deleting))
	if missing := rec.Missing(pa); len(missing) > 0 {
		t.Errorf("missing are %+v", missing)
	}
}

func TestRecordsAreReadAsTheyWereWritten(t *testing.T) {
	f := files{dir: t.TempDir()}
	pa := nodetest.Attachment("p", "u1", "eth0", "net1")
	want := recordOf(pa, "c1", Attached)
	want.Netns, want.NetnsID.Inode = "/run/netns/x", 7
	add := &want.Adds[0]
	add.AttachedAt, add.Result, add.Interfaces = time.Unix(1, 2).UTC(), []byte(`{"cniVersion":"1.1.0"}`), nil
	for _, i := range pa.Spec.Interfaces {
		i.MTU = 1450
		add.Interfaces = append(add.Interfaces, Interface{Interface: i, Made: plug.Made{Kind: plug.KindBridge, ContainerID: "c1", Name: i.Name, HostLink: plug.HostName("c1", i.Name)}})
	}
	if err := errors.Join(f.prepare(want), f.publish("c1")); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(f.path("c1"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	got, bad, err := f.read()
	if err != nil || len(bad) != 0 || len(got) != 1 {
		t.Fatalf("read %+v, %+v, %v", got, bad, err)
	}
	if diff := cmp.Diff(want, got[0]); diff != "" {
		t.Error(diff)
	}
}
