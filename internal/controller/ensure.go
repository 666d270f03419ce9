package controller

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/internal/run"
)

// ensure obtains every interface that a pod asks for and creates the record with all of
// them. It may be interrupted anywhere: drivers know the owner of each interface that
// they gave, so the next run adopts what this run obtained.
func (r *Attachments) ensure(ctx context.Context, s *observed) (ctrl.Result, error) {
	p := s.pod
	if !s.served || s.current != nil || !pod.Wants(p) {
		return ctrl.Result{}, nil
	}
	r.nodeless.remove(s.key)
	if left := r.creations.left(client.ObjectKeyFromObject(p), p.UID); left > 0 {
		return ctrl.Result{RequeueAfter: left}, nil // the record is written and not in the cache yet
	}
	if r.mustWait(p) {
		return ctrl.Result{}, nil
	}
	err := r.obtainAndRecord(ctx, p)
	if err != nil {
		return ctrl.Result{}, r.reportFailure(p, err)
	}
	r.waiting.remove(client.ObjectKeyFromObject(p))
	r.Metrics.ensured(nil)
	return ctrl.Result{}, nil
}

// reportFailure reports why a pod has no network: in an event on the pod without the
// details that its owner may not see, and in the returned error, which is logged, with
// them.
func (r *Attachments) reportFailure(p *corev1.Pod, err error) error {
	r.waiting.add(p, r.mayHave(p))
	r.Metrics.ensured(err)
	r.warnings.Tell(podReference(p), "", reasonOf(err), "EnsureNetwork", "no network yet: "+err.Error())
	return fmt.Errorf("give pod %s its network: %w", klog.KObj(p), detailed(err))
}

// detailed returns an error for the log, with the part that is for operators only.
func detailed(err error) error {
	if detail := driver.Detail(err); detail != "" {
		return fmt.Errorf("%w (%s)", err, detail)
	}
	return err
}

// mayHave returns the names of the interfaces that a pod asks for, and may have obtained.
func (r *Attachments) mayHave(p *corev1.Pod) []string {
	wanted, err := r.wanted(p)
	if err != nil {
		return nil // no driver was asked then
	}
	names := make([]string, len(wanted))
	for i := range wanted {
		names[i] = wanted[i].Name
	}
	return names
}

// obtainAndRecord obtains all interfaces of a pod and writes the record. If the write
// fails, the pod keeps the interfaces: another leader may have adopted them and be
// writing the same record, and no read could rule that out. The next try adopts them. If
// the pod goes meanwhile, garbage collection finds them.
func (r *Attachments) obtainAndRecord(ctx context.Context, p *corev1.Pod) error {
	attaches := r.attaches(p)
	interfaces, err := r.obtain(ctx, p)
	if err != nil || len(interfaces) == 0 {
		return err
	}
	if attaches != r.attaches(p) {
		return fmt.Errorf("%w: the label %s of Node %s changes at this moment", driver.ErrUnavailable, v1alpha1.LabelAttachedBy, p.Spec.NodeName)
	}
	record := pod.Record(pod.IdentityOf(p), interfaces)
	record.OwnerReferences = []metav1.OwnerReference{pod.OwnerOf(p)}
	if attaches {
		record.Labels = map[string]string{v1alpha1.LabelAttachedBy: v1alpha1.AttachedByFairlead}
	}
	node := &corev1.Node{}
	if r.Client.Get(ctx, client.ObjectKey{Name: p.Spec.NodeName}, node, client.UnsafeDisableDeepCopy) == nil {
		record.Spec.NodeUID = node.UID
	}
	if err := r.write(ctx, p, record); err != nil {
		return fmt.Errorf("write PodAttachment %s: %w", klog.KObj(record), err)
	}
	return nil
}

// write creates a pod's record. A record that exists already is a success if it is the
// pod's: the cache was behind, or the reply to an earlier create was lost.
func (r *Attachments) write(ctx context.Context, p *corev1.Pod, record *v1alpha1.PodAttachment) error {
	key := client.ObjectKeyFromObject(p)
	r.creations.begin(key, p.UID)
	err := r.Client.Create(ctx, record)
	if apierrors.IsAlreadyExists(err) {
		err = r.checkExisting(ctx, p, record)
	}
	if err != nil {
		r.creations.end(key, p.UID)
		return err
	}
	if slices.Contains(r.names.of(podOf(record)), record.Name) {
		r.creations.end(key, p.UID) // its event may have come before begin
	}
	log.FromContext(ctx).V(run.LevelPod).Info("attachment written", "pod", klog.KObj(p), "addresses", record.Spec.Summary.Addresses, "node", p.Spec.NodeName)
	return nil
}

// checkExisting reads the record that exists already and returns nil if it is this pod's;
// driver.ErrConflict if it belongs to another pod; any other error if it cannot be read.
func (r *Attachments) checkExisting(ctx context.Context, p *corev1.Pod, record *v1alpha1.PodAttachment) error {
	existing := &v1alpha1.PodAttachment{}
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(record), existing); err != nil {
		return fmt.Errorf("it exists and cannot be read: %w", err)
	}
	if pod.Of(existing) != pod.KeyOf(p) {
		return fmt.Errorf("%w: the name is taken by the record of another pod, %s with UID %s: delete this pod, so that its successor has another",
			driver.ErrConflict, existing.Pod(), existing.OwnUID())
	}
	return nil
}

// obtain asks a driver for each interface of a pod. If one fails, the pod keeps the
// interfaces that it obtained before: another leader may have found them and be writing
// the record, and giving them back would take them from it. The next try adopts them, and
// the record is written when all interfaces are there.
//
// Networks and pools are asked in the order of their names, not of the pod's annotation,
// so that two pods never wait for each other in a circle.
func (r *Attachments) obtain(ctx context.Context, p *corev1.Pod) ([]v1alpha1.Interface, error) {
	wanted, err := r.wanted(p)
	if err != nil || len(wanted) == 0 {
		return nil, err
	}
	return r.obtainAll(ctx, p, wanted, nil)
}

// obtainAll obtains interfaces of a pod whose record has others already, or none.
func (r *Attachments) obtainAll(ctx context.Context, p *corev1.Pod, wanted []pod.Interface, has []v1alpha1.Interface) ([]v1alpha1.Interface, error) {
	asks, err := r.describe(ctx, p)
	if err != nil {
		return nil, err
	}
	interfaces := make([]v1alpha1.Interface, len(wanted))
	requests := make([]*driver.Request, len(wanted))
	for i := range wanted {
		w := &wanted[i]
		interfaces[i] = r.outline(w)
		if requests[i], err = r.request(ctx, p, asks, w); err != nil {
			return nil, err
		}
	}
	if err := pod.Writable(p, slices.Concat(has, interfaces)); err != nil {
		return nil, fmt.Errorf("%w: its PodAttachment cannot be written: %w", driver.ErrInvalid, err)
	}
	for _, i := range byNetwork(wanted) {
		w := &wanted[i]
		a, err := r.Drivers[interfaces[i].Driver].Driver.Ensure(ctx, requests[i])
		if err != nil {
			return nil, fmt.Errorf("interface %s on network %s: %w", w.Name, w.Network, err)
		}
		interfaces[i] = a.Interface
		complete(&interfaces[i], w)
	}
	return interfaces, nil
}

// byNetwork returns the indexes of wanted in the order of the networks' names, and of the
// pools' names on the same network.
func byNetwork(wanted []pod.Interface) []int {
	places := make([]int, len(wanted))
	for i := range places {
		places[i] = i
	}
	slices.SortStableFunc(places, func(a, b int) int {
		return cmp.Or(strings.Compare(wanted[a].Network, wanted[b].Network), slices.Compare(wanted[a].Pools, wanted[b].Pools))
	})
	return places
}
