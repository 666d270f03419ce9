package main

import (
	"context"
	"errors"
	"testing"
)

// Pods have ports of Neutron, from the API server to the packets.
func TestEndToEnd(t *testing.T) {
	b := newBed(t)
	b.lead(map[string]any{"driver": "neutron"})
	b.ready()
	b.story("a pod on one chassis", (*bed).first)
}

// ready waits until both nodes can start pods, and notes what is there.
func (b *bed) ready() {
	b.Helper()
	for _, n := range b.nodes {
		b.await("node "+n.Name, func(context.Context) error { return n.installed() })
		var err error
		if n.baseline, err = n.state(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

// first has a pod on one chassis, which a machine pings.
func (b *bed) first() {
	p := b.pod("first", b.nodes[0])
	machine := b.machine(b.nodes[1])
	e := b.running(p)
	b.await("the machine to ping the pod", func(ctx context.Context) error {
		if !ping(ctx, machine.Namespace, e.address) {
			return errors.New("no answer")
		}
		return nil
	})
	b.delete(p)
	b.nothingIsLeft()
}
