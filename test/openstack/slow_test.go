package main

import (
	"context"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/fairlead/test/podrunner/sandbox"
)

// slowPort has the OVN controller of a chassis away for longer than addTimeout while a pod
// starts there. The pod gets an event, and starts in its first sandbox.
func (b *bed) slowPort() {
	n := b.nodes[0]
	peer := b.pod("peer", b.nodes[1])
	from := b.running(peer)
	if err := b.lab.Kill(n.Name + "-controller"); err != nil {
		b.Fatal(err)
	}
	slow := b.pod("slow", n)
	b.await("the event of the port that is not active", func(ctx context.Context) error {
		if err := b.warnings(ctx, slow); !strings.Contains(err.Error(), "InterfaceNotActive") {
			return err
		}
		return nil
	})
	first := b.sandboxes(slow)
	if _, err := b.lab.Chassis(b.Context(), n.Name, firstOfBed); err != nil {
		b.Fatal(err)
	}
	b.pings(from, b.running(slow), true)
	if now := b.sandboxes(slow); len(first) != 1 || !slices.Equal(first, now) {
		b.Errorf("the pod had the sandboxes %q, and has %q; want one", first, now)
	}
	b.delete(peer, slow)
	b.nothingIsLeft()
}

// sandboxes returns the IDs of the sandboxes that a pod has had.
func (b *bed) sandboxes(p *corev1.Pod) (ids []string) {
	b.Helper()
	records, err := sandbox.Read(filepath.Join(b.dir, p.Spec.NodeName, "runner"))
	if err != nil {
		b.Fatal(err)
	}
	for _, r := range records {
		if r.UID == p.UID {
			ids = append(ids, r.ID)
		}
	}
	return ids
}
