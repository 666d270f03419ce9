package main

import (
	"cmp"
	"context"
	"fmt"
	"net"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"fairlead.dev/fairlead/internal/config"
	"fairlead.dev/fairlead/internal/leader"
)

// leaseName is the Lease by which replicas elect their leader.
const leaseName = "fairlead-controller"

// triesToRenew is how many unanswered requests fit into a leader's renew deadline.
const triesToRenew = 3

// term has the functions that run when a term as leader begins and after it has ended.
type term struct{ begins, ended func() }

// newElection prepares this process's part in the election. Its requests have a
// connection of their own, so they never queue behind other work of the controller.
func newElection(ctx context.Context, cfg config.LeaderElection, kube *rest.Config, t term) (*leader.Election, *leader.Beacon, error) {
	own := rest.CopyConfig(kube)
	own.Timeout = cfg.RenewDeadline.Duration / triesToRenew
	own.Dial = (&net.Dialer{Timeout: own.Timeout}).DialContext
	leases, err := coordinationv1.NewForConfig(own)
	if err != nil {
		return nil, nil, fmt.Errorf("prepare leader election: %w", err)
	}
	identity, beacon, err := introduce(ctx, cfg, kube)
	if err != nil {
		return nil, nil, err
	}
	election, err := leader.New(leader.Config{
		Name:   leaseName,
		Beacon: beacon,
		Lock: func() resourcelock.Interface {
			return &resourcelock.LeaseLock{
				LeaseMeta:  metav1.ObjectMeta{Namespace: cfg.Namespace, Name: leaseName},
				Client:     leases,
				LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
			}
		},
		LeaseDuration: cfg.LeaseDuration.Duration,
		RenewDeadline: cfg.RenewDeadline.Duration,
		RetryPeriod:   cfg.RetryPeriod.Duration,
		Begins:        t.begins,
		Ended:         t.ended,
	}, metrics.Registry)
	return election, beacon, err
}

// introduce returns this process's identity in the election and its beacon, whose address
// the identity contains. If the beacon cannot be opened, it logs the error and returns
// nil for it: if this process is killed, standbys then wait until the Lease runs out.
func introduce(ctx context.Context, cfg config.LeaderElection, kube *rest.Config) (string, *leader.Beacon, error) {
	identity, err := config.Identity()
	if err != nil {
		return "", nil, err
	}
	beacon, err := openBeacon(ctx, cfg, kube, identity)
	if err != nil {
		logr.FromContextOrDiscard(ctx).Error(err, "cannot open the beacon: if this process is killed, standbys wait until its lease runs out", "after", cfg.LeaseDuration.Duration)
		return identity, nil, nil
	}
	return beacon.Identity(), beacon, nil
}

// openBeacon listens where other replicas reach this one: at its pod's address or,
// outside of a pod, at this process's own address on the way to the API server. In a pod
// the latter is of no use: a pod reaches the API server at a virtual address that
// kube-proxy may put on each machine.
func openBeacon(ctx context.Context, cfg config.LeaderElection, kube *rest.Config, identity string) (*leader.Beacon, error) {
	if own := config.PodAddress(); own != "" {
		return leader.Listen(ctx, own, cfg.Port, identity)
	}
	server, _, err := rest.DefaultServerUrlFor(kube)
	if err != nil {
		return nil, err
	}
	own, err := leader.AddressTowards(ctx, net.JoinHostPort(server.Hostname(), cmp.Or(server.Port(), "443")))
	if err != nil {
		return nil, err
	}
	return leader.Listen(ctx, own, cfg.Port, identity)
}
