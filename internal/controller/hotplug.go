package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/pod"
)

// aboutHotPlug is the aspect of a pod that events about hot plug concern.
const aboutHotPlug = "hot plug"

// follow has the interfaces of a running pod follow its annotation. A failure to remove
// interfaces does not keep others from coming.
func (r *Attachments) follow(ctx context.Context, s *observed) (ctrl.Result, error) {
	if !r.follows(s) {
		return ctrl.Result{}, nil
	}
	selected, err := pod.Networks(s.pod)
	if err != nil {
		return ctrl.Result{}, r.reportHotPlug(s.pod, fmt.Errorf("%w: %w", driver.ErrInvalid, err))
	}
	return ctrl.Result{}, errors.Join(r.unplug(ctx, s, selected), r.plug(ctx, s, selected))
}

// follows reports whether the interfaces of a pod follow its annotation: it runs, and
// Fairlead attaches it to networks, as it has done since the pod's start. The interfaces of
// a pod that was started before its node was switched are those of another program.
func (r *Attachments) follows(s *observed) bool {
	return s.served && s.current != nil && s.current.DeletionTimestamp == nil && pod.Holds(s.pod) &&
		s.current.Labels[v1alpha1.LabelMigratedFrom] == "" && s.current.Labels[v1alpha1.LabelAttachedBy] == v1alpha1.AttachedByFairlead &&
		r.attaches(s.pod)
}

// unplug removes the interfaces that a running pod does not ask for any more. The record
// names them for the node first (spec.unplug). When the node has confirmed that they are
// unplugged, they are released, and the record forgets them. An edit of a network or its
// deletion unplugs nothing: only the pod's annotation counts.
func (r *Attachments) unplug(ctx context.Context, s *observed, selected []pod.Selection) error {
	_, drop := pod.Changes(selected, s.current.Spec.Interfaces)
	unplugged := confirmedUnplugged(s.current)
	if len(drop) == 0 && len(unplugged) == 0 {
		return nil
	}
	for _, name := range unplugged {
		if err := r.giveBackInterface(ctx, s.current, name); err != nil {
			return fmt.Errorf("release interface %s of pod %s, which is unplugged: %w", name, s.key, err)
		}
	}
	return r.changeRecord(ctx, s, func(spec *v1alpha1.PodAttachmentSpec) {
		spec.Interfaces = slices.DeleteFunc(spec.Interfaces, func(i v1alpha1.Interface) bool { return slices.Contains(unplugged, i.Name) })
		spec.Unplug = slices.DeleteFunc(spec.Unplug, func(name string) bool { return slices.Contains(unplugged, name) })
		for _, name := range drop {
			if !slices.Contains(spec.Unplug, name) && !slices.Contains(unplugged, name) {
				spec.Unplug = append(spec.Unplug, name)
			}
		}
	})
}

// confirmedUnplugged returns the names of spec.unplug that the node has confirmed: it has
// applied the present spec, and does not have these interfaces.
func confirmedUnplugged(record *v1alpha1.PodAttachment) (names []string) {
	s := record.Status.Sandbox
	if s == nil || s.State != v1alpha1.SandboxAttached || s.Generation < record.Generation {
		return nil
	}
	for _, name := range record.Spec.Unplug {
		if !slices.ContainsFunc(s.Links, func(l v1alpha1.SandboxLink) bool { return l.Name == name }) {
			names = append(names, name)
		}
	}
	return names
}

// giveBackInterface releases one interface of a record.
func (r *Attachments) giveBackInterface(ctx context.Context, record *v1alpha1.PodAttachment, name string) error {
	for _, ref := range refsOf(record) {
		if ref.Interface.Name == name {
			return r.giveBackRef(ctx, ref)
		}
	}
	return nil
}

// plug obtains the interfaces that a running pod asks for beside those of its record. The
// record names them first (spec.plug), so that garbage collection leaves them alone. When
// all of an interface is there, it is added to the record, and the node plugs it. A failure
// is reported by an event, and tried again; the pod's other interfaces stay as they are.
func (r *Attachments) plug(ctx context.Context, s *observed, selected []pod.Selection) error {
	add, _ := pod.Changes(selected, s.current.Spec.Interfaces)
	names := make([]string, len(add))
	for i := range add {
		names[i] = add[i].Interface
	}
	if len(add) == 0 {
		r.warnings.Over(podReference(s.pod), aboutHotPlug)
	}
	if !sameNames(names, s.current.Spec.Plug) { // interfaces obtained for other names are surplus from now on
		return r.changeRecord(ctx, s, func(spec *v1alpha1.PodAttachmentSpec) { spec.Plug = names })
	}
	if len(add) == 0 || r.mustWait(s.pod) {
		return nil
	}
	interfaces, err := r.obtainFurther(ctx, s.pod, s.current, add)
	if err != nil {
		r.waiting.add(s.pod, names)
		return r.reportHotPlug(s.pod, err)
	}
	return r.changeRecord(ctx, s, func(spec *v1alpha1.PodAttachmentSpec) {
		spec.Interfaces, spec.Plug = append(spec.Interfaces, interfaces...), nil
	})
}

func sameNames(a, b []string) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(name string) bool { return !slices.Contains(b, name) })
}

// obtainFurther obtains the interfaces of a running pod on further networks. The record
// must be able to name them before anything is taken.
func (r *Attachments) obtainFurther(ctx context.Context, p *corev1.Pod, record *v1alpha1.PodAttachment, add []pod.Selection) ([]v1alpha1.Interface, error) {
	wanted, err := r.Follow(p, add)
	if err != nil {
		return nil, err
	}
	return r.obtainAll(ctx, p, wanted, record.Spec.Interfaces)
}

// changeRecord changes the spec of a pod's record, unless the change changes nothing. A
// record that has changed meanwhile stays: its event brings the pod back.
func (r *Attachments) changeRecord(ctx context.Context, s *observed, change func(*v1alpha1.PodAttachmentSpec)) error {
	after := s.current.DeepCopy()
	change(&after.Spec)
	after.Spec.Summary = pod.Summarize(after.Spec.Interfaces)
	if slices.Equal(after.Spec.Plug, s.current.Spec.Plug) && slices.Equal(after.Spec.Unplug, s.current.Spec.Unplug) &&
		len(after.Spec.Interfaces) == len(s.current.Spec.Interfaces) {
		return nil
	}
	err := r.Client.Patch(ctx, after, client.MergeFromWithOptions(s.current, client.MergeFromWithOptimisticLock{}))
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("change the interfaces of PodAttachment %s: %w", klog.KObj(after), err)
	}
	log.FromContext(ctx).Info("the interfaces of a running pod change", "pod", s.key,
		"interfaces", after.Spec.Summary.Interfaces, "plug", after.Spec.Plug, "unplug", after.Spec.Unplug)
	s.current = after // the later steps work on the record as it is now
	return nil
}

// reportHotPlug reports why the interfaces of a running pod cannot follow its annotation.
func (r *Attachments) reportHotPlug(p *corev1.Pod, err error) error {
	r.warnings.Tell(podReference(p), aboutHotPlug, reasonOf(err), "EnsureNetwork", "the pod keeps the interfaces that it has: "+err.Error())
	return fmt.Errorf("change the interfaces of pod %s: %w", klog.KObj(p), detailed(err))
}

func podReference(p *corev1.Pod) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID}
}
