package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/node/background"
	"fairlead.dev/fairlead/internal/node/ledger"
)

// Hot plug does not wait behind the DELs of plugins that hang.
func TestHotPlugBesidePluginsThatHang(t *testing.T) {
	const n = 96
	onTestNode(t, func(w *testNode) {
		key := w.pod("p", "u1")
		w.mustAdd("c1", "p", "u1")
		w.kernel.setHook(func(ctx context.Context, step, what string) error {
			if step == "detach" && strings.HasPrefix(what, "hung") {
				select {
				case <-time.After(15 * time.Second):
				case <-ctx.Done():
				}
				return errors.New("the plugin did not answer in time")
			}
			return nil
		})
		for i := range n {
			id := fmt.Sprintf("d%d", i)
			w.network.ledger.Adopt(&ledger.Record{
				Version: ledger.Version, ContainerID: id, BootID: w.bootID, Pod: ledger.Pod{Namespace: "ns", Name: id, UID: types.UID(id)},
				Attachment: ledger.Attachment{Name: id, UID: types.UID(id)},
				Adds: []ledger.Add{{IfName: "eth0", State: ledger.Deleting, Interfaces: []ledger.Interface{{
					Made: plug.Made{Kind: plug.KindDelegate, HostLink: "hung" + id, Plugins: &plug.Plugins{}},
				}}}},
			})
			w.network.background.Enqueue(background.Remove, id)
		}
		settle()
		w.api.change(key, func(pa *v1alpha1.PodAttachment) {
			pa.Spec.Interfaces = append(pa.Spec.Interfaces, v1alpha1.Interface{
				Name: "net1", Network: "ns/f0", Driver: "native", Addresses: []string{"10.9.0.7/32"}, Binding: v1alpha1.Binding{Routed: &v1alpha1.RoutedBinding{}}, MTU: 1500,
			})
			pa.Generation++
		})
		<-time.After(10 * time.Second)
		settle()
		if _, has := w.network.ledger.Get("c1").Plug().Interface("net1"); !has {
			t.Errorf("with %d plugins that hang, net1 is not plugged after 10s: %+v", n, w.network.ledger.Get("c1").Plug().Failures)
		}
	})
}
