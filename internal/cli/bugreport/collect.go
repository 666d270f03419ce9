package bugreport

import (
	"context"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/cli/kube"
	"fairlead.dev/fairlead/internal/run"
)

// source is the cluster; kube.Bundle is one.
type source interface {
	Objects(ctx context.Context, r schema.GroupVersionResource, namespace string) (*unstructured.UnstructuredList, error)
	Log(ctx context.Context, namespace, pod, container string, previous bool, limit int64) (io.ReadCloser, error)
}

// archive takes files.
type archive interface {
	add(name string, content []byte) error
}

const (
	// maxLog is the largest part of a log, in bytes.
	maxLog = 8 << 20
	// maxDaemons is the number of nodes whose daemons' logs are read unless nodes are named.
	maxDaemons = 20
	// networksGroup has kinds of other projects, which a cluster may lack.
	networksGroup = "k8s.cni.cncf.io"
)

// listing is a resource to read. Those of the installation are read in its namespace only.
type listing struct {
	schema.GroupVersionResource
	installation bool
}

// listings returns the resources to read: Fairlead's own, those that they depend on, and the
// installation.
func listings() ([]listing, error) {
	crds, err := v1alpha1.CRDs()
	if err != nil {
		return nil, err
	}
	var out []listing
	for _, crd := range crds {
		out = append(out, listing{schema.GroupVersionResource{Group: crd.Spec.Group, Version: crd.Spec.Versions[0].Name, Resource: crd.Spec.Names.Plural}, false})
	}
	of := func(group, version string, installation bool, resources ...string) {
		for _, r := range resources {
			out = append(out, listing{schema.GroupVersionResource{Group: group, Version: version, Resource: r}, installation})
		}
	}
	of("", "v1", false, "nodes", "pods", "namespaces")
	of("events.k8s.io", "v1", false, "events")
	of(networksGroup, "v1", false, "network-attachment-definitions")
	of(networksGroup, "v1alpha1", false, "ipamclaims")
	of("", "v1", true, "configmaps")
	of("apps", "v1", true, "deployments", "daemonsets")
	of("coordination.k8s.io", "v1", true, "leases")
	return out, nil
}

// collector writes a report.
type collector struct {
	from   source
	to     archive
	system string   // the namespace of the installation
	nodes  []string // whose daemons' logs are read; empty for the first maxDaemons
	// failed are the parts that could not be read.
	failed []string
	// absent are the kinds of other projects that the cluster does not have.
	absent []string
}

// collect writes the report. A part that cannot be read is listed in the file index.txt, and
// hinders no other.
func (c *collector) collect(ctx context.Context, now time.Time) error {
	all, err := listings()
	if err != nil {
		return err
	}
	var programs []corev1.Pod
	for _, l := range all {
		pods, err := c.objects(ctx, l)
		if err != nil {
			return err
		}
		programs = append(programs, pods...)
	}
	if err := c.logs(ctx, programs); err != nil {
		return err
	}
	return c.to.add("index.txt", []byte(c.index(now)))
}

func (c *collector) index(now time.Time) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Report of Fairlead, made by fairlead bugreport %s at %s.\n\n", run.Version, now.UTC().Format(time.RFC3339))
	b.WriteString("It has names, addresses and logs. It has no Secret, no environment or argument of a container,\nand no annotation of other programs.\n\n")
	for _, a := range c.absent {
		fmt.Fprintf(&b, "The cluster has no %s.\n", a)
	}
	if len(c.failed) == 0 {
		b.WriteString("Everything was read.\n")
		return b.String()
	}
	b.WriteString("Not read:\n")
	for _, f := range c.failed {
		fmt.Fprintf(&b, "  %s\n", f)
	}
	return b.String()
}

// objects adds the objects of a resource, and returns Fairlead's own pods among them.
func (c *collector) objects(ctx context.Context, l listing) (programs []corev1.Pod, err error) {
	namespace := ""
	if l.installation {
		namespace = c.system
	}
	list, err := c.from.Objects(ctx, l.GroupVersionResource, namespace)
	if l.Group == networksGroup && apierrors.IsNotFound(err) {
		c.absent = append(c.absent, l.GroupResource().String())
		return nil, nil
	}
	if err != nil {
		c.failed = append(c.failed, fmt.Sprintf("%s: %v", l.GroupResource(), err))
		return nil, ctx.Err()
	}
	for i := range list.Items {
		o := &list.Items[i]
		if l.Resource == "pods" && o.GetNamespace() == c.system && o.GetLabels()[kube.LabelProgram] != "" {
			var p corev1.Pod
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &p); err != nil {
				return nil, fmt.Errorf("pod %s/%s: %w", o.GetNamespace(), o.GetName(), err)
			}
			programs = append(programs, p)
		}
		redact(o)
	}
	raw, err := yaml.Marshal(list)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", l.GroupResource(), err)
	}
	return programs, c.to.add(path.Join("objects", l.GroupResource().String()+".yaml"), raw)
}

// logs adds the logs of the controllers, and of the daemons of some nodes.
func (c *collector) logs(ctx context.Context, programs []corev1.Pod) error {
	daemons := 0
	for _, p := range programs {
		if p.Labels[kube.LabelProgram] == kube.DaemonName {
			if !c.wanted(p.Spec.NodeName, daemons) {
				continue
			}
			daemons++
		}
		for _, container := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
			for _, previous := range []bool{false, true} {
				if err := c.log(ctx, p, container.Name, previous); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// wanted reports whether the logs of a node's daemon are read, after those of so many others.
func (c *collector) wanted(node string, others int) bool {
	return slices.Contains(c.nodes, node) || len(c.nodes) == 0 && others < maxDaemons
}

func (c *collector) log(ctx context.Context, p corev1.Pod, container string, previous bool) error {
	name := container + ".log"
	if previous {
		name = container + ".previous.log"
	}
	stream, err := c.from.Log(ctx, p.Namespace, p.Name, container, previous, maxLog)
	if err == nil {
		var raw []byte
		raw, err = io.ReadAll(io.LimitReader(stream, maxLog))
		_ = stream.Close() // it was read
		if err == nil {
			return c.to.add(path.Join("logs", p.Name, name), raw)
		}
	}
	if !previous { // most containers have not restarted
		c.failed = append(c.failed, fmt.Sprintf("the log of %s/%s, container %s: %v", p.Namespace, p.Name, container, err))
	}
	return ctx.Err()
}
