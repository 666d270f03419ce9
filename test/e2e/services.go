package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/test/netlab"
)

// services checks that kube-proxy's rules and ours work together: with a Service for all
// pods, and a Service for a single pod, which reaches itself through it.
func (w *testbed) services(ctx context.Context) error {
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
			answers, err := w.reach(ctx, pod, slices.Concat(all, one))
			if err != nil {
				return err
			}
			for i := range w.ranges {
				if !names[answers[all[i]]] || answers[one[i]] != chosen.Name {
					return fmt.Errorf("pod %s on %s asks the Services: got %q; want any pod of %s and %s of %s",
						pod.Name, pod.Spec.NodeName, answers, all[i], chosen.Name, one[i])
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	w.Say("every pod reaches both Services at %v and %v; %s reaches itself through its own", all, one, chosen.Name)
	return nil
}

// newService creates a Service of all families and returns its endpoints' URLs, IPv4
// first.
func (w *testbed) newService(ctx context.Context, name string, selector map[string]string) ([]string, error) {
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.ServiceSpec{
			Selector: selector, Ports: []corev1.ServicePort{{Port: port}},
			IPFamilyPolicy: new(corev1.IPFamilyPolicyPreferDualStack),
		},
	}
	if err := w.Create(ctx, service); err != nil {
		return nil, err
	}
	if len(service.Spec.ClusterIPs) != len(w.ranges) {
		return nil, fmt.Errorf("the Service %s has the addresses %v; want one of each family of %v", name, service.Spec.ClusterIPs, w.ranges)
	}
	var out []string
	for _, addr := range service.Spec.ClusterIPs {
		out = append(out, net.JoinHostPort(addr, strconv.Itoa(port)))
	}
	return out, nil
}

// hostPorts gives a pod a port of its node, and sends requests to the port from
// everywhere.
func (w *testbed) hostPorts(ctx context.Context) error {
	const hostPort = 18080
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
	at := n.at(hostPort)
	var local []string
	if n.machine.V4.IsValid() { // not in IPv6: packets from ::1 stay on the loopback link
		local = append(local, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), hostPort).String())
	}
	for _, asker := range []struct {
		name string
		ns   *netlab.Namespace
		asks []string
	}{
		{"another machine", w.Net.Switch.Namespace, at},
		{"the other node", w.nodes[1].machine.Namespace, at},
		{"its node", n.machine.Namespace, slices.Concat(at, local)},
	} {
		for _, asked := range asker.asks {
			if name, err := get(ctx, asker.ns, "http://"+asked+"/name"); err != nil || name != pod.Name {
				return fmt.Errorf("%s asks %s: got %q, %w; want %s", asker.name, asked, name, err, pod.Name)
			}
		}
	}
	pods, err := w.pods(ctx)
	if err != nil {
		return err
	}
	for _, from := range pods {
		answers, err := w.reach(ctx, from, at)
		if err != nil {
			return err
		}
		for _, asked := range at {
			if answers[asked] != pod.Name {
				return fmt.Errorf("pod %s on %s asks %s: got %q; want %s", from.Name, from.Spec.NodeName, asked, answers[asked], pod.Name)
			}
		}
	}
	w.Say("%v lead to the pod from outside, both nodes, and all %d pods, itself too; on its node %v do", at, len(pods), slices.Concat(at, local))
	if err := w.Delete(ctx, pod); err != nil {
		return err
	}
	if err := w.podIs(ctx, pod, "gone", nil); err != nil {
		return err
	}
	for _, asked := range at {
		if name, err := get(ctx, w.Net.Switch.Namespace, "http://"+asked+"/name"); err == nil {
			return fmt.Errorf("%s answers %q after its pod is gone", asked, name)
		}
	}
	return nil
}

// at returns the addresses of a port of the node, IPv4 first.
func (n *node) at(port uint16) []string {
	var out []string
	for _, own := range n.addresses() {
		out = append(out, netip.AddrPortFrom(own, port).String())
	}
	return out
}

// outside makes every pod send a request to a machine without a route to pods: it can
// answer only because packets from pods have the address of their node.
func (w *testbed) outside(ctx context.Context) error {
	server := &http.Server{
		ReadHeaderTimeout: stepTimeout,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			host, _, _ := net.SplitHostPort(r.RemoteAddr)
			_, _ = io.WriteString(w, host)
		}),
	}
	defer server.Close()
	var targets []string
	for _, own := range w.Net.Switch.Addresses() {
		listener, err := w.Net.Switch.Listen(ctx, netip.AddrPortFrom(own.Addr(), 0).String())
		if err != nil {
			return err
		}
		go func() { _ = server.Serve(listener) }() // ends with Close
		targets = append(targets, listener.Addr().String())
	}
	pods, err := w.pods(ctx)
	if err != nil {
		return err
	}
	for _, pod := range pods {
		answers, err := w.reach(ctx, pod, targets)
		if err != nil {
			return err
		}
		for i, want := range w.nodeOf(pod).addresses() {
			if got := answers[targets[i]]; got != want.String() {
				return fmt.Errorf("pod %s on %s asks another machine: it saw %q; want %s", pod.Name, pod.Spec.NodeName, got, want)
			}
		}
	}
	w.Say("another machine answers all %d pods, and sees the addresses of their nodes", len(pods))
	return nil
}

// rollingRestart replaces all pods while they serve.
func (w *testbed) rollingRestart(ctx context.Context) error {
	if err := w.restart(ctx); err != nil {
		return err
	}
	if err := w.rolledOut(ctx); err != nil {
		return err
	}
	return w.allReachAll(ctx)
}

// restart has the effect of `kubectl rollout restart`.
func (w *testbed) restart(ctx context.Context) error {
	d := &appsv1.Deployment{}
	if err := w.Get(ctx, client.ObjectKey{Namespace: namespace, Name: deployment}, d); err != nil {
		return err
	}
	before := d.DeepCopy()
	const annotation = "e2e.invalid/generation"
	metav1.SetMetaDataAnnotation(&d.Spec.Template.ObjectMeta, annotation, strconv.FormatInt(d.Generation, 10))
	return w.Patch(ctx, d, client.MergeFrom(before))
}

// deletion removes Services and all pods, and checks that nothing is left.
func (w *testbed) deletion(ctx context.Context) error {
	var err error
	for _, name := range []string{"all", "one"} {
		err = errors.Join(err, w.Delete(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}))
	}
	if err != nil {
		return err
	}
	return w.podsDeleted(ctx)
}

func (w *testbed) podsDeleted(ctx context.Context) error {
	if err := w.Delete(ctx, newDeployment(), client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
		return err
	}
	return w.nothingLeft(ctx)
}
