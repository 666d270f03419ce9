package pool

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/internal/run"
)

// Kube is API and Cluster over the API server.
type Kube struct {
	// Client writes, and reads from a cache.
	Client client.Client
	// Live reads from the API server.
	Live client.Reader
	// Listed reports whether the cache has all PodAttachments.
	Listed func() bool
	// Driver is the name of the driver in records.
	Driver string
	// Events gets a warning when a record decides who has a port.
	Events events.EventRecorder
}

// Create implements API.
func (k Kube) Create(ctx context.Context, o *v1alpha1.PortPool) (*v1alpha1.PortPool, error) {
	o = o.DeepCopy()
	return o, k.Client.Create(ctx, o)
}

// Update implements API.
func (k Kube) Update(ctx context.Context, o *v1alpha1.PortPool) (*v1alpha1.PortPool, error) {
	o = o.DeepCopy()
	return o, k.Client.Update(ctx, o)
}

// Get implements API.
func (k Kube) Get(ctx context.Context, name string) (*v1alpha1.PortPool, error) {
	o := &v1alpha1.PortPool{}
	return o, k.Live.Get(ctx, client.ObjectKey{Name: name}, o)
}

// Delete implements API.
func (k Kube) Delete(ctx context.Context, o *v1alpha1.PortPool) error {
	return k.Client.Delete(ctx, o, client.Preconditions{UID: &o.UID, ResourceVersion: &o.ResourceVersion})
}

// Recorded implements Cluster, from the cache.
func (k Kube) Recorded(ctx context.Context, node string) (map[string]Holder, error) {
	if !k.Listed() {
		return nil, errors.New("the records of pods are not read yet")
	}
	var records v1alpha1.PodAttachmentList
	if err := k.Client.List(ctx, &records, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list PodAttachments: %w", err)
	}
	out := map[string]Holder{}
	for i := range records.Items {
		r := &records.Items[i]
		// A port of a record whose release has begun may be another pod's already.
		if node != "" && r.Spec.NodeName != node || !pod.MayHold(r) {
			continue
		}
		for _, i := range r.Spec.Interfaces {
			if id := i.Binding.Port(); i.Driver == k.Driver && id != "" {
				out[id] = Holder{
					UID: r.HolderUID(), Namespace: r.Pod().Namespace, Name: r.Spec.PodName, Interface: i.Name, Network: i.Network, Default: i.Default,
				}
			}
		}
	}
	return out, nil
}

// NodeGone implements Cluster, from the cache.
func (k Kube) NodeGone(ctx context.Context, node string) (bool, error) {
	err := k.Client.Get(ctx, client.ObjectKey{Name: node}, &corev1.Node{})
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	return false, err
}

// Reasons of the condition Ready of a PortPool.
const (
	reasonFilled = "Filled"
	reasonFailed = "PortsNotMade"
)

// ReportMade implements Cluster: it writes the condition Ready, if it changed.
func (k Kube) ReportMade(ctx context.Context, o *v1alpha1.PortPool, err error) {
	c := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: reasonFilled, Message: "ports are made when they are needed"}
	if err != nil {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, reasonFailed, run.Clip(err.Error())
	}
	if has := meta.FindStatusCondition(o.Status.Conditions, c.Type); has != nil && has.Status == c.Status {
		return
	}
	after := o.DeepCopy()
	meta.SetStatusCondition(&after.Status.Conditions, c)
	if err := k.Client.Status().Patch(ctx, after, client.MergeFrom(o)); client.IgnoreNotFound(err) != nil {
		log.FromContext(ctx).Info("the condition of a PortPool is not written", "pool", o.Name, "reason", err.Error())
	}
}

// ReportRecorded implements Cluster by an event.
func (k Kube) ReportRecorded(ctx context.Context, o *v1alpha1.PortPool, port string, h Holder) {
	log.FromContext(ctx).Info("a port of a pool is that of the pod whose record names it", "pool", o.Name, "port", port)
	k.Events.Eventf(o, nil, corev1.EventTypeWarning, "PortRecorded", "CompareWithRecords",
		"port %s is that of pod %s/%s, as its PodAttachment has it: the PortPool had it otherwise, as after a restore of etcd", port, h.Namespace, h.Name)
}

// Watch feeds pools with all PortPools. It returns a function that reports whether they are
// all known.
func Watch(ctx context.Context, informers ctrlcache.Cache, p *Pools) (synced func() bool, err error) {
	i, err := informers.GetInformer(ctx, &v1alpha1.PortPool{})
	if err != nil {
		return nil, fmt.Errorf("watch PortPools: %w", err)
	}
	fed, err := run.Observe(i, func(_, is *v1alpha1.PortPool) { p.Learn(is) }, p.Gone)
	if err != nil {
		return nil, fmt.Errorf("watch PortPools: %w", err)
	}
	return fed.HasSynced, nil
}
