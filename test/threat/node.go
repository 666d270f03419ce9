package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/test/cluster"
)

const (
	byNode = "node"
	// badNode is the compromised node; harm to its own pods does not count.
	badNode = "node-2"
)

// asNode returns an attack by a request with the credentials of the bad node's daemon,
// which has to be refused.
func asNode(id, tries string, do func(ctx context.Context, w *testbed, api client.Client) error) attack {
	return attack{
		id: id, by: byNode, tries: tries, node: badNode,
		do: func(ctx context.Context, w *testbed) (effect, error) {
			api, err := w.clientOf(w.nodes[1].account)
			if err != nil {
				return effect{}, err
			}
			return mustBeRefused(do(ctx, w, api))
		},
	}
}

func patchOf(text string) client.Patch { return client.RawPatch(types.MergePatchType, []byte(text)) }

func networkOf(name string) *v1alpha1.NodeNetwork {
	return &v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// nodeAttacks are requests with a node's credential that affect other nodes.
func nodeAttacks() []attack {
	return []attack{
		asNode("node-says-detached", "writes Detached into the PodAttachment of the victim's pod on the other node", func(ctx context.Context, w *testbed, api client.Client) error {
			return w.writeDetached(ctx, api, w.victims.db)
		}),
		asNode("node-other-network", "writes the status of the other node's NodeNetwork", func(ctx context.Context, w *testbed, api client.Client) error {
			return api.SubResource("status").Patch(ctx, networkOf(w.nodes[0].Name), patchOf(`{"status":{"addresses":["192.168.77.12/24"]}}`))
		}),
		asNode("node-own-blocks", "gives itself a block of the other node's", func(ctx context.Context, w *testbed, api client.Client) error {
			return api.Patch(ctx, networkOf(badNode), patchOf(fmt.Sprintf(`{"spec":{"blocks":["%s/32"]}}`, dbAddress(w))))
		}),
		asNode("node-own-blocks-status", "the same, beside the status that it may write", func(ctx context.Context, w *testbed, api client.Client) error {
			block := dbAddress(w) + "/32"
			if err := api.SubResource("status").Patch(ctx, networkOf(badNode), patchOf(`{"spec":{"blocks":["`+block+`"]}}`)); err != nil {
				return err
			}
			own := networkOf(badNode)
			if err := w.fresh(ctx, own); err != nil {
				return err
			}
			if slices.Contains(own.Spec.Blocks, block) {
				return nil
			}
			return forbidden("the status alone was written")
		}),
		asNode("node-deletes-blocks", "deletes all IPBlocks", func(ctx context.Context, _ *testbed, api client.Client) error {
			return api.DeleteAllOf(ctx, &v1alpha1.IPBlock{})
		}),
		asNode("node-takes-address", "creates a PodAttachment with the victim's address", writeRecord),
		asNode("node-deletes-record", "deletes the victim's PodAttachment", func(ctx context.Context, w *testbed, api client.Client) error {
			record, err := w.recordOf(ctx, w.victims.db.Pod)
			if err != nil {
				return err
			}
			return api.Delete(ctx, record)
		}),
		asNode("node-releases", "takes the finalizer off the victim's PodAttachment", func(ctx context.Context, w *testbed, api client.Client) error {
			record, err := w.recordOf(ctx, w.victims.db.Pod)
			if err != nil {
				return err
			}
			return api.Patch(ctx, record, patchOf(`{"metadata":{"finalizers":null}}`))
		}),
		asNode("node-others-word", "writes an event on the victim's pod in the controller's name", func(ctx context.Context, w *testbed, api client.Client) error {
			return api.Create(ctx, &eventsv1.Event{
				ObjectMeta: metav1.ObjectMeta{Namespace: victim, GenerateName: "forged-"}, EventTime: metav1.NowMicro(), Type: corev1.EventTypeWarning,
				ReportingController: "fairlead.dev/controller", ReportingInstance: "controller", Action: "Release", Reason: "Forged", Note: "forged",
				Regarding: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: victim, Name: "db", UID: w.victims.db.UID},
			})
		}),
		asNode("node-reads-secrets", "reads secrets and lists pods", func(ctx context.Context, _ *testbed, api client.Client) error {
			if err := api.List(ctx, &corev1.SecretList{}); !refused(err) {
				return err
			}
			return api.List(ctx, &corev1.PodList{})
		}),
		{
			id: "token-of-no-node", by: byNode, tries: "a token of the daemon's account that is bound to no node writes Detached", node: badNode,
			do: func(ctx context.Context, w *testbed) (effect, error) {
				path := w.Path("run/unbound.kubeconfig")
				if err := cluster.WriteAccount(ctx, w, w.REST, path, cluster.NodeAccount, nil); err != nil {
					return effect{}, err
				}
				api, err := w.clientOf(path)
				if err != nil {
					return effect{}, err
				}
				return mustBeRefused(w.writeDetached(ctx, api, w.victims.db))
			},
		},
	}
}

// underlayAttacks are false reports of a node about its own addresses.
func underlayAttacks() []attack {
	falseStatus := func(id, tries, status string, look func(ctx context.Context, w *testbed) (bool, error)) attack {
		return attack{
			id: id, by: byNode, tries: tries, node: badNode,
			do: func(ctx context.Context, w *testbed) (effect, error) { return w.falseStatus(ctx, status, look) },
		}
	}
	// A new connection is needed, because an established one keeps its routing.
	broken := func(ctx context.Context, w *testbed) (bool, error) {
		for _, f := range w.victims.flows {
			if slices.Contains(f.nodes, badNode) {
				continue
			}
			if wrong, err := f.probe(ctx); err != nil || wrong != "" {
				return true, err
			}
		}
		return false, nil
	}
	knows := func(text string) func(ctx context.Context, w *testbed) (bool, error) {
		return func(ctx context.Context, w *testbed) (bool, error) {
			return w.knows(ctx, w.nodes[0], netip.MustParseAddr(text))
		}
	}
	return []attack{
		falseStatus("underlay-anywhere", "a node reports 8.8.8.8 as its address", `{"addresses":["8.8.8.8/32"]}`, knows("8.8.8.8")),
		falseStatus("underlay-anywhere-ipv6", "a node reports 2001:4860::8888 as its address", `{"addresses":["2001:4860::8888/128"]}`, knows("2001:4860::8888")),
		falseStatus("underlay-other-node", "a node reports the other node's address as its own", `{"addresses":["192.168.77.11/24"]}`, broken),
		falseStatus("underlay-outside", "a node reports the address of a machine outside, which the victim talks to, as its own", `{"addresses":["192.168.77.1/24","fd00:77::1/64"]}`, broken),
		falseStatus("underlay-tunnel", "a node reports the other node's end of the tunnel as its own",
			`{"tunnel":{"mac":"`+tunnelMAC("node-1")+`"}}`, broken),
	}
}

// falseStatusTime is how long the other node is watched for an effect of a false status.
const falseStatusTime = 2 * time.Second

// falseStatus writes a part of the status of the bad node's NodeNetwork with the node's
// own credentials, while its daemon is stopped, and restores it.
func (w *testbed) falseStatus(ctx context.Context, status string, look func(ctx context.Context, w *testbed) (bool, error)) (out effect, err error) {
	bad := w.nodes[1]
	api, err := w.clientOf(bad.account)
	if err != nil {
		return out, err
	}
	honest := networkOf(bad.Name)
	if err := w.fresh(ctx, honest); err != nil {
		return out, err
	}
	err = stopped(bad.Daemon, func() error {
		err := api.SubResource("status").Patch(ctx, networkOf(bad.Name), patchOf(`{"status":`+status+`}`))
		if refused(err) {
			out.got = err.Error()
			return nil
		}
		if err != nil {
			return err
		}
		if out.succeeded, err = within(ctx, falseStatusTime, func(ctx context.Context) (bool, error) { return look(ctx, w) }); err != nil {
			return err
		}
		out.got = "the other node ignores it"
		if out.succeeded {
			out.got = "the other node acts on it"
		}
		return api.SubResource("status").Patch(ctx, networkOf(bad.Name), patchOf(`{"status":`+jsonOf(map[string]any{
			"addresses": honest.Status.Addresses, "tunnel": honest.Status.Tunnel,
		})+`}`))
	})
	return out, err
}

// knows reports whether a node's routes, neighbours or rules contain an address.
func (w *testbed) knows(ctx context.Context, n *node, addr netip.Addr) (bool, error) {
	rules, err := w.nft(ctx, n, "list", "ruleset")
	if err != nil {
		return false, err
	}
	state, err := n.State()
	if err != nil {
		return false, err
	}
	if strings.Contains(rules, addr.String()) || strings.Contains(strings.Join(state.Routes, "\n"), addr.String()) {
		return true, nil
	}
	handle, err := n.Netlink()
	if err != nil {
		return false, err
	}
	defer handle.Close()
	for _, family := range []int{unix.AF_BRIDGE, unix.AF_INET, unix.AF_INET6} {
		neighbours, err := handle.NeighList(0, family)
		if err != nil {
			return false, fmt.Errorf("list neighbours: %w", err)
		}
		if slices.ContainsFunc(neighbours, func(e netlink.Neigh) bool { return e.IP.Equal(addr.AsSlice()) }) {
			return true, nil
		}
	}
	return false, nil
}
