package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"fairlead.dev/fairlead/test/cluster"
)

// The modules that contain the test files.
const (
	whereaboutsModule = "github.com/k8snetworkplumbingwg/whereabouts"
	whereaboutsDir    = "../../test/whereabouts"
)

// realWhereabouts is the real whereabouts on a cluster, with its objects in the test's
// namespace.
type realWhereabouts struct {
	*cluster.Cluster
	t          *testing.T
	program    string
	kubeconfig string
	flatFile   string
}

// buildWhereabouts builds whereabouts. Call it before the test waits for the cluster,
// because the first build takes minutes.
func buildWhereabouts(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "whereabouts")
	// The benchmark builds it with the same flags, so the second build is cached.
	command(t, "env", "CGO_ENABLED=0", "go", "-C", whereaboutsDir, "build", "-trimpath", "-buildvcs=false", "-o", program, whereaboutsModule+"/cmd")
	return program
}

// newRealWhereabouts installs the CRDs of whereabouts.
func newRealWhereabouts(t *testing.T, c *cluster.Cluster, program string) *realWhereabouts {
	t.Helper()
	dir := t.TempDir()
	r := &realWhereabouts{Cluster: c, t: t, program: program, kubeconfig: filepath.Join(dir, "kubeconfig"), flatFile: filepath.Join(dir, "whereabouts.conf")}
	// Its kubeconfig names the namespace of its objects.
	cfg, err := clientcmd.LoadFromFile(c.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Contexts[cfg.CurrentContext].Namespace = c.Namespace
	if err := clientcmd.WriteToFile(*cfg, r.kubeconfig); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(r.flatFile, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	crds := strings.TrimSpace(command(t, "go", "-C", whereaboutsDir, "list", "-m", "-f", "{{.Dir}}", whereaboutsModule))
	for _, kind := range []string{"ippools", "nodeslicepools", "overlappingrangeipreservations"} {
		r.install(filepath.Join(crds, "doc/crds/whereabouts.cni.cncf.io_"+kind+".yaml"))
	}
	return r
}

// command runs a program to its end and returns its output.
func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, &stderr)
	}
	return stdout.String()
}

// install installs a CRD for the time of the test.
func (r *realWhereabouts) install(path string) {
	r.t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		r.t.Fatal(err)
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.Unmarshal(raw, crd); err != nil {
		r.t.Fatalf("%s: %v", path, err)
	}
	if err := r.Client.Create(r.t.Context(), crd); apierrors.IsAlreadyExists(err) {
		return // created by another test
	} else if err != nil {
		r.t.Fatalf("CRD %s: %v", crd.Name, err)
	}
	r.t.Cleanup(func() {
		if err := r.Client.Delete(context.WithoutCancel(r.t.Context()), crd); client.IgnoreNotFound(err) != nil {
			r.t.Errorf("removing CRD %s: %v", crd.Name, err)
		}
	})
	r.Eventually(r.t, "CRD "+crd.Name, func(ctx context.Context) error {
		_, err := r.list(ctx, schema.GroupVersionKind{Group: crd.Spec.Group, Version: crd.Spec.Versions[0].Name, Kind: crd.Spec.Names.Kind})
		return err
	})
}

// list lists the objects of a kind in the test's namespace.
func (r *realWhereabouts) list(ctx context.Context, kind schema.GroupVersionKind) ([]unstructured.Unstructured, error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(kind)
	return list.Items, r.Client.List(ctx, list, client.InNamespace(r.Namespace))
}

func whereaboutsKind(kind string) schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "whereabouts.cni.cncf.io", Version: "v1alpha1", Kind: kind}
}

// network creates a NetworkAttachmentDefinition whose ipam section has these options, and
// returns its configuration.
func (r *realWhereabouts) network(name string, options map[string]any) string {
	r.t.Helper()
	options["type"] = "whereabouts"
	options["kubernetes"] = map[string]any{"kubeconfig": r.kubeconfig}
	options["configuration_path"] = r.flatFile
	config, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": name, "type": "macvlan", "ipam": options})
	if err != nil {
		r.t.Fatal(err)
	}
	r.Network(name, string(config))
	return string(config)
}

// cni calls whereabouts as a runtime does, for net1 of a pod.
func (r *realWhereabouts) cni(ctx context.Context, verb, pod, config string) ([]netip.Addr, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, r.program)
	cmd.Env = []string{
		"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + pod + "-sandbox", "CNI_NETNS=/run/netns/none", "CNI_IFNAME=net1", "CNI_PATH=/",
		"NODENAME=" + os.Getenv("NODENAME"),
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=" + r.Namespace + ";K8S_POD_NAME=" + pod,
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(config), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s of pod %s: %w: %s%s", verb, pod, err, &stdout, &stderr)
	}
	if verb != "ADD" {
		return nil, nil
	}
	var result struct {
		IPs []struct {
			Address netip.Prefix `json:"address"`
		} `json:"ips"`
	}
	if err := json.Unmarshal(stdout.Bytes(), &result); err != nil || len(result.IPs) == 0 {
		return nil, errors.Join(err, fmt.Errorf("ADD of pod %s answered %q", pod, &stdout))
	}
	var out []netip.Addr
	for _, ip := range result.IPs {
		out = append(out, ip.Address.Addr())
	}
	return out, nil
}

// add repeats the ADD until it succeeds, as a runtime does: whereabouts gives up after
// ten seconds, or two minutes.
func (r *realWhereabouts) add(pod, config string) (addrs []netip.Addr) {
	r.t.Helper()
	r.Eventually(r.t, "ADD of pod "+pod, func(ctx context.Context) (err error) {
		addrs, err = r.cni(ctx, "ADD", pod, config)
		return err
	})
	return addrs
}

// run creates a pod that runs on a node with net1 of a network, as Multus and the kubelet
// would.
func (r *realWhereabouts) run(name, node, network, config string) (*corev1.Pod, []netip.Addr) {
	r.t.Helper()
	p := r.Pod(name, node)
	addrs := r.add(name, config)
	r.show(p, network, addrs)
	setStatus(r.t, r.Cluster, p, func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning })
	return p, addrs
}

// show writes the network-status of a pod.
func (r *realWhereabouts) show(p *corev1.Pod, network string, addrs []netip.Addr) {
	r.t.Helper()
	raw, err := json.Marshal([]map[string]any{
		{"name": "cbr0", "interface": "eth0", "ips": []string{"172.31.0.9"}, "default": true},
		{"name": r.Namespace + "/" + network, "interface": "net1", "ips": addrs},
	})
	if err != nil {
		r.t.Fatal(err)
	}
	change(r.t, r.Cluster, p, func(p *corev1.Pod) {
		p.Annotations = map[string]string{"k8s.v1.cni.cncf.io/network-status": string(raw)}
	})
}
