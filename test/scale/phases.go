package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// rates are the steady rates of new pods for each second.
var rates = []int{25, 50, 100}

// result is what one phase showed.
type result struct {
	name          string
	took          time.Duration
	made          *batch // the pods that were made; nil for none
	gone          *batch // the pods that were deleted; nil for none
	notes         []string
	before, after reading
}

// usual returns the nodes that have all pods but those of twoNodes.
func (c *cluster) usual() []*node { return c.nodes[:len(c.nodes)-2] }

// measure runs all phases.
func (c *cluster) measure(ctx context.Context) error {
	if err := c.prepare(ctx); err != nil {
		return err
	}
	all := newBatch()
	steps := []func() error{
		func() error {
			return c.phase(ctx, fmt.Sprintf("%d nodes at once", c.Nodes), func(*result) error { return c.addNodes(ctx) })
		},
		func() error { return c.steady(ctx, all) },
		func() error { return c.burst(ctx, all) },
		func() error { return c.idle(ctx) },
		func() error { return c.restart(ctx, all) },
		func() error { return c.failover(ctx, all) },
		func() error { return c.drain(ctx, all) },
		func() error { return c.twoNodes(ctx) },
		func() error { return c.deleteAll(ctx, all) },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return errors.Join(err, c.write())
		}
	}
	return errors.Join(c.write(), c.nothingLeft(ctx))
}

// phase measures what do does.
func (c *cluster) phase(ctx context.Context, name string, do func(*result) error) error {
	r := result{name: name}
	var err error
	if r.before, err = c.read(ctx); err != nil {
		return err
	}
	if err := do(&r); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	r.took = time.Since(r.before.at)
	if r.after, err = c.read(ctx); err != nil {
		return err
	}
	c.results = append(c.results, r)
	c.show(r)
	return nil
}

// steady creates pods at each rate.
func (c *cluster) steady(ctx context.Context, all *batch) error {
	for _, rate := range rates {
		n := min(rate*c.Seconds, c.Pods-len(all.lives))
		if n < rate || n == 0 {
			return nil
		}
		err := c.phase(ctx, fmt.Sprintf("%d pods at %d/s", n, rate), func(r *result) error {
			r.made = c.workload.plan(n, c.usual())
			all.lives = append(all.lives, r.made.lives...)
			return errors.Join(c.workload.create(ctx, r.made, rate), r.made.await(ctx, attached, limit))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// burst creates the rest of the pods at once.
func (c *cluster) burst(ctx context.Context, all *batch) error {
	n := c.Pods - len(all.lives)
	if n <= 0 {
		return nil
	}
	return c.phase(ctx, fmt.Sprintf("%d pods at once", n), func(r *result) error {
		r.made = c.workload.plan(n, c.usual())
		all.lives = append(all.lives, r.made.lives...)
		return errors.Join(c.workload.create(ctx, r.made, 0), r.made.await(ctx, attached, limit))
	})
}

// idle measures ten seconds without changes.
func (c *cluster) idle(ctx context.Context) error {
	return c.phase(ctx, "10 s at rest", func(*result) error {
		select {
		case <-time.After(10 * time.Second):
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
}

// one creates a pod, which waits for a leader.
func (c *cluster) one(ctx context.Context, all *batch) (*batch, error) {
	b := c.workload.plan(1, c.nodes[:1])
	all.lives = append(all.lives, b.lives...)
	return b, c.workload.create(ctx, b, 0)
}

// restart stops both controllers in order and starts them again.
func (c *cluster) restart(ctx context.Context, all *batch) error {
	return c.phase(ctx, "no controller, then a new one", func(r *result) error {
		if err := errors.Join(c.standby.Stop(), c.leader.Stop()); err != nil {
			return err
		}
		var err error
		if r.made, err = c.one(ctx, all); err != nil {
			return err
		}
		start := time.Now()
		if c.leader, err = c.startController(ctx); err != nil {
			return err
		}
		r.note("ready after %.1f s", time.Since(start).Seconds())
		if err := r.made.await(ctx, recorded, limit); err != nil {
			return err
		}
		r.note("a pod that waited has its record after %.1f s", time.Since(start).Seconds())
		c.standby, err = c.startController(ctx)
		return errors.Join(err, r.made.await(ctx, attached, limit))
	})
}

// failover kills the leader.
func (c *cluster) failover(ctx context.Context, all *batch) error {
	return c.phase(ctx, "the leader is killed", func(r *result) error {
		c.leader.Kill()
		start := time.Now()
		c.leader = c.standby
		var err error
		if r.made, err = c.one(ctx, all); err != nil {
			return err
		}
		if err := r.made.await(ctx, recorded, limit); err != nil {
			return err
		}
		r.note("a pod has its record %.2f s after the kill", time.Since(start).Seconds())
		c.standby, err = c.startController(ctx)
		return errors.Join(err, r.made.await(ctx, attached, limit))
	})
}

func (r *result) note(format string, args ...any) {
	r.notes = append(r.notes, fmt.Sprintf(format, args...))
}

// drain moves the pods of a tenth of the nodes to the other nodes.
func (c *cluster) drain(ctx context.Context, all *batch) error {
	drained := map[*node]bool{}
	for _, n := range c.nodes[:c.Nodes/10] {
		drained[n] = true
	}
	return c.phase(ctx, fmt.Sprintf("%d nodes are drained", len(drained)), func(r *result) error {
		r.gone = newBatch()
		var stay []*life
		for _, l := range all.lives {
			if drained[l.node] {
				l.batch = r.gone
				r.gone.lives = append(r.gone.lives, l)
			} else {
				stay = append(stay, l)
			}
		}
		r.made = c.workload.plan(len(r.gone.lives), c.usual()[c.Nodes/10:])
		all.lives = append(stay, r.made.lives...)
		return c.replace(ctx, r)
	})
}

// replace deletes pods and makes others at the same time.
func (c *cluster) replace(ctx context.Context, r *result) error {
	failed := make(chan error, 1)
	go func() { failed <- c.workload.delete(ctx, r.gone) }()
	err := c.workload.create(ctx, r.made, 0)
	err = errors.Join(err, <-failed)
	if err != nil {
		return err
	}
	start := r.before.at
	if err := r.gone.await(ctx, released, limit); err != nil {
		return err
	}
	r.note("the old pods are released after %.1f s", time.Since(start).Seconds())
	if err := r.made.await(ctx, attached, limit); err != nil {
		return err
	}
	r.note("the new pods are attached after %.1f s", time.Since(start).Seconds())
	c.lives.forget(r.gone)
	return nil
}

// twoNodes gives two nodes many pods at once, and then replaces all of them at once.
func (c *cluster) twoNodes(ctx context.Context) error {
	if c.Two == 0 {
		return nil
	}
	two := c.nodes[len(c.nodes)-2:]
	first := c.workload.plan(c.Two, two)
	err := c.phase(ctx, fmt.Sprintf("%d pods on two nodes", c.Two), func(r *result) error {
		r.made = first
		return errors.Join(c.workload.create(ctx, first, 0), first.await(ctx, attached, limit))
	})
	if err != nil {
		return err
	}
	var second *batch
	err = c.phase(ctx, fmt.Sprintf("these %d pods are replaced at once", c.Two), func(r *result) error {
		second = c.workload.plan(c.Two, two)
		r.gone, r.made = first, second
		return c.replace(ctx, r)
	})
	if err != nil {
		return err
	}
	return c.phase(ctx, fmt.Sprintf("the %d pods are deleted", c.Two), func(r *result) error {
		r.gone = second
		defer c.lives.forget(second)
		return errors.Join(c.workload.delete(ctx, second), second.await(ctx, released, limit))
	})
}

// deleteAll deletes all pods at once.
func (c *cluster) deleteAll(ctx context.Context, all *batch) error {
	return c.phase(ctx, "all pods are deleted", func(r *result) error {
		r.gone = newBatch()
		r.gone.lives = all.lives
		for _, l := range all.lives {
			l.batch = r.gone
		}
		defer c.lives.forget(r.gone)
		return errors.Join(c.workload.delete(ctx, r.gone), r.gone.await(ctx, released, limit))
	})
}

// nothingLeft checks that no pod and no record is left, that all addresses are free after
// their cooldown, and that the audit finds nothing.
func (c *cluster) nothingLeft(ctx context.Context) error {
	pods, records := &corev1.PodList{}, &v1alpha1.PodAttachmentList{}
	if err := errors.Join(c.List(ctx, pods, client.InNamespace(namespace)), c.List(ctx, records)); err != nil {
		return err
	}
	if len(pods.Items)+len(records.Items) > 0 {
		return fmt.Errorf("%d pods and %d PodAttachments are left", len(pods.Items), len(records.Items))
	}
	err := await(ctx, "a pool whose addresses are all free", func(ctx context.Context) error {
		pool := &v1alpha1.IPPool{}
		if err := c.Get(ctx, client.ObjectKey{Name: "default"}, pool); err != nil {
			return err
		}
		if s := pool.Status; s.Usable == 0 || s.Free+s.Reserved != s.Usable {
			return fmt.Errorf("of %d addresses %d are free, %d allocated, %d cooling, %d held, %d reserved", s.Usable, s.Free, s.Allocated, s.Cooling, s.Held, s.Reserved)
		}
		return nil
	})
	if err != nil {
		return err
	}
	out, err := c.Programs.Run(ctx, c.Switch(), filepath.Join(c.Bin, "fairlead"), "--kubeconfig", c.Admin, "ipam", "audit")
	if err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	for _, n := range c.nodes {
		if left := n.ledger.All(); len(left) > 0 {
			return fmt.Errorf("node %s remembers %v", n.name, left)
		}
	}
	c.Say("nothing is left: %s", out)
	return nil
}
