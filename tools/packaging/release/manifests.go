package release

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"helm.sh/helm/v4/pkg/chart/v2/loader"
	chartutil "helm.sh/helm/v4/pkg/chart/v2/util"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"fairlead.dev/fairlead/tools/packaging/programs"
)

// unreleased is the version of the source in the chart and in the manifests.
const unreleased = "unreleased"

// staged are the folders of the source that an installation reads.
var staged = []string{"deploy", "api/v1alpha1/crd"}

// stage copies the folders that an installation reads, with the version of the release in
// the chart and in the manifests, and writes the package of the chart to out.
func stage(s programs.Source, number, dir, out string) error {
	for _, folder := range staged {
		if err := os.CopyFS(filepath.Join(dir, folder), os.DirFS(filepath.Join(s.Root, folder))); err != nil {
			return err
		}
	}
	if err := copyFile(filepath.Join(s.Root, "LICENSE"), filepath.Join(dir, "LICENSE")); err != nil {
		return err
	}
	chartDir := filepath.Join(dir, "deploy", "chart")
	chart, err := loader.LoadDir(chartDir)
	if err != nil {
		return fmt.Errorf("read the chart: %w", err)
	}
	chart.Metadata.Version, chart.Metadata.AppVersion = number, s.Version
	if err := chartutil.SaveChartfile(filepath.Join(chartDir, chartutil.ChartfileName), chart.Metadata); err != nil {
		return err
	}
	chart.StampModTimes(s.At)
	if _, err := chartutil.Save(chart, out); err != nil {
		return fmt.Errorf("write the chart: %w", err)
	}
	for _, name := range []string{"controller.yaml", "node.yaml", "ui/ui.yaml"} {
		path := filepath.Join(dir, "deploy", name)
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		raw = bytes.ReplaceAll(raw, []byte("image: fairlead:"+unreleased+"\n"), []byte("image: fairlead:"+s.Version+"\n"))
		if err := os.WriteFile(path, raw, 0o644); err != nil { //nolint:gosec // a public file
			return err
		}
	}
	return allReleased(dir)
}

// allReleased returns an error that names a file which still has the version of the source.
func allReleased(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		raw, err := os.ReadFile(path)
		if err == nil && bytes.Contains(raw, []byte(unreleased)) {
			err = fmt.Errorf("%s has %q; a release must set its version there", strings.TrimPrefix(path, dir+"/"), unreleased)
		}
		return err
	})
}

// rendered are the files with objects that kubectl applies as they are.
type rendered struct {
	name, about   string
	kustomization string // in a folder beside the staged one
	kind          string // only objects of this kind, if it is set
}

var allRendered = []rendered{
	{
		name: "install.yaml", kustomization: "resources: [../fairlead/deploy]\n",
		about: "all objects but a pool of addresses. Change the name of the image to that in a registry of yours.",
	},
	{name: "crds.yaml", kustomization: "resources: [../fairlead/api/v1alpha1/crd]\n", about: "the definitions of the resources. Apply them before an upgrade with Helm."},
	{
		name: "cleanup.yaml", kind: "DaemonSet",
		kustomization: "resources: [../fairlead/deploy]\ncomponents: [../fairlead/deploy/cleanup]\n",
		about:         "pods that remove everything from their nodes, in the place of the daemons of install.yaml. Change the name of the image as there.",
	},
}

// copiedFiles are the files of deploy that a release has as they are.
var copiedFiles = []string{"default-pool.yaml", "networks.yaml", "monitoring/alerts.yaml", "monitoring/rules.yaml", "monitoring/dashboard.json"}

// manifests writes the files with objects to out. The staged folder is fairlead in work.
func manifests(version, work, out string) error {
	for _, r := range allRendered {
		content, err := r.render(version, work)
		if err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
		if err := os.WriteFile(filepath.Join(out, r.name), content, 0o644); err != nil { //nolint:gosec // a public file
			return err
		}
	}
	for _, name := range copiedFiles {
		if err := copyFile(filepath.Join(work, "fairlead", "deploy", name), filepath.Join(out, filepath.Base(name))); err != nil {
			return err
		}
	}
	return nil
}

func (r rendered) render(version, work string) ([]byte, error) {
	dir := filepath.Join(work, r.name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(r.kustomization), 0o600); err != nil {
		return nil, err
	}
	options := krusty.MakeDefaultOptions()
	options.Reorder = krusty.ReorderOptionLegacy // as kubectl: the namespace comes first
	objects, err := krusty.MakeKustomizer(options).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		return nil, err
	}
	var texts []string
	for _, o := range objects.Resources() {
		if r.kind != "" && o.GetKind() != r.kind {
			continue
		}
		text, err := o.AsYAML()
		if err != nil {
			return nil, err
		}
		texts = append(texts, string(text))
	}
	return []byte("# Fairlead " + version + ": " + r.about + "\n" + strings.Join(texts, "---\n")), nil
}
