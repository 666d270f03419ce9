package main

import (
	"fmt"
	"net"

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
func newElection(cfg config.LeaderElection, kube *rest.Config, t term) (*leader.Election, error) {
	own := rest.CopyConfig(kube)
	own.Timeout = cfg.RenewDeadline.Duration / triesToRenew
	own.Dial = (&net.Dialer{Timeout: own.Timeout}).DialContext
	leases, err := coordinationv1.NewForConfig(own)
	if err != nil {
		return nil, fmt.Errorf("prepare leader election: %w", err)
	}
	identity, err := config.Identity()
	if err != nil {
		return nil, err
	}
	return leader.New(leader.Config{
		Name: leaseName,
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: cfg.Namespace, Name: leaseName},
			Client:     leases,
			LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
		},
		LeaseDuration: cfg.LeaseDuration.Duration,
		RenewDeadline: cfg.RenewDeadline.Duration,
		RetryPeriod:   cfg.RetryPeriod.Duration,
		Begins:        t.begins,
		Ended:         t.ended,
	}, metrics.Registry)
}
