package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// runScenarios runs the scenarios in order; each starts in the final state of the
// previous one. At the end it writes how many there were.
func (w *testbed) runScenarios(ctx context.Context) error {
	passed := 0
	for _, scenario := range w.scenarios() {
		started := time.Now()
		w.Say("--- %s", scenario.name)
		if err := scenario.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", scenario.name, err)
		}
		w.Say("    OK, %.1f s", time.Since(started).Seconds())
		passed++
	}
	return w.WriteResult(passed)
}

// scenario is one part of the test.
type scenario struct {
	name string
	run  func(context.Context) error
	of   families
}

// scenarios returns the chosen scenarios, in order.
func (w *testbed) scenarios() []scenario {
	// Scenarios that the families do not affect run with one choice of them.
	const each families = ""
	boot := scenario{"nodes with a running kubelet and containerd and no network", w.nodesBoot, each}
	install := scenario{"installation without the workloads: the programs are processes", w.installation, each}
	networks := scenario{"pods with several networks, while fairlead-node and the controllers are killed", w.networks, dual}
	uninstall := scenario{"uninstallation", w.uninstallation, each}
	checked := scenario{"fairlead check, while large packets are lost and sources are not checked", w.checkNetwork, each}
	soak := scenario{fmt.Sprintf("pods come and go under faults of every kind for %v", w.Soak), w.soakNodes, dual}
	released := []scenario{
		{"installation of the older version with Helm", w.helmInstalled, dual},
		{"30 pods on two nodes reach each other", w.deployment, dual},
		{"upgrade and rollback with Helm, while pods come and go", w.upAndDown, dual},
		{"pods deleted", w.podsDeleted, dual},
		{"uninstallation with Helm and the clean-up", w.helmRemoved, dual},
	}
	alone := map[part][]scenario{
		onlyNetworks:    {networks},
		onlyCheck:       {checked},
		onlySoak:        {soak},
		onlyConformance: {{"CoreDNS", w.clusterDNS, each}, {"fairlead check, with a DNS", w.checkDNS, each}, {"Kubernetes' own tests: " + w.Focus, w.conformance, each}},
	}
	if w.Deploy30 > 0 {
		return []scenario{boot, install, {"30 pods until Ready, beside the same with hostNetwork", w.deploy30, each}, uninstall}
	}
	if w.Only == onlyUpgrade {
		return append([]scenario{boot}, released...)
	}
	if w.Only != everything {
		return slices.Concat([]scenario{boot, install}, alone[w.Only], []scenario{uninstall})
	}
	all := []scenario{
		boot,
		{"installation by the manifests in deploy/", w.manifests, each},
		{"30 pods on two nodes reach each other", w.deployment, dual},
		{"fairlead check finds the image of the manifests", w.checkInstalled, dual},
		{"the manifests' pods exchanged during a rolling restart", w.rollout, dual},
		{"pods deleted", w.podsDeleted, dual},
		{"uninstallation of the manifests", w.manifestsRemoved, each},
	}
	all = slices.Concat(all, released, []scenario{
		install,
		{"30 pods on two nodes reach each other", w.deployment, each},
		{"Services reach pods, and a pod itself", w.services, each},
		{"a port of the node leads to a pod", w.hostPorts, each},
		{"pods reach other machines", w.outside, each},
		checked,
		{"rolling restart", w.rollingRestart, each},
		{"fairlead-node upgraded during a rolling restart", w.upgrade, dual},
		{"both nodes reboot", w.reboot, each},
		{"pods deleted", w.deletion, each},
		networks,
	})
	if w.Soak > 0 {
		all = append(all, soak)
	}
	all = append(all, uninstall)
	return slices.DeleteFunc(all, func(s scenario) bool { return s.of != each && s.of != w.Families })
}

// noNetwork is containerd's message if it has no network configuration.
const noNetwork = "cni plugin not initialized"

// nodesBoot starts the nodes without Fairlead first: they must not be Ready before
// Fairlead can serve pods.
func (w *testbed) nodesBoot(ctx context.Context) error {
	for _, n := range w.nodes {
		if err := n.boot(); err != nil {
			return err
		}
		if err := n.startRuntime(ctx); err != nil {
			return err
		}
		if err := n.start(kubelet); err != nil {
			return err
		}
	}
	err := w.await(ctx, "the kubelets to miss a network", w.nodesAre(corev1.ConditionFalse))
	if err != nil {
		return err
	}
	for _, n := range w.nodes {
		if ready, err := w.ready(ctx, n); err != nil || !strings.Contains(ready.Message, noNetwork) {
			return errors.Join(err, fmt.Errorf("%s is not Ready because of %q; want %q", n.name, ready.Message, noNetwork))
		}
	}
	w.Say("both kubelets run, at %v and %v; their nodes are not Ready: %s", w.nodes[0].addresses(), w.nodes[1].addresses(), noNetwork)
	return nil
}

// installation makes the nodes Ready. They stay Ready from then on.
func (w *testbed) installation(ctx context.Context) error {
	if err := w.install(ctx); err != nil {
		return err
	}
	for _, n := range w.nodes {
		if err := errors.Join(n.start(kubeProxy), w.giveAccount(ctx, n), n.start(fairleadNode)); err != nil {
			return err
		}
	}
	if err := w.await(ctx, "the nodes to be Ready", w.nodesAre(corev1.ConditionTrue)); err != nil {
		return err
	}
	w.Say("fairlead-node runs on both; they are Ready")
	return w.restartDaemons(ctx)
}

// restartDaemons kills and restarts fairlead-node: containerd must not read its
// configuration again, and no node may stop being Ready.
func (w *testbed) restartDaemons(ctx context.Context) error {
	type facts struct {
		Conflist os.FileInfo
		Since    time.Time
	}
	read := func(ctx context.Context, n *node) (facts, error) {
		info, err := os.Stat(n.conflist())
		if err != nil {
			return facts{}, err
		}
		ready, err := w.ready(ctx, n)
		return facts{info, ready.LastTransitionTime.Time}, err
	}
	g, ctx := errgroup.WithContext(ctx)
	restart := func(n *node) error {
		if err := checkConflist(n); err != nil {
			return err
		}
		before, err := read(ctx, n)
		if err != nil {
			return err
		}
		n.running[fairleadNode].Kill()
		if err := n.start(fairleadNode); err != nil {
			return err
		}
		err = w.await(ctx, "fairlead-node to be ready again", func(ctx context.Context) (string, error) { return n.daemonReady(ctx), nil })
		if err != nil {
			return err
		}
		// The kubelet asks containerd, and containerd the plugin, every five seconds.
		if err := w.asked(ctx, n, 2); err != nil {
			return err
		}
		after, err := read(ctx, n)
		if err != nil {
			return err
		}
		if !os.SameFile(before.Conflist, after.Conflist) || !before.Conflist.ModTime().Equal(after.Conflist.ModTime()) {
			return fmt.Errorf("%s: the restart of fairlead-node wrote %s again; its content is the same", n.name, n.conflist())
		}
		if !before.Since.Equal(after.Since) {
			return fmt.Errorf("%s: the restart of fairlead-node changed its Ready condition at %v", n.name, after.Since)
		}
		return nil
	}
	for _, n := range w.nodes {
		g.Go(func() error { return restart(n) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	w.Say("they stayed Ready while fairlead-node was killed and started; the conflist was not touched")
	return nil
}

// daemonReady returns the reason why fairlead-node does not serve, or "".
func (n *node) daemonReady(ctx context.Context) string {
	if _, err := get(ctx, n.machine.Namespace, "http://127.0.0.1:9471/readyz"); err != nil {
		return fmt.Sprintf("%s: %v", n.name, err)
	}
	return ""
}

// checkConflist checks that runtimes accept the network configuration: cniVersion 1.0.0
// for those before CNI 1.1, and static content.
func checkConflist(n *node) error {
	raw, err := os.ReadFile(n.conflist())
	if err != nil {
		return err
	}
	var got struct {
		CNIVersion  string   `json:"cniVersion"`
		CNIVersions []string `json:"cniVersions"`
		Name        string   `json:"name"`
		Plugins     []struct {
			Type         string          `json:"type"`
			Socket       string          `json:"socket"`
			Capabilities map[string]bool `json:"capabilities"`
		} `json:"plugins"`
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&got); err != nil {
		return fmt.Errorf("%s: %w", n.conflist(), err)
	}
	if len(got.Plugins) != 1 {
		return fmt.Errorf("%s has %d plugins; want 1", n.conflist(), len(got.Plugins))
	}
	plugin := got.Plugins[0]
	if diff := cmp.Diff([]string{"1.0.0", "fairlead", "fairlead", "/run/fairlead/cni.sock"}, []string{got.CNIVersion, got.Name, plugin.Type, plugin.Socket}); diff != "" {
		return fmt.Errorf("%s (-want +got):\n%s", n.conflist(), diff)
	}
	if diff := cmp.Diff([]string{"0.4.0", "1.0.0", "1.1.0"}, got.CNIVersions); diff != "" {
		return fmt.Errorf("cniVersions of %s (-want +got):\n%s", n.conflist(), diff)
	}
	// Runtimes read every file: a half-written file makes all fail.
	files, err := filepath.Glob(filepath.Join(n.confDir(), "*"))
	if err == nil && len(files) != 1 {
		err = fmt.Errorf("%s holds %v; want the conflist alone", n.confDir(), files)
	}
	return err
}

// ready returns the Ready condition of a node; the zero value if it has none yet.
func (w *testbed) ready(ctx context.Context, n *node) (corev1.NodeCondition, error) {
	object := &corev1.Node{}
	if err := w.Get(ctx, client.ObjectKey{Name: n.name}, object); err != nil {
		return corev1.NodeCondition{}, err
	}
	for _, condition := range object.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition, nil
		}
	}
	return corev1.NodeCondition{}, nil
}

// nodesAre checks that the Ready condition of all nodes has a status and, if they are
// Ready, that pods may be scheduled there.
func (w *testbed) nodesAre(want corev1.ConditionStatus) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		for _, n := range w.nodes {
			object := &corev1.Node{}
			if err := w.Get(ctx, client.ObjectKey{Name: n.name}, object); err != nil {
				if apierrors.IsNotFound(err) {
					return n.name + " is not registered yet", nil
				}
				return "", err
			}
			condition, err := w.ready(ctx, n)
			switch {
			case err != nil:
				return "", err
			case condition.Status != want || condition.Reason == "NodeStatusUnknown":
				return fmt.Sprintf("%s: Ready is %s: %s", n.name, condition.Status, condition.Message), nil
			case want == corev1.ConditionTrue && object.Status.NodeInfo.BootID != n.bootID:
				return fmt.Sprintf("%s: reports boot ID %s", n.name, object.Status.NodeInfo.BootID), nil
			case want == corev1.ConditionTrue && len(object.Spec.Taints) > 0:
				return fmt.Sprintf("%s: has the taint %s", n.name, object.Spec.Taints[0].Key), nil
			}
		}
		return "", nil
	}
}

// asked waits until the kubelet of a node has asked the runtime, and so containerd the
// plugin, a number of times.
func (w *testbed) asked(ctx context.Context, n *node, times int) error {
	count := func() (float64, error) {
		return n.metric(ctx, daemonPort, "fairlead_cni_requests_total", `verb="STATUS"`)
	}
	before, err := count()
	if err != nil {
		return err
	}
	return w.await(ctx, "the kubelet to look at the network", func(context.Context) (string, error) {
		now, err := count()
		if now >= before+float64(times) {
			return "", err
		}
		return fmt.Sprintf("%s: asked %g times of %d", n.name, now-before, times), err
	})
}
