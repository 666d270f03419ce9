package cli

import (
	"fmt"
	"net"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cli/kube"
	"fairlead.dev/fairlead/internal/cli/ui"
	"fairlead.dev/fairlead/internal/run"
)

func uiCommand(c *kube.Connection) *cobra.Command {
	var listen, health, namespace string
	cmd := &cobra.Command{
		Use:   "ui",
		Short: "Show a live picture of the cluster in a browser",
		Long: "Show a live picture of the cluster in a browser: nodes and their pods, maps of pools,\n" +
			"networks, ports of OpenStack, events, and the story of each pod.\n\n" +
			"The page is served on this machine alone, and only reads. It has no login: every user of\n" +
			"this machine can see what the kubeconfig may read.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			server, err := c.Server()
			if err != nil {
				return err
			}
			listener, err := ui.Listen(cmd.Context(), listen)
			if err != nil {
				return fmt.Errorf("--listen: %w", err)
			}
			defer func() { _ = listener.Close() }() // Serve has closed it, unless Watch failed first
			var probed net.Listener
			if health != "" {
				if probed, err = new(net.ListenConfig).Listen(cmd.Context(), "tcp", health); err != nil {
					return fmt.Errorf("--health: %w", err)
				}
				defer func() { _ = probed.Close() }()
			}
			if _, err := fmt.Fprintf(cmd.OutOrStdout(), "http://%s/ shows the cluster of %s; Ctrl-C ends it\n", listener.Addr(), server); err != nil {
				return fmt.Errorf("write the address: %w", err)
			}
			stream := ui.NewStream(ui.NewModel(uiViews()))
			group, ctx := errgroup.WithContext(cmd.Context())
			group.Go(func() error { return c.Watch(ctx, namespace, stream) })
			info := ui.Info{Server: server, Namespace: namespace, Version: run.Version}
			group.Go(func() error { return ui.Serve(ctx, listener, ui.Handler(stream, info)) })
			if probed != nil {
				group.Go(func() error { return ui.Serve(ctx, probed, ui.Health(stream)) })
			}
			return group.Wait()
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:0", "`address` of this machine's loopback, with a port; port 0 is a free one")
	cmd.Flags().StringVar(&health, "health", "", "`address` that answers /healthz and /readyz to a kubelet, and nothing of the cluster; default none")
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "`namespace` of the pods, networks and events to show; the default is all")
	return cmd
}

// poolPicture is a pool with its map on the page.
type poolPicture struct {
	poolView
	Map *mapView `json:"map,omitempty"`
	// MapError is the reason why the map is absent.
	MapError string `json:"mapError,omitempty"`
	// MoreBlocks are the blocks that exist and are not in the map.
	MoreBlocks int `json:"moreBlocks,omitempty"`
}

// maxBlocks is the number of blocks of a map on the page: 16,384 addresses.
const maxBlocks = 256

// uiViews returns the objects of the page as the other commands show them.
func uiViews() ui.Views {
	return ui.Views{
		Pod: func(record *v1alpha1.PodAttachment, p *corev1.Pod, warning *eventsv1.Event) any {
			if record == nil {
				return podWithoutRecord(p, warning)
			}
			return recordedPod(record, p)
		},
		Node: func(n *v1alpha1.NodeNetwork) any { return buildNode(n) },
		Pool: func(p *v1alpha1.IPPool, snap *kube.Snapshot) (any, bool) {
			v := poolPicture{poolView: buildPool(p)}
			if snap == nil {
				return v, false
			}
			drawn, err := buildMap(p, *snap)
			if err != nil {
				v.MapError = err.Error()
				return v, false
			}
			v.MoreBlocks = max(0, len(drawn.Blocks)-maxBlocks)
			drawn.Blocks = drawn.Blocks[:len(drawn.Blocks)-v.MoreBlocks]
			v.Map = &drawn
			return v, drawn.Cooling > 0
		},
		PortPool: func(p *v1alpha1.PortPool) any { return buildPortPools([]v1alpha1.PortPool{*p})[0] },
		Explain: func(snap kube.Snapshot, namespace, name string) (any, bool) {
			return buildExplain(snap, namespace, name)
		},
	}
}
