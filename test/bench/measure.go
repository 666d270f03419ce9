package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"text/tabwriter"
)

// figure is a measured value and its baseline, in the same unit.
type figure struct{ value, baseline float64 }

// object is one line of the results.
type object struct {
	name, unit string
	// inverse: the ratio is baseline/value, which is how many times faster a time is.
	inverse bool
	// target in words, and whether a result meets it; nil for figures without a target.
	target string
	met    func(r result) bool
}

// measurement makes one or several objects.
type measurement struct {
	objects []object
	// what describes the measurement and its baseline.
	what string
	run  func(ctx context.Context, w *testbed) (map[string]figure, error)
	// full: the short form of the bench omits it, because it takes long.
	full bool
}

// result is an object with its figures, as it is written.
type result struct {
	Name     string  `json:"name"`
	Value    float64 `json:"value"`
	Unit     string  `json:"unit"`
	Baseline float64 `json:"baseline"`
	Ratio    float64 `json:"ratio"`

	object object
}

func ratioAtMost(limit float64) func(result) bool {
	return func(r result) bool { return r.Ratio <= limit }
}

func ratioAtLeast(limit float64) func(result) bool {
	return func(r result) bool { return r.Ratio >= limit }
}

func valueAtMost(limit float64) func(result) bool {
	return func(r result) bool { return r.Value <= limit }
}

func valueAtLeast(limit float64) func(result) bool {
	return func(r result) bool { return r.Value >= limit }
}

// measurements returns all measurements, in order.
func measurements() []measurement {
	return slices.Concat([]measurement{deploy30Measurement(), pathMeasurement()}, podMeasurements(), addressMeasurements())
}

// addressMeasurements are of tens of thousands of addresses. The last one fills a
// cluster, so it comes last.
func addressMeasurements() []measurement {
	return []measurement{
		whereaboutsMeasurement(),
		{
			objects: []object{
				{name: "alloc_storm_per_s", unit: "allocations/s", target: "value >= 5000", met: valueAtLeast(5000)},
				{name: "alloc_storm1000_per_s", unit: "allocations/s"},
				{name: "alloc_writes_each", unit: "writes", target: "value <= 0.05", met: valueAtMost(0.05)},
			},
			what: "addresses for 10,000 pods on 100 nodes at once, and for 1,000, from one pool through the controller's block store on\n" +
				"         the API server; baseline of _per_s: updates per second of the blocks that the storm left, by as many clients as the\n" +
				"         store had writes under way; of _writes_each: the limit",
			run: storm,
		},
		{
			objects: []object{
				{name: "pool100k_latency_ratio", unit: "", target: "value <= 2", met: valueAtMost(2)},
				{name: "pool100k_blocks_mb", unit: "MB"},
			},
			what: "a pool of 100,000 addresses, filled to the last one: the median time of one allocation alone when 99% are taken over\n" +
				"         that when 1% are; baseline: 1, the same time. _blocks_mb: the size of its blocks, full, as JSON",
			run: fullPool, full: true,
		},
		{
			objects: []object{
				{name: "controller_start_50k_s", unit: "s", target: "ratio <= 2", met: ratioAtMost(2)},
				{name: "controller_rss_50k_mb", unit: "MB", target: "value <= 300", met: valueAtMost(300)},
			},
			what: "a cluster with 50,000 pods and their PodAttachments (not in the short form): from exec of fairlead-controller until\n" +
				"         a pod that waited has its record; baseline: a list of pods, PodAttachments and blocks, all at once; and its memory (RSS) when\n" +
				"         it has been idle for a while; baseline: the limit",
			run: large, full: true,
		},
	}
}

// whereaboutsMeasurement is the measurement that needs whereabouts.
func whereaboutsMeasurement() measurement {
	return measurement{
		objects: []object{{name: rivalFigure, unit: "pods/s"}},
		what: "pods that get an address, 16 at once: from the call to create the bound pod until a watch of its node's PodAttachments\n" +
			"         shows the record with the address; baseline: whereabouts' ADD for a pod, exec to result, 16 at once, with its own\n" +
			"         leader election, on the same API server",
		run: allocVsWhereabouts, full: true,
	}
}

// severalMeasurement is of pods with several interfaces.
func severalMeasurement() measurement {
	return measurement{
		objects: []object{
			{name: "add_8_vs_single", unit: "ms", target: "ratio <= 0.5", met: ratioAtMost(0.5)},
			{name: "add_1_vs_reference", unit: "ms", inverse: true, target: "ratio >= 3", met: ratioAtLeast(3)},
			{name: "add_4_vs_reference", unit: "ms", inverse: true, target: "ratio >= 4", met: ratioAtLeast(4)},
			{name: "add_8_vs_reference", unit: "ms", inverse: true, target: "ratio >= 5", met: ratioAtLeast(5)},
		},
		what: "one ADD of a pod with one, four and eight interfaces, each on a bridge of its own, exec to result; baseline of\n" +
			"         add_8_vs_single: eight times an ADD of a pod with one interface; of _vs_reference: the reference plugins\n" +
			"         bridge + host-local, executed once for each interface, one after the other as Multus does, without Multus itself",
		run: severalInterfaces,
	}
}

// hotPlugMeasurement is of networks that running pods get and give back.
func hotPlugMeasurement() measurement {
	return measurement{
		objects: []object{
			{name: "hotplug_ms", unit: "ms", target: "ratio <= 15", met: ratioAtMost(15)},
			{name: "hotunplug_ms", unit: "ms", target: "ratio <= 20", met: ratioAtMost(20)},
		},
		what: "a running pod's annotation names one more network, and then no more: from the call to patch it until a watch of the\n" +
			"         node's PodAttachments shows the interface as plugged, or as gone; baseline: from the call to create an equal object\n" +
			"         until a watch shows it",
		run: hotPlug,
	}
}

// podMeasurements are of the steps until a pod has its network.
func podMeasurements() []measurement {
	return []measurement{
		{
			objects: []object{{name: "plugin_roundtrip", unit: "ms", target: "ratio <= 1.6", met: ratioAtMost(1.6)}},
			what: "plugin: exec of fairlead-cni, one round trip to a live server with a trivial handler, exit;\n" +
				"         baseline: exec of a Go program that does nothing",
			run: roundTrip,
		},
		{
			objects: []object{
				{name: "add_ready", unit: "ms", target: "ratio <= 1.5", met: ratioAtMost(1.5)},
				{name: "add_vs_reference", unit: "ms", inverse: true, target: "ratio >= 3", met: ratioAtLeast(3)},
				{name: "add_vs_reference_masq", unit: "ms", inverse: true},
				{name: "del_vs_reference", unit: "ms", inverse: true, target: "ratio >= 3", met: ratioAtLeast(3)},
				{name: "del_until_gone", unit: "ms", inverse: true},
			},
			what: "ADD and DEL: fairlead-cni and fairlead-node with a ready record, exec to result;\n" +
				"         baseline of add_ready: exec of a Go program that does nothing + a raw netlink attach of the same objects;\n" +
				"         baseline of the others: the reference plugins bridge + host-local, exec to result. Our DEL answers before the\n" +
				"         link is gone from the kernel (the acknowledgement that frees the address waits for it), the reference's after:\n" +
				"         del_until_gone is from exec until the kernel is done and our record dropped, against the reference's DEL.\n" +
				"         _masq: with masquerade and hairpin, which ours does too",
			run: addAndDel,
		},
		severalMeasurement(),
		hotPlugMeasurement(),
		{
			objects: []object{{name: "daemon_rss_110x4_mb", unit: "MB", target: "value <= 40", met: valueAtMost(40)}},
			what: "the memory (RSS) of a daemon with 110 pods of four interfaces, when it has nothing to do; baseline: the same with 110\n" +
				"         pods of one interface",
			run: severalInMemory,
		},
		{
			objects: []object{
				{name: "add_parallel16", unit: "ADD/s", target: "ratio >= 0.7", met: ratioAtLeast(0.7)},
				{name: "add_parallel16_unheld", unit: "ADD/s"},
				{name: "add_parallel16_exec", unit: "ADD/s"},
			},
			what: "16 ADDs at once: through the socket to fairlead-node, without exec; baseline: raw netlink attach, 16 at once;\n" +
				"         _exec: the real plugin; baseline: exec of a Go program that does nothing + raw netlink attach, 16 at once.\n" +
				"         The API server's work for the status of each ADD, which other machines do in a cluster, waits for a batch's end,\n" +
				"         but not for _unheld",
			run: parallel,
		},
		{
			objects: []object{
				{name: "check_ms", unit: "ms", target: "value <= 5", met: valueAtMost(5)},
				{name: "status_ms", unit: "ms", target: "value <= 1", met: valueAtMost(1)},
				{name: "daemon_rss_250_mb", unit: "MB", target: "value <= 40", met: valueAtMost(40)},
				{name: "add_beside_200_p50", unit: "ms"},
				{name: "add_beside_200_p99", unit: "ms"},
			},
			what: "a node with 250 pods, through the socket to fairlead-node, without exec: the median CHECK and STATUS, and the memory of\n" +
				"         the daemon when it has nothing to do; baseline: the limits. add_beside_200: one ADD while 200 other pods are plugged\n" +
				"         and unplugged without end; baseline: the same alone",
			run: crowd,
		},
		{
			objects: []object{
				{name: "api_writes_per_pod", unit: "calls", target: "value <= 5", met: valueAtMost(5)},
				{name: "api_writes_per_pod_alone", unit: "calls"},
				{name: "api_reads_per_pod", unit: "calls", target: "value = 0", met: valueAtMost(0)},
				{name: "controller_cpu_ms_per_pod", unit: "ms", target: "value <= 1", met: valueAtMost(1)},
			},
			what: "API calls of fairlead-controller and fairlead-node in a pod's life (bound, ADD, DEL, deleted, record gone), counted\n" +
				"         by a proxy before the API server, " + strconv.Itoa(podRate) + " begun per second and, _alone, one after the other; baseline: the limit.\n" +
				"         That a record is deleted when its pod is gone is the work of Kubernetes' garbage collector, and not counted.\n" +
				"         controller_cpu: its processor time meanwhile, for each pod; baseline: the aim",
			run: lives,
		},
		{
			objects: []object{
				{name: "bound_to_record_p50", unit: "ms", target: "value <= 15", met: valueAtMost(15)},
				{name: "bound_to_record_p99", unit: "ms", target: "value <= 100", met: valueAtMost(100)},
				{name: "bound_to_record_quiet_p50", unit: "ms"},
				{name: "bound_to_record_quiet_p99", unit: "ms"},
			},
			what: "pods created already bound to 4 nodes, 100 per second: from the reply to the create until a watch of the node's\n" +
				"         PodAttachments shows the record; baseline: from the call to create an equal object until a watch shows it, as often,\n" +
				"         in turns; the median of the turns' percentiles; _quiet: 25 per second",
			run: boundToRecord,
		},
		{
			objects: []object{
				{name: "burst1000_vs_create", unit: "pods/s", target: "ratio >= 0.8", met: ratioAtLeast(0.8)},
			},
			what: "1,000 bound pods waiting for a controller on standby: from the moment at which the Lease names it until the nodes'\n" +
				"         watches have shown 1,000 PodAttachments; baseline: 1,000 equal objects created by as many clients at once as the\n" +
				"         controller makes writes at once, with the same watches",
			run: burst,
		},
	}
}

// names of all objects, in order.
func names() []string {
	var out []string
	for _, m := range measurements() {
		out = append(out, m.names()...)
	}
	return out
}

func (m measurement) names() []string {
	var out []string
	for _, o := range m.objects {
		out = append(out, o.name)
	}
	return out
}

// results returns the wanted objects with their figures.
func (m measurement) results(p plan, figures map[string]figure) ([]result, error) {
	var out []result
	for _, o := range m.objects {
		if !p.wants(o.name) {
			continue
		}
		f, ok := figures[o.name]
		if !ok {
			return out, fmt.Errorf("%s was not measured", o.name)
		}
		out = append(out, o.result(f))
	}
	return out, nil
}

func (o object) result(f figure) result {
	r := result{Name: o.name, Unit: o.unit, Value: round(f.value), Baseline: round(f.baseline), object: o}
	over, under := f.value, f.baseline
	if o.inverse {
		over, under = under, over
	}
	if under != 0 {
		r.Ratio = round(over / under)
	}
	return r
}

// round rounds to four significant digits.
func round(v float64) float64 {
	short, err := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 4, 64), 64)
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
		return 0
	}
	return short
}

// String is the result in one line.
func (r result) String() string {
	return fmt.Sprintf("%s %v %s, baseline %v, ratio %v%s", r.Name, r.Value, r.Unit, r.Baseline, r.Ratio, r.verdict(" (target: ", ")"))
}

// verdict returns the target and whether it is met, between two words, or nothing.
func (r result) verdict(before, after string) string {
	if r.object.met == nil {
		return ""
	}
	word := "met"
	if !r.object.met(r) {
		word = "MISSED"
	}
	return before + r.object.target + ": " + word + after
}

func printTable(out io.Writer, results []result) {
	_, _ = fmt.Fprintln(out)
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "NAME\tVALUE\tUNIT\tBASELINE\tRATIO\tTARGET")
	for _, r := range results {
		_, _ = fmt.Fprintf(table, "%s\t%v\t%s\t%v\t%v\t%s\n", r.Name, r.Value, r.Unit, r.Baseline, r.Ratio, r.verdict("", ""))
	}
	_ = table.Flush() // the terminal
}

// writeResults writes the list of results atomically.
func writeResults(path string, results []result) error {
	if results == nil {
		results = []result{}
	}
	raw, err := json.MarshalIndent(results, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the results: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("write the results: %w", err)
	}
	if err := os.WriteFile(path+".new", append(raw, '\n'), 0o644); err != nil {
		return fmt.Errorf("write the results: %w", err)
	}
	return os.Rename(path+".new", path)
}
