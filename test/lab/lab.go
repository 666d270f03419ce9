// Package lab is the laboratory of the programs of this folder: a control plane on the switch of
// netlab, and nodes with Fairlead's programs. Around it such programs share their requirements of
// the machine, their waits, and the search for remains at the end.
package lab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/test/cluster"
	"fairlead.dev/fairlead/test/harness"
	"fairlead.dev/fairlead/test/kubeclient"
	"fairlead.dev/fairlead/test/netlab"
)

// Cluster is a control plane with the programs around it.
type Cluster struct {
	harness.Reporter
	Dir      harness.Work
	Bin      string // the directory of the programs
	Programs *harness.Processes
	// Net has the switch, on which the control plane runs. Without it the control plane runs in
	// the program's own namespaces.
	Net *netlab.Lab

	// Client is the administrator's; it reads from the API server.
	client.WithWatch
	REST  *rest.Config
	Admin string // the administrator's kubeconfig
	Plane *harness.Process
}

// Switch is the place of the control plane.
func (c *Cluster) Switch() harness.Place {
	if c.Net == nil {
		return func(fn func() error) error { return fn() }
	}
	return c.Net.Switch.Do
}

// StartKubernetes starts a control plane with further flags of kubelab, and connects to it.
func (c *Cluster) StartKubernetes(ctx context.Context, flags ...string) error {
	flags = append([]string{"--dir", c.Dir.Kubelab()}, flags...)
	if c.Net != nil {
		flags = append(flags, "--bind", c.Net.Switch.Addresses()[0].Addr().String())
	}
	k, err := c.Programs.StartKubernetes(ctx, c.Switch(), filepath.Join(c.Bin, "kubelab"), flags...)
	c.Plane = k.Process
	if err != nil {
		return err
	}
	return c.Connect(k.Kubeconfig)
}

// Connect connects to the API server of a kubeconfig.
func (c *Cluster) Connect(kubeconfig string) (err error) {
	c.Admin = kubeconfig
	c.REST, c.WithWatch, err = kubeclient.Connect(kubeconfig)
	return err
}

// Kubectl runs kubectl as the administrator.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) error {
	args = append([]string{"kubectl", "--kubeconfig", c.Admin}, args...)
	_, err := c.Programs.Run(ctx, c.Switch(), filepath.Join(c.Bin, "kubelab"), args...)
	return err
}

// servedTimeout is how long the API server may take to serve new kinds.
const servedTimeout = time.Minute

// Install applies the CRDs and the rights of a checkout, as an operator does. It returns when these
// kinds and those of more, which the cluster has, are served.
func (c *Cluster) Install(ctx context.Context, source string, more ...*apiextensionsv1.CustomResourceDefinition) error {
	for _, part := range []string{"api/v1alpha1/crd", "deploy/rights"} {
		if err := c.Kubectl(ctx, "apply", "--server-side", "-k", filepath.Join(source, part)); err != nil {
			return err
		}
	}
	if err := c.Kubectl(ctx, "wait", "--for=condition=Established", "--timeout=60s", "crd", "--all"); err != nil {
		return err
	}
	crds, err := v1alpha1.CRDs()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, servedTimeout)
	defer cancel()
	return cluster.AwaitServed(ctx, c, append(crds, more...)...)
}

// Daemon prepares the controller or the node daemon with a configuration, which it writes.
func (c *Cluster) Daemon(name, program string, settings map[string]any, args ...string) (*harness.Process, error) {
	file := c.ConfigFile(name)
	if err := WriteYAML(file, settings); err != nil {
		return nil, err
	}
	return c.Programs.Command(name, filepath.Join(c.Bin, program), append(args, "--config", file, "-v", "1")...)
}

// ConfigFile is the configuration of a daemon.
func (c *Cluster) ConfigFile(name string) string { return filepath.Join(c.Dir.Tmpfs(), name+".yaml") }

// NodeAccount writes a kubeconfig with the credentials that a DaemonSet's pod has on its node: a
// token that is bound to the pod, which it creates, and so to the node.
func (c *Cluster) NodeAccount(ctx context.Context, holder *corev1.Pod, kubeconfig string) error {
	holder.Namespace = cluster.AccountNamespace
	holder.Spec.ServiceAccountName, holder.Spec.HostNetwork = cluster.NodeAccount, true
	if err := c.Create(ctx, holder); err != nil {
		return fmt.Errorf("pod for the credentials of %s: %w", holder.Spec.NodeName, err)
	}
	bound := &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: holder.Name, UID: holder.UID}
	return cluster.WriteAccount(ctx, c, c.REST, kubeconfig, cluster.NodeAccount, bound)
}

// ControllerAccount writes a kubeconfig with the credentials of the controller.
func (c *Cluster) ControllerAccount(ctx context.Context, kubeconfig string) error {
	return cluster.WriteAccount(ctx, c, c.REST, kubeconfig, cluster.ControllerAccount, nil)
}

// NewPod returns a pod that is bound to a node and ends at once. Nothing runs in it.
func NewPod(namespace, name, node string, annotations map[string]string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: annotations},
		Spec: corev1.PodSpec{
			NodeName: node, AutomountServiceAccountToken: new(false), TerminationGracePeriodSeconds: new(int64(0)),
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers:  []corev1.Container{{Name: "main", Image: "none"}},
		},
	}
}

// WriteYAML writes a configuration.
func WriteYAML(path string, value any) error {
	raw, err := yaml.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	return os.WriteFile(path, raw, 0o600)
}
