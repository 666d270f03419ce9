package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/portsbinding"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/ports"
	corev1 "k8s.io/api/core/v1"
)

// figuresVariable is the number of pods that start at once for the figures, at most
// figuresMost. Without it no figures are taken.
const (
	figuresMost     = 30
	figuresVariable = "FAIRLEAD_OPENSTACK_FIGURES"
)

// poolFigures logs how fast pods get ports with and without pools, beside ports that are made
// one after the other. docs/dev/benchmarks.md has the figures of a run.
func (b *bed) poolFigures() {
	text := os.Getenv(figuresVariable)
	count, err := strconv.Atoi(text)
	if err != nil || count < 1 || count > figuresMost {
		b.Fatalf("%s=%q: must be 1 to %d", figuresVariable, text, figuresMost)
	}
	n := b.nodes[0]
	rate := func(what string, begin time.Time, calls int) {
		took := time.Since(begin)
		b.Logf("%s: %d in %v, %.2f a second, %.1f calls each", what, count, took.Round(time.Millisecond), float64(count)/took.Seconds(), float64(calls)/float64(count))
	}
	b.oneByOne(n, count, rate)
	b.pooled(0, 1, 1)
	b.startTogether("pods with ports of their own", n, count, rate)
	b.pooled(1, 2*figuresMost, 20)
	first := b.pod("first", n)
	from := b.running(first)
	b.awaitSlots(n, "the pool to be filled", readyPorts(1, 2*figuresMost))
	_, calls := b.proxy.since(0)
	begin := time.Now()
	b.fairlead("pool", "fill", n.Name, "--ports", strconv.Itoa(count+2))
	b.awaitSlots(n, "the pool to be filled", readyPorts(count+2, count+2))
	made, _ := b.proxy.since(calls)
	rate("ports that a pool makes", begin, len(made))
	b.fairlead("pool", "fill", n.Name) // the marks again: no request until one port is left
	b.startTogether("pods with ports of a pool", n, count, rate)

	last := b.pod("last", n)
	e := b.running(last)
	begin = time.Now()
	b.pings(from, e, true)
	b.Logf("a pod with a port of a pool answers %v after it runs", time.Since(begin).Round(time.Millisecond))
	port := b.portOf(last)
	b.await("the port to be ACTIVE", func(ctx context.Context) error {
		p, err := ports.Get(ctx, b.neutron, port).Extract()
		if err == nil && p.Status != "ACTIVE" {
			err = fmt.Errorf("it is %s", p.Status)
		}
		return err
	})
	b.Logf("Neutron reports its port as ACTIVE %v after it runs", time.Since(begin).Round(time.Millisecond))
	b.unused(first, last)
}

// oneByOne makes ports as a client does that has no pools: each with a call of its own.
func (b *bed) oneByOne(n *bedNode, count int, rate func(string, time.Time, int)) {
	b.Helper()
	var made []string
	begin := time.Now()
	for i := range count {
		p, err := ports.Create(b.Context(), b.neutron, portsbinding.CreateOptsExt{HostID: n.Name, CreateOptsBuilder: ports.CreateOpts{
			NetworkID: b.cloud.network, Name: fmt.Sprintf("figure-%d", i), SecurityGroups: &[]string{b.cloud.group},
		}}).Extract()
		if err != nil {
			b.Fatal(err)
		}
		made = append(made, p.ID)
	}
	rate("ports one after the other, without pods", begin, count)
	for _, id := range made {
		if err := ports.Delete(b.Context(), b.neutron, id).ExtractErr(); err != nil {
			b.Error(err)
		}
	}
}

// startTogether starts pods at once on a node, and ends them.
func (b *bed) startTogether(what string, n *bedNode, count int, rate func(string, time.Time, int)) {
	b.Helper()
	b.awaitLeader()
	_, calls := b.proxy.since(0)
	begin := time.Now()
	var pods []*corev1.Pod
	for i := range count {
		pods = append(pods, b.pod(fmt.Sprintf("together-%d", i), n))
	}
	b.await("records", func(ctx context.Context) error {
		records, err := b.records(ctx)
		if err == nil && len(records) < count {
			err = fmt.Errorf("%d records", len(records))
		}
		return err
	})
	made, _ := b.proxy.since(calls)
	rate(what+", until they have an interface", begin, len(made))
	for _, p := range pods {
		b.running(p)
	}
	made, _ = b.proxy.since(calls)
	rate(what+", until they run", begin, len(made))
	b.delete(pods...)
	b.await("the pods to be gone", func(ctx context.Context) error {
		records, err := b.records(ctx)
		if err == nil && len(records) >= count {
			err = fmt.Errorf("%d records", len(records))
		}
		return err
	})
}
