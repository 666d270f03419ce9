package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/test/netlab"
)

const (
	namespace = "default"
	port      = 8080
	replicas  = 30
	// deployment is the name of the Deployment, and its pods' label app.
	deployment = "web"
	appLabel   = "app"
)

// The default ports of the programs' metrics.
const (
	controllerPort = 9470
	daemonPort     = 9471
)

// metric returns the sum of the series with a label that a program on the node serves at
// a port.
func (n *node) metric(ctx context.Context, port int, name, label string) (float64, error) {
	return metric(ctx, n.machine, port, name, label)
}

func metric(ctx context.Context, m *netlab.Machine, port int, name, label string) (float64, error) {
	text, err := get(ctx, m.Namespace, fmt.Sprintf("http://127.0.0.1:%d/metrics", port))
	if err != nil {
		return 0, fmt.Errorf("metrics of %s: %w", m.Name, err)
	}
	sum := 0.0
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) == 2 && strings.HasPrefix(line, name+"{") && strings.Contains(fields[0], label) {
			value, err := strconv.ParseFloat(fields[1], 64)
			if err != nil {
				return 0, fmt.Errorf("metrics of %s: %w", m.Name, err)
			}
			sum += value
		}
	}
	return sum, nil
}

// podSpec returns the spec of all test pods.
func podSpec() corev1.PodSpec {
	return corev1.PodSpec{
		TerminationGracePeriodSeconds: new(int64(1)),
		AutomountServiceAccountToken:  new(false),
		EnableServiceLinks:            new(false),
		Containers: []corev1.Container{{
			Name: "server", Image: serverImage, ImagePullPolicy: corev1.PullNever,
			Ports: []corev1.ContainerPort{{ContainerPort: port}},
			ReadinessProbe: &corev1.Probe{
				ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/name", Port: intstr.FromInt32(port)}},
				PeriodSeconds: 1, TimeoutSeconds: 5,
			},
		}},
	}
}

func newDeployment() *appsv1.Deployment {
	labels := map[string]string{appLabel: deployment}
	spec := podSpec()
	spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule,
		LabelSelector: &metav1.LabelSelector{MatchLabels: labels}, MatchLabelKeys: []string{appsv1.DefaultDeploymentUniqueLabelKey},
	}}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: deployment},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(replicas)),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec},
		},
	}
}

// deployment creates the first pods.
func (w *testbed) deployment(ctx context.Context) error {
	if err := w.Create(ctx, newDeployment()); err != nil {
		return err
	}
	if err := w.rolledOut(ctx); err != nil {
		return err
	}
	return w.allReachAll(ctx)
}

// rolledOut waits until all pods of the Deployment are of its present template and ready,
// and no other pod is left.
func (w *testbed) rolledOut(ctx context.Context) error {
	err := w.await(ctx, "the Deployment", func(ctx context.Context) (string, error) {
		d := &appsv1.Deployment{}
		if err := w.Get(ctx, client.ObjectKey{Namespace: namespace, Name: deployment}, d); err != nil {
			return "", err
		}
		pods, err := w.pods(ctx)
		if err != nil {
			return "", err
		}
		want, s := *d.Spec.Replicas, d.Status
		if s.ObservedGeneration == d.Generation && s.UpdatedReplicas == want && s.ReadyReplicas == want && s.Replicas == want && len(pods) == int(want) {
			return "", nil
		}
		return fmt.Sprintf("%d of %d are ready, %d up to date, %d in all", s.ReadyReplicas, want, s.UpdatedReplicas, len(pods)), nil
	})
	if err != nil {
		return err
	}
	w.Say("%d pods are ready", replicas)
	return nil
}

// pods returns the test pods, by name.
func (w *testbed) pods(ctx context.Context) ([]corev1.Pod, error) {
	list := &corev1.PodList{}
	if err := w.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return nil, err
	}
	slices.SortFunc(list.Items, func(a, b corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
	return list.Items, nil
}

// allReachAll makes every pod send a request to every pod, including itself, at each of
// its addresses.
func (w *testbed) allReachAll(ctx context.Context) error {
	pods, err := w.pods(ctx)
	if err != nil {
		return err
	}
	names, err := w.targets(pods)
	if err != nil {
		return err
	}
	targets := slices.Sorted(maps.Keys(names))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	for _, pod := range pods {
		g.Go(func() error {
			answers, err := w.reach(ctx, pod, targets)
			if err != nil {
				return err
			}
			for target, name := range names {
				if answers[target] != name {
					return fmt.Errorf("pod %s on %s asks pod %s at %s: got %q", pod.Name, pod.Spec.NodeName, name, target, answers[target])
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	w.Say("all %d pairs reach each other, at addresses of %v", len(pods)*len(pods), w.ranges)
	return nil
}

// targets returns the names of pods by their addresses: one address of every family, all
// different.
func (w *testbed) targets(pods []corev1.Pod) (map[string]string, error) {
	names := map[string]string{}
	for _, pod := range pods {
		if len(pod.Status.PodIPs) != len(w.ranges) {
			return nil, fmt.Errorf("pod %s has the addresses %v; want one of each of %v", pod.Name, pod.Status.PodIPs, w.ranges)
		}
		for i, family := range w.ranges {
			addr, err := netip.ParseAddr(pod.Status.PodIPs[i].IP)
			if err != nil || !family.Contains(addr) {
				return nil, fmt.Errorf("pod %s has the address %q; want one of %v", pod.Name, pod.Status.PodIPs[i].IP, family)
			}
			target := netip.AddrPortFrom(addr, port).String()
			if other, ok := names[target]; ok {
				return nil, fmt.Errorf("pods %s and %s have the same address %v", other, pod.Name, addr)
			}
			names[target] = pod.Name
		}
	}
	return names, nil
}

// reach makes a pod send requests to others and returns their answers. The request to the
// pod comes from its node.
func (w *testbed) reach(ctx context.Context, pod corev1.Pod, targets []string) (map[string]string, error) {
	n := w.nodeOf(pod)
	if n == nil {
		return nil, fmt.Errorf("pod %s is on %q; want one of ours", pod.Name, pod.Spec.NodeName)
	}
	at := net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(port))
	body, err := get(ctx, n.machine.Namespace, "http://"+at+"/reach?"+url.Values{"addr": targets}.Encode())
	if err != nil {
		return nil, fmt.Errorf("ask pod %s on %s: %w", pod.Name, n.name, err)
	}
	answers := map[string]string{}
	if err := json.Unmarshal([]byte(body), &answers); err != nil {
		return nil, fmt.Errorf("ask pod %s: %w", pod.Name, err)
	}
	return answers, nil
}

func (w *testbed) nodeOf(pod corev1.Pod) *node {
	for _, n := range w.nodes {
		if n.name == pod.Spec.NodeName {
			return n
		}
	}
	return nil
}
