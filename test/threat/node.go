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
	// badNode is the node that has gone bad; its own pods are its own harm.
	badNode = "node-2"
)

// asNode is a request with the credentials of the bad node's daemon, which has to
// be refused.
func asNode(id, tries string, do func(ctx context.Context, w *world, api client.Client) error) attack {
	return attack{
		id: id, by: byNode, tries: tries, node: badNode,
		do: func(ctx context.Context, w *world) (effect, error) {
			api, err := w.holding(w.nodes[1].account)
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

// nodeAttacks are requests of a node's credential that concern others.
func nodeAttacks() []attack {
	return []attack{
		asNode("node-says-detached", "says of the victim's pod on the other node that it is Detached", func(ctx context.Context, w *world, api client.Client) error {
			return w.sayDetached(ctx, api, w.victims.db)
		}),
		asNode("node-other-network", "writes the status of the other node's NodeNetwork", func(ctx context.Context, w *world, api client.Client) error {
			return api.SubResource("status").Patch(ctx, networkOf(w.nodes[0].Name), patchOf(`{"status":{"addresses":["192.168.77.12/24"]}}`))
		}),
		asNode("node-own-blocks", "gives itself a block of the other node's", func(ctx context.Context, w *world, api client.Client) error {
			return api.Patch(ctx, networkOf(badNode), patchOf(fmt.Sprintf(`{"spec":{"blocks":["%s/32"]}}`, dbAddress(w))))
		}),
		asNode("node-own-blocks-status", "the same, beside the status that it may write", func(ctx context.Context, w *world, api client.Client) error {
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
		asNode("node-deletes-blocks", "deletes all IPBlocks", func(ctx context.Context, _ *world, api client.Client) error {
			return api.DeleteAllOf(ctx, &v1alpha1.IPBlock{})
		}),
		asNode("node-takes-address", "creates a PodAttachment with the victim's address", writeRecord),
		asNode("node-deletes-record", "deletes the victim's PodAttachment", func(ctx context.Context, w *world, api client.Client) error {
			record, err := w.recordOf(ctx, w.victims.db.Pod)
			if err != nil {
				return err
			}
			return api.Delete(ctx, record)
		}),
		asNode("node-releases", "takes the finalizer off the victim's PodAttachment", func(ctx context.Context, w *world, api client.Client) error {
			record, err := w.recordOf(ctx, w.victims.db.Pod)
			if err != nil {
				return err
			}
			return api.Patch(ctx, record, patchOf(`{"metadata":{"finalizers":null}}`))
		}),
		asNode("node-others-word", "writes an event on the victim's pod in the controller's name", func(ctx context.Context, w *world, api client.Client) error {
			return api.Create(ctx, &eventsv1.Event{
				ObjectMeta: metav1.ObjectMeta{Namespace: victim, GenerateName: "forged-"}, EventTime: metav1.NowMicro(), Type: corev1.EventTypeWarning,
				ReportingController: "fairlead.dev/controller", ReportingInstance: "controller", Action: "Release", Reason: "Forged", Note: "forged",
				Regarding: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: victim, Name: "db", UID: w.victims.db.UID},
			})
		}),
		asNode("node-reads-secrets", "reads secrets and lists pods", func(ctx context.Context, _ *world, api client.Client) error {
			if err := api.List(ctx, &corev1.SecretList{}); !refused(err) {
				return err
			}
			return api.List(ctx, &corev1.PodList{})
		}),
		{
			id: "token-of-no-node", by: byNode, tries: "a token of the daemon's account that is bound to no node says Detached", node: badNode,
			do: func(ctx context.Context, w *world) (effect, error) {
				path := w.Path("run/unbound.kubeconfig")
				if err := cluster.WriteAccount(ctx, w.Client, w.rest, path, cluster.NodeAccount, nil); err != nil {
					return effect{}, err
				}
				api, err := w.holding(path)
				if err != nil {
					return effect{}, err
				}
				return mustBeRefused(w.sayDetached(ctx, api, w.victims.db))
			},
		},
	}
}

// underlayAttacks are lies of a node about its own addresses.
func underlayAttacks() []attack {
	lie := func(id, tries, status string, look func(ctx context.Context, w *world) (bool, error)) attack {
		return attack{
			id: id, by: byNode, tries: tries, node: badNode,
			do: func(ctx context.Context, w *world) (effect, error) { return w.lie(ctx, status, look) },
		}
	}
	// A new connection, as one that lives keeps what was decided for it.
	broken := func(ctx context.Context, w *world) (bool, error) {
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
	knows := func(text string) func(ctx context.Context, w *world) (bool, error) {
		return func(ctx context.Context, w *world) (bool, error) {
			return w.knows(ctx, w.nodes[0], netip.MustParseAddr(text))
		}
	}
	return []attack{
		lie("underlay-anywhere", "a node says that 8.8.8.8 is its address", `{"addresses":["8.8.8.8/32"]}`, knows("8.8.8.8")),
		lie("underlay-anywhere-ipv6", "a node says that 2001:4860::8888 is its address", `{"addresses":["2001:4860::8888/128"]}`, knows("2001:4860::8888")),
		lie("underlay-other-node", "a node says that the other node's address is its own", `{"addresses":["192.168.77.11/24"]}`, broken),
		lie("underlay-outside", "a node says that a machine outside, which the victim talks to, is itself", `{"addresses":["192.168.77.1/24","fd00:77::1/64"]}`, broken),
		lie("underlay-tunnel", "a node says that the other node's end of the tunnel is its own",
			`{"tunnel":{"mac":"`+tunnelMAC("node-1")+`"}}`, broken),
	}
}

// lieTime is how long a lie is looked for in what the other node does.
const lieTime = 2 * time.Second

// lie writes a part of the status of the bad node's NodeNetwork with its own
// credentials, while its daemon says nothing, and takes it back.
func (w *world) lie(ctx context.Context, status string, look func(ctx context.Context, w *world) (bool, error)) (out effect, err error) {
	bad := w.nodes[1]
	api, err := w.holding(bad.account)
	if err != nil {
		return out, err
	}
	honest := networkOf(bad.Name)
	if err := w.fresh(ctx, honest); err != nil {
		return out, err
	}
	err = stopped(bad.daemon, func() error {
		err := api.SubResource("status").Patch(ctx, networkOf(bad.Name), patchOf(`{"status":`+status+`}`))
		if refused(err) {
			out.got = err.Error()
			return nil
		}
		if err != nil {
			return err
		}
		if out.succeeded, err = within(ctx, lieTime, func(ctx context.Context) (bool, error) { return look(ctx, w) }); err != nil {
			return err
		}
		out.got = "the other node heeds it not"
		if out.succeeded {
			out.got = "the other node acts on it"
		}
		return api.SubResource("status").Patch(ctx, networkOf(bad.Name), patchOf(`{"status":`+jsonOf(map[string]any{
			"addresses": honest.Status.Addresses, "tunnel": honest.Status.Tunnel,
		})+`}`))
	})
	return out, err
}

// knows says whether a node's routes, neighbours or rules have an address in them.
func (w *world) knows(ctx context.Context, n *node, addr netip.Addr) (bool, error) {
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
