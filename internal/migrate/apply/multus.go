package apply

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
	"fairlead.dev/fairlead/internal/migrate/multus"
	"fairlead.dev/fairlead/internal/nad"
)

// ErrNoMultus means that the cluster has neither networks nor Multus.
var ErrNoMultus = errors.New("nothing of Multus is in this cluster")

// Multus is an installation of Multus in a cluster.
type Multus struct {
	API client.Client
	// Config is the content of a file with Multus' configuration; nil to read it from the
	// ConfigMap of Multus' DaemonSet.
	Config []byte
	// Own is the namespace of fairlead-controller.
	Own string
	// FlatFile is the content of the nodes' whereabouts.conf, and may be empty.
	FlatFile []byte
}

// Plan reads the cluster, and returns its state and the plan. It changes nothing. Errors:
// ErrNoMultus.
func (m Multus) Plan(ctx context.Context) (multus.State, multus.Plan, error) {
	s := multus.State{Own: m.Own, FlatFile: m.FlatFile}
	var err error
	if s.Config, err = m.config(ctx); err != nil {
		return s, multus.Plan{}, err
	}
	objects, err := networkKind.list(ctx, m.API)
	if err != nil {
		return s, multus.Plan{}, err
	}
	if s.Config == nil && len(objects) == 0 {
		return s, multus.Plan{}, ErrNoMultus
	}
	for i := range objects {
		o, err := decode[networkObject](&objects[i])
		if err != nil { // the reason is that of the network
			o.Spec.Config = "spec.config is no text"
		}
		annotations := objects[i].GetAnnotations()
		s.Networks = append(s.Networks, multus.Definition{
			Namespace: objects[i].GetNamespace(), Name: objects[i].GetName(), Config: o.Spec.Config,
			Driver: annotations[v1alpha1.AnnotationDriver], Resource: annotations[nad.AnnotationResource],
		})
	}
	var pods corev1.PodList
	if err := m.API.List(ctx, &pods); err != nil {
		return s, multus.Plan{}, fmt.Errorf("list pods: %w", err)
	}
	s.Pods = pods.Items
	plan, err := multus.Make(s)
	return s, plan, err
}

// config returns the configuration of Multus; nil if there is no DaemonSet of Multus, or
// its configuration is a file of the nodes.
func (m Multus) config(ctx context.Context) (*multus.Config, error) {
	if m.Config != nil {
		c, err := multus.ParseConfig(m.Config)
		c.Source = "the given file"
		return &c, err
	}
	var daemons appsv1.DaemonSetList
	if err := m.API.List(ctx, &daemons); err != nil {
		return nil, fmt.Errorf("list DaemonSets: %w", err)
	}
	for i := range daemons.Items {
		for _, container := range daemons.Items[i].Spec.Template.Spec.Containers {
			if !isMultus(container) {
				continue
			}
			if c, err := m.configOf(ctx, &daemons.Items[i], container); c != nil || err != nil {
				return c, err
			}
		}
	}
	return nil, nil //nolint:nilnil // not known
}

// isMultus reports whether a container runs Multus: by its command or its image.
func isMultus(c corev1.Container) bool {
	image, _, _ := strings.Cut(c.Image[strings.LastIndex(c.Image, "/")+1:], "@")
	image, _, _ = strings.Cut(image, ":")
	return strings.Contains(image, "multus-cni") || strings.Contains(strings.Join(c.Command, " "), "multus-daemon")
}

// configOf returns the configuration of a DaemonSet: of the arguments of its container,
// otherwise of its ConfigMaps.
func (m Multus) configOf(ctx context.Context, d *appsv1.DaemonSet, container corev1.Container) (*multus.Config, error) {
	of := fmt.Sprintf("DaemonSet %s/%s", d.Namespace, d.Name)
	command := strings.Join(container.Command, " ")
	if strings.Contains(command, "entrypoint") {
		if c, ok := multus.ParseArgs(slices.Concat(container.Command, container.Args)); ok {
			c.Source = of
			return &c, nil
		}
	}
	for _, v := range d.Spec.Template.Spec.Volumes {
		if v.ConfigMap == nil {
			continue
		}
		o := &corev1.ConfigMap{}
		err := m.API.Get(ctx, client.ObjectKey{Namespace: d.Namespace, Name: v.ConfigMap.Name}, o)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read ConfigMap %s/%s of %s: %w", d.Namespace, v.ConfigMap.Name, of, err)
		}
		for _, key := range slices.Sorted(maps.Keys(o.Data)) {
			if c, err := multus.ParseConfig([]byte(o.Data[key])); err == nil { // it may have other files
				c.Source = fmt.Sprintf("ConfigMap %s/%s", o.Namespace, o.Name)
				return &c, nil
			}
		}
	}
	return nil, nil //nolint:nilnil // not known
}

// Switch examines whether a node can be switched, and if label is true and nothing bars it,
// labels the Node: Fairlead attaches the pods that start there from now on. Errors:
// ErrNoMultus.
func (m Multus) Switch(ctx context.Context, node string, label bool) (multus.Switch, error) {
	o := &corev1.Node{}
	if err := m.API.Get(ctx, client.ObjectKey{Name: node}, o); err != nil {
		return multus.Switch{}, fmt.Errorf("read Node %s: %w", node, err)
	}
	err := m.API.Get(ctx, client.ObjectKey{Name: node}, &v1alpha1.NodeNetwork{})
	if client.IgnoreNotFound(err) != nil {
		return multus.Switch{}, fmt.Errorf("read NodeNetwork %s: %w", node, err)
	}
	daemon := err == nil
	s, plan, err := m.Plan(ctx)
	if err != nil {
		return multus.Switch{}, err
	}
	out := plan.Switch(s, o, daemon)
	if !label || len(out.Obstacles) > 0 {
		return out, nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid":    o.UID, // of no other Node of this name
		"labels": map[string]string{v1alpha1.LabelAttachedBy: v1alpha1.AttachedByFairlead},
	}})
	if err != nil {
		return out, err
	}
	target := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
	if err := m.API.Patch(ctx, target, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return out, fmt.Errorf("label Node %s: %w", node, err)
	}
	return out, nil
}
