package bugreport

import (
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

// canary is in every value that must not be in a report.
const canary = "canary-7d1f"

// secretive are objects with the canary wherever people put secrets.
const secretive = `
- apiVersion: v1
  kind: Pod
  metadata:
    name: web
    namespace: shop
    managedFields: [{manager: canary-7d1f}]
    annotations:
      kubectl.kubernetes.io/last-applied-configuration: canary-7d1f
      vault.example.org/token: canary-7d1f
      k8s.v1.cni.cncf.io/networks: storage
  spec:
    nodeName: node-1
    initContainers: [{name: init, image: i, env: [{name: A, value: canary-7d1f}]}]
    containers:
    - {name: web, image: w, command: [canary-7d1f], args: [canary-7d1f], envFrom: [{secretRef: {name: canary-7d1f}}]}
    - {name: side, image: s, livenessProbe: {exec: {command: [canary-7d1f]}}, lifecycle: {preStop: {exec: {command: [canary-7d1f]}}}}
- apiVersion: apps/v1
  kind: DaemonSet
  metadata: {name: fairlead-node, namespace: fairlead-system}
  spec:
    template:
      metadata: {annotations: {checksum: canary-7d1f}}
      spec: {containers: [{name: node, image: n, env: [{name: A, value: canary-7d1f}]}]}
- apiVersion: v1
  kind: Secret
  metadata: {name: s, namespace: shop}
  data: {password: canary-7d1f}
  stringData: {password: canary-7d1f}
`

func objectsOf(t *testing.T, text string) []unstructured.Unstructured {
	t.Helper()
	var raw []map[string]any
	if err := yaml.Unmarshal([]byte(text), &raw); err != nil {
		t.Fatal(err)
	}
	var out []unstructured.Unstructured
	for _, o := range raw {
		out = append(out, unstructured.Unstructured{Object: o})
	}
	return out
}

func TestRedact(t *testing.T) {
	for _, o := range objectsOf(t, secretive) {
		redact(&o)
		raw, err := yaml.Marshal(&o)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(raw), canary) {
			t.Errorf("%s has the canary:\n%s", o.GetKind(), raw)
		}
		if o.GetKind() == "Pod" && (!strings.Contains(string(raw), "k8s.v1.cni.cncf.io/networks: storage") || !strings.Contains(string(raw), "image: w")) {
			t.Errorf("the pod lacks what a report needs:\n%s", raw)
		}
	}
}

// clusterOf is a cluster with some objects. Lists of the kind broken fail, and it does not
// have the kinds lacks.
type clusterOf struct {
	objects []unstructured.Unstructured
	broken  string
	lacks   []string
}

func (c clusterOf) Objects(_ context.Context, r schema.GroupVersionResource, namespace string) (*unstructured.UnstructuredList, error) {
	if r.Resource == c.broken {
		return nil, errors.New("no right to list them")
	}
	if slices.Contains(c.lacks, r.Resource) {
		return nil, apierrors.NewNotFound(r.GroupResource(), "")
	}
	list := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "v1", "kind": "List"}}
	for _, o := range c.objects {
		if strings.ToLower(o.GetKind())+"s" == r.Resource && (namespace == "" || namespace == o.GetNamespace()) {
			list.Items = append(list.Items, *o.DeepCopy())
		}
	}
	return list, nil
}

func (clusterOf) Log(_ context.Context, _, pod, container string, previous bool, _ int64) (io.ReadCloser, error) {
	if previous || pod == "fairlead-node-mute" {
		return nil, errors.New("there is none")
	}
	return io.NopCloser(strings.NewReader("log of " + container)), nil
}

type inMemory map[string]string

func (m inMemory) add(name string, content []byte) error { m[name] = string(content); return nil }

const installation = `
- {apiVersion: v1, kind: Pod, metadata: {name: fairlead-controller-x, namespace: fairlead-system, labels: {app.kubernetes.io/name: fairlead-controller}}, spec: {nodeName: node-1, containers: [{name: controller}]}}
- {apiVersion: v1, kind: Pod, metadata: {name: fairlead-node-a, namespace: fairlead-system, labels: {app.kubernetes.io/name: fairlead-node}}, spec: {nodeName: node-1, containers: [{name: node}]}}
- {apiVersion: v1, kind: Pod, metadata: {name: fairlead-node-mute, namespace: fairlead-system, labels: {app.kubernetes.io/name: fairlead-node}}, spec: {nodeName: node-2, containers: [{name: node}]}}
- {apiVersion: v1, kind: Pod, metadata: {name: other, namespace: fairlead-system}, spec: {containers: [{name: other}]}}
- {apiVersion: v1, kind: Pod, metadata: {name: imitator, namespace: shop, labels: {app.kubernetes.io/name: fairlead-node}}, spec: {nodeName: node-1, containers: [{name: node}]}}
- {apiVersion: v1, kind: ConfigMap, metadata: {name: config, namespace: shop}, data: {a: not of the installation}}
`

func TestCollect(t *testing.T) {
	now := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	c := clusterOf{objects: append(objectsOf(t, secretive), objectsOf(t, installation)...), broken: "nodenetworks"}
	tests := []struct {
		name  string
		nodes []string
		logs  []string
		fails []string
	}{
		{"all nodes", nil, []string{"logs/fairlead-controller-x/controller.log", "logs/fairlead-node-a/node.log"}, []string{
			"nodenetworks.fairlead.dev: no right to list them", "the log of fairlead-system/fairlead-node-mute, container node: there is none",
		}},
		{"one node", []string{"node-1"}, []string{"logs/fairlead-controller-x/controller.log", "logs/fairlead-node-a/node.log"}, []string{"nodenetworks.fairlead.dev: no right to list them"}},
		{"another", []string{"node-3"}, []string{"logs/fairlead-controller-x/controller.log"}, []string{"nodenetworks.fairlead.dev: no right to list them"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := inMemory{}
			r := &collector{from: c, to: got, system: "fairlead-system", nodes: tt.nodes}
			if err := r.collect(t.Context(), now); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.fails, r.failed); diff != "" {
				t.Errorf("failed (-want +got):\n%s", diff)
			}
			var logs []string
			for _, name := range slices.Sorted(maps.Keys(got)) {
				if strings.Contains(got[name], canary) || strings.Contains(got[name], "not of the installation") {
					t.Errorf("%s has what a report must not have:\n%s", name, got[name])
				}
				if strings.HasPrefix(name, "logs/") {
					logs = append(logs, name)
				}
			}
			if diff := cmp.Diff(tt.logs, logs); diff != "" {
				t.Errorf("logs (-want +got):\n%s", diff)
			}
			for _, f := range tt.fails {
				if !strings.Contains(got["index.txt"], f) {
					t.Errorf("index.txt lacks %q:\n%s", f, got["index.txt"])
				}
			}
			if !strings.Contains(got["objects/pods.yaml"], "name: web") {
				t.Errorf("pods.yaml lacks the pod web:\n%s", got["objects/pods.yaml"])
			}
		})
	}
}

// A report of a cluster without the kinds of other projects is complete. One without
// Fairlead's own kinds is not.
func TestCollectWithoutKinds(t *testing.T) {
	got := inMemory{}
	r := &collector{from: clusterOf{lacks: []string{"ipamclaims", "network-attachment-definitions", "ippools"}}, to: got, system: "fairlead-system"}
	if err := r.collect(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
	if len(r.failed) != 1 || !strings.HasPrefix(r.failed[0], "ippools.fairlead.dev: ") {
		t.Errorf("failed %q, want ippools alone", r.failed)
	}
	for _, want := range []string{"no ipamclaims.k8s.cni.cncf.io.", "no network-attachment-definitions.k8s.cni.cncf.io."} {
		if !strings.Contains(got["index.txt"], want) {
			t.Errorf("index.txt lacks %q:\n%s", want, got["index.txt"])
		}
	}
}

func TestWrite(t *testing.T) {
	file := filepath.Join(t.TempDir(), "report.tar.gz")
	failing := errors.New("the cluster is gone")
	if err := write(file, "report", time.Now(), func(archive) error { return failing }); !errors.Is(err, failing) {
		t.Errorf("error %v, want %v", err, failing)
	}
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file of a failed report: %v, want none", err)
	}
	if err := write(file, "report", time.Now(), func(a archive) error { return a.add("index.txt", []byte("all")) }); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file has mode %v, error %v; only its owner may read it", info.Mode(), err)
	}
	if err := write(file, "report", time.Now(), nil); err == nil || !strings.Contains(err.Error(), "exists: name another file") {
		t.Errorf("a file that exists: error %v", err)
	}
}
