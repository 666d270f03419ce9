package apply

import (
	"context"
	"errors"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/internal/migrate/kuryr"
	"fairlead.dev/fairlead/internal/openstack/cloud"
)

// ErrNoKuryr means that the cluster has neither objects of Kuryr nor its controller.
var ErrNoKuryr = errors.New("nothing of Kuryr is in this cluster")

// ErrCloud means that OpenStack could not be read.
var ErrCloud = errors.New("OpenStack could not be read")

// Annotations of Kuryr.
const (
	annotationKuryr   = "openstack.org/kuryr-config"
	annotationProject = "openstack.org/kuryr-project"
)

func kuryrKind(name, resource string) kind {
	return kind{schema.GroupVersionKind{Group: "openstack.org", Version: "v1", Kind: name}, resource}
}

var (
	kuryrPortKind         = kuryrKind("KuryrPort", "kuryrports")
	kuryrNetworkKind      = kuryrKind("KuryrNetwork", "kuryrnetworks")
	kuryrPolicyKind       = kuryrKind("KuryrNetworkPolicy", "kuryrnetworkpolicies")
	kuryrLoadBalancerKind = kuryrKind("KuryrLoadBalancer", "kuryrloadbalancers")
)

// Kuryr is an installation of Kuryr in a cluster.
type Kuryr struct {
	API client.Client
	// Config is the content of a kuryr.conf; nil to read it from the ConfigMap of Kuryr's
	// controller.
	Config []byte
	// Own is the namespace of fairlead-controller.
	Own string
	// Cloud of Kuryr; nil to leave it out of the plan.
	Cloud KuryrCloud
}

// KuryrCloud reads a project of OpenStack.
type KuryrCloud interface {
	Project() string
	Ports(ctx context.Context, q cloud.PortQuery) ([]cloud.Port, error)
	Trunks(ctx context.Context) ([]cloud.Trunk, error)
	ProjectNetworks(ctx context.Context) ([]cloud.Network, error)
}

// Plan reads the cluster and the cloud, and returns their state and the plan. It changes
// nothing. Errors: ErrNoKuryr, ErrCloud.
func (k Kuryr) Plan(ctx context.Context) (kuryr.State, kuryr.Plan, error) {
	s := kuryr.State{Own: k.Own, Projects: map[string]string{}}
	var err error
	if s.Config, err = k.config(ctx); err != nil {
		return s, kuryr.Plan{}, err
	}
	for _, of := range []struct {
		kind kind
		to   *[]kuryr.Object
	}{{kuryrPortKind, &s.Ports}, {kuryrNetworkKind, &s.Networks}, {kuryrPolicyKind, &s.Policies}, {kuryrLoadBalancerKind, &s.LoadBalancers}} {
		objects, err := of.kind.list(ctx, k.API)
		if err != nil {
			return s, kuryr.Plan{}, err
		}
		for i := range objects {
			*of.to = append(*of.to, kuryr.Object{Namespace: objects[i].GetNamespace(), Name: objects[i].GetName(), Content: objects[i].Object})
		}
	}
	definitions, err := networkKind.list(ctx, k.API)
	if err != nil {
		return s, kuryr.Plan{}, err
	}
	for i := range definitions {
		if value, ok := definitions[i].GetAnnotations()[annotationKuryr]; ok {
			s.Definitions = append(s.Definitions, kuryr.Definition{Namespace: definitions[i].GetNamespace(), Name: definitions[i].GetName(), Kuryr: value})
		}
	}
	if s.Config == nil && len(s.Ports)+len(s.Networks)+len(s.Policies)+len(s.LoadBalancers)+len(s.Definitions) == 0 {
		return s, kuryr.Plan{}, ErrNoKuryr
	}
	var namespaces corev1.NamespaceList
	if err := k.API.List(ctx, &namespaces); err != nil {
		return s, kuryr.Plan{}, fmt.Errorf("list namespaces: %w", err)
	}
	for i := range namespaces.Items {
		if project, ok := namespaces.Items[i].Annotations[annotationProject]; ok {
			s.Projects[namespaces.Items[i].Name] = project
		}
	}
	var pods corev1.PodList
	if err := k.API.List(ctx, &pods); err != nil {
		return s, kuryr.Plan{}, fmt.Errorf("list pods: %w", err)
	}
	s.Pods = pods.Items
	plan, err := kuryr.Make(s)
	if err != nil || k.Cloud == nil {
		return s, plan, err
	}
	if s.Cloud, err = k.look(ctx, plan.Ports); err != nil {
		return s, plan, fmt.Errorf("%w: %w", ErrCloud, err)
	}
	plan, err = kuryr.Make(s)
	return s, plan, err
}

// look reads the cloud. Ports of other projects than that of the credentials are read if
// KuryrPorts name them.
func (k Kuryr) look(ctx context.Context, named []kuryr.Port) (*kuryr.Cloud, error) {
	out := &kuryr.Cloud{Project: k.Cloud.Project()}
	var err error
	if out.Ports, err = k.Cloud.Ports(ctx, cloud.PortQuery{Project: out.Project}); err != nil {
		return nil, err
	}
	has := map[string]bool{}
	for _, p := range out.Ports {
		has[p.ID] = true
	}
	var elsewhere []string
	for _, p := range named {
		if p.ID != "" && !has[p.ID] {
			has[p.ID] = true
			elsewhere = append(elsewhere, p.ID)
		}
	}
	if len(elsewhere) > 0 {
		some, err := k.Cloud.Ports(ctx, cloud.PortQuery{IDs: elsewhere})
		if err != nil {
			return nil, err
		}
		out.Ports = append(out.Ports, some...)
	}
	if out.Trunks, err = k.Cloud.Trunks(ctx); err != nil {
		return nil, err
	}
	out.Networks, err = k.Cloud.ProjectNetworks(ctx)
	return out, err
}

// config returns the configuration of Kuryr; nil if there is no Deployment of its controller
// with a ConfigMap.
func (k Kuryr) config(ctx context.Context) (*kuryr.Config, error) {
	if k.Config != nil {
		c, err := kuryr.ParseConfig(k.Config)
		if err == nil {
			c.Source = "the given file"
		}
		return c, err
	}
	var deployments appsv1.DeploymentList
	if err := k.API.List(ctx, &deployments); err != nil {
		return nil, fmt.Errorf("list Deployments: %w", err)
	}
	for i := range deployments.Items {
		d := &deployments.Items[i]
		if !strings.Contains(d.Name, "kuryr") {
			continue
		}
		if c, err := k.configOf(ctx, d); c != nil || err != nil {
			return c, err
		}
	}
	return nil, nil //nolint:nilnil // not known
}

// configOf returns the configuration in a ConfigMap of a Deployment; nil if it has none.
func (k Kuryr) configOf(ctx context.Context, d *appsv1.Deployment) (*kuryr.Config, error) {
	for _, v := range d.Spec.Template.Spec.Volumes {
		if v.ConfigMap == nil {
			continue
		}
		o := &corev1.ConfigMap{}
		err := k.API.Get(ctx, client.ObjectKey{Namespace: d.Namespace, Name: v.ConfigMap.Name}, o)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read ConfigMap %s/%s of Deployment %s: %w", d.Namespace, v.ConfigMap.Name, d.Name, err)
		}
		if c, err := kuryr.ParseConfig([]byte(o.Data["kuryr.conf"])); err == nil { // it may be another file
			c.Source = fmt.Sprintf("ConfigMap %s/%s", o.Namespace, o.Name)
			return c, nil
		}
	}
	return nil, nil //nolint:nilnil // not known
}
