package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
)

// columns of the report.
var columns = []string{
	"phase", "s", "pods/s", "record p50/p99 ms", "ack p50/p99 ms", "release p50/p99 ms",
	"API server ms/pod", "controller ms/pod", "writes/pod", "node KB/pod", "429", "queued s", "others %",
}

// rowOf returns the values of a phase.
func rowOf(r result) []string {
	pods, record, ack, release := 0, "", "", ""
	if r.made != nil {
		pods += len(r.made.lives)
		record, ack = r.made.both(created, recorded), r.made.both(recorded, attached)
	}
	if r.gone != nil {
		if r.made == nil {
			pods += len(r.gone.lives)
		}
		release = r.gone.both(deleted, released)
	}
	perPod := func(total float64) string {
		if pods < 2 {
			return ""
		}
		return fmt.Sprintf("%.2f", total/float64(pods))
	}
	rate := ""
	if pods > 1 {
		rate = fmt.Sprintf("%.0f", float64(pods)/r.took.Seconds())
	}
	nodes := r.nodes()
	return []string{
		r.name, fmt.Sprintf("%.1f", r.took.Seconds()), rate, record, ack, release,
		perPod(1000 * r.cpu(thePlane)), perPod(1000 * r.cpu(theLeader)), perPod(r.writes()), perPod(float64(nodes.received) / 1e3),
		fmt.Sprintf("%.0f", r.after.refused-r.before.refused), fmt.Sprintf("%.1f", r.queued()),
		fmt.Sprintf("%.0f", r.others()),
	}
}

// both returns the median and the 99th percentile of the time between two stages, in ms.
func (b *batch) both(from, to stage) string {
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	return fmt.Sprintf("%.0f/%.0f", ms(b.latency(from, to, 50)), ms(b.latency(from, to, 99)))
}

// cpu returns the processor time of a program in seconds, from its start if it started in
// this phase.
func (r result) cpu(program string) float64 {
	if r.after.pids[program] != r.before.pids[program] {
		return r.after.cpu[program]
	}
	return r.after.cpu[program] - r.before.cpu[program]
}

// queued returns the seconds for which requests waited in queues of API priority and
// fairness.
func (r result) queued() (seconds float64) {
	for schema, s := range r.after.queued {
		seconds += s - r.before.queued[schema]
	}
	return seconds
}

func (r result) writes() (n float64) {
	for kind, count := range r.after.writes {
		n += count - r.before.writes[kind]
	}
	return n
}

// others returns the percentage of this machine's processors that other work had. It makes
// the times longer, and hardly the processor time.
func (r result) others() float64 {
	own := r.cpu(thePlane) + r.cpu(theLeader) + r.cpu(theStandby) + r.cpu(theNodes)
	return max(0, 100*(r.after.busy-r.before.busy-own)/(r.after.total-r.before.total))
}

// nodes returns the traffic of all nodes.
func (r result) nodes() nodeTraffic {
	a, b := r.after.nodes, r.before.nodes
	return nodeTraffic{a.received - b.received, a.attachments - b.attachments, a.networks - b.networks, a.writes - b.writes, a.refused - b.refused}
}

// details returns the costs of a phase, a line each.
func (r result) details() []string {
	lines := slices.Clone(r.notes)
	var kinds []string
	for _, kind := range slices.Sorted(maps.Keys(r.after.writes)) {
		if n := r.after.writes[kind] - r.before.writes[kind]; n > 0 {
			kinds = append(kinds, fmt.Sprintf("%s %.0f", kind, n))
		}
	}
	lines = append(lines, "writes: "+strings.Join(kinds, ", "))
	n := r.nodes()
	lines = append(lines,
		fmt.Sprintf("nodes: received %.1f MB, of them PodAttachments %.1f MB and NodeNetworks %.1f MB by watches; wrote %d; refused %d",
			mb(n.received), mb(n.attachments), mb(n.networks), n.writes, n.refused),
		fmt.Sprintf("events sent by watches: %.0f; etcd %.0f MB", r.after.events-r.before.events, r.after.etcd/1e6))
	var queues []string
	for _, schema := range slices.Sorted(maps.Keys(r.after.queued)) {
		if s := r.after.queued[schema] - r.before.queued[schema]; s > 0.1 {
			queues = append(queues, fmt.Sprintf("%s %.1f s", schema, s))
		}
	}
	lines = append(lines, fmt.Sprintf("API priority and fairness: %.1f seats for a request of a ServiceAccount; waited %s",
		(r.after.seats-r.before.seats)/max(1, r.after.sized-r.before.sized), strings.Join(queues, ", ")))
	var programs []string
	for _, p := range []string{thePlane, theLeader, theStandby, theNodes} {
		programs = append(programs, fmt.Sprintf("%s %.1f s, %.0f MB (%.0f)", p, r.cpu(p), r.after.memory[p]/1e6, r.after.peak[p]/1e6))
	}
	return append(lines, "processor time and memory (peak): "+strings.Join(programs, "; "))
}

func mb(bytes int64) float64 { return float64(bytes) / 1e6 }

// show prints a phase.
func (c *cluster) show(r result) {
	row := rowOf(r)
	c.Say("%s: %s s", r.name, row[1])
	var values []string
	for i := 2; i < len(row); i++ {
		if row[i] != "" {
			values = append(values, columns[i]+" "+row[i])
		}
	}
	for _, line := range append([]string{strings.Join(values, ", ")}, r.details()...) {
		_, _ = fmt.Fprintln(c.Out, "        ", line)
	}
}

// write writes the report.
func (c *cluster) write() error {
	if c.Report == "" {
		return nil
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# %d nodes, %d pods\n\n| %s |\n|%s\n", c.Nodes, c.Pods, strings.Join(columns, " | "), strings.Repeat("---|", len(columns)))
	for _, r := range c.results {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(rowOf(r), " | "))
	}
	for _, r := range c.results {
		fmt.Fprintf(&b, "\n## %s\n\n", r.name)
		for _, line := range r.details() {
			fmt.Fprintf(&b, "- %s\n", line)
		}
	}
	return os.WriteFile(c.Report, []byte(b.String()), 0o644) //nolint:gosec // a report is for all to read
}
