package apply

import (
	"context"
	"errors"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// holder is the holder of whereabouts' Leases during a migration.
	holder = "fairlead-migrate"
	// barrierSeconds is the duration of the Lease. A waiting whereabouts counts it from
	// its first read of the Lease. Each of its ADDs and DELs is a process of its own that
	// gives up after two minutes, so it never takes a Lease with a longer duration, and
	// the Lease needs no renewal.
	barrierSeconds = 3600
	// renewEvery is the interval in which Hold renews: old releases of whereabouts use
	// their own duration of 1.5 seconds instead of the Lease's (kubernetes#47671).
	renewEvery = 500 * time.Millisecond
	// pollEvery is the interval between two reads of a Lease that another process holds.
	pollEvery = 200 * time.Millisecond
)

// errHeld means that another process holds a Lease.
var errHeld = errors.New("held by another")

// Barrier is the set of Leases under which whereabouts writes, one for the cluster and
// one for each node's slice. While the migration holds them, whereabouts allocates and
// frees nothing: an ADD fails after two minutes, and the runtime retries it; a DEL does
// nothing and succeeds.
type Barrier struct {
	API       client.Client
	Namespace string
	Names     []string
}

// Take acquires every Lease. It waits for an ADD or DEL in progress, and for the expiry
// of a Lease whose holder was killed.
func (b Barrier) Take(ctx context.Context) error {
	for _, name := range b.Names {
		seen := expiry{}
		err := wait.PollUntilContextCancel(ctx, pollEvery, true, func(ctx context.Context) (bool, error) {
			err := b.take(ctx, name, &seen)
			if errors.Is(err, errHeld) || apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
				return false, nil
			}
			return err == nil, err
		})
		if err != nil {
			return fmt.Errorf("take Lease %s/%s (it is held by %q): %w", b.Namespace, name, seen.holder, err)
		}
	}
	return nil
}

// expiry is the time at which a Lease expires, by the clock of this process. A renewal
// changes the Lease's version.
type expiry struct {
	version string
	holder  string
	at      time.Time
}

// take acquires one Lease; errors: errHeld while another process holds it.
func (b Barrier) take(ctx context.Context, name string, seen *expiry) error {
	lease := &coordinationv1.Lease{}
	err := b.API.Get(ctx, client.ObjectKey{Namespace: b.Namespace, Name: name}, lease)
	if apierrors.IsNotFound(err) {
		lease.Namespace, lease.Name = b.Namespace, name
		claim(lease)
		return b.API.Create(ctx, lease)
	}
	if err != nil {
		return err
	}
	now := time.Now()
	if s := lease.Spec; s.HolderIdentity != nil && *s.HolderIdentity != "" && *s.HolderIdentity != holder {
		if lease.ResourceVersion != seen.version {
			seconds := int32(2) // more than whereabouts' 1.5
			if s.LeaseDurationSeconds != nil {
				seconds = max(seconds, *s.LeaseDurationSeconds)
			}
			*seen = expiry{lease.ResourceVersion, *s.HolderIdentity, now.Add(time.Duration(seconds) * time.Second)}
		}
		if now.Before(seen.at) {
			return errHeld
		}
	}
	claim(lease)
	return b.API.Update(ctx, lease)
}

func claim(lease *coordinationv1.Lease) {
	now := metav1.NowMicro()
	if s := lease.Spec; s.HolderIdentity == nil || *s.HolderIdentity != holder {
		lease.Spec.AcquireTime = &now
	}
	lease.Spec.HolderIdentity = new(holder)
	lease.Spec.LeaseDurationSeconds = new(int32(barrierSeconds))
	lease.Spec.RenewTime = &now
}

// Hold renews the Leases until ctx ends, then returns nil.
func (b Barrier) Hold(ctx context.Context) error {
	tick := time.NewTicker(renewEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := b.Take(ctx); err != nil && ctx.Err() == nil {
			return err
		}
	}
}

// Release deletes the Leases, so that whereabouts can write again. A Lease of another
// holder stays.
func (b Barrier) Release(ctx context.Context) error {
	for _, name := range b.Names {
		lease := &coordinationv1.Lease{}
		err := b.API.Get(ctx, client.ObjectKey{Namespace: b.Namespace, Name: name}, lease)
		if err == nil && lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity == holder {
			err = b.API.Delete(ctx, lease, client.Preconditions{UID: &lease.UID, ResourceVersion: &lease.ResourceVersion})
		}
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("release Lease %s/%s: %w", b.Namespace, name, err)
		}
	}
	return nil
}
