package cli

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"fairlead.dev/fairlead/internal/cli/kube"
	"fairlead.dev/fairlead/internal/cli/output"
)

// overdueAfter is how long a pending state may last before it needs attention.
const overdueAfter = time.Minute

// overdue reports whether a state that began at since has lasted longer than
// overdueAfter; false if since is nil.
func overdue(since *time.Time, now time.Time) bool {
	return since != nil && now.Sub(*since) > overdueAfter
}

func controllerAttention(c controllerView, now time.Time) []string {
	switch {
	case c.State == controllerStale:
		return []string{fmt.Sprintf("the controller's leader %s has not renewed Lease %s for %s", c.Leader, c.Lease, output.Age(c.RenewedAt, now))}
	case c.State == controllerNoLeader && c.Lease == "":
		return []string{fmt.Sprintf("no controller runs: there is no Lease %s in any namespace", kube.ControllerName)}
	case c.State == controllerNoLeader:
		return []string{fmt.Sprintf("no controller leads: Lease %s has no holder", c.Lease)}
	}
	return nil
}

func nodesAttention(v nodesView, now time.Time) []string {
	if len(v.Items) == 0 {
		return []string{"no node is served: there are no NodeNetworks"}
	}
	var bad []string
	for _, n := range v.Items {
		young := (n.Reason == reasonSilent || n.Reason == reasonNoDaemon) && !overdue(n.CreatedAt, now)
		starts := n.Reason == reasonDaemonNotReady && !overdue(n.NotReadySince, now)
		if n.Ready || young || starts {
			continue
		}
		bad = append(bad, explained(n.Name, n.Reason, n.Message))
	}
	return examples(fmt.Sprintf("%d of %d nodes not ready", len(bad), len(v.Items)), bad)
}

func poolsAttention(pools []poolView, now time.Time) []string {
	var out []string
	for _, p := range pools {
		switch {
		case p.Reason == reasonNotSeen && !overdue(p.CreatedAt, now):
		case p.Ready != metav1.ConditionTrue:
			out = append(out, "pool "+explained(p.Name, p.Reason, p.Message))
		case p.Exhausted:
			out = append(out, fmt.Sprintf("pool %s is exhausted: %s allocated, %s cooling, %s held, %s reserved",
				p.Name, count(p.Allocated), count(p.Cooling), count(p.Held), count(p.Reserved)))
		}
	}
	return out
}

// podsAttention reports failures at once and other states when they are overdue: every
// pod is without a record or a sandbox for a moment.
func podsAttention(pods []podView, now time.Time) []string {
	bad := map[podState][]string{}
	for _, p := range pods {
		failed := p.State == stateFailing || (p.State == stateNone && p.Reason != reasonNoRecord)
		if p.State != stateAttached && (failed || overdue(p.Since, now)) {
			bad[p.State] = append(bad[p.State], explained(p.fullName(), p.Reason, p.Message))
		}
	}
	var out []string
	for _, s := range []struct {
		state podState
		text  string
	}{
		{stateFailing, "failing"},
		{stateNone, "without a PodAttachment"},
		{stateWaiting, "waiting for over " + duration.HumanDuration(overdueAfter)},
		{stateReleasing, "releasing for over " + duration.HumanDuration(overdueAfter)},
	} {
		out = append(out, examples(output.Plural(len(bad[s.state]), "pod")+" "+s.text, bad[s.state])...)
	}
	return out
}

func explained(name, reason, message string) string {
	if message == "" {
		return fmt.Sprintf("%s: %s", name, reason)
	}
	return output.OneLine(fmt.Sprintf("%s: %s: %s", name, reason, message))
}

// examples returns one sentence that consists of the problem and the first of the things
// that have it; nil if there are none.
func examples(what string, named []string) []string {
	switch len(named) {
	case 0:
		return nil
	case 1:
		return []string{fmt.Sprintf("%s (%s)", what, named[0])}
	}
	return []string{fmt.Sprintf("%s (first %s)", what, named[0])}
}
