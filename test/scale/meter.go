package main

import (
	"context"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/procfs"
	"k8s.io/client-go/rest"

	"fairlead.dev/fairlead/test/harness"
	"fairlead.dev/fairlead/test/quiet"
)

// endpoint serves metrics and health.
type endpoint struct {
	client *http.Client
	url    string
}

// atSocket returns the endpoint of a program on a unix socket.
func atSocket(path string) endpoint {
	return endpoint{harness.AtSocket(path), "http://program"}
}

// atServer returns the endpoint of the API server.
func atServer(cfg *rest.Config) (endpoint, error) {
	client, err := rest.HTTPClientFor(cfg)
	return endpoint{client, cfg.Host}, err
}

func (e endpoint) get(ctx context.Context, path string) (string, error) {
	return harness.Get(ctx, e.client, e.url+path)
}

// metrics returns the metrics by name.
func (e endpoint) metrics(ctx context.Context) (map[string]*dto.MetricFamily, error) {
	text, err := e.get(ctx, "/metrics")
	if err != nil {
		return nil, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	return parser.TextToMetricFamilies(strings.NewReader(text))
}

// labelsOf returns the labels of a sample by name.
func labelsOf(m *dto.Metric) map[string]string {
	all := map[string]string{}
	for _, l := range m.GetLabel() {
		all[l.GetName()] = l.GetValue()
	}
	return all
}

// sum adds up the samples of a metric, by a key that of returns; "" leaves a sample out.
func sum(f *dto.MetricFamily, of func(labels map[string]string) string) map[string]float64 {
	out := map[string]float64{}
	for _, m := range f.GetMetric() {
		if key := of(labelsOf(m)); key != "" {
			out[key] += m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetHistogram().GetSampleSum()
		}
	}
	return out
}

// everything is one key for all samples.
func everything(map[string]string) string { return "all" }

// written returns the key of a request that writes: verb, resource and subresource.
func written(l map[string]string) string {
	if !slices.Contains([]string{"POST", "PUT", "PATCH", "APPLY", "DELETE"}, l["verb"]) || l["code"] >= "400" {
		return ""
	}
	name := l["resource"]
	if l["subresource"] != "" {
		name += "/" + l["subresource"]
	}
	return l["verb"] + " " + name
}

// reading has everything that is measured, at one moment.
type reading struct {
	at       time.Time
	writes   map[string]float64 // by verb and resource
	requests float64            // of all kinds
	refused  float64            // by API priority and fairness
	// queued has the seconds in the queues of API priority and fairness, by flow schema.
	queued map[string]float64
	// seats and sized are the estimated seats of requests of ServiceAccounts, and their number.
	seats, sized float64
	etcd         float64        // bytes
	pids         map[string]int // by program
	// cpu has the seconds of processor time, and memory the bytes in use, by program.
	cpu, memory map[string]float64
	peak        map[string]float64
	nodes       nodeTraffic
	events      float64 // that the API server sent by watches
	// busy and total are the seconds of all processors: at work, and altogether.
	busy, total float64
}

// nodeTraffic is the traffic of all simulated nodes.
type nodeTraffic struct{ received, attachments, networks, writes, refused int64 }

// Names of the programs.
const (
	theLeader  = "leader"
	theStandby = "standby"
	thePlane   = "API server"
	theNodes   = "simulation"
)

// read measures.
func (c *cluster) read(ctx context.Context) (reading, error) {
	r := reading{at: time.Now(), cpu: map[string]float64{}, memory: map[string]float64{}, peak: map[string]float64{}}
	server, err := atServer(c.REST)
	if err != nil {
		return r, err
	}
	all, err := server.metrics(ctx)
	if err != nil {
		return r, err
	}
	r.writes = sum(all["apiserver_request_total"], written)
	r.requests = sum(all["apiserver_request_total"], everything)["all"]
	r.refused = sum(all["apiserver_flowcontrol_rejected_requests_total"], everything)["all"]
	r.queued = sum(all["apiserver_flowcontrol_request_wait_duration_seconds"], func(l map[string]string) string { return l["flow_schema"] })
	for _, m := range all["apiserver_flowcontrol_work_estimated_seats"].GetMetric() {
		if labelsOf(m)["flow_schema"] == "service-accounts" {
			r.seats += m.GetHistogram().GetSampleSum()
			r.sized += float64(m.GetHistogram().GetSampleCount())
		}
	}
	r.events = sum(all["apiserver_watch_events_total"], everything)["all"]
	r.etcd = sum(all["apiserver_storage_size_bytes"], everything)["all"]
	pids := map[string]int{thePlane: c.Plane.Cmd.Process.Pid, theNodes: os.Getpid()}
	if c.leader != nil {
		pids[theLeader] = c.leader.Cmd.Process.Pid
	}
	if c.standby != nil {
		pids[theStandby] = c.standby.Cmd.Process.Pid
	}
	r.pids = pids
	for name, pid := range pids {
		p, err := procfs.NewProc(pid)
		if err != nil {
			return r, err
		}
		stat, err := p.Stat()
		if err != nil {
			return r, err
		}
		status, err := p.NewStatus()
		if err != nil {
			return r, err
		}
		r.cpu[name], r.memory[name], r.peak[name] = stat.CPUTime(), float64(status.VmRSS), float64(status.VmHWM)
	}
	idle, total, err := quiet.ProcessorTime()
	if err != nil {
		return r, err
	}
	r.busy, r.total = total-idle, total
	for _, n := range c.nodes {
		r.nodes.received += n.traffic.received.Load()
		r.nodes.attachments += n.traffic.attachments.Load()
		r.nodes.networks += n.traffic.networks.Load()
		r.nodes.writes += n.traffic.writes.Load()
		r.nodes.refused += n.traffic.refused.Load()
	}
	return r, nil
}
