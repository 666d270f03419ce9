package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/test/lab"
)

// version is a version of Fairlead that is installed by its chart.
type version struct {
	tag    string // of the image
	source string // directory with deploy/ and the definitions of the resources
}

// oldDir has the older version, of hack/build-old.sh, in the directory of the programs.
const oldDir = "old"

func (w *testbed) oldVersion() version {
	return version{tag: oldImageTag, source: filepath.Join(w.programs(), oldDir)}
}
func (w *testbed) newVersion() version { return version{tag: fairleadImageTag, source: w.Source} }

func (v version) chart() string { return filepath.Join(v.source, "deploy/chart") }

// helmVariables keep Helm's files in a directory of the test.
var helmVariables = []string{"HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"}

// helm runs a command of Helm on the release in Fairlead's namespace.
func (w *testbed) helm(ctx context.Context, args ...string) error {
	_, err := w.Programs.Run(ctx, w.Net.Switch.Do, filepath.Join(w.programs(), "helm"), append(args, "--namespace", system, "--kubeconfig", w.Admin)...)
	return err
}

// helmRelease runs install or upgrade, with the values of a user.
func (w *testbed) helmRelease(ctx context.Context, command string, v version, more ...string) error {
	values := filepath.Join(w.Tmpfs(), "values.yaml")
	err := lab.WriteYAML(values, map[string]any{
		"image":       map[string]string{"repository": fairleadImage, "tag": v.tag},
		"defaultPool": map[string]any{"ranges": words(w.ranges)},
		"controller":  map[string]any{"config": map[string]any{"leaderElection": slowElection}},
	})
	if err != nil {
		return err
	}
	return w.helm(ctx, slices.Concat([]string{command, release, v.chart(), "--values", values}, more)...)
}

// release is the name of the release.
const release = "fairlead"

// helmInstalled installs the older version by docs/operator/install.md.
func (w *testbed) helmInstalled(ctx context.Context) error {
	w.ranges = w.Families.ranges()
	if err := w.remember(ctx); err != nil {
		return err
	}
	for _, n := range w.nodes {
		if err := n.start(kubeProxy); err != nil {
			return err
		}
	}
	for _, args := range [][]string{
		{"create", "namespace", system},
		{"label", "namespace", system, "pod-security.kubernetes.io/enforce=privileged"},
	} {
		if err := w.Kubectl(ctx, args...); err != nil {
			return err
		}
	}
	if err := w.helmRelease(ctx, "install", w.oldVersion()); err != nil {
		return err
	}
	if err := w.workloadsReady(ctx); err != nil {
		return err
	}
	return w.await(ctx, "the nodes to be Ready", w.nodesAre(corev1.ConditionTrue))
}

// workloadsReady waits until all pods of both programs are of the present templates and
// ready, and one controller leads.
func (w *testbed) workloadsReady(ctx context.Context) error {
	for _, workload := range []string{"ds/fairlead-node", "deploy/fairlead-controller"} {
		if err := w.Kubectl(ctx, "-n", system, "rollout", "status", "--timeout", stepTimeout.String(), workload); err != nil {
			return err
		}
	}
	return w.await(ctx, "one of the controllers to lead", w.oneLeads)
}

// livePicturePort is the port of the administrator's machine that leads to the live picture.
const livePicturePort = 9490

// livePicture opens the page of the chart by docs/user/ui.md, once the kubelet's probes have
// succeeded. On the pod's address the page does not answer.
func (w *testbed) livePicture(ctx context.Context) error {
	if err := w.Kubectl(ctx, "-n", system, "rollout", "status", "--timeout", stepTimeout.String(), "deploy/fairlead-ui"); err != nil {
		return err
	}
	forward, err := w.Programs.Command("port-forward", filepath.Join(w.programs(), "kubelab"), "kubectl", "--kubeconfig", w.Admin,
		"-n", system, "port-forward", "deploy/fairlead-ui", fmt.Sprintf("%d:8080", livePicturePort))
	if err != nil {
		return err
	}
	if err := w.Programs.Start(w.Net.Switch.Do, forward); err != nil {
		return err
	}
	defer forward.Kill()
	err = w.await(ctx, "the page of the live picture", func(ctx context.Context) (string, error) {
		page, err := get(ctx, w.Net.Switch.Namespace, fmt.Sprintf("http://127.0.0.1:%d/", livePicturePort))
		switch {
		case err != nil:
			return err.Error(), nil //nolint:nilerr // kubectl does not listen yet
		case !strings.Contains(page, "<title>Fairlead"):
			return "", fmt.Errorf("the live picture answers with another page: %.200q", page)
		}
		return "", nil
	})
	if err != nil {
		return err
	}
	return w.livePictureIsHidden(ctx)
}

// livePictureIsHidden asks the pod of the live picture at its address, from its node.
func (w *testbed) livePictureIsHidden(ctx context.Context) error {
	pods := &corev1.PodList{}
	if err := w.List(ctx, pods, client.InNamespace(system), client.MatchingLabels{"app.kubernetes.io/name": "fairlead-ui"}); err != nil {
		return err
	}
	for _, pod := range pods.Items {
		from, address := w.nodeOf(pod).machine.Namespace, pod.Status.PodIP
		health, err := get(ctx, from, "http://"+net.JoinHostPort(address, "8081")+"/readyz")
		if err != nil {
			return fmt.Errorf("health of pod %s: %w", pod.Name, err)
		}
		page, err := get(ctx, from, "http://"+net.JoinHostPort(address, "8080")+"/")
		if health != "ok\n" || !errors.Is(err, syscall.ECONNREFUSED) {
			return fmt.Errorf("pod %s at %s: health is %q, and the page is reached without a forwarded port: %.200q", pod.Name, address, health, page)
		}
	}
	w.Say("the live picture is Ready, and answers a forwarded port alone")
	return nil
}

// helmRemoved removes the release by docs/operator/install.md. In the end the nodes and the
// objects of the cluster are as they were.
func (w *testbed) helmRemoved(ctx context.Context) error {
	v := w.newVersion()
	if err := w.helmRelease(ctx, "upgrade", v, "--set", "node.cleanup=true"); err != nil {
		return err
	}
	if err := w.Kubectl(ctx, "-n", system, "rollout", "status", "--timeout", stepTimeout.String(), "ds/fairlead-node"); err != nil {
		return err
	}
	w.Say("the pods of the clean-up are ready on both nodes")
	if err := w.helm(ctx, "uninstall", release); err != nil {
		return err
	}
	for _, args := range [][]string{{"delete", "-k", filepath.Join(v.source, "api/v1alpha1/crd")}, {"delete", "namespace", system}} {
		if err := w.Kubectl(ctx, args...); err != nil {
			return err
		}
	}
	return w.allAsBefore(ctx)
}

// remember remembers the objects of the cluster before an installation.
func (w *testbed) remember(ctx context.Context) (err error) {
	w.objectsBefore, err = w.objects(ctx)
	return err
}

// allAsBefore compares the nodes and the objects of the cluster with those before the
// installation, without kube-proxy.
func (w *testbed) allAsBefore(ctx context.Context) error {
	for _, n := range w.nodes {
		if err := w.stopProxy(ctx, n); err != nil {
			return err
		}
	}
	if err := w.asBefore(ctx); err != nil {
		return err
	}
	return w.await(ctx, "the objects of the cluster to be as before", func(ctx context.Context) (string, error) {
		now, err := w.objects(ctx)
		if err != nil {
			return "", err
		}
		return summary(differences(w.objectsBefore, now)), nil
	})
}

// differences returns the names that are in one set alone, sorted.
func differences(before, now map[string]bool) []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if !before[name] {
			out = append(out, "new: "+name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if !now[name] {
			out = append(out, "gone: "+name)
		}
	}
	return out
}

// objects returns the names of all objects of the cluster, and the labels, annotations,
// taints and conditions of its nodes. It leaves out events, which expire, and the objects
// that a kubelet creates for its node, a while after its start.
func (w *testbed) objects(ctx context.Context) (map[string]bool, error) {
	quiet := rest.CopyConfig(w.REST)
	quiet.WarningHandler = rest.NoWarnings{} // some kinds are deprecated
	d, err := discovery.NewDiscoveryClientForConfig(quiet)
	if err != nil {
		return nil, err
	}
	lists, err := d.ServerPreferredResources()
	if err != nil {
		return nil, fmt.Errorf("list the kinds of the cluster: %w", err)
	}
	m, err := metadata.NewForConfig(quiet)
	if err != nil {
		return nil, err
	}
	out := map[string]bool{}
	for _, kinds := range lists {
		group, err := schema.ParseGroupVersion(kinds.GroupVersion)
		if err != nil {
			return nil, err
		}
		for _, kind := range kinds.APIResources {
			if !slices.Contains(kind.Verbs, "list") || slices.Contains([]string{"events", "csinodes"}, kind.Name) {
				continue
			}
			list, err := m.Resource(group.WithResource(kind.Name)).List(ctx, metav1.ListOptions{})
			if err != nil {
				return nil, fmt.Errorf("list %s: %w", kind.Name, err)
			}
			for _, o := range list.Items {
				if o.Namespace == corev1.NamespaceNodeLease {
					continue
				}
				out[strings.Join([]string{kind.Kind, o.Namespace, o.Name}, " ")] = true
			}
		}
	}
	return out, w.addNodes(ctx, out)
}

// addNodes adds what other programs may write into nodes.
func (w *testbed) addNodes(ctx context.Context, out map[string]bool) error {
	nodes := &corev1.NodeList{}
	if err := w.List(ctx, nodes); err != nil {
		return err
	}
	for _, n := range nodes.Items {
		for name := range n.Labels {
			out["label "+name+" of "+n.Name] = true
		}
		for name := range n.Annotations {
			out["annotation "+name+" of "+n.Name] = true
		}
		for _, taint := range n.Spec.Taints {
			out["taint "+taint.Key+" of "+n.Name] = true
		}
		for _, condition := range n.Status.Conditions {
			out["condition "+string(condition.Type)+" of "+n.Name] = true
		}
	}
	return nil
}
