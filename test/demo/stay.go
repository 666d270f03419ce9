package main

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"fairlead.dev/fairlead/test/harness"
	"fairlead.dev/fairlead/test/netlab"
)

// stay runs a cluster until the user ends it.
func (w *testbed) stay(ctx context.Context) error {
	if err := w.install(ctx); err != nil {
		return err
	}
	if w.OpenStack {
		if err := w.startOpenStack(ctx); err != nil {
			return err
		}
	}
	if err := w.startFairlead(ctx); err != nil {
		return err
	}
	for _, node := range w.nodes {
		if err := node.Pin(node.netnsFile()); err != nil {
			return err
		}
	}
	if err := w.serveUser(ctx); err != nil {
		return err
	}
	_, _ = fmt.Fprintf(w.Out, "%s nodes=%d\n", readyLine, w.Nodes)
	<-ctx.Done()
	return context.Cause(ctx)
}

// serveUser writes the user's kubeconfig, and passes the connections on that come by the
// outer program.
func (w *testbed) serveUser(ctx context.Context) error {
	cfg, err := clientcmd.LoadFromFile(w.Admin)
	if err != nil {
		return fmt.Errorf("read the kubeconfig: %w", err)
	}
	server, err := url.Parse(w.REST.Host)
	if err != nil {
		return fmt.Errorf("read the kubeconfig: %w", err)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", w.apiSocket())
	if err != nil {
		return fmt.Errorf("listen for requests to the API server: %w", err)
	}
	go func() {
		err := netlab.Forward(ctx, listener, func(ctx context.Context) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", server.Host)
		})
		if ctx.Err() == nil {
			w.Programs.Failed(err)
		}
	}()
	for _, cluster := range cfg.Clusters {
		cluster.Server = "https://" + w.Address
	}
	return clientcmd.WriteToFile(*cfg, w.Path("kubeconfig"))
}

// netnsFile is where the namespace of a node is pinned, for shells.
func (n *labNode) netnsFile() string { return filepath.Join(n.Dir, "netns-of-the-node") }

// restartDelay is the time until a program of Fairlead that has ended is started again.
const restartDelay = time.Second

// start starts a program of Fairlead, which command prepares, in a place. In a cluster that
// stays it is started again whenever it ends, as Kubernetes does.
func (w *testbed) start(ctx context.Context, in harness.Place, command func() (*harness.Process, error)) (*harness.Process, error) {
	p, err := command()
	if err != nil {
		return nil, err
	}
	if w.Stay {
		p.Expect()
	}
	if err := w.Programs.Start(in, p); err != nil {
		return nil, err
	}
	if w.Stay {
		go func() {
			<-p.Done()
			select {
			case <-ctx.Done():
			case <-time.After(restartDelay):
				if _, err := w.start(ctx, in, command); err != nil {
					w.Programs.Failed(err)
				}
			}
		}()
	}
	return p, nil
}
