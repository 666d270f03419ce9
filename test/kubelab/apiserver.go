package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/spf13/pflag"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/client-go/rest"
	cliflag "k8s.io/component-base/cli/flag"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // as in kube-apiserver's own main
	_ "k8s.io/component-base/metrics/prometheus/version"  // as in kube-apiserver's own main
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
)

// serviceRanges returns the ranges of Services' addresses. A Service has an address of
// the first range only, unless it asks for both (ipFamilyPolicy). The first must be of
// the API server's own family. An API server at an IPv6 address has only this range, so
// its cluster has only IPv6.
func serviceRanges(bind netip.Addr) []string {
	const v4, v6 = "10.96.0.0/16", "fd00:96::/108"
	if bind.Unmap().Is6() {
		return []string{v6}
	}
	return []string{v4, v6}
}

// kubernetesService returns the address of the Service `kubernetes`, which is the first
// one.
func kubernetesService(bind netip.Addr) netip.Addr {
	return netip.MustParsePrefix(serviceRanges(bind)[0]).Addr().Next()
}

// runAPIServer runs kube-apiserver on a listener until it fails.
func runAPIServer(ctx context.Context, p *controlPlane, listener net.Listener) error {
	bind := p.opts.bind.String()
	args := []string{
		"--etcd-servers=" + p.etcd.endpoint(),
		"--bind-address=" + bind,
		"--advertise-address=" + bind,
		"--client-ca-file=" + p.dir.file("ca.crt"),
		"--tls-cert-file=" + p.dir.file("apiserver.crt"),
		"--tls-private-key-file=" + p.dir.file("apiserver.key"),
		// For kubectl exec: a node's name leads nowhere.
		"--kubelet-preferred-address-types=InternalIP",
		"--kubelet-client-certificate=" + p.dir.file("apiserver.crt"),
		"--kubelet-client-key=" + p.dir.file("apiserver.key"),
		"--authorization-mode=Node,RBAC",
		"--service-cluster-ip-range=" + strings.Join(serviceRanges(p.opts.bind), ","),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + p.dir.file("sa.key"),
		"--service-account-signing-key-file=" + p.dir.file("sa.key"),
		"--allow-privileged=true",
		"--profiling=false",
	}
	if p.opts.bind.IsLoopback() {
		// The API refuses loopback addresses as endpoints of the service `kubernetes`.
		args = append(args, "--endpoint-reconciler-type=none")
	}
	opts := options.NewServerRunOptions()
	if err := parseFlags("kube-apiserver", opts.Flags(), args); err != nil {
		return err
	}
	// The port is open before its number is published; a free port that is looked up
	// first could be taken by then.
	opts.SecureServing.Listener = listener
	opts.SecureServing.BindPort = listener.Addr().(*net.TCPAddr).Port
	if err := opts.GenericServerRunOptions.ComponentGlobalsRegistry.Set(); err != nil {
		return err
	}
	rest.SetDefaultWarningHandler(rest.NoWarnings{}) // like its main, for its loopback clients
	completed, err := opts.Complete(ctx)
	if err != nil {
		return err
	}
	if errs := completed.Validate(); len(errs) > 0 {
		return utilerrors.NewAggregate(errs)
	}
	return app.Run(ctx, completed)
}

// parseFlags sets a component's options as its command line would. The components' own commands cannot share a
// process: each installs the signal handler, which panics the second time.
func parseFlags(component string, sets cliflag.NamedFlagSets, args []string) error {
	flags := pflag.NewFlagSet(component, pflag.ContinueOnError)
	for _, set := range sets.FlagSets {
		flags.AddFlagSet(set)
	}
	if err := flags.Parse(args); err != nil {
		return fmt.Errorf("%s: %w", component, err)
	}
	return nil
}
