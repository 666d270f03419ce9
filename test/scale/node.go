package main

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/netdev/plug"
	"fairlead.dev/fairlead/internal/node/apiserver"
	"fairlead.dev/fairlead/internal/node/ledger"
	"fairlead.dev/fairlead/internal/node/report"
)

// recordsDir is the directory of the simulated nodes' records.
const recordsDir = "records"

// node is a simulated node: the watches, the registry, the ledger and the writer of
// statuses of fairlead-node, without a kernel.
type node struct {
	name     string
	address  string
	lives    *lives
	traffic  traffic
	kube     *apiserver.Kube
	registry *apiserver.Registry
	ledger   *ledger.Ledger
	statuses *report.Statuses
	kubelet  corev1client.CoreV1Interface // a client with the name of the node
}

// newNode returns a node whose daemon has the credentials of cfg.
func newNode(cfg *rest.Config, name, address, dir string, all *lives) (*node, error) {
	n := &node{name: name, address: address, lives: all}
	var err error
	if n.kube, err = apiserver.NewKube(n.traffic.counted(cfg), name, nil); err != nil {
		return nil, err
	}
	n.ledger = ledger.New(filepath.Join(dir, name), "boot-"+name, n.unplugged)
	n.registry = apiserver.NewRegistry(n.changed)
	failed := prometheus.NewCounter(prometheus.CounterOpts{Name: "failed_writes_total", Help: "Failed writes of statuses."})
	n.statuses = report.NewStatuses(report.Config{
		API: acknowledged{n.kube, all}, Registry: n.registry, Ledger: n.ledger, Namespaces: plug.Namespaces{Dir: plug.NamespaceDir},
		Events: report.NewWarnings(n.kube, name), Took: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "written_statuses_seconds", Help: "Duration of writes of statuses."}), Failed: failed,
	})
	return n, nil
}

// acknowledged is a Kube that notes the statuses that were written.
type acknowledged struct {
	*apiserver.Kube
	lives *lives
}

// PatchAttachment writes a status.
func (a acknowledged) PatchAttachment(ctx context.Context, key types.NamespacedName, patch []byte) (*v1alpha1.PodAttachment, error) {
	pa, err := a.Kube.PatchAttachment(ctx, key, patch)
	if err == nil {
		a.lives.acknowledged(pa)
	}
	return pa, err
}

// acknowledged notes the state of the sandbox in the status of a PodAttachment.
func (l *lives) acknowledged(pa *v1alpha1.PodAttachment) {
	one := l.of(pa.Pod())
	if one == nil || pa.Status.Sandbox == nil {
		return
	}
	switch pa.Status.Sandbox.State {
	case v1alpha1.SandboxAttached:
		one.reach(attached)
		l.attached(one.key)
	case v1alpha1.SandboxDetached:
		one.reach(detached)
	}
}

// run watches and writes statuses until ctx ends.
func (n *node) run(ctx context.Context) error {
	var g sync.WaitGroup
	g.Go(func() { _ = n.statuses.Run(ctx) }) // never an error
	err := n.kube.Watch(ctx, apiserver.Events{
		Updated: n.registry.Update, Deleted: n.registry.Delete, Synced: n.registry.SetSynced,
		NetworksChanged: func() {},
	})
	g.Wait()
	return err
}

// changed handles a change of a PodAttachment as the daemon does. A new one is plugged at
// once: the runtime's ADD waits for it.
func (n *node) changed(pa *v1alpha1.PodAttachment, gone bool) {
	l := n.lives.of(pa.Pod())
	n.lives.acknowledged(pa) // also a write whose answer was lost
	switch {
	case gone:
		n.ledger.Drop(pa.UID)
		if l != nil {
			l.reach(released)
		}
	case l != nil && pa.DeletionTimestamp == nil && !l.has(recorded):
		l.reach(recorded)
		n.plug(pa, l)
	default:
		n.statuses.Enqueue(apiserver.KeyOf(pa))
	}
}

// plug enters the ADD of a pod into the ledger, and has its status written.
func (n *node) plug(pa *v1alpha1.PodAttachment, l *life) {
	sandbox := &ledger.Record{
		ContainerID: sandboxOf(l.key), BootID: n.ledger.BootID,
		Pod:        ledger.Pod{Namespace: l.key.Namespace, Name: l.key.Name, UID: pa.Spec.PodUID},
		Attachment: ledger.Attachment{Name: pa.Name, UID: pa.UID},
	}
	now := time.Now()
	add := ledger.Add{IfName: "eth0", State: ledger.Attached, Generation: pa.Generation, StartedAt: now, AttachedAt: now}
	for _, i := range pa.Spec.Interfaces {
		add.Interfaces = append(add.Interfaces, ledger.Interface{Interface: i, Made: plug.Made{Kind: "bridge", ContainerID: sandbox.ContainerID, Name: i.Name}})
	}
	if n.ledger.Claim(sandbox, add).Record != nil {
		n.statuses.EnqueueSoon(apiserver.KeyOf(pa))
	}
}

// sandboxOf returns the container ID of a pod, of the length that runtimes use.
func sandboxOf(pod types.NamespacedName) string {
	return fmt.Sprintf("%064s", strings.ReplaceAll(pod.Name, "-", ""))
}

// unplug is the DEL of a pod.
func (n *node) unplug(pod types.NamespacedName) error {
	id := sandboxOf(pod)
	rec := n.ledger.Get(id)
	if rec == nil {
		return nil
	}
	return n.ledger.Finish(id, rec.Adds...)
}

// unplugged has the status written of a PodAttachment whose sandbox is gone.
func (n *node) unplugged(rec *ledger.Record) {
	if rec.Attachment.Name != "" {
		n.statuses.Enqueue(rec.AttachmentKey())
	}
}

// report writes the status of the node's NodeNetwork, as a daemon does after its start.
func (n *node) report(ctx context.Context) error {
	now := metav1.Now()
	patch, err := json.Marshal(map[string]any{"status": v1alpha1.NodeNetworkStatus{
		Uplink: "eth0", Addresses: []string{n.address + "/16"}, MTU: 1500, BootID: n.ledger.BootID,
		Tunnel: &v1alpha1.Tunnel{MAC: "02:00:00:00:00:01"},
		Conditions: []metav1.Condition{
			{Type: v1alpha1.ConditionRouted, Status: metav1.ConditionTrue, Reason: "Routed", Message: "the bridge and every route are in place", LastTransitionTime: now},
			{Type: v1alpha1.ConditionConfirmed, Status: metav1.ConditionTrue, Reason: "Confirmed", Message: "other nodes use the addresses of this one", LastTransitionTime: now},
		},
	}})
	if err == nil {
		_, err = n.kube.PatchNetwork(ctx, n.name, patch)
	}
	if err != nil {
		return fmt.Errorf("node %s: %w", n.name, err)
	}
	return nil
}
