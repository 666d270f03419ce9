package node

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// etcd is restored from a backup. A pod that was deleted after the backup is there again,
// with an address that another pod has by now. Without the steps of docs/operator/recover.md
// both pods have it. With these steps each address is on one node only.
func TestEtcdRestored(t *testing.T) {
	if os.Getenv("FAIRLEAD_TEST_KUBECONFIG") != "" {
		t.Skip("restores the control plane, and FAIRLEAD_TEST_KUBECONFIG names another cluster")
	}
	w := newSystem(t, "", "fairlead, fairlead-ipam")
	r := &restored{system: w, first: w.nodes[0], second: w.nodes[1], backup: filepath.Join(t.TempDir(), "etcd")}
	w.pool(t, "default", func(s *v1alpha1.IPPoolSpec) {
		s.Ranges, s.Placement = []string{"10.244.0.0-10.244.0.1"}, v1alpha1.PlacementShared
		s.Cooldown = &metav1.Duration{Duration: 5 * time.Second}
	})
	stays, gone := r.first.pod(t, "stays"), r.second.pod(t, "gone")
	w.add(t, r.first, stays, delegate{ifName: "eth0"})
	w.add(t, r.second, gone, delegate{ifName: "eth0"})
	r.since = time.Now()
	if err := w.cluster.Backup(r.backup); err != nil {
		t.Fatal(err)
	}
	w.deletePod(t, gone)
	w.del(t, r.second, gone, delegate{ifName: "eth0"})
	w.wantTaken(t, "stays")
	late := r.first.pod(t, "late") // the only free address is that of the pod that is gone
	w.add(t, r.first, late, delegate{ifName: "eth0"})

	r.restore(t)
	r.plugAgain(t, gone, "1")
	if diff := cmp.Diff(r.inside(t, late), r.inside(t, gone)); diff != "" {
		t.Errorf("without the steps of the page no address is there twice, so they are not needed; addresses of two pods:\n%s", diff)
	}

	r.endNewer(t, r.first, late)
	r.endNewer(t, r.second, gone)
	r.restore(t)
	r.plugAgain(t, gone, "2")
	if a, b := r.inside(t, stays), r.inside(t, gone); len(a) != 1 || len(b) != 1 || slices.Equal(a, b) {
		t.Errorf("pods %s and %s have %v and %v", stays.name, gone.name, a, b)
	}
	w.startController()
	w.wantTaken(t, "stays", "gone")
	w.audit(t)
	for _, p := range []*labPod{stays, gone} {
		w.deletePod(t, p)
	}
	w.del(t, r.first, stays, delegate{ifName: "eth0"})
	w.del(t, r.second, gone, delegate{ifName: "eth0"})
	w.wantTaken(t)
	w.audit(t)
}

// restored is a system whose etcd goes back to a backup.
type restored struct {
	*system
	first, second *labNode
	// backup is the directory of the backup, and since the time when it was begun.
	backup string
	since  time.Time
}

// restore restores etcd, without a controller. The daemons start again, since the revision is
// not raised here.
func (r *restored) restore(t *testing.T) {
	t.Helper()
	if r.running.ProcessState == nil {
		r.killController(t)
	}
	for _, n := range r.nodes {
		n.kill(t)
	}
	if err := r.cluster.Restore(r.backup); err != nil {
		t.Fatal(err)
	}
	for _, n := range r.nodes {
		n.start(t)
	}
}

// plugAgain makes another sandbox of a pod that the backup has.
func (r *restored) plugAgain(t *testing.T, p *labPod, suffix string) {
	t.Helper()
	p.containerID += suffix
	r.add(t, r.second, p, delegate{ifName: "eth0"})
}

// endNewer executes the script of the page on a node. It has to end the sandboxes of these
// pods, and no others.
func (r *restored) endNewer(t *testing.T, n *labNode, pods ...*labPod) {
	t.Helper()
	ended := filepath.Join(n.dir, "ended")
	n.standIn(t, "systemctl", `[ "$*" = "stop kubelet" ]`)
	n.standIn(t, "crictl", `echo "$*" >> `+ended)
	n.script(t, "recover.md", "end the sandboxes that are newer than the backup", "2026-11-26 04:59", r.since.Format("2006-01-02 15:04:05.000000000"))
	raw, err := os.ReadFile(ended)
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, p := range pods {
		want = append(want, "stopp "+p.containerID, "rmp "+p.containerID)
		r.del(t, n, p, delegate{ifName: "eth0"})
	}
	if diff := cmp.Diff(want, strings.Split(strings.TrimSpace(string(raw)), "\n")); diff != "" {
		t.Errorf("calls of crictl on %s (-want +got):\n%s", n.name, diff)
	}
}

// inside returns the IPv4 addresses of a pod's eth0, in its namespace.
func (r *restored) inside(t *testing.T, p *labPod) (out []string) {
	t.Helper()
	for _, a := range p.addressesOf(t, "eth0") {
		if netip.MustParseAddr(a).Is4() {
			out = append(out, a)
		}
	}
	return out
}
