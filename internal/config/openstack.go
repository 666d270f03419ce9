package config

import (
	"fmt"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// OpenStack configures the use of an OpenStack cloud. Without a Cluster there is none.
type OpenStack struct {
	// Cluster names this cluster among all that use the same cloud: 1 to 40 of a-z, 0-9 and
	// "-". What Fairlead makes in the cloud bears it, so it never changes.
	Cluster string `json:"cluster,omitempty"`
	// CloudsFile is the path of a clouds.yaml with the credentials; default
	// "/etc/fairlead/openstack/clouds.yaml". It is read again when they are refused.
	CloudsFile string `json:"cloudsFile,omitempty"`
	// Cloud is the name of an entry of CloudsFile; default "openstack".
	Cloud string `json:"cloud,omitempty"`
	// Project is the ID of the project of the ports; empty for that of the credentials.
	Project string `json:"project,omitempty"`
	// HostLabel is the label of a Node with the host name of its OVN controller or OVS
	// agent. Without it the host is the Node's name.
	HostLabel string `json:"hostLabel,omitempty"`
	// NeutronPort is how ports are made ready on nodes without the label
	// fairlead.dev/neutron-port: "host", the default, on the node's Open vSwitch; "trunk", as
	// subports of the trunk of the node's machine; "macvlan", by allowed address pairs of the
	// port of the node's machine.
	NeutronPort string `json:"neutronPort,omitempty"`
	// Ports configures the ports of the default network, if defaultNetwork.driver is
	// "neutron".
	Ports Ports `json:"ports"`
	// Open lists what networks and pods may name in the cloud, by namespace, at most 64
	// entries. Networks of the controller's own namespace (leaderElection.namespace) may
	// name all.
	Open []CloudOpening `json:"open,omitempty"`
	// Fabric lets the cloud carry packets of pods without an overlay. Absent, the default,
	// nothing in the cloud is changed for them.
	Fabric *Fabric `json:"fabric,omitempty"`
	// NamespaceNetworks gives namespaces networks of their own for the default interfaces of
	// their pods. Absent, the default, all are on ports.network.
	NamespaceNetworks *NamespaceNetworks `json:"namespaceNetworks,omitempty"`
}

// NamespaceNetworks configures networks of namespaces.
type NamespaceNetworks struct {
	// NamespaceSelector selects the namespaces by label; empty selects all.
	NamespaceSelector metav1.LabelSelector `json:"namespaceSelector"`
	// OnRequest confines them to those with the label fairlead.dev/network: own.
	OnRequest bool `json:"onRequest,omitempty"`
	// SubnetPools are the IDs or names of subnet pools, one per family. The default prefix
	// length of a pool is that of each subnet.
	SubnetPools []string `json:"subnetPools"`
	// Router is the ID or name of the router that gets an interface in each subnet.
	Router string `json:"router"`
}

// Ports configures the ports of the default network.
type Ports struct {
	// Network is the ID or name of a network in the cloud.
	Network string `json:"network,omitempty"`
	// Subnets are IDs or names of its subnets, at most 16. A pod gets an address of the first
	// of each family that has one left. Empty lets Neutron choose.
	Subnets []string `json:"subnets,omitempty"`
	// NodeSubnets are subnets of the network for some nodes in place of Subnets, as for those of
	// a zone; at most 64 entries. The first entry that selects a node counts.
	NodeSubnets []NodeSubnets `json:"nodeSubnets,omitempty"`
	// SecurityGroups are IDs or names, at most 16, also of ports on further networks that
	// name none. Empty is the default group of the project.
	SecurityGroups []string `json:"securityGroups,omitempty"`
	// QoSPolicy is the ID or name of a QoS policy; empty for none.
	QoSPolicy string `json:"qosPolicy,omitempty"`
	// PortSecurity is true, the default, if Neutron checks the sources of packets and applies
	// security groups.
	PortSecurity bool `json:"portSecurity"`
	// DNSName gives each port the name of its pod for Neutron's DNS.
	DNSName bool `json:"dnsName,omitempty"`
	// Pools keeps ports ready on each node, so that a pod starts without a call of Neutron.
	Pools PortPools `json:"pools,omitzero"`
}

// NodeSubnets are the subnets of the pods of some nodes.
type NodeSubnets struct {
	// NodeSelector selects the nodes by label; empty selects all.
	NodeSelector metav1.LabelSelector `json:"nodeSelector"`
	// Subnets are as Ports.Subnets, at least one.
	Subnets []string `json:"subnets"`
}

func (p Ports) validateNodeSubnets(v *invalid) {
	const field = "openstack.ports.nodeSubnets"
	v.check(len(p.NodeSubnets) <= maxOpened, field, len(p.NodeSubnets), "must be at most 64 entries")
	for i := range p.NodeSubnets {
		n, at := &p.NodeSubnets[i], fmt.Sprintf("%s[%d]", field, i)
		if _, err := metav1.LabelSelectorAsSelector(&n.NodeSelector); err != nil {
			v.check(false, at+".nodeSelector", n.NodeSelector.String(), err.Error())
		}
		v.check(len(n.Subnets) > 0, at+".subnets", n.Subnets, "must name at least one subnet")
		cloudNames(v, at+".subnets", n.Subnets, maxCloudNames)
	}
}

// PortPools configures the pools of ready ports: one for each node, network, project and set
// of security groups that pods ask for. A pod that asks for an address, a MAC, a DNS name or a
// QoS policy gets a port of its own.
type PortPools struct {
	// Low is the number of ready ports below which a pool is filled; 0 to 64. 0, the default,
	// is no pools.
	Low int `json:"low,omitempty"`
	// High is the number of ready ports above which ports are deleted; low to 64, at least 1,
	// default 16.
	High int `json:"high,omitempty"`
	// Batch is the largest number of ports that one request makes; 1 to 64, default 20.
	Batch int `json:"batch,omitempty"`
}

// Defaults and bound of PortPools.
const (
	defaultHigh    = 16
	defaultBatch   = 20
	maxPooledPorts = 64
)

func (p PortPools) validate(v *invalid) {
	v.check(p.Low >= 0 && p.Low <= maxPooledPorts, "openstack.ports.pools.low", p.Low, "must be 0 to 64; 0 is no pools")
	v.check(p.High >= p.Low && p.High >= 1 && p.High <= maxPooledPorts, "openstack.ports.pools.high", p.High, "must be low to 64, and at least 1")
	v.check(p.Batch >= 1 && p.Batch <= maxPooledPorts, "openstack.ports.pools.batch", p.Batch, "must be 1 to 64")
}

// CloudOpening opens things in the cloud to some namespaces: names or IDs as networks and
// pods write them, or patterns with * for any characters (path.Match).
type CloudOpening struct {
	// NamespaceSelector selects the namespaces by label; empty selects all.
	NamespaceSelector metav1.LabelSelector `json:"namespaceSelector"`
	// Networks that their networks may have ports on, with all subnets.
	Networks []string `json:"networks,omitempty"`
	// Subnets that their networks may name without a network.
	Subnets []string `json:"subnets,omitempty"`
	// SecurityGroups that their networks and pods may name.
	SecurityGroups []string `json:"securityGroups,omitempty"`
	// QoSPolicies that their networks may name.
	QoSPolicies []string `json:"qosPolicies,omitempty"`
	// Projects that their networks and the annotation openstack.org/kuryr-project may name.
	// Names are looked up once the connection is made.
	Projects []string `json:"projects,omitempty"`
	// PortSecurityOff lets their networks have ports without port security.
	PortSecurityOff bool `json:"portSecurityOff,omitempty"`
}

// DriverNeutron is the driver of ports of OpenStack.
const DriverNeutron = "neutron"

// neutronPorts are the values of NeutronPort.
var neutronPorts = []string{"host", "trunk", "macvlan"}

// maxCloudNames bounds the lists of Ports.
const maxCloudNames = 16

var (
	clusterName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$`)
	projectID   = regexp.MustCompile(`^[a-zA-Z0-9_-]{0,64}$`)
)

// isCloudName reports whether a text may be a name in Neutron.
func isCloudName(s string) bool {
	return s != "" && len(s) <= 255 && strings.TrimSpace(s) == s && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f })
}

// validateOpenStack adds the problems of OpenStack to v.
func (c *Controller) validateOpenStack(v *invalid) {
	o, d := &c.OpenStack, c.DefaultNetwork
	v.check(o.Cluster == "" || clusterName.MatchString(o.Cluster), "openstack.cluster", o.Cluster, "must have 1 to 40 of a-z, 0-9 and '-', and begin and end with a letter or digit; or be empty, for no OpenStack")
	v.check(o.Cluster != "" || o.Ports.Network == "" && o.Ports.Pools.Low == 0 && len(o.Open) == 0, "openstack.cluster", o.Cluster, "must not be empty if openstack.ports.network, openstack.ports.pools.low or openstack.open is set")
	v.check(d.Driver != DriverNeutron || o.Cluster != "" && o.Ports.Network != "", "openstack.ports.network", o.Ports.Network, `must name a network, and openstack.cluster this cluster, with defaultNetwork.driver "neutron"`)
	v.check(d.Driver != DriverNeutron || d.Binding == BindingRouted, "defaultNetwork.binding", d.Binding, `must be "routed", its default, with defaultNetwork.driver "neutron": the node plugs the ports itself`)
	v.check(filepath.IsAbs(o.CloudsFile), "openstack.cloudsFile", o.CloudsFile, "must be an absolute path")
	v.check(o.Cloud != "", "openstack.cloud", o.Cloud, "must be the name of an entry of cloudsFile")
	v.check(projectID.MatchString(o.Project), "openstack.project", o.Project, "must be the ID of a project: at most 64 of a-z, A-Z, 0-9, '_' and '-'; or empty")
	v.check(o.HostLabel == "" || len(validation.IsQualifiedName(o.HostLabel)) == 0, "openstack.hostLabel", o.HostLabel, "must be the key of a label, or empty")
	v.check(slices.Contains(neutronPorts, o.NeutronPort), "openstack.neutronPort", o.NeutronPort, fmt.Sprintf("must be one of %q", neutronPorts))
	p := o.Ports
	v.check(p.Network == "" || isCloudName(p.Network), "openstack.ports.network", p.Network, "must be an ID or a name of at most 255 characters")
	v.check(p.QoSPolicy == "" || isCloudName(p.QoSPolicy), "openstack.ports.qosPolicy", p.QoSPolicy, "must be the ID or the name of a QoS policy, or empty")
	v.check(p.PortSecurity || len(p.SecurityGroups) == 0, "openstack.ports.securityGroups", p.SecurityGroups, "must be empty with portSecurity false: Neutron applies no groups then")
	cloudNames(v, "openstack.ports.subnets", p.Subnets, maxCloudNames)
	cloudNames(v, "openstack.ports.securityGroups", p.SecurityGroups, maxCloudNames)
	p.validateNodeSubnets(v)
	p.Pools.validate(v)
	v.check(len(o.Open) <= maxOpened, "openstack.open", len(o.Open), "must be at most 64 entries")
	for i := range o.Open {
		o.Open[i].validate(v, fmt.Sprintf("openstack.open[%d]", i))
	}
	if n := o.NamespaceNetworks; n != nil {
		v.check(d.Driver == DriverNeutron, "openstack.namespaceNetworks", d.Driver, `must be absent unless defaultNetwork.driver is "neutron": only default interfaces are on networks of namespaces`)
		n.validate(v)
	}
	c.validateFabric(v)
}

func (n *NamespaceNetworks) validate(v *invalid) {
	const field = "openstack.namespaceNetworks"
	if _, err := metav1.LabelSelectorAsSelector(&n.NamespaceSelector); err != nil {
		v.check(false, field+".namespaceSelector", n.NamespaceSelector.String(), err.Error())
	}
	v.check(len(n.SubnetPools) == 1 || len(n.SubnetPools) == 2, field+".subnetPools", n.SubnetPools, "must be one subnet pool of each family that pods have")
	cloudNames(v, field+".subnetPools", n.SubnetPools, len(n.SubnetPools))
	v.check(isCloudName(n.Router), field+".router", n.Router, "must be an ID or a name of 1 to 255 characters")
}

func cloudNames(v *invalid, field string, names []string, most int) {
	v.check(len(names) <= most, field, len(names), fmt.Sprintf("must be at most %d", most))
	for i, name := range names {
		v.check(isCloudName(name), fmt.Sprintf("%s[%d]", field, i), name, "must be an ID or a name of 1 to 255 characters")
	}
}

func (o *CloudOpening) validate(v *invalid, field string) {
	if _, err := metav1.LabelSelectorAsSelector(&o.NamespaceSelector); err != nil {
		v.check(false, field+".namespaceSelector", o.NamespaceSelector.String(), err.Error())
	}
	for _, list := range []struct {
		name  string
		parts []string
	}{{"networks", o.Networks}, {"subnets", o.Subnets}, {"securityGroups", o.SecurityGroups}, {"qosPolicies", o.QoSPolicies}, {"projects", o.Projects}} {
		cloudNames(v, field+"."+list.name, list.parts, maxOpened)
		for i, part := range list.parts {
			_, err := path.Match(part, "")
			v.check(err == nil, fmt.Sprintf("%s.%s[%d]", field, list.name, i), part, "must be a name, an ID, or a pattern as lan-*")
		}
	}
}
