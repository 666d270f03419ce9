package kuryr

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"fairlead.dev/fairlead/internal/config"
)

// labelName is the label of a namespace with its name.
const labelName = "kubernetes.io/metadata.name"

// toChange stands for a name that the cluster does not have.
const toChange = "change-this"

var clusterName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$`)

// part is the part of fairlead-controller's file that a migration needs.
type part struct {
	Sources        []string         `json:"multiVIFSources,omitempty"`
	Networks       *networks        `json:"networks,omitempty"`
	DefaultNetwork *defaultNetwork  `json:"defaultNetwork,omitempty"`
	OpenStack      config.OpenStack `json:"openstack"`
}

type (
	networks struct {
		AttachedBy string `json:"attachedBy"`
	}
	defaultNetwork struct {
		Driver string `json:"driver"`
	}
)

// configuration returns the part of fairlead-controller's file that serves what Kuryr serves,
// as far as Fairlead does.
func (s State) configuration(ports []Port) (string, error) {
	p := part{OpenStack: config.OpenStack{Cluster: toChange, Ports: config.Ports{PortSecurity: true}}}
	o := &p.OpenStack
	if tags := s.Config.list("neutron_defaults.resource_tags"); len(tags) > 0 && clusterName.MatchString(strings.ToLower(tags[0])) {
		o.Cluster = strings.ToLower(tags[0])
	}
	o.NeutronPort = s.way()
	if len(ports) > 0 {
		p.DefaultNetwork = &defaultNetwork{config.DriverNeutron}
		o.NamespaceNetworks = s.namespaceNetworks()
		o.Ports.Network, o.Ports.Subnets = cmp.Or(s.mostUsed(ports), toChange), few(s.Config.list("neutron_defaults.pod_subnet"))
		o.Ports.SecurityGroups = few(s.Config.list("neutron_defaults.pod_security_groups"))
	}
	if projects := s.Config.list("neutron_defaults.project"); len(projects) == 1 && isProject(projects[0]) {
		o.Project = projects[0]
	}
	open := map[string]*config.CloudOpening{}
	of := func(namespace string) *config.CloudOpening {
		if open[namespace] == nil {
			open[namespace] = &config.CloudOpening{NamespaceSelector: metav1.LabelSelector{MatchLabels: map[string]string{labelName: namespace}}}
		}
		return open[namespace]
	}
	for _, d := range s.Definitions {
		p.Sources, p.Networks = []string{config.SourceNPWG}, &networks{"Fairlead"}
		subnet, err := d.subnet()
		if err != nil || d.Namespace == s.Own {
			continue
		}
		if to := of(d.Namespace); !slices.Contains(to.Subnets, subnet) {
			to.Subnets = append(to.Subnets, subnet)
		}
	}
	for namespace, project := range s.Projects {
		if isProject(project) {
			of(namespace).Projects = []string{project}
		}
	}
	for _, namespace := range slices.Sorted(maps.Keys(open)) {
		slices.Sort(open[namespace].Subnets)
		o.Open = append(o.Open, *open[namespace])
	}
	out, err := yaml.Marshal(p)
	if err != nil {
		return "", fmt.Errorf("configuration of fairlead-controller: %w", err)
	}
	return string(out), nil
}

// way returns the value of openstack.neutronPort; empty for its default, or if a driver of
// Kuryr has no successor.
func (s State) way() string {
	if s.Config == nil {
		return ""
	}
	return map[string]string{"nested-vlan": "trunk", "nested-macvlan": "macvlan"}[s.Config.Options["kubernetes.pod_vif_driver"]]
}

// namespaceNetworks returns the configuration of networks of namespaces; nil if Kuryr makes
// none.
func (s State) namespaceNetworks() *config.NamespaceNetworks {
	if s.Config == nil || s.Config.Options["kubernetes.pod_subnets_driver"] != "namespace" {
		return nil
	}
	n := &config.NamespaceNetworks{Router: toChange, SubnetPools: []string{toChange}}
	if router := s.Config.Options["namespace_subnet.pod_router"]; isProject(router) {
		n.Router = router
	}
	if pool := s.Config.Options["namespace_subnet.pod_subnet_pool"]; isProject(pool) {
		n.SubnetPools = []string{pool}
	}
	return n
}

// few returns the first names that are names of the cloud, as many as the configuration may
// have.
func few(names []string) []string {
	names = slices.DeleteFunc(names, func(n string) bool { return !isProject(n) })
	return names[:min(len(names), 16)]
}

// mostUsed returns the network of most ports on eth0 that is no network of a namespace; empty
// if there is none.
func (s State) mostUsed(ports []Port) string {
	users, own := map[string]int{}, map[string]bool{}
	for _, o := range s.Networks {
		own[text(o.Content, "status", "netId")] = true
	}
	for _, p := range ports {
		if p.Interface == "eth0" && uuid.MatchString(p.Network) && !own[p.Network] {
			users[p.Network]++
		}
	}
	best := ""
	for _, network := range slices.Sorted(maps.Keys(users)) {
		if users[network] > users[best] {
			best = network
		}
	}
	return best
}
