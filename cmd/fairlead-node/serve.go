package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"
	toolscache "k8s.io/client-go/tools/cache"

	"fairlead.dev/fairlead/internal/config"
	"fairlead.dev/fairlead/internal/netdev/echo"
	"fairlead.dev/fairlead/internal/netdev/host"
	"fairlead.dev/fairlead/internal/netdev/kinds"
	"fairlead.dev/fairlead/internal/netdev/link"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/nft"
	"fairlead.dev/fairlead/internal/node"
	"fairlead.dev/fairlead/internal/node/answer"
	"fairlead.dev/fairlead/internal/node/apiserver"
	"fairlead.dev/fairlead/internal/node/delegate"
	"fairlead.dev/fairlead/internal/node/devices"
	"fairlead.dev/fairlead/internal/node/filter"
	"fairlead.dev/fairlead/internal/node/hostnet"
	"fairlead.dev/fairlead/internal/node/install"
	"fairlead.dev/fairlead/internal/node/plugin"
	"fairlead.dev/fairlead/internal/run"
	"fairlead.dev/fairlead/internal/tracing"
)

// serve runs the daemon until ctx ends.
func serve(ctx context.Context, cfg config.Node) error {
	log := logr.FromContextOrDiscard(ctx)
	log.Info("starting", "version", run.Version, "config", cfg)
	sockets, err := link.Open()
	if err != nil {
		return err
	}
	defer sockets.Close() //nolint:errcheck // the process ends
	kernel := host.New(sockets)
	bootID, err := link.BootID()
	if err != nil {
		return err
	}
	reg := prometheus.NewRegistry()
	if err := errors.Join(
		reg.Register(collectors.NewGoCollector()),
		reg.Register(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})),
	); err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	masquerade, err := cfg.Masquerade.Prefixes()
	if err != nil {
		return err
	}
	reserved, err := cfg.ReservedPorts()
	if err != nil {
		return err
	}
	plugins, err := delegate.New(delegate.Config{BinDir: cfg.CNI.BinDir, Socket: cfg.Socket, Host: sockets.Namespace(), Metrics: reg})
	if err != nil {
		return err
	}
	var rules nft.Kernel
	c := node.Config{
		NodeName: cfg.NodeName, Uplink: cfg.Uplink, BootID: bootID,
		Encapsulation: hostnet.Encapsulation(cfg.Encapsulation), VNI: cfg.VXLAN.VNI, VXLANPort: cfg.VXLAN.Port,
		StateDir: cfg.StateDir, Socket: cfg.Socket, AddTimeout: cfg.AddTimeout.Duration,
		Install: &install.Options{PluginSource: cfg.CNI.PluginSource, BinDir: cfg.CNI.BinDir, ConfDir: cfg.CNI.ConfDir, Names: cfg.CNI.Names},
		Kinds:   kinds.All(sockets).Sending(sockets, kernel.Source).OpenVSwitch(sockets, cfg.OVSDBSocket, &rules).Executing(plugins), Namespaces: plug.Namespaces{Dir: plug.NamespaceDir},
		Plugins: plugins, Devices: devices.New(cfg.PodResourcesSocket), HostKernel: kernel, FilterKernel: kernel, Prober: echo.New(sockets), Firewall: nft.New(rules.Apply),
		Masquerade: filter.Masquerade{Enabled: cfg.Masquerade.Enabled, Exclude: masquerade}, Metrics: reg, KubeletMetrics: cfg.KubeletMetrics,
	}
	for _, p := range reserved {
		c.ReservedPorts = append(c.ReservedPorts, answer.ReservedPort(p))
	}
	if cfg.Tracing.Endpoint != "" {
		c.Tracer, err = tracing.Start(ctx, cfg.Tracing.Endpoint, map[string]string{
			"service.name": program, "service.version": run.Version, "k8s.node.name": cfg.NodeName,
		})
		if err != nil {
			return fmt.Errorf("tracing.endpoint: %w", err)
		}
		defer func() {
			if err := c.Tracer.Close(ctx); err != nil {
				log.Info("last traces are lost", "reason", err.Error())
			}
		}()
	}
	// healthy holds checks for the faults that a restart may repair. There are few. "alive" fails
	// only if the daemon does not answer.
	healthy := map[string]run.Check{"alive": func() error { return nil }}
	chosen, err := plugin.Choose([]plugin.Candidate{
		{Name: node.RegistryPlugin, New: func() (plugin.Plugin, error) { return registryPlugin(log, cfg, c, healthy) }}, //nolint:contextcheck // its goroutines end with Run
		{Name: plugin.NoopName, New: func() (plugin.Plugin, error) { return plugin.NewNoop(link.Sysctls{}), nil }},
	}, cfg.Plugin)
	if err != nil {
		return err
	}
	d, err := node.New(c, chosen)
	if err != nil {
		return err
	}
	web := &run.Server{
		Address: cfg.MetricsAddress, Metrics: reg, Healthy: healthy,
		Ready: map[string]run.Check{"cni": d.Ready},
	}
	if err := web.Register(reg); err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return d.Run(ctx) })
	g.Go(func() error { return web.Run(ctx) })
	return g.Wait()
}

// registryPlugin returns the plugin that needs the API server, and adds its checks to healthy.
func registryPlugin(log logr.Logger, cfg config.Node, c node.Config, healthy map[string]run.Check) (plugin.Plugin, error) {
	rest, err := run.KubeConfig(cfg.Kubeconfig, program)
	if err != nil {
		return nil, err
	}
	failures := prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: "fairlead", Subsystem: "node", Name: "watch_failures_total",
		Help: "Watches of the API server that failed and were started again.",
	})
	if err := c.Metrics.Register(failures); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	kube, err := apiserver.NewKube(rest, cfg.NodeName, func(_ context.Context, r *toolscache.Reflector, err error) {
		failures.Inc()
		log.Info("watch failed, starting it again", "resource", r.TypeDescription(), "err", err.Error())
	})
	if err != nil {
		return nil, err
	}
	c.API, c.Source = kube, kube
	p, err := node.NewPlugin(c)
	if err != nil {
		return nil, err
	}
	for name, check := range p.Checks() {
		healthy["binding-"+name] = check
	}
	return p, nil
}

// cleanup removes everything of Fairlead from this machine and lists the removed things on
// out. The removals go on after an error.
func cleanup(ctx context.Context, cfg config.Node, cni bool, out io.Writer) error {
	lock, err := install.TryLock(cfg.StateDir)
	if err != nil {
		return fmt.Errorf("clean up, with fairlead-node stopped: %w", err)
	}
	defer lock.Unlock() //nolint:errcheck // the process ends
	sockets, err := link.Open()
	if err != nil {
		return err
	}
	defer sockets.Close() //nolint:errcheck // the process ends
	var removed []string
	var errs []error
	note := func(what []string, err error) {
		removed, errs = append(removed, what...), append(errs, err)
	}
	if cni {
		note(install.Uninstall(cfg.CNI.BinDir, cfg.CNI.ConfDir, cfg.CNI.Names))
	}
	var filter nft.Kernel
	note(host.New(sockets).CleanupHost(ctx, kinds.All(sockets).OpenVSwitch(sockets, cfg.OVSDBSocket, &filter)))
	note(filter.Remove(ctx))
	note(install.RemoveState(cfg.StateDir, cfg.Socket))
	for _, what := range removed {
		if _, err := fmt.Fprintln(out, "removed", what); err != nil {
			return err
		}
	}
	return errors.Join(errs...)
}
