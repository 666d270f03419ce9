package main

import (
	"context"
	"strings"

	"fairlead.dev/fairlead/test/bench/datapath"
	"fairlead.dev/fairlead/test/netlab"
)

// pathFigure is a figure of the traffic between pods.
type pathFigure struct {
	object
	place, family string
	kind          datapath.Kind
	scale         float64 // the unit of the figure, in the unit of datapath
}

// pathFigures returns the figures of the traffic between pods, such as path_node_tcp4.
func pathFigures() []pathFigure {
	var out []pathFigure
	for _, place := range []string{datapath.SameNode, datapath.Direct, datapath.Tunnel} {
		for _, family := range []string{"IPv4", "IPv6"} {
			for _, k := range []pathFigure{
				{kind: datapath.TCP, scale: 1e6, object: object{unit: "MB/s", target: "ratio >= 0.97", met: ratioAtLeast(0.97)}},
				{kind: datapath.Datagrams, scale: 1e3, object: object{unit: "thousands/s", target: "ratio >= 0.95", met: ratioAtLeast(0.95)}},
				{kind: datapath.RoundTrip, scale: 1, object: object{unit: "us", target: "value <= baseline + 1", met: func(r result) bool { return r.Value <= r.Baseline+1 }}},
			} {
				if place != datapath.SameNode {
					k.target, k.met = "", nil
				}
				k.name = "path_" + place + "_" + string(k.kind) + strings.TrimPrefix(family, "IPv")
				k.place, k.family = place, family
				out = append(out, k)
			}
		}
	}
	return out
}

// pathMeasurement is of the traffic between pods.
func pathMeasurement() measurement {
	m := measurement{
		what: "traffic between two pods with all source checks, on one node, on two nodes of one link, and in the tunnel: one TCP\n" +
			"         connection, datagrams of 64 bytes that arrive, and the time of such a datagram and its answer; baseline: the same\n" +
			"         between plain veths that the nodes route to, without any filter. Of each a turn better than nine of ten",
		run: paths,
	}
	for _, f := range pathFigures() {
		m.objects = append(m.objects, f.object)
	}
	return m
}

// paths measures the traffic between pods. Without IPv6 in the kernel its figures are those
// of nothing: 0.
func paths(ctx context.Context, w *testbed) (map[string]figure, error) {
	got, err := datapath.Measure(ctx, w.samples(60, 10))
	if err != nil {
		return nil, err
	}
	figures := map[string]figure{}
	for _, f := range pathFigures() {
		if f.family == "IPv6" && !netlab.HasIPv6() {
			figures[f.name] = figure{}
			continue
		}
		of := func(network string) float64 {
			return got[datapath.Key{Network: network, Place: f.place, Family: f.family, Kind: f.kind}] / f.scale
		}
		figures[f.name] = figure{of(datapath.Fairlead), of(datapath.Routed)}
		if f.place != datapath.Tunnel {
			w.Say("  %s: the reference plugin's bridge %.4g %s, the hosts themselves %.4g", f.name, of(datapath.Bridge), f.unit, of(datapath.Host))
		}
	}
	return figures, nil
}
