package main

import (
	"context"
	"fmt"
	"time"

	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/test/harness"
	"fairlead.dev/fairlead/test/kubeclient"
)

// kube is the demo's client of the cluster.
type kube struct {
	path string // the kubeconfig
	rest *rest.Config
	// Client reads from the API server, not from a cache.
	client.Client
	cached cache.Cache
	// changed has a token if an object may have changed.
	changed chan struct{}
}

func connect(kubeconfig string) (*kube, error) {
	cfg, c, err := kubeclient.Connect(kubeconfig)
	if err != nil {
		return nil, err
	}
	return &kube{path: kubeconfig, rest: cfg, Client: c, changed: make(chan struct{}, 1)}, nil
}

// startCache starts a cache for watch and for frequent reads. For the kinds in own it
// holds only the objects of one namespace. The kinds must exist.
func (k *kube) startCache(ctx context.Context, namespace string, own ...client.Object) error {
	opts := cache.Options{Scheme: k.Scheme(), ByObject: map[client.Object]cache.ByObject{}}
	for _, kind := range own {
		opts.ByObject[kind] = cache.ByObject{Namespaces: map[string]cache.Config{namespace: {}}}
	}
	var err error
	if k.cached, err = cache.New(k.rest, opts); err != nil {
		return fmt.Errorf("connect to Kubernetes: %w", err)
	}
	// It runs on when ctx ends: leaving the cluster needs it.
	cached := k.cached
	go func() { _ = cached.Start(context.WithoutCancel(ctx)) }()
	return nil
}

// watch makes await check whenever an object of these kinds changes.
func (k *kube) watch(ctx context.Context, kinds ...client.Object) error {
	handler := toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { k.signalChange() },
		UpdateFunc: func(any, any) { k.signalChange() },
		DeleteFunc: func(any) { k.signalChange() },
	}
	for _, kind := range kinds {
		informer, err := k.cached.GetInformer(ctx, kind)
		if err != nil {
			return fmt.Errorf("watch %T: %w", kind, err)
		}
		if _, err := informer.AddEventHandler(handler); err != nil {
			return fmt.Errorf("watch %T: %w", kind, err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	if !k.cached.WaitForCacheSync(ctx) {
		return fmt.Errorf("list the objects in the cluster: %w", context.Cause(ctx))
	}
	return nil
}

func (k *kube) signalChange() {
	select {
	case k.changed <- struct{}{}:
	default: // one token is enough
	}
}

// progress checks a condition: it returns the progress in words, and whether the
// condition is met.
type progress func(ctx context.Context) (how string, done bool, err error)

const (
	// progressInterval is the least time between two lines of progress.
	progressInterval = time.Second
	// pollInterval is for changes without an event.
	pollInterval = 100 * time.Millisecond
)

// await calls look at every change until it returns done. It fails if the step takes too
// long, a program ends, or the user interrupts.
func (k *kube) await(ctx context.Context, what string, report harness.Reporter, look progress) error {
	ctx, cancel := context.WithTimeoutCause(ctx, stepTimeout, fmt.Errorf("not within %v", stepTimeout))
	defer cancel()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	lastLine, lastLineAt := "", time.Now()
	for {
		how, done, err := look(ctx)
		if ctx.Err() != nil {
			return fmt.Errorf("waiting for %s (%s): %w", what, how, context.Cause(ctx))
		}
		if err != nil {
			return fmt.Errorf("waiting for %s: %w", what, err)
		}
		if done {
			return nil
		}
		if how != lastLine && time.Since(lastLineAt) >= progressInterval {
			report.Say("  %s: %s", what, how)
			lastLine, lastLineAt = how, time.Now()
		}
		select {
		case <-ctx.Done():
		case <-k.changed:
		case <-tick.C:
		}
	}
}
