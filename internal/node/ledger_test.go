package node

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
)

func testLedger(t *testing.T) *ledger {
	t.Helper()
	l := newLedger(t.TempDir(), "boot-1", func(*record) {})
	if _, _, err := l.files.read(); err != nil {
		t.Fatal(err)
	}
	return l
}

func recordOf(pa *v1alpha1.PodAttachment, containerID string, s state) *record {
	return &record{
		Version: recordVersion, ContainerID: containerID, BootID: "boot-1", State: s,
		Pod:        podRef{Namespace: pa.Namespace, Name: pa.Spec.PodName, UID: pa.Spec.PodUID},
		Attachment: attachmentRef{Name: pa.Name, UID: pa.UID},
	}
}

func TestVerdict(t *testing.T) {
	cases := []struct {
		name     string
		sandbox  *v1alpha1.Sandbox
		leaving  bool
		records  map[string]state
		unknown  bool // a damaged record of some other sandbox
		want     verdict
		of       string
		sealed   bool
		identity string
	}{
		{name: "waits for its ADD", want: asItIs},
		{name: "deleted before its ADD", leaving: true, want: unplugged, sealed: true},
		{name: "deleted during its ADD", leaving: true, records: map[string]state{"c1": attaching}, want: asItIs},
		{name: "plugged", records: map[string]state{"c1": attached}, want: plugged, of: "c1"},
		{name: "plugged and deleted", leaving: true, records: map[string]state{"c1": attached}, want: plugged, of: "c1"},
		{name: "its links are going", leaving: true, records: map[string]state{"c1": deleting}, want: asItIs},
		{name: "the next sandbox is plugged", records: map[string]state{"c1": deleting, "c2": attached}, want: plugged, of: "c2"},
		{name: "gone", leaving: true, sandbox: &v1alpha1.Sandbox{ID: "c1", State: v1alpha1.SandboxAttached, BootID: "boot-1"}, want: unplugged, sealed: true},
		{name: "gone, and its pod lives", sandbox: &v1alpha1.Sandbox{ID: "c1", State: v1alpha1.SandboxAttached, BootID: "boot-1"}, want: asItIs},
		{
			name: "gone, the next one is being plugged", records: map[string]state{"c2": attaching}, want: asItIs,
			sandbox: &v1alpha1.Sandbox{ID: "c1", State: v1alpha1.SandboxAttached, BootID: "boot-1"},
		},
		{name: "of a former boot", leaving: true, sandbox: &v1alpha1.Sandbox{ID: "c1", State: v1alpha1.SandboxAttached, BootID: "boot-0"}, want: unplugged, sealed: true},
		{name: "said already", leaving: true, sandbox: &v1alpha1.Sandbox{ID: "c1", State: v1alpha1.SandboxDetached}, want: asItIs, sealed: true},
		{name: "deleted, and some sandbox's record is damaged", leaving: true, unknown: true, want: asItIs},
		{
			name: "gone, and some sandbox's record is damaged", leaving: true, unknown: true, want: unplugged, sealed: true,
			sandbox: &v1alpha1.Sandbox{ID: "c1", State: v1alpha1.SandboxAttached, BootID: "boot-1"},
		},
		{
			name: "its own record is damaged", unknown: true, want: plugged, of: "c9", identity: "p-u1",
			sandbox: &v1alpha1.Sandbox{ID: "c9", State: v1alpha1.SandboxAttached, BootID: "boot-1"},
		},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			l := testLedger(t)
			pa := attachment("p", "u1")
			pa.Status.Sandbox = tc.sandbox
			if tc.leaving {
				now := metav1.Now()
				pa.DeletionTimestamp = &now
			}
			for id, s := range tc.records {
				l.adopt(recordOf(pa, id, s))
			}
			if tc.unknown {
				l.adopt(&record{Version: recordVersion, ContainerID: "c9", State: attached})
			}
			got, rec := l.verdict(pa)
			of := ""
			if rec != nil {
				of = rec.ContainerID
			}
			if got != tc.want || of != tc.of {
				t.Errorf("verdict %v of %q, want %v of %q", got, of, tc.want, tc.of)
			}
			if _, sealed := l.sealed[pa.UID]; sealed != tc.sealed {
				t.Errorf("sealed %v, want %v", sealed, tc.sealed)
			}
			if tc.identity != "" && rec.Attachment.Name != tc.identity {
				t.Errorf("the record is that of %+v", rec.Attachment)
			}
		})
	}
}

// What was said decides about what may be done, and the other way round.
func TestClaim(t *testing.T) {
	leaving := attachment("p", "u1")
	now := metav1.Now()
	leaving.DeletionTimestamp = &now

	l := testLedger(t)
	if c := l.claim(recordOf(leaving, "c1", attaching)); c.sealed || c.before != nil {
		t.Errorf("claim %+v", c)
	}
	if v, _ := l.verdict(leaving); v != asItIs {
		t.Errorf("verdict %v over a claim", v)
	}

	l = testLedger(t)
	if v, _ := l.verdict(leaving); v != unplugged {
		t.Errorf("verdict %v", v)
	}
	if c := l.claim(recordOf(leaving, "c1", attaching)); !c.sealed || l.get("c1") != nil {
		t.Errorf("claim %+v after the word was given", c)
	}
}

func TestClaimOfWhatAnotherSandboxHolds(t *testing.T) {
	l := testLedger(t)
	pa := attachment("p", "u1")
	first := recordOf(pa, "c1", attached)
	if err := l.put(first); err != nil {
		t.Fatal(err)
	}
	got := l.claim(recordOf(pa, "c2", attaching))
	if got.before != first || l.get("c2") != nil {
		t.Fatalf("claim %+v", got)
	}
	select {
	case <-got.gone:
		t.Fatal("told that it is gone")
	default:
	}
	if err := l.remove(first); err != nil {
		t.Fatal(err)
	}
	select {
	case <-got.gone:
	default:
		t.Fatal("not told that it is gone")
	}
}

func TestRecordsAreReadAsTheyWereWritten(t *testing.T) {
	f := files{dir: t.TempDir()}
	pa := attachment("p", "u1", "eth0", "net1")
	want := recordOf(pa, "c1", attached)
	want.Netns, want.NetnsID.Inode, want.Result = "/run/netns/x", 7, []byte(`{"cniVersion":"1.1.0"}`)
	want.AttachedAt = time.Unix(1, 2).UTC()
	var err error
	if want.Interfaces, err = plan(pa, "c1", "eth0", 1450); err != nil {
		t.Fatal(err)
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
