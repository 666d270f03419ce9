package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/test/lab"
)

// manifests installs Fairlead by docs/operator/install.md: the unchanged deploy/ with an
// image and one setting. The programs are pods.
func (w *testbed) manifests(ctx context.Context) error {
	if err := w.remember(ctx); err != nil {
		return err
	}
	if err := w.writeOverlay(); err != nil {
		return err
	}
	for _, n := range w.nodes {
		if err := n.start(kubeProxy); err != nil {
			return err
		}
	}
	for _, args := range [][]string{
		{"apply", "--server-side", "-k", w.overlay()},
		{"wait", "--for=condition=Established", "crd/ippools.fairlead.dev"},
		{"apply", "--server-side", "-f", w.defaultPool()},
		{"-n", system, "rollout", "status", "--timeout", stepTimeout.String(), "ds/fairlead-node"},
		{"-n", system, "rollout", "status", "--timeout", stepTimeout.String(), "deploy/fairlead-controller"},
	} {
		if err := w.Kubectl(ctx, args...); err != nil {
			return err
		}
	}
	w.Say("a pod of fairlead-node on each node and two of fairlead-controller are ready")
	if err := w.await(ctx, "one of the controllers to lead", w.oneLeads); err != nil {
		return err
	}
	return w.await(ctx, "the nodes to be Ready", w.nodesAre(corev1.ConditionTrue))
}

// oneLeads checks that exactly one of the controllers takes itself for the leader: both
// are process 1 on a host of the same name.
func (w *testbed) oneLeads(ctx context.Context) (string, error) {
	leaders := 0.0
	for _, n := range w.nodes {
		leads, err := n.metric(ctx, controllerPort, "leader_election_master_status", `name="fairlead-controller"`)
		if err != nil {
			return err.Error(), nil //nolint:nilerr // it may have just been started
		}
		leaders += leads
	}
	switch {
	case leaders > 1:
		return "", fmt.Errorf("%v controllers lead", leaders)
	case leaders < 1:
		return "none does", nil
	default:
		return "", nil
	}
}

// overlay returns the directory of an operator's own kustomization.
func (w *testbed) overlay() string     { return filepath.Join(w.Tmpfs(), "overlay") }
func (w *testbed) defaultPool() string { return filepath.Join(w.overlay(), "default-pool.yaml") }

// writePool writes the example of a pool with a range of the nodes' first family. On
// nodes with IPv4 this is the unchanged example.
func (w *testbed) writePool() error {
	w.ranges = w.Families.ranges()[:1]
	example := filepath.Join(w.Source, "deploy/default-pool.yaml")
	raw, err := os.ReadFile(example)
	if err != nil {
		return err
	}
	before, after, found := strings.Cut(string(raw), podRange)
	if !found {
		return fmt.Errorf("%s has no range %s; podRange of this test must be the range there", example, podRange)
	}
	return os.WriteFile(w.defaultPool(), []byte(before+w.ranges[0].String()+after), 0o600)
}

func (w *testbed) writeOverlay() error {
	if err := os.Mkdir(w.overlay(), 0o755); err != nil {
		return err
	}
	if err := w.writePool(); err != nil {
		return err
	}
	base, err := filepath.Rel(w.overlay(), filepath.Join(w.Source, "deploy"))
	if err != nil {
		return err
	}
	err = lab.WriteYAML(filepath.Join(w.overlay(), "controller.yaml"), map[string]any{
		"defaultNetwork": map[string]any{"pools": []string{"default"}}, "leaderElection": slowElection,
	})
	if err != nil {
		return err
	}
	return lab.WriteYAML(filepath.Join(w.overlay(), "kustomization.yaml"), map[string]any{
		"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
		"resources": []string{base},
		"images":    []map[string]string{{"name": "fairlead", "newName": fairleadImage, "newTag": fairleadImageTag}},
		"configMapGenerator": []map[string]any{{
			"name": "fairlead-controller-config", "namespace": system, "behavior": "merge", "files": []string{"controller.yaml"},
		}},
	})
}

// rollout makes the DaemonSet and the Deployment replace all of Fairlead's pods while
// other pods are created and deleted.
func (w *testbed) rollout(ctx context.Context) error {
	if err := w.restart(ctx); err != nil {
		return err
	}
	for _, workload := range []string{"ds/fairlead-node", "deploy/fairlead-controller"} {
		if err := w.Kubectl(ctx, "-n", system, "rollout", "restart", workload); err != nil {
			return err
		}
		if err := w.Kubectl(ctx, "-n", system, "rollout", "status", "--timeout", stepTimeout.String(), workload); err != nil {
			return err
		}
	}
	w.Say("the daemons and the controllers were exchanged")
	if err := w.await(ctx, "one of the controllers to lead", w.oneLeads); err != nil {
		return err
	}
	if err := w.rolledOut(ctx); err != nil {
		return err
	}
	return w.allReachAll(ctx)
}

// removal returns the directory of the kustomization that removes Fairlead from the nodes.
func (w *testbed) removal() string { return filepath.Join(w.Tmpfs(), "removal") }

// manifestsRemoved removes the installation of manifests by the operator's guide: pods of
// deploy/cleanup clean the nodes. In the end the nodes and the objects of the cluster are as
// they were.
func (w *testbed) manifestsRemoved(ctx context.Context) error {
	if err := os.Mkdir(w.removal(), 0o755); err != nil {
		return err
	}
	cleanup, err := filepath.Rel(w.removal(), filepath.Join(w.Source, "deploy/cleanup"))
	if err != nil {
		return err
	}
	err = lab.WriteYAML(filepath.Join(w.removal(), "kustomization.yaml"), map[string]any{
		"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
		"resources": []string{"../" + filepath.Base(w.overlay())}, "components": []string{cleanup},
	})
	if err != nil {
		return err
	}
	for _, args := range [][]string{
		{"apply", "--server-side", "-k", w.removal()},
		{"-n", system, "rollout", "status", "--timeout", stepTimeout.String(), "ds/fairlead-node"},
		{"delete", "-f", w.defaultPool()},
		{"delete", "--ignore-not-found", "-k", w.overlay()},
	} {
		if err := w.Kubectl(ctx, args...); err != nil {
			return err
		}
	}
	return w.allAsBefore(ctx)
}

// systemGroups returns the names of the control groups of the pods in Fairlead's
// namespace.
func (w *testbed) systemGroups(ctx context.Context) (map[string]bool, error) {
	list := &corev1.PodList{}
	if err := w.List(ctx, list, client.InNamespace(system)); err != nil {
		return nil, err
	}
	out := map[string]bool{}
	for _, pod := range list.Items {
		out["pod"+string(pod.UID)] = true
	}
	return out, nil
}

// keepPodLogs copies the logs of Fairlead's pods to the other logs, because the nodes'
// disks are removed with the test.
func (w *testbed) keepPodLogs() error {
	for _, n := range w.nodes {
		files, err := filepath.Glob(n.file("log/pods/" + system + "_*/*/*.log"))
		if err != nil {
			return err
		}
		for _, file := range files {
			content, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			// namespace_pod_uid/container/restarts.log
			parts := strings.Split(file, string(filepath.Separator))
			parts = parts[len(parts)-3:]
			name := fmt.Sprintf("%s-%s", n.name, strings.Join(parts, "-"))
			if err := os.WriteFile(filepath.Join(w.Logs(), name), content, 0o600); err != nil {
				return err
			}
		}
	}
	return nil
}
