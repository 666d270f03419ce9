package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// kustomize is the value of .Release.Service, "Helm" of a release, in the templates of the
// manifests for kustomize.
const kustomize = "kustomize"

// copied are the templates that are manifests for kustomize under the same name.
var copied = []string{
	"controller.yaml", "node.yaml", "networks.yaml", "default-pool.yaml", "ui/ui.yaml",
	"rights/controller.yaml", "rights/node.yaml", "rights/node-policy.yaml", "rights/controller-policy.yaml", "rights/lease-flow.yaml",
}

// manifests returns the manifests for kustomize, by their paths in the source: the templates
// with the default values, with the example of a pool, the definition of networks and the live
// picture.
func manifests(chart string) (map[string][]byte, error) {
	rendered, err := render(chart, kustomize, map[string]any{
		"networks":    map[string]any{"install": true},
		"ui":          map[string]any{"enabled": true},
		"defaultPool": map[string]any{"ranges": []any{"10.244.0.0/16"}},
	})
	if err != nil {
		return nil, err
	}
	out := map[string][]byte{}
	for _, name := range copied {
		head := "# Generated from deploy/chart/templates/" + name + " by hack/generate.sh; do not edit.\n"
		out["deploy/"+name] = []byte(head + strings.TrimSpace(rendered[name]) + "\n")
	}
	for text := range strings.SplitSeq(rendered["config.yaml"], "---\n") {
		var c corev1.ConfigMap
		if err := yaml.UnmarshalStrict([]byte(text), &c); err != nil {
			return nil, fmt.Errorf("config.yaml: %w", err)
		}
		for name, content := range c.Data {
			out["deploy/config/"+name] = []byte(content)
		}
	}
	return out, nil
}

// render returns the templates of a chart with values, by their names.
func render(chart, service string, values map[string]any) (map[string]string, error) {
	c, err := loader.LoadDir(chart)
	if err != nil {
		return nil, fmt.Errorf("read the chart: %w", err)
	}
	options := common.ReleaseOptions{Name: "fairlead", Namespace: "fairlead-system", Revision: 1, IsInstall: true}
	v, err := util.ToRenderValues(c, values, options, nil)
	if err != nil {
		return nil, err
	}
	v["Release"].(map[string]any)["Service"] = service
	rendered, err := engine.Render(c, v)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for path, text := range rendered {
		out[strings.TrimPrefix(path, "fairlead/templates/")] = text
	}
	return out, nil
}

// addDefinitions adds the chart's copies of the CRDs: a chart has its files in its own
// directory.
func addDefinitions(root string, files map[string][]byte) error {
	paths, err := filepath.Glob(filepath.Join(root, "api/v1alpha1/crd/fairlead.dev_*.yaml"))
	if err != nil || len(paths) == 0 {
		return fmt.Errorf("no CRDs: %w", err)
	}
	// A CRD that is no more has no copy.
	copies := filepath.Join(root, "deploy/chart/crds")
	if err := errors.Join(os.RemoveAll(copies), os.Mkdir(copies, 0o755)); err != nil { //nolint:gosec // a folder of the source
		return err
	}
	for _, path := range paths {
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		files["deploy/chart/crds/"+filepath.Base(path)] = raw
	}
	return nil
}
