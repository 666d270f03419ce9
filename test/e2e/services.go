package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// services shows that kube-proxy's rules and ours get on: a Service with all
// pods behind it, and one with a single pod.
func (w *world) services(ctx context.Context) error {
	pods, err := w.pods(ctx)
	if err != nil {
		return err
	}
	const lone = "lone"
	chosen := &pods[0]
	chosen.Labels[lone] = "yes"
	if err := w.Update(ctx, chosen); err != nil {
		return err
	}
	all, err := w.newService(ctx, "all", map[string]string{appLabel: "web"})
	if err != nil {
		return err
	}
	one, err := w.newService(ctx, "one", map[string]string{lone: "yes"})
	if err != nil {
		return err
	}
	names := map[string]bool{}
	for _, pod := range pods {
		names[pod.Name] = true
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	for _, pod := range pods {
		g.Go(func() error {
			if pod.Name == chosen.Name {
				return nil
			}
			answers, err := w.reach(ctx, pod, []string{all, one})
			if err != nil {
				return err
			}
			if !names[answers[all]] || answers[one] != chosen.Name {
				return fmt.Errorf("pod %s on %s asks the Services: got %q; want any pod of %s and %s of %s",
					pod.Name, pod.Spec.NodeName, answers, all, chosen.Name, one)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	w.say("every pod reaches both Services")
	return nil
}

// newService makes a Service and returns its address and port.
func (w *world) newService(ctx context.Context, name string, selector map[string]string) (string, error) {
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       corev1.ServiceSpec{Selector: selector, Ports: []corev1.ServicePort{{Port: port}}},
	}
	if err := w.Create(ctx, service); err != nil {
		return "", err
	}
	return net.JoinHostPort(service.Spec.ClusterIP, strconv.Itoa(port)), nil
}

// rollingRestart replaces all pods while they serve.
func (w *world) rollingRestart(ctx context.Context) error {
	if err := w.restart(ctx, "web"); err != nil {
		return err
	}
	if err := w.rolledOut(ctx, "web"); err != nil {
		return err
	}
	return w.allReachAll(ctx)
}

// restart does what `kubectl rollout restart` does.
func (w *world) restart(ctx context.Context, name string) error {
	d := &appsv1.Deployment{}
	if err := w.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, d); err != nil {
		return err
	}
	before := d.DeepCopy()
	const annotation = "e2e.invalid/generation"
	metav1.SetMetaDataAnnotation(&d.Spec.Template.ObjectMeta, annotation, strconv.FormatInt(d.Generation, 10))
	return w.Patch(ctx, d, client.MergeFrom(before))
}

// deletion removes all pods and looks for what they left.
func (w *world) deletion(ctx context.Context) error {
	err := w.Delete(ctx, w.newDeployment("web"), client.PropagationPolicy(metav1.DeletePropagationBackground))
	for _, name := range []string{"all", "one"} {
		err = errors.Join(err, w.Delete(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}))
	}
	if err != nil {
		return err
	}
	return w.nothingLeft(ctx)
}
