package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/fault"
	"fairlead.dev/fairlead/internal/pod"
	"fairlead.dev/fairlead/internal/run"
)

// activate writes into the record's status which interfaces carry traffic, for the
// interfaces that the node waits for, and the reason for those that do not: the node
// reports it if it gives up. Most pods have no such interface. A driver enqueues the pod
// when it knows more.
func (e *Ensurer) activate(ctx context.Context, s *observed) (ctrl.Result, error) {
	record := s.current
	if !s.served || record == nil || record.DeletionTimestamp != nil || !pod.Holds(s.pod) {
		return ctrl.Result{}, nil
	}
	e.endWait(s.key)
	var now []v1alpha1.InterfaceStatus
	for _, iface := range record.Spec.Interfaces {
		if !iface.WaitForActive {
			continue
		}
		status := v1alpha1.InterfaceStatus{Name: iface.Name, Active: active(record, iface.Name)}
		if !status.Active {
			status.Active, status.Message = e.isActive(record, iface)
		}
		now = append(now, status)
	}
	if slices.Equal(now, record.Status.Interfaces) {
		return ctrl.Result{}, nil
	}
	after := record.DeepCopy()
	after.Status.Interfaces = now
	if err := e.turns.do(ctx, func() error { return e.client.Status().Patch(ctx, after, client.MergeFrom(record)) }); err != nil {
		return ctrl.Result{}, fmt.Errorf("write active interfaces of pod %s: %w", s.key, err)
	}
	return ctrl.Result{}, nil
}

// isActive asks the driver of an interface whether the interface is active, and returns
// the reason if it is not.
func (e *Ensurer) isActive(record *v1alpha1.PodAttachment, iface v1alpha1.Interface) (active bool, why string) {
	d, err := e.drivers.Named(iface.Driver)
	switch {
	case err != nil:
		return false, run.Clip(err.Error())
	case d.Activation.Active == nil:
		return false, fmt.Sprintf("driver %s does not say when its network carries the traffic", iface.Driver)
	}
	active, why = d.Activation.Active(driver.Ref{Owner: holderOf(record, iface.Name), Interface: iface})
	switch {
	case active:
		return true, ""
	case why == "":
		return false, fmt.Sprintf("driver %s waits for its network to carry the traffic", iface.Driver)
	default:
		return false, run.Clip(fmt.Sprintf("driver %s: %s", iface.Driver, why))
	}
}

func active(record *v1alpha1.PodAttachment, name string) bool {
	return slices.ContainsFunc(record.Status.Interfaces, func(s v1alpha1.InterfaceStatus) bool {
		return s.Name == name && s.Active
	})
}

// aboutHotPlug is the aspect of a pod that events about hot plug concern.
const aboutHotPlug = "hot plug"

// hotPlug makes the interfaces of a running pod those of its annotation. A failure to remove
// interfaces does not keep others from coming.
func (e *Ensurer) hotPlug(ctx context.Context, s *observed) (ctrl.Result, error) {
	if !e.hotPlugs(s) {
		return ctrl.Result{}, nil
	}
	selected, err := pod.Networks(s.pod)
	if err != nil {
		return ctrl.Result{}, e.reportHotPlug(s.pod, fmt.Errorf("%w: %w", fault.ErrInvalid, err))
	}
	return ctrl.Result{}, errors.Join(e.unplug(ctx, s, selected), e.plug(ctx, s, selected))
}

// hotPlugs reports whether the interfaces of a pod change with its annotation: it runs, and
// Fairlead attaches it to networks, as it has done since the pod's start. The interfaces of
// a pod that was started before its node was switched are those of another program.
func (e *Ensurer) hotPlugs(s *observed) bool {
	return s.served && s.current != nil && s.current.DeletionTimestamp == nil && pod.Holds(s.pod) &&
		s.current.Labels[v1alpha1.LabelMigratedFrom] == "" && s.current.Labels[v1alpha1.LabelAttachedBy] == v1alpha1.AttachedByFairlead &&
		e.requests.rules.Attached(s.pod)
}

// unplug removes the interfaces that a running pod does not ask for any more. The record
// names them for the node first (spec.unplug). When the node has confirmed that they are
// unplugged, they are released, and the record forgets them. An edit of a network or its
// deletion unplugs nothing: only the pod's annotation counts.
func (e *Ensurer) unplug(ctx context.Context, s *observed, selected []pod.Selection) error {
	_, drop := pod.Changes(selected, s.current.Spec.Interfaces)
	unplugged := confirmedUnplugged(s.current)
	if len(drop) == 0 && len(unplugged) == 0 {
		return nil
	}
	for _, ref := range refsOf(s.current) {
		if !slices.Contains(unplugged, ref.Interface.Name) {
			continue
		}
		if err := e.drivers.Release(ctx, ref); err != nil {
			return fmt.Errorf("release interface %s of pod %s, which is unplugged: %w", ref.Interface.Name, s.key, err)
		}
	}
	return e.changeRecord(ctx, s, func(spec *v1alpha1.PodAttachmentSpec) {
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

// plug obtains the interfaces that a running pod asks for beside those of its record. The
// record names them first (spec.plug), so that garbage collection leaves them alone. When
// all of an interface is there, it is added to the record, and the node plugs it. A failure
// is reported by an event, and tried again; the pod's other interfaces stay as they are.
func (e *Ensurer) plug(ctx context.Context, s *observed, selected []pod.Selection) error {
	add, _ := pod.Changes(selected, s.current.Spec.Interfaces)
	names := make([]string, len(add))
	for i := range add {
		names[i] = add[i].Interface
	}
	if len(add) == 0 {
		e.warnings.Over(podReference(s.pod), aboutHotPlug)
	}
	if !sameNames(names, s.current.Spec.Plug) { // interfaces obtained for other names are surplus from now on
		return e.changeRecord(ctx, s, func(spec *v1alpha1.PodAttachmentSpec) { spec.Plug = names })
	}
	if len(add) == 0 || e.mustWait(s.pod) {
		return nil
	}
	var interfaces []v1alpha1.Interface
	wanted, err := e.selected(s.pod, add)
	if refused := pod.RefuseDefaultRoute(wanted, s.current.Spec.Interfaces); refused != nil {
		err = fmt.Errorf("%w: %w", fault.ErrInvalid, refused)
	}
	if err == nil {
		interfaces, err = e.obtain(ctx, s.pod, wanted, s.current.Spec.Interfaces)
	}
	if err != nil {
		e.memory.wait(s.pod, names)
		return e.reportHotPlug(s.pod, err)
	}
	return e.changeRecord(ctx, s, func(spec *v1alpha1.PodAttachmentSpec) {
		spec.Interfaces, spec.Plug = append(spec.Interfaces, interfaces...), nil
	})
}

func sameNames(a, b []string) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(name string) bool { return !slices.Contains(b, name) })
}

// changeRecord changes the spec of a pod's record, unless the change changes nothing. A
// record that has changed meanwhile stays: its event brings the pod back.
func (e *Ensurer) changeRecord(ctx context.Context, s *observed, change func(*v1alpha1.PodAttachmentSpec)) error {
	after := s.current.DeepCopy()
	change(&after.Spec)
	after.Spec.Summary = pod.Summarize(after.Spec.Interfaces)
	if slices.Equal(after.Spec.Plug, s.current.Spec.Plug) && slices.Equal(after.Spec.Unplug, s.current.Spec.Unplug) &&
		len(after.Spec.Interfaces) == len(s.current.Spec.Interfaces) {
		return nil
	}
	err := e.turns.do(ctx, func() error {
		return e.client.Patch(ctx, after, client.MergeFromWithOptions(s.current, client.MergeFromWithOptimisticLock{}))
	})
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

// reportHotPlug reports why the interfaces of a running pod cannot be those of its annotation.
func (e *Ensurer) reportHotPlug(p *corev1.Pod, err error) error {
	e.warnings.Tell(podReference(p), aboutHotPlug, reasonOf(err), "EnsureNetwork", "the pod keeps the interfaces that it has: "+err.Error())
	return fmt.Errorf("change the interfaces of pod %s: %w", klog.KObj(p), detailed(err))
}

// detailed returns an error for the log, with the part that is for operators only.
func detailed(err error) error {
	if detail := driver.Detail(err); detail != "" {
		return fmt.Errorf("%w (%s)", err, detail)
	}
	return err
}

// reasonOf returns the event reason of a failed ensure, by the driver's sentinel error.
// Every failure is retried with a backoff up to half a minute, and at once when a pool
// changes. The reason shows a person whether waiting helps.
func reasonOf(err error) string {
	switch result := driver.Result(err); result {
	case "Unknown":
		return "NetworkNotReady"
	default:
		return "Network" + result
	}
}

func podReference(p *corev1.Pod) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID}
}

// project writes the interfaces of a pod into its annotation
// k8s.v1.cni.cncf.io/network-status, once they are plugged, if the pod has further
// interfaces: other programs read it. The annotation is written again when it differs
// from the record.
func (e *Ensurer) project(ctx context.Context, s *observed) (ctrl.Result, error) {
	if !s.served || s.current == nil || s.current.DeletionTimestamp != nil || !pod.Holds(s.pod) {
		return ctrl.Result{}, nil
	}
	text, err := pod.NetworkStatus(s.pod, s.current)
	if err != nil || text == "" {
		return ctrl.Result{}, err
	}
	if has := s.pod.Annotations[pod.AnnotationNetworkStatus]; has == pod.Digest(text) || has == text { // pod.Kept
		return ctrl.Result{}, nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid":         s.pod.UID, // of no other pod of this name
		"annotations": map[string]string{pod.AnnotationNetworkStatus: text},
	}})
	if err != nil {
		return ctrl.Result{}, err
	}
	o := &corev1.Pod{}
	o.Namespace, o.Name = s.pod.Namespace, s.pod.Name
	// Multus writes it through the status, too: no right to change pods is needed.
	err = e.turns.do(ctx, func() error {
		return e.client.Status().Patch(ctx, o, client.RawPatch(types.MergePatchType, patch))
	})
	if client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, fmt.Errorf("write annotation %s of pod %s: %w", pod.AnnotationNetworkStatus, s.key, err)
	}
	return ctrl.Result{}, nil
}
