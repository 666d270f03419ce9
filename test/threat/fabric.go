package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// opened reports whether the fabric has taken a port for the bad node's, or has changed
// that of the outsider.
func (w *testbed) opened(ctx context.Context) (bool, error) {
	nn := networkOf(badNode)
	if err := w.fresh(ctx, nn); err != nil {
		return false, err
	}
	taken := nn.Spec.Fabric != nil && nn.Spec.Fabric.Port != "" && nn.Spec.Fabric.Port != w.cloud.machines[badNode].port
	return taken || w.cloud.opening(w.cloud.outsider) != w.cloud.outsiderAsMade, nil
}

// fabricServes returns an error unless the fabric has opened the first node's port:
// otherwise it would open no other port either.
func (w *testbed) fabricServes(ctx context.Context) error {
	return await(ctx, "the fabric of the first node", func(ctx context.Context) (string, error) {
		nn := networkOf(w.nodes[0].Name)
		if err := w.fresh(ctx, nn); err != nil {
			return "", err
		}
		if nn.Spec.Fabric == nil || len(nn.Spec.Fabric.Pairs) == 0 || !meta.IsStatusConditionTrue(nn.Spec.Fabric.Conditions, v1alpha1.ConditionFabricReady) {
			return fmt.Sprintf("the record is %+v", nn.Spec.Fabric), nil
		}
		return "", nil
	})
}

// fabricAttacks have the controller change ports of the cloud that are not the bad node's.
func fabricAttacks() []attack {
	lie := func(id, tries, status string) attack {
		return attack{
			id: id, by: byNode, tries: tries, node: badNode,
			do: func(ctx context.Context, w *testbed) (effect, error) {
				if err := w.fabricServes(ctx); err != nil {
					return effect{}, err
				}
				return w.falseStatus(ctx, status, func(ctx context.Context, w *testbed) (bool, error) { return w.opened(ctx) })
			},
		}
	}
	const (
		port   = "00000000-0000-4000-8000-000000000001"
		record = `{"port":"` + port + `","pairs":["10.244.0.0/16"]}`
	)
	return []attack{
		lie("fabric-outside-port", "a node reports the address of a machine outside, whose port then would get the range of the pods", `{"addresses":["192.168.77.13/24","fd00:77::13/64"]}`),
		lie("fabric-other-node", "a node reports the other node's address, whose port then would be its own", `{"addresses":["192.168.77.11/24","fd00:77::11/64"]}`),
		asNode("fabric-record", "a node writes the record of its entries in the cloud, to have those of others removed", func(ctx context.Context, _ *testbed, api client.Client) error {
			return api.Patch(ctx, networkOf(badNode), patchOf(`{"spec":{"fabric":`+record+`}}`))
		}),
		asNode("fabric-record-status", "the same, beside the status that it may write", func(ctx context.Context, w *testbed, api client.Client) error {
			if err := api.SubResource("status").Patch(ctx, networkOf(badNode), patchOf(`{"spec":{"fabric":`+record+`}}`)); err != nil {
				return err
			}
			own := networkOf(badNode)
			if err := w.fresh(ctx, own); err != nil {
				return err
			}
			if own.Spec.Fabric != nil && own.Spec.Fabric.Port == port {
				return nil
			}
			return forbidden("the status alone was written")
		}),
		{
			id: "probe-replies", by: byTenant, tries: "a pod sends echo replies in the name of the other node while its own node probes the network",
			do: func(ctx context.Context, w *testbed) (effect, error) {
				return w.withForger(ctx, func(f *forger) (bool, error) { return w.forgeReplies(ctx, f) })
			},
		},
	}
}

// forgeReplies sends echo replies while the daemon starts, which probes then, and reports
// whether its node finds the network otherwise than it is.
func (w *testbed) forgeReplies(ctx context.Context, f *forger) (bool, error) {
	n := w.nodes[0]
	if err := w.restartDaemon(ctx, nil); err != nil {
		return false, err
	}
	direct := func(ctx context.Context) (*metav1.Condition, error) {
		nn := networkOf(n.Name)
		if err := w.fresh(ctx, nn); err != nil {
			return nil, err
		}
		if len(nn.Status.Dropped) > 0 {
			return nil, errFooled
		}
		return meta.FindStatusCondition(nn.Status.Conditions, v1alpha1.ConditionDirect), nil
	}
	sequence := uint16(0)
	fooled, err := within(ctx, probeTime, func(ctx context.Context) (bool, error) {
		for _, to := range []netip.Addr{n.V4.Addr(), f.addresses[0]} { // the second would be a translated reply
			reply := []byte{0, 0, 0, 0, 0, 0, byte(sequence >> 8), byte(sequence)}
			reply = append(reply, f.mark[:16]...)
			sum := checksum(reply)
			reply[2], reply[3] = byte(sum>>8), byte(sum)
			packet := ip(f.node2.V4.Addr(), to, 1, 64, reply)
			if err := raw(f.ns, ethernet(f.gateway, f.mac, 0x0800, packet)); err != nil {
				return false, err
			}
		}
		sequence = (sequence + 1) % 8
		c, err := direct(ctx)
		return c != nil && c.Status != metav1.ConditionTrue, err
	})
	if errors.Is(err, errFooled) {
		return true, nil
	}
	return fooled, err
}

// errFooled means that a node reports packets as dropped that are not.
var errFooled = errors.New("the node finds packets dropped")

// probeTime is longer than a daemon takes to its second round of requests.
const probeTime = 12 * time.Second
