package main

import (
	"context"

	"k8s.io/kubernetes/cmd/kube-scheduler/app"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"
)

// runScheduler runs kube-scheduler until it fails.
func runScheduler(ctx context.Context, p *controlPlane) error {
	args := []string{
		"--kubeconfig=" + p.dir.file("scheduler.kubeconfig"),
		"--leader-elect=false",
		"--secure-port=0",
		"--kube-api-qps=1000",
		"--kube-api-burst=2000",
	}
	opts := options.NewOptions()
	if err := parseFlags("kube-scheduler", *opts.Flags, args); err != nil {
		return err
	}
	if err := opts.ComponentGlobalsRegistry.Set(); err != nil {
		return err
	}
	cfg, scheduler, err := app.Setup(ctx, opts)
	if err != nil {
		return err
	}
	return app.Run(ctx, cfg, scheduler)
}
