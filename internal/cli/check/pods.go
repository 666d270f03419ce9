package check

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// start makes the namespaces, pods and Services, waits for the pods, and returns those that
// run. A pod that does not run has a row.
func (r *checking) start(ctx context.Context, id string, places []place) ([]members, error) {
	all := make([]members, len(places))
	for i, p := range places {
		all[i].place = p
	}
	pods, host := namespaceOf(partPods, id), namespaceOf(partHost, id)
	for _, ns := range []*corev1.Namespace{pods, host} {
		if err := r.makeNamespace(ctx, ns); err != nil {
			return nil, err
		}
	}
	for i := range all {
		if err := r.makeServer(ctx, pods.Name, i, &all[i]); err != nil {
			return nil, err
		}
		if err := r.makeHostPods(ctx, host.Name, i, &all[i]); err != nil {
			return nil, err
		}
	}
	r.say("waiting for the pods of image %s", r.image)
	waiting, cancel := context.WithTimeout(ctx, podWait)
	defer cancel()
	for _, ns := range []*corev1.Namespace{pods, host} {
		if err := r.awaitPods(ctx, waiting, ns.Name, all); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// makeServer makes the server of a node, with its Service.
func (r *checking) makeServer(ctx context.Context, namespace string, number int, m *members) error {
	made, err := r.api.CoreV1().Pods(namespace).Create(ctx, podOn(roleServer, number, m.name, namespace, r.settings), metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create a pod: %w", err)
	}
	if m.service, err = r.api.CoreV1().Services(namespace).Create(ctx, serviceOf(made), metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create a Service: %w", err)
	}
	return nil
}

// makeHostPods makes the pods of a node that need more than others. If they are refused,
// their tests are not tried.
func (r *checking) makeHostPods(ctx context.Context, namespace string, number int, m *members) error {
	for _, role := range []role{roleHostPort, roleNode, roleSender} {
		_, err := r.api.CoreV1().Pods(namespace).Create(ctx, podOn(role, number, m.name, namespace, r.settings), metav1.CreateOptions{})
		if refused(err) {
			r.say("not tried on node %s: %v", m.name, err)
			if role == roleSender {
				m.refused = err.Error()
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("create a pod: %w", err)
		}
	}
	return nil
}

// refused reports whether admission has refused an object: Pod Security and quotas do so as
// forbidden, a ValidatingAdmissionPolicy as invalid and a webhook as a bad request, unless they
// have another reason.
func refused(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)
}

// makeNamespace makes a namespace with the account of its pods.
func (r *checking) makeNamespace(ctx context.Context, ns *corev1.Namespace) error {
	if _, err := r.api.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create a namespace: %w", err)
	}
	if _, err := r.api.CoreV1().ServiceAccounts(ns.Name).Create(ctx, accountIn(ns.Name), metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create an account: %w", err)
	}
	return nil
}

// awaitPods waits until all pods of a namespace run, at most until waiting ends, and puts
// them into all.
func (r *checking) awaitPods(ctx, waiting context.Context, namespace string, all []members) error {
	err := listUntil(waiting, func(ctx context.Context) (bool, string, error) {
		list, err := r.api.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, "", fmt.Errorf("list pods: %w", err)
		}
		done := !slices.ContainsFunc(list.Items, func(p corev1.Pod) bool { return !runs(&p) && p.Status.Phase != corev1.PodFailed })
		return done, list.ResourceVersion, nil
	}, func(ctx context.Context, version string) (watch.Interface, error) {
		return r.api.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{ResourceVersion: version})
	})
	if ctx.Err() != nil {
		return fmt.Errorf("the check was ended: %w", context.Cause(ctx))
	}
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	// The time may have been over before the first look.
	list, err := r.api.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	pods := list.Items
	records, err := r.cluster.PodAttachments(ctx, namespace)
	if err != nil {
		return err
	}
	for i := range pods {
		p := &pods[i]
		if !runs(p) {
			r.rows = append(r.rows, Row{Test: testPod, From: p.Spec.NodeName, Result: Failed, Detail: r.whyNot(ctx, p, records)})
			continue
		}
		for k := range all {
			if all[k].name != p.Spec.NodeName {
				continue
			}
			all[k].put(attachedOf(p, records))
		}
	}
	return nil
}

// put puts a running pod in its place.
func (m *members) put(a *attached) {
	switch {
	case a.pod.Spec.HostNetwork:
		m.node = a
	case len(a.pod.Spec.Containers[0].Ports) > 0:
		m.hostPort = a
	case len(a.pod.Spec.Containers[0].SecurityContext.Capabilities.Add) > 0:
		m.sender = a
	default:
		m.server = a
	}
}

func runs(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// whyNot returns the reason why a pod does not run, by its status, its record and its last
// event.
func (r *checking) whyNot(ctx context.Context, p *corev1.Pod, records []v1alpha1.PodAttachment) string {
	parts := []string{fmt.Sprintf("pod %s is %s %s", p.Name, p.Status.Phase, p.Status.Message)}
	for _, c := range p.Status.ContainerStatuses {
		if c.State.Waiting != nil {
			parts = append(parts, c.State.Waiting.Reason+" "+c.State.Waiting.Message)
		}
	}
	recorded := false
	for i := range records {
		if records[i].Spec.PodName != p.Name {
			continue
		}
		recorded = true
		for _, c := range records[i].Status.Conditions {
			if c.Type == v1alpha1.ConditionReady && c.Status == metav1.ConditionFalse {
				parts = append(parts, c.Reason+" "+c.Message)
			}
		}
	}
	if !recorded && !p.Spec.HostNetwork {
		parts = append(parts, "it has no PodAttachment")
	}
	about := fields.Set{"involvedObject.name": p.Name, "type": corev1.EventTypeWarning}.AsSelector().String()
	// Without the right to list events there is none.
	if events, err := r.api.CoreV1().Events(p.Namespace).List(ctx, metav1.ListOptions{FieldSelector: about}); err == nil && len(events.Items) > 0 {
		last := events.Items[len(events.Items)-1]
		parts = append(parts, last.Reason+" "+last.Message)
	}
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return strings.Join(parts, "; ")
}

// remove deletes namespaces and waits until they are gone. Pods go first: if their
// PodAttachments are there when Kubernetes empties a namespace, it looks again only after
// eight seconds.
func (r *checking) remove(ctx context.Context, names ...string) error {
	emptying, cancel := context.WithTimeout(ctx, emptyWait)
	defer cancel()
	for _, name := range names {
		// If pods stay, their namespace stays as well, and its error is returned.
		if err := r.removePods(emptying, name); err != nil {
			r.say("namespace %s: %v", name, err)
		}
	}
	var errs []error
	for _, name := range names {
		if err := r.api.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("delete namespace %s: %w", name, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	err := listUntil(ctx, func(ctx context.Context) (bool, string, error) {
		list, err := r.api.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: LabelCheck})
		if err != nil {
			return false, "", fmt.Errorf("list namespaces: %w", err)
		}
		left := slices.ContainsFunc(list.Items, func(n corev1.Namespace) bool { return slices.Contains(names, n.Name) })
		return !left, list.ResourceVersion, nil
	}, func(ctx context.Context, version string) (watch.Interface, error) {
		return r.api.CoreV1().Namespaces().Watch(ctx, metav1.ListOptions{LabelSelector: LabelCheck, ResourceVersion: version})
	})
	if err != nil {
		return fmt.Errorf("wait until namespaces %s are gone: %w", strings.Join(names, ", "), err)
	}
	return nil
}

// removePods deletes the pods of a namespace and waits until they are gone.
func (r *checking) removePods(ctx context.Context, namespace string) error {
	api := r.api.CoreV1().Pods(namespace)
	list, err := api.List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	for i := range list.Items {
		if err := api.Delete(ctx, list.Items[i].Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete pod %s: %w", list.Items[i].Name, err)
		}
	}
	return listUntil(ctx, func(ctx context.Context) (bool, string, error) {
		list, err := api.List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, "", fmt.Errorf("list pods: %w", err)
		}
		return len(list.Items) == 0, list.ResourceVersion, nil
	}, func(ctx context.Context, version string) (watch.Interface, error) {
		return api.Watch(ctx, metav1.ListOptions{ResourceVersion: version})
	})
}

// listUntil lists until done, each time after an event of a watch. It returns the cause when
// ctx ends.
func listUntil(ctx context.Context, list func(context.Context) (done bool, version string, err error), begin func(ctx context.Context, version string) (watch.Interface, error)) error {
	for {
		done, version, err := list(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil || done {
			return err
		}
		events, err := begin(ctx, version)
		if err != nil {
			return fmt.Errorf("watch: %w", err)
		}
		select {
		case <-events.ResultChan():
		case <-ctx.Done():
		}
		events.Stop()
	}
}
