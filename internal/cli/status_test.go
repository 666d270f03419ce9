package cli

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cli/kube"
	"fairlead.dev/fairlead/internal/cli/output"
	"fairlead.dev/fairlead/test/clitest"
)

func TestAttention(t *testing.T) {
	scheduledAgo := func(d time.Duration) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.CreationTimestamp = clitest.Ago(d) }
	}
	writtenAgo := func(d time.Duration) func(*v1alpha1.PodAttachment) {
		return func(a *v1alpha1.PodAttachment) { a.CreationTimestamp = clitest.Ago(d) }
	}
	addPod := func(s *kube.Snapshot, p corev1.Pod) { s.Pods = append(s.Pods, p) }
	addRecord := func(s *kube.Snapshot, with ...func(*v1alpha1.PodAttachment)) {
		s.Attachments = append(s.Attachments, clitest.RecordOf(clitest.PodOf("cart-2", "node-1"), "10.0.0.3/32", with...))
	}
	youngPool := func(p *v1alpha1.IPPool) {
		p.CreationTimestamp, p.Status = clitest.Ago(time.Second), v1alpha1.IPPoolStatus{}
	}
	for _, tt := range []struct {
		name   string
		change func(*kube.Snapshot)
		want   []string
	}{
		{"all is well", func(*kube.Snapshot) {}, []string{}},
		{"no lease", func(s *kube.Snapshot) { s.Lease = nil }, []string{"no controller runs: there is no Lease fairlead-controller in any namespace"}},
		{"no leader", func(s *kube.Snapshot) { s.Lease = clitest.LeaseOf("", time.Second) }, []string{"no controller leads: Lease fairlead-system/fairlead-controller has no holder"}},
		{"clocks differ a little", func(s *kube.Snapshot) { s.Lease = clitest.LeaseOf("c_1", 17*time.Second) }, []string{}},
		{"leader's clock is ahead", func(s *kube.Snapshot) { s.Lease = clitest.LeaseOf("c_1", -time.Hour) }, []string{}},
		{"leader is dead", func(s *kube.Snapshot) { s.Lease = clitest.LeaseOf("c_1", 19*time.Second) }, []string{"the controller's leader c_1 has not renewed Lease fairlead-system/fairlead-controller for 19s"}},
		{"nothing is served", func(s *kube.Snapshot) { s.Nodes, s.Pods = nil, nil }, []string{"no node is served: there are no NodeNetworks"}},
		{"another network comes first", func(s *kube.Snapshot) {
			s.Nodes[1].Status.Conditions = append(s.Nodes[1].Status.Conditions, clitest.Condition(v1alpha1.ConditionAnnounced, metav1.ConditionFalse, "Shadowed"))
		}, []string{"1 of 2 nodes not ready (node-1: Shadowed: Shadowed it is)"}},
		{"a forward chain may drop", func(s *kube.Snapshot) {
			s.Nodes[1].Status.Conditions = append(s.Nodes[1].Status.Conditions, clitest.Condition(v1alpha1.ConditionForwardPolicy, metav1.ConditionUnknown, "Drop"))
		}, []string{}},
		{"no other node believes it", func(s *kube.Snapshot) {
			clitest.NotRouted(&s.Nodes[1])
			s.Nodes[1].Status.Conditions = append(s.Nodes[1].Status.Conditions,
				clitest.Condition(v1alpha1.ConditionConfirmed, metav1.ConditionFalse, "NotConfirmed"))
		}, []string{"1 of 2 nodes not ready (node-1: NotConfirmed: NotConfirmed it is)"}},
		{"node not routed", func(s *kube.Snapshot) { clitest.NotRouted(&s.Nodes[0]) }, []string{"1 of 2 nodes not ready (node-2: NotReachable: node node-3 is not on a shared link, and takes nothing encapsulated)"}},
		{"node silent", func(s *kube.Snapshot) { clitest.Silent(&s.Nodes[0]); clitest.Silent(&s.Nodes[1]) }, []string{"2 of 2 nodes not ready (first node-1: NotReported: the node's daemon has not reported yet)"}},
		{"no program runs in the cluster", func(s *kube.Snapshot) { s.Installed = kube.Installation{} }, []string{}},
		{"a standby is down", func(s *kube.Snapshot) { clitest.Crashing(&s.Installed, kube.ControllerName, "node-2", time.Hour) }, []string{"1 of 2 pods of Deployment fairlead-controller ready"}},
		{"a standby starts", func(s *kube.Snapshot) { clitest.Crashing(&s.Installed, kube.ControllerName, "node-2", time.Second) }, []string{}},
		{"a standby cannot be made", func(s *kube.Snapshot) { s.Installed.Controllers[0].Status.ReadyReplicas = 1 }, []string{"1 of 2 pods of Deployment fairlead-controller ready"}},
		{"node's daemon is down", func(s *kube.Snapshot) { clitest.Crashing(&s.Installed, kube.DaemonName, "node-2", time.Hour) }, []string{"1 of 2 nodes not ready (node-2: DaemonNotReady: its daemon, pod fairlead-system/fairlead-node-on-node-2, is not ready: CrashLoopBackOff)"}},
		{"node's daemon starts", func(s *kube.Snapshot) { clitest.Crashing(&s.Installed, kube.DaemonName, "node-2", time.Second) }, []string{}},
		{"node's daemon is exchanged", func(s *kube.Snapshot) {
			clitest.Crashing(&s.Installed, kube.DaemonName, "node-2", time.Hour)
			s.Installed.Pods = append(s.Installed.Pods, clitest.ProgramPod(kube.DaemonName, "node-2"))
		}, []string{}},
		{"node has no daemon", func(s *kube.Snapshot) { s.Installed.Pods = s.Installed.Pods[:3] }, []string{"1 of 2 nodes not ready (node-2: NoDaemon: no pod of DaemonSet fairlead-system/fairlead-node is on it)"}},
		{"new node has no daemon yet", func(s *kube.Snapshot) {
			s.Installed.Pods = s.Installed.Pods[:3]
			s.Nodes[0].CreationTimestamp = clitest.Ago(time.Second)
		}, []string{}},
		{"node is not routed, and its daemon is down", func(s *kube.Snapshot) {
			clitest.NotRouted(&s.Nodes[0])
			clitest.Crashing(&s.Installed, kube.DaemonName, "node-2", time.Second)
		}, []string{"1 of 2 nodes not ready (node-2: NotReachable: node node-3 is not on a shared link, and takes nothing encapsulated)"}},
		{"node is new", func(s *kube.Snapshot) {
			clitest.Silent(&s.Nodes[0])
			s.Nodes[0].CreationTimestamp = clitest.Ago(time.Second)
		}, []string{}},
		{"pool invalid", func(s *kube.Snapshot) { s.Pools = append(s.Pools, clitest.PoolOf("x", clitest.Invalid)) }, []string{`pool x: Invalid: spec.ranges[0]: "10.9.0.1/16" has host bits set: write 10.9.0.0/16 for the whole network, or 10.9.0.1-10.9.0.1/16 for this address on it`}},
		{"pool exhausted", func(s *kube.Snapshot) {
			s.Pools = append(s.Pools, clitest.PoolOf("x", clitest.Counts(4, 4), clitest.Exhausted))
		}, []string{"pool x is exhausted: 4 allocated, 0 cooling, 0 held, 0 reserved"}},
		{"pool changed, not seen", func(s *kube.Snapshot) { s.Pools[0].Generation = 2 }, []string{"pool default: NotSeen: the controller has not processed this spec yet"}},
		{"pool is new", func(s *kube.Snapshot) { s.Pools = append(s.Pools, clitest.PoolOf("x", youngPool)) }, []string{}},
		{"pod just scheduled", func(s *kube.Snapshot) { addPod(s, clitest.PodOf("new", "node-1", scheduledAgo(time.Second))) }, []string{}},
		{"pod forgotten", func(s *kube.Snapshot) { addPod(s, clitest.PodOf("old", "node-1")) }, []string{"1 pod without a PodAttachment (shop/old: NoRecord)"}},
		{"pod refused", func(s *kube.Snapshot) {
			p := clitest.PodOf("new", "node-1", scheduledAgo(time.Second))
			addPod(s, p)
			s.Events = []eventsv1.Event{clitest.WarningAbout(p, "NetworkExhausted", "none left", 0)}
		}, []string{"1 pod without a PodAttachment (shop/new: NetworkExhausted: none left)"}},
		{"pod elsewhere", func(s *kube.Snapshot) { addPod(s, clitest.PodOf("old", "node-9")) }, []string{}},
		{"pod on another plugin's default network", func(s *kube.Snapshot) {
			clitest.OtherDefaults(s)
			addPod(s, clitest.PodOf("plain", "node-1"))
			addPod(s, clitest.PodOf("foreign", "node-1", clitest.OnNetworks("storage")))
		}, []string{}},
		{"pod with a further network, forgotten", func(s *kube.Snapshot) {
			clitest.OtherDefaults(s)
			addPod(s, clitest.PodOf("further", "node-1", clitest.OnNetworks("storage,blue")))
		}, []string{"1 pod without a PodAttachment (shop/further: NoRecord)"}},
		{"pod with an annotation that cannot be read", func(s *kube.Snapshot) {
			clitest.OtherDefaults(s)
			addPod(s, clitest.PodOf("further", "node-1", clitest.OnNetworks("a/b/c")))
		}, []string{"1 pod without a PodAttachment (shop/further: NoRecord)"}},
		{"just written", func(s *kube.Snapshot) { addRecord(s, clitest.NotPlugged, writtenAgo(time.Second)) }, []string{}},
		{"waits for long", func(s *kube.Snapshot) { addRecord(s, clitest.NotPlugged) }, []string{"1 pod waiting for over 60s (shop/cart-2: NotPlugged)"}},
		{"just deleted", func(s *kube.Snapshot) { addRecord(s, clitest.Deleted(time.Second)) }, []string{}},
		{"released for long", func(s *kube.Snapshot) { addRecord(s, clitest.Deleted(time.Hour)) }, []string{"1 pod releasing for over 60s (shop/cart-2: NodeNotDone: node node-1 has not confirmed that nothing is plugged)"}},
		{"release fails", func(s *kube.Snapshot) { addRecord(s, clitest.ReleaseUnavailable) }, []string{"1 pod failing (shop/cart-2: Unavailable: interface eth0: write IPBlock: the server is busy)"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			snap := clitest.Quiet()
			tt.change(&snap)
			v := buildStatus(snap)
			if diff := cmp.Diff(tt.want, v.Attention); diff != "" {
				t.Error(diff)
			}
			if v.OK != (len(tt.want) == 0) {
				t.Errorf("ok is %t with %d things that need attention", v.OK, len(tt.want))
			}
		})
	}
}

func TestTableText(t *testing.T) {
	got := output.Table([][]string{{"A", "LONGER", "Z"}, {"ä-long", "", "1"}, {"b", "x", ""}})
	want := "A        LONGER   Z\n" +
		"ä-long   -        1\n" +
		"b        x        -\n"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestFewShowsHowManyMore(t *testing.T) {
	for _, tt := range []struct {
		name  string
		items []string
		want  string
	}{
		{"none", nil, ""},
		{"as many as fit", []string{"a", "b", "c", "d"}, "a,b,c,d"},
		{"more", []string{"a", "b", "c", "d", "e"}, "a,b,c,+2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := few(tt.items); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// A node is ready, and its host may drop packets of pods: the message is below the table.
func TestNodeNotesAreShown(t *testing.T) {
	nodes := []nodeView{{Name: "node-0", Ready: true}}
	for i := range maxNoted + 2 {
		nodes = append(nodes, nodeView{Name: fmt.Sprint("node-", i+1), Ready: true, Reason: "Drop", Message: "chain f of table inet fw"})
	}
	nodes = append(nodes, nodeView{Name: "node-off", Reason: "ApplyFailed", Message: "busy"})
	got := nodesText(nodes, time.Now())
	if n := strings.Count(got, "Drop: chain f of table inet fw"); n != maxNoted || !strings.Contains(got, "and 2 nodes like these") || strings.Contains(got, "busy") {
		t.Errorf("%d notes of %d nodes:\n%s", n, len(nodes), got)
	}
}
