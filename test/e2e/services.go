package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/test/netlab"
)

// services shows that kube-proxy's rules and ours get on: a Service with all
// pods behind it, and one with a single pod, which reaches itself through it.
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
	all, err := w.newService(ctx, "all", map[string]string{appLabel: deployment})
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
	w.Say("every pod reaches both Services; %s reaches itself through its own", chosen.Name)
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

// hostPorts gives a pod a port of its node, and asks there from everywhere.
func (w *world) hostPorts(ctx context.Context) error {
	const hostPort = 31080
	n := w.nodes[0]
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "host-port"}, Spec: podSpec()}
	pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: n.name}
	pod.Spec.Containers[0].Ports[0].HostPort = hostPort
	if err := w.Create(ctx, pod); err != nil {
		return err
	}
	if err := w.podIs(ctx, pod, "ready", isReady); err != nil {
		return err
	}
	at := netip.AddrPortFrom(n.machine.V4.Addr(), hostPort).String()
	for place, ask := range map[string]struct {
		ns *netlab.Namespace
		at string
	}{
		"another machine":         {w.lab.Switch.Namespace, at},
		"the other node":          {w.nodes[1].machine.Namespace, at},
		"its node":                {n.machine.Namespace, at},
		"its node, at 127.0.0.1,": {n.machine.Namespace, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), hostPort).String()},
	} {
		if name, err := get(ctx, ask.ns, "http://"+ask.at+"/name"); err != nil || name != pod.Name {
			return fmt.Errorf("%s asks port %d: got %q, %w; want %s", place, hostPort, name, err, pod.Name)
		}
	}
	pods, err := w.pods(ctx)
	if err != nil {
		return err
	}
	for _, from := range pods {
		answers, err := w.reach(ctx, from, []string{at})
		if err != nil || answers[at] != pod.Name {
			return fmt.Errorf("pod %s on %s asks port %d of %s: got %q, %w; want %s", from.Name, from.Spec.NodeName, hostPort, n.name, answers[at], err, pod.Name)
		}
	}
	w.Say("port %d of %s leads to the pod: from outside, both nodes, 127.0.0.1, and all %d pods, itself too", hostPort, n.name, len(pods))
	if err := w.Delete(ctx, pod); err != nil {
		return err
	}
	if err := w.podIs(ctx, pod, "gone", nil); err != nil {
		return err
	}
	if name, err := get(ctx, w.lab.Switch.Namespace, "http://"+at+"/name"); err == nil {
		return fmt.Errorf("port %d answers %q after its pod is gone", hostPort, name)
	}
	return nil
}

// outside has every pod ask a machine that knows no route to pods: it can
// answer only because pods leave under the address of their node.
func (w *world) outside(ctx context.Context) error {
	listener, err := w.lab.Switch.Listen(ctx, netip.AddrPortFrom(w.lab.Switch.V4.Addr(), 0).String())
	if err != nil {
		return err
	}
	server := &http.Server{
		ReadHeaderTimeout: stepTimeout,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			host, _, _ := net.SplitHostPort(r.RemoteAddr)
			_, _ = io.WriteString(w, host)
		}),
	}
	go func() { _ = server.Serve(listener) }() // ends with Close
	defer server.Close()
	pods, err := w.pods(ctx)
	if err != nil {
		return err
	}
	at := listener.Addr().String()
	for _, pod := range pods {
		answers, err := w.reach(ctx, pod, []string{at})
		if err != nil {
			return err
		}
		if want := w.nodeOf(pod).machine.V4.Addr().String(); answers[at] != want {
			return fmt.Errorf("pod %s on %s asks another machine: it saw %q; want %s", pod.Name, pod.Spec.NodeName, answers[at], want)
		}
	}
	w.Say("another machine answers all %d pods, and sees the addresses of their nodes", len(pods))
	return nil
}

// rollingRestart replaces all pods while they serve.
func (w *world) rollingRestart(ctx context.Context) error {
	if err := w.restart(ctx); err != nil {
		return err
	}
	if err := w.rolledOut(ctx); err != nil {
		return err
	}
	return w.allReachAll(ctx)
}

// restart does what `kubectl rollout restart` does.
func (w *world) restart(ctx context.Context) error {
	d := &appsv1.Deployment{}
	if err := w.Get(ctx, client.ObjectKey{Namespace: namespace, Name: deployment}, d); err != nil {
		return err
	}
	before := d.DeepCopy()
	const annotation = "e2e.invalid/generation"
	metav1.SetMetaDataAnnotation(&d.Spec.Template.ObjectMeta, annotation, strconv.FormatInt(d.Generation, 10))
	return w.Patch(ctx, d, client.MergeFrom(before))
}

// deletion removes Services and all pods and looks for what they left.
func (w *world) deletion(ctx context.Context) error {
	var err error
	for _, name := range []string{"all", "one"} {
		err = errors.Join(err, w.Delete(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}))
	}
	if err != nil {
		return err
	}
	return w.podsDeleted(ctx)
}

func (w *world) podsDeleted(ctx context.Context) error {
	if err := w.Delete(ctx, newDeployment(), client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
		return err
	}
	return w.nothingLeft(ctx)
}
