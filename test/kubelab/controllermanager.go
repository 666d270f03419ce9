package main

import (
	"context"
	"fmt"

	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app/options"
)

// runControllerManager runs kube-controller-manager until it fails. It allocates no pod
// CIDRs to nodes, because Fairlead gives the addresses.
func runControllerManager(ctx context.Context, p *controlPlane) error {
	controllers := "*"
	if !p.opts.nodeLifecycle {
		controllers += ",-node-lifecycle-controller"
	}
	args := []string{
		"--kubeconfig=" + p.dir.file("controller-manager.kubeconfig"),
		"--controllers=" + controllers,
		"--service-account-private-key-file=" + p.dir.file("sa.key"),
		"--root-ca-file=" + p.dir.file("ca.crt"),
		fmt.Sprintf("--use-service-account-credentials=%t", p.opts.accounts),
		"--leader-elect=false",
		"--secure-port=0",
		"--kube-api-qps=1000",
		"--kube-api-burst=2000",
	}
	known, off, aliases := app.KnownControllers(), app.ControllersDisabledByDefault(), app.ControllerAliases()
	opts, err := options.NewKubeControllerManagerOptions()
	if err != nil {
		return err
	}
	flags := opts.Flags(known, off, aliases)
	opts.ParsedFlags = &flags
	if err := parseFlags("kube-controller-manager", flags, args); err != nil {
		return err
	}
	if err := opts.ComponentGlobalsRegistry.Set(); err != nil {
		return err
	}
	cfg, err := opts.Config(ctx, known, off, aliases)
	if err != nil {
		return err
	}
	return app.Run(ctx, cfg.Complete())
}
