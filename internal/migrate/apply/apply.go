package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/ipam"
	"fairlead.dev/fairlead/internal/ipam/block"
	"fairlead.dev/fairlead/internal/migrate"
)

// concurrentTakes is the number of addresses that are taken concurrently; the addresses
// of one block share one write.
const concurrentTakes = 256

// restCheck is the interval of retries for an address that is cooling.
const restCheck = 500 * time.Millisecond

// Migration is a migration of one cluster.
type Migration struct {
	API client.Client
	// Controller writes IPBlocks and PodAttachments: an admission policy refuses the writes of
	// all but the controller. Nil: API does, where no policy is installed.
	Controller client.Client
	// Namespace of whereabouts' objects; if empty, it is the namespace that has such
	// objects.
	Namespace string
	// FlatFile is the content of the nodes' whereabouts.conf, a JSON object with the
	// options that networks do not set. It may be empty.
	FlatFile []byte
	// Drop leaves addresses free if no running pod explains them.
	Drop bool
}

func (m Migration) controller() client.Client {
	if m.Controller != nil {
		return m.Controller
	}
	return m.API
}

// Plan reads the cluster and returns its state and the plan. It changes nothing.
func (m Migration) Plan(ctx context.Context) (*Cluster, *migrate.Plan, error) {
	c, err := Read(ctx, m.API, m.Namespace, m.FlatFile)
	if err != nil {
		return nil, nil, err
	}
	plan, err := migrate.Make(c.State, m.Drop)
	if err != nil {
		return nil, nil, err
	}
	return c, plan, nil
}

// Barrier returns the barrier of a cluster.
func (m Migration) Barrier(c *Cluster) Barrier {
	return Barrier{API: m.API, Namespace: c.Namespace, Names: migrate.Leases(c.State)}
}

// Import imports everything, and returns the plan that it executed. It takes the Leases
// of whereabouts and keeps them, also on an error: only Rollback releases them.
//
// It fails without a write if a program still writes without the Lease, or if Fairlead
// has given an address that a pod uses to another pod.
func (m Migration) Import(ctx context.Context) (*Cluster, *migrate.Plan, error) {
	c, plan, err := m.Plan(ctx)
	if err != nil {
		return nil, nil, err
	}
	if err := m.check(ctx, c, plan); err != nil {
		return c, plan, err
	}
	if err := m.Barrier(c).Take(ctx); err != nil {
		return c, plan, err
	}
	// The state may have changed before the Leases were taken.
	if c, plan, err = m.Plan(ctx); err != nil {
		return nil, nil, err
	}
	if err := m.check(ctx, c, plan); err != nil {
		return c, plan, err
	}
	if err := m.write(ctx, c, plan); err != nil {
		return c, plan, err
	}
	return c, plan, m.verify(ctx)
}

// check returns nil if the migration is possible.
func (m Migration) check(ctx context.Context, c *Cluster, plan *migrate.Plan) error {
	if err := m.quiet(ctx, c); err != nil {
		return err
	}
	if refused := plan.Refused(); len(refused) > 0 {
		texts := make([]string, 0, len(refused))
		for _, f := range refused {
			texts = append(texts, f.Address+": "+f.Text)
		}
		return fmt.Errorf("addresses are in use that Fairlead has given to others; nothing was imported: %s", strings.Join(texts, "; "))
	}
	return nil
}

// quiet returns nil if no program writes without the Lease.
func (m Migration) quiet(ctx context.Context, c *Cluster) error {
	writers, err := Writers(ctx, m.API, c.Pods)
	if err != nil {
		return err
	}
	if len(writers) > 0 {
		return fmt.Errorf("whereabouts' own clean-up runs, and would free imported addresses; stop it first:\n  %s", strings.Join(writers, "\n  "))
	}
	return nil
}

// verify reads everything again; it returns an error if the new plan is not empty.
func (m Migration) verify(ctx context.Context) error {
	_, plan, err := m.Plan(ctx)
	if err != nil {
		return fmt.Errorf("verify: %w", err)
	}
	if !plan.Done() {
		return fmt.Errorf("verify: the cluster has changed meanwhile, and %d addresses and %d pods are not imported yet: migrate again", plan.Slots(), len(plan.Records))
	}
	return nil
}

// write executes a plan. It withholds and takes addresses before it writes the records
// that name them.
func (m Migration) write(ctx context.Context, c *Cluster, plan *migrate.Plan) error {
	for i := range plan.Withhold {
		if err := m.withhold(ctx, &plan.Withhold[i]); err != nil {
			return err
		}
	}
	if err := m.take(ctx, c.Blocks, plan.Holdings); err != nil {
		return err
	}
	// From here on no address in use can be given away, so the pools may exist.
	for i := range plan.Pools {
		pool := plan.Pools[i].DeepCopy()
		if err := m.API.Create(ctx, pool); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create IPPool %s: %w", pool.Name, err)
		}
	}
	for _, r := range plan.Records {
		if err := m.record(ctx, r); err != nil {
			return err
		}
	}
	for _, name := range plan.Release {
		o := &v1alpha1.IPReservation{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if err := m.API.Delete(ctx, o); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete IPReservation %s: %w", name, err)
		}
	}
	return nil
}

// withhold creates or updates an IPReservation.
func (m Migration) withhold(ctx context.Context, want *v1alpha1.IPReservation) error {
	o := &v1alpha1.IPReservation{}
	err := m.API.Get(ctx, client.ObjectKeyFromObject(want), o)
	switch {
	case apierrors.IsNotFound(err):
		err = m.API.Create(ctx, want.DeepCopy())
	case err == nil:
		o.Labels, o.Spec = want.Labels, want.Spec
		err = m.API.Update(ctx, o)
	}
	if err != nil {
		return fmt.Errorf("write IPReservation %s: %w", want.Name, err)
	}
	return nil
}

// store runs a block store with the given blocks until use returns.
func (m Migration) store(ctx context.Context, blocks []v1alpha1.IPBlock, use func(ctx context.Context, s *block.Store) error) error {
	s := block.New(block.Kube{Writer: m.controller(), Live: m.API}, block.Config{})
	for i := range blocks {
		s.Observe(&blocks[i])
	}
	run, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- s.Run(run) }()
	err := use(ctx, s)
	stop()
	return errors.Join(err, <-done)
}

// take writes the addresses of running pods into the blocks, also addresses that no pool
// would hand out.
func (m Migration) take(ctx context.Context, blocks []v1alpha1.IPBlock, holdings []migrate.Holding) error {
	return m.store(ctx, blocks, func(ctx context.Context, s *block.Store) error {
		todo, ctx := errgroup.WithContext(ctx)
		todo.SetLimit(concurrentTakes)
		for _, h := range holdings {
			if !h.Slot {
				continue
			}
			todo.Go(func() error {
				if err := takeOne(ctx, s, h); err != nil {
					return fmt.Errorf("import %s of %s: %w", h.Addr, h.Holder, err)
				}
				return nil
			})
		}
		return todo.Wait()
	})
}

// takeOne takes one address. By the plan it has no holder, so ErrConflict can only mean
// that a recent rollback freed it and it is cooling; takeOne then retries until the
// shortest cooldown has passed.
func takeOne(ctx context.Context, s *block.Store, h migrate.Holding) error {
	only, err := ipam.ParsePool(ipam.PoolSpec{Name: "whereabouts", Domain: h.Domain, Ranges: []string{h.Addr.String()}})
	if err != nil {
		return err
	}
	var last error
	err = wait.PollUntilContextTimeout(ctx, restCheck, ipam.MinCooldown+restCheck, true, func(ctx context.Context) (bool, error) {
		_, last = s.Take(ctx, only, block.Request{Holder: h.Holder, Addresses: []netip.Addr{h.Addr}})
		if errors.Is(last, fault.ErrConflict) {
			return false, nil
		}
		return last == nil, last
	})
	return cmp.Or(last, err)
}

// record writes a PodAttachment, and then its status. Without the status the node waits
// for the pod to be plugged.
func (m Migration) record(ctx context.Context, r migrate.Record) error {
	o := r.Object.DeepCopy()
	if !r.Written {
		err := m.controller().Create(ctx, o)
		switch {
		case apierrors.IsNotFound(err):
			return nil // the namespace is gone, and the pod with it
		case apierrors.IsAlreadyExists(err):
			return nil // another migration runs; verify finds missing records
		case err != nil:
			return fmt.Errorf("write PodAttachment %s: %w", klog.KObj(o), err)
		}
	}
	now := metav1.NewMicroTime(time.Now())
	o.Status.Sandbox = &v1alpha1.Sandbox{ID: r.Sandbox.ID, BootID: r.Sandbox.BootID, State: r.Sandbox.State, AttachedAt: &now}
	for _, t := range []string{v1alpha1.ConditionAttached, v1alpha1.ConditionReady} {
		meta.SetStatusCondition(&o.Status.Conditions, metav1.Condition{
			Type: t, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonImported, Message: "plugged before it was imported from whereabouts", ObservedGeneration: o.Generation,
		})
	}
	if err := m.API.Status().Update(ctx, o); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("write the status of PodAttachment %s: %w", klog.KObj(o), err)
	}
	return nil
}
