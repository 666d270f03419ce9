package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cli/kube"
	"fairlead.dev/fairlead/internal/cli/output"
)

// clockSlack is the difference between the clocks of the leader and of this machine that
// is tolerated before a leader counts as stale.
const clockSlack = 15 * time.Second

// statusView is the output of `status -o json`.
type statusView struct {
	// OK is true if nothing needs attention.
	OK bool `json:"ok"`
	// Attention has one sentence per thing that needs attention.
	Attention  []string       `json:"attention"`
	Controller controllerView `json:"controller"`
	// Programs that the cluster runs; empty if they run outside it.
	Programs []programView `json:"programs"`
	Nodes    nodesView     `json:"nodes"`
	Pools    []poolView    `json:"pools"`
	// Clouds that serve the cluster; empty without OpenStack.
	Clouds []cloudView `json:"clouds"`
	Pods   podCounts   `json:"pods"`
}

// controllerState is the state of the leader election.
type controllerState string

const (
	controllerLeading  controllerState = "Leading"
	controllerStale    controllerState = "Stale"    // the leader has stopped renewing its Lease
	controllerNoLeader controllerState = "NoLeader" // the Lease has no holder, or there is none
)

// controllerView is the state of the controller according to its Lease.
type controllerView struct {
	State  controllerState `json:"state"`
	Lease  string          `json:"lease,omitempty"`  // namespace/name
	Leader string          `json:"leader,omitempty"` // host name and process ID of the leader
	// LeaderSince is the time at which the leader acquired the Lease, RenewedAt the time
	// of its last renewal.
	LeaderSince *time.Time `json:"leaderSince,omitempty"`
	RenewedAt   *time.Time `json:"renewedAt,omitempty"`
}

// nodesView lists the nodes that Fairlead serves.
type nodesView struct {
	Ready    int `json:"ready"`
	NotReady int `json:"notReady"`
	// Items by name.
	Items []nodeView `json:"items"`
}

// nodeView is one NodeNetwork.
type nodeView struct {
	Name string `json:"name"`
	// Ready is true if the node's bridge and its routes to every other node are in place,
	// other nodes use its addresses, no rule of the host drops packets of pods, and its
	// daemon runs. Reason and Message explain why a node is not ready; for a ready node
	// they name a doubt.
	Ready   bool   `json:"ready"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// NotReadySince is the time since which the daemon has not been ready; set with
	// reason DaemonNotReady.
	NotReadySince *time.Time `json:"notReadySince,omitempty"`

	Uplink    string     `json:"uplink,omitempty"`
	Addresses []string   `json:"addresses"` // of the node, in CIDR form
	Blocks    []string   `json:"blocks"`    // CIDRs routed to the node
	MTU       int32      `json:"mtu"`       // of the uplink, in bytes; 0 if unknown
	CreatedAt *time.Time `json:"createdAt,omitempty"`
}

// podCounts counts pods by state.
type podCounts struct {
	Attached  int `json:"attached"`
	Waiting   int `json:"waiting"`
	Releasing int `json:"releasing"`
	Failing   int `json:"failing"`
	None      int `json:"none"`
	// NotServed counts pods on nodes that Fairlead does not serve.
	NotServed int `json:"notServed"`
	// NotOurs counts pods without a network of Fairlead: another plugin provides the
	// default network, and they request no further network of Fairlead.
	NotOurs int `json:"notOurs"`
}

func buildStatus(snap kube.Snapshot) statusView {
	pods := buildPods(snap)
	v := statusView{
		Controller: buildController(snap.Lease, snap.Now),
		Programs:   buildPrograms(snap.Installed),
		Nodes:      buildNodes(snap.Nodes, snap.Installed),
		Pools:      buildPools(snap.Pools),
		Clouds:     buildClouds(snap.Clouds),
		Pods:       countPods(pods),
	}
	without := kube.WithoutRecord(snap)
	v.Pods.NotServed, v.Pods.NotOurs = len(without.Elsewhere), len(without.NotOurs)
	v.Attention = output.List(slices.Concat(
		controllerAttention(v.Controller, snap.Now),
		programsAttention(v.Programs, snap.Now),
		nodesAttention(v.Nodes, snap.Now),
		poolsAttention(v.Pools, snap.Now),
		cloudsAttention(v.Clouds),
		podsAttention(pods, snap.Now),
	))
	v.OK = len(v.Attention) == 0
	return v
}

func buildController(lease *coordinationv1.Lease, now time.Time) controllerView {
	if lease == nil {
		return controllerView{State: controllerNoLeader}
	}
	v := controllerView{State: controllerNoLeader, Lease: lease.Namespace + "/" + lease.Name, RenewedAt: output.Timestamp(kube.Renewed(lease))}
	if lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "" {
		return v
	}
	v.State, v.Leader = controllerLeading, *lease.Spec.HolderIdentity
	if lease.Spec.AcquireTime != nil {
		v.LeaderSince = output.Timestamp(lease.Spec.AcquireTime.Time)
	}
	var valid time.Duration
	if lease.Spec.LeaseDurationSeconds != nil {
		valid = time.Duration(*lease.Spec.LeaseDurationSeconds) * time.Second
	}
	if now.After(kube.Renewed(lease).Add(valid + clockSlack)) {
		v.State = controllerStale
	}
	return v
}

func buildNodes(nodes []v1alpha1.NodeNetwork, in kube.Installation) nodesView {
	v := nodesView{Items: []nodeView{}}
	for i := range nodes {
		n := buildNode(&nodes[i])
		checkDaemon(in, &n)
		if n.Ready {
			v.Ready++
		} else {
			v.NotReady++
		}
		v.Items = append(v.Items, n)
	}
	slices.SortFunc(v.Items, func(a, b nodeView) int { return cmp.Compare(a.Name, b.Name) })
	return v
}

// reasonSilent: a node's daemon has not reported yet.
const reasonSilent = "NotReported"

func buildNode(n *v1alpha1.NodeNetwork) nodeView {
	v := nodeView{
		Name:      n.Name,
		Reason:    reasonSilent,
		Message:   "the node's daemon has not reported yet",
		Uplink:    n.Status.Uplink,
		Addresses: output.List(n.Status.Addresses),
		Blocks:    output.List(n.Spec.Blocks),
		MTU:       n.Status.MTU,
		CreatedAt: output.Timestamp(n.CreationTimestamp.Time),
	}
	routed := meta.FindStatusCondition(n.Status.Conditions, v1alpha1.ConditionRouted)
	if routed == nil {
		return v
	}
	v.Ready, v.Reason, v.Message = routed.Status == metav1.ConditionTrue, routed.Reason, routed.Message
	if v.Ready {
		v.Reason, v.Message = "", ""
	}
	// A node that is not confirmed reaches no other node, so that condition takes
	// precedence.
	for _, kind := range []string{v1alpha1.ConditionConfirmed, v1alpha1.ConditionForwardPolicy, v1alpha1.ConditionAnnounced} {
		c := meta.FindStatusCondition(n.Status.Conditions, kind)
		switch {
		case c == nil || c.Status == metav1.ConditionTrue:
		case c.Status == metav1.ConditionFalse && (v.Ready || kind == v1alpha1.ConditionConfirmed):
			v.Ready, v.Reason, v.Message = false, c.Reason, c.Message
		case v.Ready && v.Reason == "":
			v.Reason, v.Message = c.Reason, c.Message
		}
	}
	return v
}

func countPods(pods []podView) podCounts {
	var c podCounts
	for _, p := range pods {
		switch p.State {
		case stateAttached:
			c.Attached++
		case stateWaiting:
			c.Waiting++
		case stateReleasing:
			c.Releasing++
		case stateFailing:
			c.Failing++
		case stateNone:
			c.None++
		}
	}
	return c
}

// statusText returns the whole status; the last line is the verdict.
func statusText(v statusView, now time.Time) string {
	var b strings.Builder
	b.WriteString("CONTROLLER\n" + controllerText(v.Controller, now))
	if len(v.Programs) > 0 {
		b.WriteString("\nPROGRAMS\n" + programsText(v.Programs))
	}
	fmt.Fprintf(&b, "\nNODES: %d ready, %d not ready\n", v.Nodes.Ready, v.Nodes.NotReady)
	if len(v.Nodes.Items) > 0 {
		b.WriteString(nodesText(v.Nodes.Items, now))
	}
	fmt.Fprintf(&b, "\nPOOLS: %d\n", len(v.Pools))
	if len(v.Pools) > 0 {
		b.WriteString(poolSummary(v.Pools))
	}
	for i, c := range v.Clouds {
		if i == 0 {
			b.WriteString("\n")
		}
		b.WriteString(cloudText(c, now))
	}
	fmt.Fprintf(&b, "\nPODS: %d attached, %d waiting, %d releasing, %d failing, %d without a PodAttachment\n",
		v.Pods.Attached, v.Pods.Waiting, v.Pods.Releasing, v.Pods.Failing, v.Pods.None)
	if v.Pods.NotServed > 0 {
		fmt.Fprintf(&b, "%s on nodes that Fairlead does not serve\n", output.Plural(v.Pods.NotServed, "pod"))
	}
	if v.Pods.NotOurs > 0 {
		fmt.Fprintf(&b, "%s without a network of Fairlead's: the default network is another plugin's\n", output.Plural(v.Pods.NotOurs, "pod"))
	}
	if v.OK {
		b.WriteString("\nOK: nothing needs attention\n")
	} else {
		fmt.Fprintf(&b, "\nATTENTION: %s\n", strings.Join(v.Attention, "; "))
	}
	return b.String()
}

func controllerText(c controllerView, now time.Time) string {
	return output.Table([][]string{
		{"STATE", "LEADER", "SINCE", "RENEWED", "LEASE"},
		{string(c.State), c.Leader, output.Age(c.LeaderSince, now), output.Age(c.RenewedAt, now), c.Lease},
	})
}

// maxNoted is the largest number of nodes whose messages are shown.
const maxNoted = 8

// nodesText returns the table, and below it the messages of nodes that are ready: those of others are
// in the last line.
func nodesText(nodes []nodeView, now time.Time) string {
	var notes []string
	rows := [][]string{{"NAME", "READY", "REASON", "ADDRESSES", "BLOCKS", "MTU", "AGE"}}
	for _, n := range nodes {
		mtu := ""
		if n.MTU > 0 {
			mtu = count(int64(n.MTU))
		}
		rows = append(rows, []string{n.Name, output.YesNo(n.Ready), n.Reason, strings.Join(n.Addresses, ","), few(n.Blocks), mtu, output.Age(n.CreatedAt, now)})
		if n.Ready && n.Message != "" {
			notes = append(notes, fmt.Sprintf("%s: %s: %s", n.Name, n.Reason, n.Message))
		}
	}
	if more := len(notes) - maxNoted; more > 0 {
		notes = append(notes[:maxNoted], fmt.Sprintf("and %s like these", output.Plural(more, "node")))
	}
	return output.Table(rows) + output.Notes(notes)
}

// few formats a list; of a list with more than four items only the first three.
func few(items []string) string {
	const most = 4
	if len(items) <= most {
		return strings.Join(items, ",")
	}
	return fmt.Sprintf("%s,+%d", strings.Join(items[:most-1], ","), len(items)-most+1)
}

func poolSummary(pools []poolView) string {
	rows := [][]string{{"NAME", "READY", "EXHAUSTED", "USABLE", "FREE", "ALLOCATED", "COOLING"}}
	for _, p := range pools {
		rows = append(rows, []string{p.Name, string(p.Ready), output.YesNo(p.Exhausted), count(p.Usable), count(p.Free), count(p.Allocated), count(p.Cooling)})
	}
	return output.Table(rows)
}
